"""The one registry: which operation of PyTorch is understood, and by what.

An operation is a module type, a function, or a method of Tensor. It is understood either by a *builder*, which turns one
call into one dual layer, or by a *rewrite*, which expresses the call in simpler operations. There is no second list. At the
end of this file, a table says what to do about operations that are not understood.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from autodual._errors import ArgumentError
from autodual._tensor import Shape, is_being_captured

Target: TypeAlias = type[nn.Module] | Callable[..., Any]
Builder: TypeAlias = Callable[["Call"], Any]
Registered = TypeVar("Registered", bound=Callable[..., Any])

_MISSING = object()
_OTHER_NAMES = {
    "dim": ("axis",), "keepdim": ("keepdims",), "input": ("x", "a", "x1"), "other": ("x2", "mat2"),
    "dim0": ("axis0",), "dim1": ("axis1",),
}  # fmt: skip
"""Names that PyTorch takes for the same argument."""


@dataclass(frozen=True)
class Operand:
    """Stands for an argument that depends on the network's input."""

    shape: Shape


@dataclass(frozen=True)
class Call:
    """One use of an operation, with today's parameter values, as a builder sees it."""

    path: str
    shape: Shape
    module: Any
    """The module that was called; None for a function."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    clean: tuple[Tensor, ...] | None = None
    """Values of the operands on the clean batch, when a training step provides them."""
    dtype: torch.dtype | None = None
    """What the network computes in; None when a builder is called by hand."""

    def floating(self, constant: Tensor) -> torch.dtype:
        """The dtype in which a constant takes part: the network's own, or else that of a floating-point constant."""
        if self.dtype is not None:
            return self.dtype
        return constant.dtype if constant.is_floating_point() else torch.get_default_dtype()

    def argument(self, position: int, name: str, default: Any = _MISSING) -> Any:
        """The argument given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        given = (n for n in (name, *_OTHER_NAMES.get(name, ())) if n in self.kwargs)
        value = self.kwargs.get(next(given, name), default)
        if value is _MISSING:
            raise ArgumentError(f"{self.path}: argument {name!r} is missing")
        return value

    @property
    def operands(self) -> tuple[Operand, ...]:
        flat: list[Operand] = []
        for value in (*self.args, *self.kwargs.values()):
            flat.extend(v for v in (value if isinstance(value, list | tuple) else (value,)) if isinstance(v, Operand))
        return tuple(flat)

    @property
    def operand(self) -> Operand:
        return self.operands[0]

    def dimension(self, dim: int) -> int:
        """A dimension counted with the batch, as PyTorch does, becomes one of the example; the batch itself is refused."""
        rank = len(self.operand.shape) + 1
        if not -rank <= dim < rank:
            raise ArgumentError(f"{self.path}: dimension {dim} does not exist in a tensor of {rank} dimensions")
        if dim % rank == 0:
            raise ArgumentError(
                f"{self.path}: the operation works across the batch dimension, so one example's output would depend "
                f"on the others; certificates are per example. Keep dimension 0 for the batch"
            )
        return dim % rank - 1

    def constant(self, value: Any, like: Shape) -> Tensor:
        """A tensor or number that broadcasts against an operand, without its batch dimension."""
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
        if tensor.dim() <= len(like):
            return tensor
        rows = tensor if tensor.dim() == len(like) + 1 else tensor.squeeze(0)
        checked = rows.shape[0] == self.batch and is_being_captured(rows)  # in the steps before the capture
        if rows.shape[0] == 1 or checked or (rows.shape[0] == self.batch and bool((rows == rows[:1]).all())):
            return rows[0]
        raise ArgumentError(
            f"{self.path}: a constant of shape {tuple(tensor.shape)} differs between the examples of a batch; "
            f"certificates need one network for all examples"
        )


@dataclass
class Registry:
    """Maps operations to builders and rewrites."""

    builders: dict[Target, Builder] = field(default_factory=dict)
    rewrites: dict[Target, Callable[..., Any]] = field(default_factory=dict)
    bodies: dict[Target, dict[str, Any]] = field(default_factory=dict)
    """The methods that a call of a registered module runs, as they were when it was registered."""

    def register(self, *targets: Target) -> Callable[[Registered], Registered]:
        """Teach all engines an operation: a decorator for its dual layer, or for a function from `Call` to one.

        The fields of a dual layer that is a dataclass are read from the module's attributes of the same names, or filled by the
        function's arguments after the first, in order or by name.

        Args:
            *targets: Module types, functions and methods of Tensor that the dual layer is for.

        Returns:
            A decorator, which returns what it decorates.

        Raises:
            ArgumentError: No operation is named.

        Examples:
            >>> import torch
            >>> import autodual as ad
            >>> class Square(torch.nn.Module):
            ...     def forward(self, x):
            ...         return x * x.abs()
            >>> @ad.register(Square)
            ... class DualSquare(ad.CurvedDual):
            ...     breakpoints = (0.0,)
            ...     def value(self, z):
            ...         return z * z.abs()
            ...     def derivative(self, z):
            ...         return 2 * z.abs()
            >>> ad.bounds(Square().eval(), ad.LinfBall(1.0).around(torch.zeros(1, 1))).output.upper
            tensor([[1.0000]])
        """
        if not targets:
            raise ArgumentError("register() needs at least one module type or function")

        def add(builder: Registered) -> Registered:
            lacking = ", ".join(sorted(getattr(builder, "__abstractmethods__", ())))
            if lacking:
                raise ArgumentError(
                    f"{getattr(builder, '__name__', builder)}: has no {lacking}; a dual layer must define each of these"
                )
            build = _from_fields(builder) if inspect.isclass(builder) else builder
            self.builders.update(dict.fromkeys(targets, build))
            self.bodies.update({t: _body(t) for t in targets})
            return builder

        return add

    def rewrite(self, *targets: Target) -> Callable[[Registered], Registered]:
        """Teach all engines an operation in terms of others: a decorator for a function that computes the same value with those.

        For a module type, the function is called with the module first. It may return NotImplemented to leave a call as it is. What it
        computes is compared with the operation on the given inputs before anything is proved.

        Args:
            *targets: Module types, functions and methods of Tensor that are replaced.

        Returns:
            A decorator, which returns what it decorates.

        Examples:
            >>> import torch
            >>> import autodual as ad
            >>> class Turn(torch.nn.Module):
            ...     def forward(self, x):
            ...         return torch.roll(x, 1, dims=1)
            >>> @ad.rewrite(Turn)
            ... def turn(module, x):
            ...     return torch.cat([x[:, -1:], x[:, :-1]], dim=1)
            >>> ad.bounds(Turn().eval(), ad.LinfBall(0.5).around(torch.tensor([[1.0, 2.0]]))).output.lower.round(decimals=3)
            tensor([[1.5000, 0.5000]])
        """

        def add(function: Registered) -> Registered:
            self.rewrites.update(dict.fromkeys(targets, function))
            self.bodies.update({t: _body(t) for t in targets})
            return function

        return add

    def builder_of(self, target: nn.Module | Callable[..., Any]) -> Builder | None:
        return self._find(self.builders, target)

    def rewrite_of(self, target: nn.Module | Callable[..., Any]) -> Callable[..., Any] | None:
        return self._find(self.rewrites, target)

    def names(self) -> list[str]:
        """Names of the operations that are understood."""
        return [t.__name__ for t in (*self.builders, *self.rewrites)]

    def _find(self, table: dict[Target, Any], target: nn.Module | Callable[..., Any]) -> Any | None:
        """What a table has for a function, or for a module that computes what its registered class does."""
        if not isinstance(target, nn.Module):
            try:
                return table.get(target)
            except TypeError:  # unhashable callable
                return None
        for cls in type(target).__mro__:
            if cls in table:
                return None if self._differs(target, cls) else table[cls]
            if "forward" in vars(cls):
                break
        return None

    def _differs(self, target: nn.Module, cls: type) -> bool:
        """Whether a module computes something else than the class that was registered: by hooks, a subclass, or other methods."""
        if target._forward_hooks or len(parameter_hooks(target)) < len(target._forward_pre_hooks):
            return True
        own, kind = vars(target), type(target)
        return any(name in own or getattr(kind, name, None) is not body for name, body in self.bodies[cls].items())


def _body(target: Target) -> dict[str, Any]:
    """For a class of modules, its forward and the methods that this calls; nothing for a function."""
    found: dict[str, Any] = {}
    waiting = ["forward"] if inspect.isclass(target) and issubclass(target, nn.Module) else []
    while waiting:
        name = waiting.pop()
        found[name] = getattr(target, name)
        used = found[name].__code__.co_names if inspect.isfunction(found[name]) else ()
        waiting += [n for n in used if n not in found and inspect.isfunction(getattr(target, n, None))]
    return found


def parameter_hooks(module: nn.Module) -> list[WeightNorm | SpectralNorm]:
    """The hooks by which the older weight_norm and spectral_norm write a weight to the module at every call."""
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, WeightNorm | SpectralNorm)]


def _from_fields(layer: type[Any]) -> Builder:
    """A builder that fills the fields of a dual layer from attributes of the module, or from arguments of the function."""
    if not dataclasses.is_dataclass(layer):
        asked = "__init__" in vars(layer) and any(
            p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            for p in list(inspect.signature(layer.__init__).parameters.values())[1:]
        )
        if asked:
            raise ArgumentError(
                f"{layer.__name__}: its __init__ asks for arguments; make it a dataclass whose fields are named like the module's "
                f"attributes, or register a function: register(...)(lambda call: {layer.__name__}(...)) with call.module"
            )
        return lambda call: layer()
    names = [f.name for f in dataclasses.fields(layer)]

    def build(call: Call) -> Any:
        if call.module is not None:
            return layer(**{name: getattr(call.module, name) for name in names})
        values = {n: call.argument(i, n, None) for i, n in enumerate(names, start=1)}
        return layer(**{n: v for n, v in values.items() if v is not None})

    return build


def odd_tensor(tensor: Tensor | None) -> str | None:
    """Why a tensor is refused: its class defines operations of its own, as quantised tensors and annotated images do."""
    kind: type = type(tensor)
    what = None if kind in _KNOWN else _overridden(kind)
    if what is None:
        return None
    return (
        f"is a {kind.__name__}, a class of tensors that overrides {what}, so that functions of PyTorch may compute "
        f"something else with it; pass plain tensors (tensor.as_subclass(torch.Tensor), or tensor.dequantize())"
    )


_KNOWN = (Tensor, nn.Parameter, type(None))
_HARMLESS = frozenset(
    ("__module__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__weakref__", "__slots__", "__orig_bases__",
     "__new__", "__init__", "__init_subclass__", "__class_getitem__", "__instancecheck__", "__parameters__", "__repr__", "__str__",
     "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__setstate__", "__getstate__", "__firstlineno__",
     "__static_attributes__")
)  # fmt: skip
"""What a class of tensors may define without changing what is computed with them."""


@functools.lru_cache(maxsize=512)
def _overridden(kind: type) -> str | None:
    """The name of something that a class of tensors does otherwise than `Tensor`."""
    own = [cls for cls in kind.__mro__ if issubclass(cls, Tensor) and cls not in _KNOWN and cls is not Tensor.__base__]
    mixed = [cls for cls in kind.__mro__ if not issubclass(cls, Tensor) and not issubclass(Tensor, cls)]
    defined = [name for cls in (*own, *mixed) for name in vars(cls)]
    return next((name for name in defined if name not in _HARMLESS and hasattr(Tensor, name)), None)


# What to do about an operation that cannot be bounded: what to use instead, or why there is nothing.

LAST_SOFTMAX = (
    "Leave it out if it only turns scores into probabilities: the largest score stays the largest, so the labels are the same, and "
    "the losses of PyTorch and of this library take scores. Inside a network, it is supported"
)
"""For a softmax that a network ends in."""
NOT_YET = "It cannot be bounded yet"
ONE_VARIABLE = f"{NOT_YET}, but a smooth function of one variable can be declared as a CurvedDual, in 20 lines"
JUMP = "It jumps, so its gradient says nothing and a bound of it is loose"
ORDER = "Which values it picks depends on the input"

_TABLE = f"""\
gumbel_softmax:
    It is random: a certificate is about one function. Use softmax, which is supported inside a network
cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
binary_cross_entropy_with_logits:
    Bound the scores, not the loss: return what the loss is computed from; for training, see ad.RobustCrossEntropy
erfc softsign xlogy logit erfinv lgamma asin arcsin acos arccos acosh arccosh atanh arctanh:
    {ONE_VARIABLE}. As an activation, use Softplus, ELU, GELU, SiLU or Tanh
float_power:
    It computes in float64. Use x ** exponent, which is supported for a constant exponent
deg2rad rad2deg:
    Multiply by the constant instead, which is supported
sin cos tan sinc:
    It is neither convex nor concave over intervals of any width, so there is no band around it yet. As an activation,
    use Tanh; of positions, which do not depend on the input, compute it outside of forward
floor_divide remainder fmod:
    {JUMP}. x / y without rounding is supported
local_response_norm renorm:
    {NOT_YET}. LayerNorm, GroupNorm, InstanceNorm, RMSNorm and F.normalize are supported, and so is BatchNorm in eval
    mode
cosine_similarity:
    {NOT_YET} in one piece. Write (F.normalize(x, dim=d) * F.normalize(y, dim=d)).sum(d), which is supported
cdist pairwise_distance hypot dist lp_pool1d lp_pool2d lp_pool3d:
    {NOT_YET} in one piece. Write torch.linalg.vector_norm(x - y, dim=d), which is supported
cov corrcoef:
    {NOT_YET} in one piece. x.var, x.mean, products and sums are supported
bilinear outer cross dot inner vdot tensordot kron addbmm linalg_multi_dot matrix_power prod cumprod mv addmv:
    {NOT_YET} in one piece. Write it by x * y, x @ y or torch.einsum, which are supported
rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell:
    It runs as one operation. The modules nn.RNN, nn.LSTM and nn.GRU with batch_first=True are written out step by step;
    a cell can be written with Linear, torch.sigmoid, torch.tanh and products
multi_head_attention_forward _native_multi_head_attention _transformer_encoder_layer_fwd:
    It runs as one operation. Use nn.MultiheadAttention(batch_first=True) or F.scaled_dot_product_attention, which are
    supported
embedding embedding_bag one_hot:
    It looks up integers, and integers have no ball around them. Certify from the embedded values on: make them the
    input, and leave the embedding outside
long int short byte bool char:
    It makes integers, which have no ball around them. Keep floating-point values, or do this outside of the module that
    you certify
argmax argmin max_indices:
    Return the scores: certify() takes the largest of them itself
topk kthvalue sort msort argsort median nanmedian quantile mode unique nonzero searchsorted bucketize:
    {ORDER}. For the largest or smallest value, x.amax and x.amin are supported
gt lt ge le eq ne greater less greater_equal less_equal logical_and logical_or logical_not isnan isfinite isinf sign
sgn heaviside signbit hardshrink:
    {JUMP}. Say it by ReLU, abs, clamp, torch.maximum or torch.minimum: where(x > 0, x, 0) is relu(x), where(a > b, a,
    b) is torch.maximum(a, b)
floor ceil round trunc frac fix fake_quantize_per_tensor_affine quantize_per_tensor:
    {JUMP}. Certify the network without rounding of its values, or move it out, before the input or after the output
masked_select masked_scatter:
    A mask that depends on the input makes it jump; say it by ReLU, abs, clamp or torch.maximum. A constant mask can
    index, as in x[:, mask], and torch.where takes one
threshold _threshold:
    {JUMP} unless it goes on where it ends: use ReLU for Threshold(0, 0), and clamp(min=t) for a floor
rrelu:
    It draws its slope; use LeakyReLU with the mean slope, which is what it is in eval mode
bernoulli multinomial normal poisson rand_like randn_like feature_alpha_dropout feature_dropout:
    It is random: a certificate is about one function. Call model.eval(), or leave the noise out of the module that you
    certify
trace diag diag_embed flipud nanmean nansum count_nonzero hsplit vsplit dsplit tensor_split as_strided im2col col2im:
    It is linear, and only waits for somebody to write it. Until then, write it by slices, torch.cat, torch.stack, sums,
    or a product with a constant matrix (x @ matrix), which are supported
repeat_interleave:
    Use unsqueeze, expand and reshape, or x.repeat
gather take take_along_dim scatter scatter_add index_add index_copy index_put index_fill:
    Positions that are known beforehand can be indexed, as in x[:, [0, 2]]; positions that depend on the input cannot be
    bounded
logcumsumexp:
    {NOT_YET}. logsumexp is supported
grid_sample affine_grid max_unpool1d max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool3d:
    {ORDER}. Use interpolate, MaxPool or AvgPool, whose places are fixed
complex view_as_complex view_as_real polar angle stft istft real imag Tensor.real Tensor.imag:
    Complex values have no bounds here. A Fourier transform is linear: write its real and imaginary parts as products
    with constant matrices of cosines and sines (x @ matrix)
inverse linalg_inv linalg_solve det linalg_det svd linalg_svd qr linalg_qr linalg_eigh cholesky linalg_cholesky
pinverse matrix_exp:
    It is no composition of affine maps and activations, and has no bound. Of weights, it may be computed in forward; of
    what depends on the input, it may not
Tensor.data:
    It leaves the graph; leave it out, values are the same without it
nan_to_num:
    Leave it out: a certificate is only given where all values are finite
Tensor.T Tensor.mT Tensor.H Tensor.mH t:
    Use x.transpose(1, 2), which leaves dimension 0, the batch, in its place
"""
ADVICE = {
    " ".join(names.split()): " ".join(text.split())
    for names, text in re.findall(r"^(\S[^:]*):\n((?: {4}.*\n)+)", _TABLE, re.MULTILINE)
}
"""By names of operations, what to do about them."""


def _key(name: str) -> str:
    return name.lower().replace("_", "")


_BY_KEY = {_key(name): text for names, text in ADVICE.items() for name in names.split()}
_PREFIXES = {"fft_": _BY_KEY["complex"], "special_": ONE_VARIABLE}


def advice_about(name: str) -> str | None:
    """What to do about an operation that has no dual layer; None where nobody has thought about it yet."""
    exact = _BY_KEY.get(_key(name))
    return exact or next((text for prefix, text in _PREFIXES.items() if name.startswith(prefix)), None)


def same_name(name: str, others: list[str]) -> str | None:
    """The name that is equal but for case and underscores: `celu_` is celu. Words that only look alike are other operations."""
    return next((other for other in sorted(others) if _key(other) == _key(name)), None)
