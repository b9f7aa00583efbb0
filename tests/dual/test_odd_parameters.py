"""Every registered operation with parameters in the corners of what PyTorch accepts: bounds hold, or the call is refused.

The table is held against the registry itself: every name that is registered is called once at least.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import REGISTRY
from autodual.dual.attention import differences
from autodual.dual.convex import log_above, power_above
from autodual.dual.normalising import from_mean, limited_product, variance_of
from autodual.dual.selecting import scaled_product
from small import Net, corners

INF, NAN, T = torch.inf, torch.nan, torch.Tensor
SHIPPED = {*REGISTRY.builders, *REGISTRY.rewrites}
"""Taken when the file is read, before any test registers more."""
ENGINES = (ad.IBP(), ad.Dual(), ad.Crown(), ad.ForwardDual())

PLAIN = (
    (nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, T.relu, T.relu_),
    (nn.ReLU6, F.relu6),
    (nn.Hardsigmoid, F.hardsigmoid),
    (nn.Tanh, torch.tanh, torch.tanh_, T.tanh, T.tanh_, F.tanh),
    (nn.Sigmoid, torch.sigmoid, torch.sigmoid_, T.sigmoid, T.sigmoid_, F.sigmoid),
    (nn.SELU, F.selu, torch.selu, torch.selu_),
    (nn.SiLU, F.silu),
    (nn.Hardswish, F.hardswish),
    (torch.abs, T.abs, torch.absolute, operator.abs, abs),
    (operator.neg, torch.neg, torch.negative, T.neg),
    (nn.Identity, T.contiguous, T.clone, torch.clone, operator.pos),
)
"""Operations without parameters, by builder."""


@dataclass(frozen=True)
class Odd:
    """A call of `targets`, which `model` gets one at a time and makes a module or a function of a batch of."""

    name: str
    targets: tuple[Any, ...]
    model: Callable[[Any], Any]
    shape: tuple[int, ...] = (3,)
    refused: bool = False
    reach: float = 2.0
    """Half the width of the box that is bounded."""


def refused(name: str, targets: tuple[Any, ...], model: Callable[[Any], Any], shape: tuple[int, ...] = (3,)) -> Odd:
    return Odd(name, targets, model, shape, refused=True)


def given(*values: Any, **named: Any) -> Callable[[Any], Any]:
    """A module made with such arguments, or a function called with them after its first; in place on a copy."""

    def make(target: Any) -> Any:
        if isinstance(target, type):
            return target(*values, **named)
        return lambda x: target(x * 1, *values, **named)

    return make


def as_called(target: Any) -> Any:
    """A method of Tensor is called on what it belongs to."""
    if isinstance(target, type) or getattr(T, getattr(target, "__name__", ""), None) is not target:
        return target
    return lambda x, *values, **named: getattr(x, target.__name__)(*values, **named)


def normalised(target: Any, weight: float | None, variance: float, eps: float) -> Any:
    if not isinstance(target, type):
        scale = None if weight is None else torch.full((3,), weight)
        return lambda x: target(x, torch.ones(3).to(x), torch.full((3,), variance).to(x),
                                None if scale is None else scale.to(x), eps=eps)  # fmt: skip
    norm = target(3, eps=eps, affine=weight is not None, momentum=None).eval()
    nn.init.constant_(norm.running_var, variance)
    if weight is not None:
        nn.init.constant_(norm.weight, weight)
    return norm


class Held(nn.Module):
    """A function of a batch and of tensors that belong to the model."""

    def __init__(self, function: Callable[..., Tensor], *tensors: Tensor, live: bool = False) -> None:
        super().__init__()
        self.function, self.count = function, len(tensors)
        for i, tensor in enumerate(tensors):
            if live:
                self.register_parameter(f"t{i}", nn.Parameter(tensor))
            else:
                self.register_buffer(f"t{i}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *(getattr(self, f"t{i}") for i in range(self.count)))


def held(*tensors: Tensor, **named: Any) -> Callable[[Any], Any]:
    return lambda target: Held(lambda x, *t: target(x * 1, *t, **named), *tensors)


def prelu(*weights: float) -> Callable[[Any], Any]:
    def make(target: Any) -> Any:
        if not isinstance(target, type):
            return Held(target, torch.tensor(weights))
        module = target(len(weights))
        module.weight.data = torch.tensor(weights)
        return module

    return make


def table() -> Iterator[Odd]:
    ramp = torch.tensor([-0.5, 0.3, 2.0])
    yield from (Odd("plain", targets, given()) for targets in PLAIN)
    # Activations.
    leaky = (nn.LeakyReLU, F.leaky_relu, F.leaky_relu_)
    yield from (Odd(f"slope {s}", leaky, given(s)) for s in (0.0, 1.0, 1.7, -0.5, -3.0))
    yield from (refused(f"slope {s}", leaky, given(s)) for s in (NAN, INF))
    yield Odd("slope from a buffer", (F.leaky_relu,), held(torch.tensor(-0.3)))
    yield Odd("weights of all kinds", (nn.PReLU, F.prelu, torch.prelu), prelu(-2.0, 0.0, 1.5))
    yield refused("weight from the input", (F.prelu, torch.prelu), lambda f: lambda x: f(x, x[:, 0].mean(0)))
    softplus = (nn.Softplus, F.softplus)
    yield from (Odd(f"beta {b}, threshold {t}", softplus, given(b, t)) for b, t in (
        (-1.0, 1.0), (-1.0, 20.0), (-3.0, -1.0), (1.0, 0.0), (1.0, -1.0), (2.0, -1000.0), (-2.0, -1000.0), (1.0, 80.0),
        (0.01, 20.0), (-0.01, 0.1), (100.0, 20.0), (-100.0, 0.5), (1.0, -INF), (-1e-30, -1e30), (1e-30, -1e30), (1e-30, 0.0),
    ))  # fmt: skip
    yield Odd("just below overflow", softplus, given(1.0, 80.0), reach=90.0)
    yield Odd("beta from a buffer", (F.softplus,), held(torch.tensor(-0.7)))
    yield from (refused(f"beta {b}, threshold {t}", softplus, given(b, t)) for b, t in (
        (0.0, 20.0), (0.0, -1.0), (NAN, 20.0), (INF, 20.0), (1.0, NAN), (1.0, INF), (1.0, 1000.0),
    ))  # fmt: skip
    elu = (nn.ELU, F.elu, F.elu_)
    yield from (Odd(f"alpha {a}", elu, given(a)) for a in (0.0, -0.0, -0.5, -3.0, 5.0, 1e-6, -1e-6))
    yield from (refused(f"alpha {a}", elu, given(a)) for a in (NAN, INF))
    yield from (Odd(f"scales {a}", (F.elu_,), given(*a)) for a in ((1.0, 2.0, 0.5), (0.0, 3.0, 1.0), (-1.0, 0.2, 4.0)))
    yield from (refused(f"scales {a}", (F.elu_,), given(*a)) for a in ((1.0, -1.0, 1.0), (1.0, 1.0, -1.0)))
    yield from (Odd(f"alpha {a}", (nn.CELU, F.celu, torch.celu), given(a)) for a in (1e-6, 0.1, 30.0))
    yield from (refused(f"alpha {a}", (nn.CELU, F.celu, torch.celu), given(a)) for a in (-1.0, -1e-3))
    yield from (Odd(f"{a}", (nn.GELU, F.gelu), given(approximate=a)) for a in ("none", "tanh"))
    yield Odd("ends meet", (F.hardtanh, F.hardtanh_), given(0.4, 0.4))
    yield from (
        Odd(f"{e}", (nn.Hardtanh, F.hardtanh, F.hardtanh_), given(*e)) for e in ((-INF, 0.3), (0.5, INF), (1.0, 1.5))
    )
    clamp = (torch.clamp, T.clamp, torch.clip, T.clip, T.clamp_, torch.clamp_)
    yield from (Odd(f"{e}", clamp, given(*e)) for e in (
        (0.5, 0.5), (1.0, -1.0), (None, 0.2), (-INF, 0.2), (0.1, INF), (-1, 2),
    ))  # fmt: skip
    yield from (refused(f"{e}", clamp, given(*e)) for e in ((NAN, 1.0), (INF, None), (None, -INF), (0.0, NAN)))
    yield Odd("tensors", clamp, held(ramp - 0.7, ramp))
    yield Odd("tensors that cross", clamp, held(ramp, -ramp))
    yield Odd("a tensor and a number", clamp, held(torch.tensor(-0.5), max=1.0))
    yield Odd("one end", clamp, lambda f: Held(lambda x, t: f(x * 1, max=t), torch.tensor(0.1)))
    yield Odd("whole numbers", clamp, held(torch.tensor([-1, 0, 1]), torch.tensor([0, 1, 1])))
    yield refused("ends that copy", clamp, lambda f: Held(lambda x, t: f(x[:, :1] * 1, t), ramp))
    yield refused("an end from the input", clamp, lambda f: lambda x: f(x * 1, x.flip(1)))
    for target, sign in ((torch.clamp_min, 1), (T.clamp_min, 1), (torch.clamp_max, -1), (T.clamp_max, -1)):
        yield from (Odd(f"{e}", (target,), given(e)) for e in (-0.5, 2, -sign * INF))
        yield from (refused(f"{e}", (target,), given(e)) for e in (sign * INF, NAN))
        yield Odd("tensor", (target,), held(ramp))
        yield refused("an end from the input", (target,), lambda f: lambda x: f(x, x.flip(1)))
    yield from powers()
    yield from attention()
    yield from statistics()
    yield from selection()
    # Arithmetic.
    add = (torch.add, T.add, T.add_, torch.sub, torch.subtract, T.sub, T.sub_, torch.rsub)
    yield from (Odd(f"alpha {a}", add, lambda f, a=a: lambda x: f(x * 1, x.flip(1), alpha=a)) for a in (-2, 0, 0.5))
    yield from (Odd(f"number, alpha {a}", add, given(1.5, alpha=a)) for a in (-2.0, 0.0, 3.0))
    yield Odd("alpha from a buffer", add, lambda f: Held(lambda x, t: f(x * 1, x.flip(1), alpha=t), torch.tensor(-0.5)))
    yield Odd("NumPy's name", add[:2], lambda f: lambda x: f(x, x2=x.flip(1)))
    yield from (refused(f"alpha {a}", add, lambda f, a=a: lambda x: f(x * 1, x.flip(1), alpha=a)) for a in (INF, NAN))
    yield refused("alpha in the middle", (torch.add, torch.sub), lambda f: lambda x: f(x, 2, x.flip(1)))
    infix = (operator.add, operator.iadd, operator.sub, operator.isub)
    yield Odd("a negative number", infix, given(-2.5))
    yield from (refused(f"{v}", infix, given(v)) for v in (INF, NAN))
    yield refused("an infinite constant", infix, held(torch.tensor([1.0, INF, 0.0])))
    times = (operator.mul, operator.imul, torch.mul, torch.multiply, T.mul, T.mul_)
    yield from (Odd(f"times {v}", times, given(v)) for v in (-3.0, 0.0, 1e-30, True))
    yield Odd("times constants", times, held(torch.tensor([-1.0, 0.0, 3.0])))
    yield from (
        refused(f"times {v}", times, lambda f, v=v: lambda x: f(x * 1, v).tanh()) for v in (INF, NAN, 1e300 * 1e300)
    )
    yield Odd("times the input", times, lambda f: lambda x: f(x * 1, x.flip(1)))
    yield Odd("times itself", (operator.mul, torch.mul, torch.multiply, T.mul), lambda f: lambda x: f(x, x))
    yield Odd("times the input, broadcast", times, lambda f: lambda x: f(x * 1, x.mean(1, keepdim=True)), (3, 2))
    yield refused("times another rank", times, lambda f: lambda x: f(x * 1, x[:, 0]), (13, 13))
    over = (
        operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide, T.div, T.div_, T.true_divide,
    )  # fmt: skip
    by_input = (operator.truediv, torch.div, torch.divide, torch.true_divide, T.div, T.true_divide)
    yield Odd("over the input", by_input, lambda f: lambda x: f(x, x.flip(1).square() + 1))
    yield Odd("a number over the input", (operator.truediv,), lambda f: lambda x: f(2.0, x.abs() + 0.5))
    yield Odd("over what may be zero", by_input, lambda f: lambda x: f(x, x.flip(1)))
    yield refused("over the input, in place", (operator.itruediv, T.div_), lambda f: lambda x: f(x * 1, x.abs() + 1))
    yield from (Odd(f"over {v}", over, given(v)) for v in (-0.3, 1e-30, 1e30))
    yield Odd("over constants", over, held(torch.tensor([-1.0, 0.2, 3.0])))
    yield from (
        refused(f"over {v}", over, lambda f, v=v: lambda x: f(x * 1, v).tanh()) for v in (0.0, -0.0, NAN, 1e-320)
    )
    yield refused("over a zero", over, lambda f: Held(lambda x, t: f(x * 1, t).tanh(), torch.tensor([1.0, 0.0, 2.0])))
    rounded = (torch.div, torch.divide, T.div, T.div_)
    yield from (refused(r, rounded, given(2.0, rounding_mode=r)) for r in ("floor", "trunc"))
    yield refused("rounded, over the input", rounded[:3], lambda f: lambda x: f(x, x.abs() + 1, rounding_mode="floor"))
    # Casts and dropout.
    casts = (T.to, T.type_as)
    yield refused("to less precision", (T.to,), given(torch.float16))
    yield refused("to less precision", (T.to,), given(torch.bfloat16))
    yield refused("to whole numbers", (T.to,), given(torch.int64))
    yield refused("to the type of a half", (T.type_as,), lambda f: lambda x: f(x, torch.zeros(1, dtype=torch.float16)))
    yield Odd("to where it is", (T.to,), lambda f: lambda x: f(x, x.dtype, True))
    yield Odd("more precision", (T.double,), lambda f: lambda x: f(x))
    yield Odd("its own type", casts, lambda f: lambda x: f(x, x.flip(1)))
    yield Odd(
        "a constant like the input", casts, lambda f: lambda x: x + f(torch.ones(len(x), 3, dtype=torch.float16), x)
    )
    yield Odd("more dimensions", (T.expand_as,), lambda f: lambda x: f(x[:, :1], x), (3, 2))
    yield Odd("a constant", (T.expand_as,), lambda f: lambda x: x - f(torch.ones(1).to(x), x), (3, 2))
    yield Odd(
        "a constant", (T.view_as, T.reshape_as), lambda f: lambda x: x - f(torch.ones(len(x) * 6).to(x), x), (3, 2)
    )
    yield Odd("like another", (T.view_as, T.reshape_as), lambda f: lambda x: f(x, x.flatten(1)), (3, 2))
    yield Odd("float", (T.float,), lambda f: lambda x: f(x) if x.dtype == torch.float32 else x)
    drops = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    for target, shape in zip(drops, ((3,), (3, 2), (1, 2, 2), (1, 2, 1, 2), (3,)), strict=True):
        yield Odd("drops all, asleep", (target,), lambda m: m(1.0).eval(), shape)
    functions = (F.dropout, torch.dropout)
    yield Odd("drops all, asleep", functions, given(1.0, False))
    yield Odd("drops nothing", functions, given(0.0, True))
    yield Odd("asleep", (F.dropout2d,), given(1.0, False), (3, 2, 2))
    yield refused("awake unless told", (F.dropout,), given(1e-9))
    yield refused("awake unless told", (F.dropout2d,), given(1e-9), (3, 2, 2))
    # Batch normalisation.
    norms = (
        (nn.BatchNorm1d, (3,)),
        (nn.BatchNorm2d, (3, 1, 2)),
        (nn.BatchNorm3d, (3, 1, 1, 2)),
        (F.batch_norm, (3, 2)),
    )
    for target, shape in norms:
        for weight, variance, eps in ((-2.0, 1.0, 0.0), (None, 1e-6, 0.0), (0.0, 1e6, 1.0), (1.0, 0.0, 1e-5)):
            yield Odd(
                f"{weight, variance, eps}", (target,), lambda f, *a, v=(weight, variance, eps): normalised(f, *v), shape
            )
        for weight, variance, eps in ((1.0, 0.0, 0.0), (1.0, -1.0, 0.5), (1.0, -1.0, 1.0)):
            yield refused(
                f"{weight, variance, eps}", (target,),
                lambda f, *a, v=(weight, variance, eps): nn.Sequential(_module(normalised(f, *v)), nn.Tanh()).eval(), shape,
            )  # fmt: skip
    # Convolutions and products.
    for d in (1, 2, 3):
        conv, transposed = (getattr(nn, f"{name}{d}d") for name in ("Conv", "ConvTranspose"))
        space = (4,) * d
        yield Odd(
            "groups, dilated", (conv,), given(2, 4, 2, padding="same", dilation=2, groups=2, bias=False), (2, *space)
        )
        yield Odd("negative taps", (conv,), lambda m: _filled(m(1, 1, 3, stride=2, padding=2), -0.5), (1, *space))
        yield Odd("pads with copies", (conv,), given(1, 1, 3, padding=2, padding_mode="replicate"), (1, *space))
        yield Odd(
            "output padding", (transposed,), given(1, 2, 2, stride=3, output_padding=2, padding=1), (1, *space[1:], 2)
        )
        yield Odd("output size", (transposed,), lambda m: _Sized(m(1, 1, 3, stride=2)), (1, *(2,) * d))
        function, backwards = getattr(F, f"conv{d}d"), getattr(F, f"conv_transpose{d}d")
        yield Odd("strings", (function,), held(torch.randn(2, 1, *(2,) * d), padding="valid"), (1, *space))
        yield Odd("uneven", (function,), held(-torch.ones(2, 1, *(2,) * d), padding="same"), (1, *space))
        yield Odd(
            "dilated", (backwards,), held(-torch.ones(1, 2, *(2,) * d), dilation=2, output_padding=1), (1, *(2,) * d)
        )
        for f in (function, backwards):
            yield refused(
                "a kernel from the input", (f,), lambda f: lambda x: f(torch.ones_like(x), x), (13, *(1,) * d)
            )
    yield Odd("no bias", (nn.Linear,), given(3, 2, bias=False))
    yield Odd("bias", (F.linear,), held(torch.randn(2, 3), torch.tensor([1e3, -1e3])))
    yield refused("a weight of one dimension", (F.linear,), held(torch.randn(3)), (2, 3))
    yield refused("a bias from the input", (F.linear,), lambda f: Held(lambda x, w: f(x, w, x), torch.randn(3, 3)))
    products = (torch.matmul, operator.matmul, T.matmul, torch.mm, T.mm)
    yield Odd("a matrix", products, held(torch.randn(3, 2)))
    yield Odd(
        "from the left",
        (torch.matmul, operator.matmul, T.matmul),
        lambda f: Held(lambda x, w: f(w, x), torch.randn(2, 3)),
        (3, 2),
    )
    yield Odd("PyTorch's other name", (torch.mm, T.mm), lambda f: Held(lambda x, w: f(x, mat2=w), torch.randn(3, 2)))
    # Pooling.
    for d in (1, 2, 3):
        space = (4, 5, 3)[:d] if d < 3 else (3, 4, 3)
        average, largest = (getattr(nn, f"{name}Pool{d}d") for name in ("Avg", "Max"))
        f_average, f_largest = (getattr(F, f"{name}_pool{d}d") for name in ("avg", "max"))
        for options in ({"ceil_mode": True, "stride": 2}, {"padding": 1, "count_include_pad": False}, {"stride": 1}):
            yield Odd(f"{options}", (average, f_average), given(2, **options), (2, *space))
        yield Odd("no channels", (average, f_average), given(2), space)
        for options in ({"ceil_mode": True, "stride": 3}, {"padding": 1, "dilation": 2, "stride": 1}):
            yield Odd(
                f"{options}", (largest, f_largest, getattr(torch, f"max_pool{d}d")), given(2, **options), (1, *space)
            )
        yield Odd("no channels", (largest, f_largest, getattr(torch, f"max_pool{d}d")), given(2), space)
        yield refused(
            "with places", (largest, f_largest), lambda m: _first(given(2, return_indices=True)(m)), (1, *space)
        )
        if d > 1:
            for divisor in (-4, -1, 1, 1000):
                yield Odd(f"divisor {divisor}", (average, f_average), given(2, divisor_override=divisor), (2, *space))
        adaptive, most = (getattr(nn, f"Adaptive{name}Pool{d}d") for name in ("Avg", "Max"))
        f_adaptive, f_most = (getattr(F, f"adaptive_{name}_pool{d}d") for name in ("avg", "max"))
        for shape in ((2, *space), space):
            yield Odd(f"uneven {shape}", (adaptive, f_adaptive), given(2), shape)
        for shape in ((1, *(3,) * d), (3,) * d):
            yield Odd(f"uneven {shape}", (most, f_most), given(2), shape)
    reduce = (torch.mean, T.mean, torch.sum, T.sum)
    for options in (
        {"dim": -1},
        {"dim": (1, -1)},
        {"axis": 2, "keepdims": True},
        {"dim": [2], "keepdim": True},
        {"dim": 1, "dtype": torch.float64},
    ):
        yield Odd(f"{options}", reduce, given(**options), (3, 2))
    for options in (
        {},
        {"dim": 0},
        {"dim": (0, 1)},
        {"dim": None, "keepdim": True},
        {"dim": 1, "dtype": torch.float16},
    ):
        yield refused(f"{options}", reduce, given(**options), (3, 2))
    pair = (torch.maximum, T.maximum, torch.minimum, T.minimum, torch.max, T.max, torch.min, T.min)
    yield Odd("with a constant", pair, held(ramp))
    yield Odd("along the last", (torch.max, T.max, torch.min, T.min), lambda f: lambda x: f(x, -1)[0], (2, 3))
    yield Odd("kept", (torch.amax, T.amax, torch.amin, T.amin), given((-1, 1), True), (2, 2))
    yield refused("of all", (torch.amax, T.amax, torch.amin, T.amin), given())
    yield refused("places", (torch.max, T.max, torch.min, T.min), lambda f: lambda x: f(x, 1)[1])
    # Shapes.
    yield Odd("the last ones", (nn.Flatten, torch.flatten, T.flatten), given(-2, -1), (2, 1, 2))
    yield Odd("with a guess", (nn.Unflatten, T.unflatten, torch.unflatten), given(-1, (2, -1)), (4,))
    yield Odd("with a guess", (T.view, T.reshape), given(-1, 2, 3), (6,))
    yield Odd("with a guess", (torch.reshape,), given((-1, 2, 3)), (6,))
    yield refused(
        "bits as another dtype",
        (T.view,),
        lambda f: (
            lambda x: f(x, torch.int32).view(x.dtype) if x.dtype == torch.float32 else f(x, torch.int64).view(x.dtype)
        ),
        (2,),
    )
    yield Odd("negative", (torch.squeeze, T.squeeze), given(-2), (2, 1, 3))
    yield refused("the batch, if there is one example", (torch.squeeze, T.squeeze), given(), (1, 3))
    yield Odd("negative", (torch.unsqueeze, T.unsqueeze), given(-2), (3,))
    yield Odd("negative", (torch.permute, T.permute), given((0, -1, 1)), (2, 3))
    yield refused("the batch", (torch.permute, T.permute), given((1, 0, 2)), (13, 3))
    yield Odd("negative", (torch.transpose, T.transpose, torch.swapaxes, T.swapaxes), given(-1, -2), (2, 3))
    yield Odd("NumPy's names", (torch.swapaxes, T.swapaxes), given(axis0=1, axis1=2), (2, 3))
    for index in ((slice(None), slice(-2, None)), (Ellipsis, None, -1), (slice(None), slice(None, None, 2)),
                  (slice(None), torch.tensor([2, 0, 2])), (slice(None), torch.tensor([True, False, True])),
                  (Ellipsis, torch.tensor([[True, False], [False, True], [True, True]]))):  # fmt: skip
        yield Odd(f"{index}".replace("\n", ""), (operator.getitem, T.__getitem__), given(index), (3, 2))
    yield refused("the batch", (operator.getitem, T.__getitem__), given(0), (3, 2))
    yield Odd("from the end", (torch.narrow, T.narrow), given(-1, -2, 2), (2, 3))
    yield Odd("as it is", (T.expand,), given(-1, 3, -1), (1, 2))
    yield Odd("copies", (torch.broadcast_to,), lambda f: lambda x: f(x, (x.shape[0], 3, 2)), (1, 2))
    yield Odd("negative", (torch.flip, T.flip), given((-1, 1)), (2, 3))
    yield refused("the batch", (torch.flip, T.flip), given((0,)), (2, 3))
    yield Odd("uneven", (torch.chunk, T.chunk), lambda f: lambda x: f(x, 2, -1)[1], (2, 5))
    yield Odd("uneven", (torch.split, T.split), lambda f: lambda x: f(x, [1, 4], -1)[1], (2, 5))
    yield Odd("the last", (torch.unbind, T.unbind), lambda f: lambda x: f(x, -1)[1], (2, 3))
    cat = (torch.cat, torch.concat)
    yield Odd("negative", cat, lambda f: lambda x: f([x, -x], -1), (2, 3))
    yield Odd("NumPy's name", cat, lambda f: lambda x: f([x, -x], axis=1), (2, 3))
    yield Odd("nothing", cat, lambda f: lambda x: f([x, torch.empty(0).to(x)], 1), (2, 3))
    yield Odd("a constant", cat, lambda f: lambda x: f([torch.full((len(x), 1, 3), 1e3).to(x), x], 1), (2, 3))
    yield refused("the batch", cat, lambda f: lambda x: f([x, x]), (2, 3))
    yield Odd("negative", (torch.stack,), lambda f: lambda x: f([x, -x], -1), (2, 3))
    for d in (1, 2, 3):
        sides, shape = (1, -1, *(0,) * (2 * d - 2)), (2, *(3,) * d)
        constant = getattr(nn, f"ConstantPad{d}d")
        yield Odd("crops", (constant,), given(sides, -7.5), shape)
        yield Odd("a large value", (constant,), given(1, 1e30), shape)
        yield from (
            refused(f"value {v}", (constant,), lambda m, v=v: nn.Sequential(m(1, v), nn.Tanh()), shape)
            for v in (INF, NAN)
        )
        yield Odd(
            "one side",
            tuple(getattr(nn, f"{n}Pad{d}d") for n in ("Reflection", "Replication", "Circular")),
            given((0, 2, *(0,) * (2 * d - 2))),
            shape,
        )
    yield Odd("crops", (nn.ZeroPad2d,), given((-1, 1, 0, 0)), (1, 3, 3))
    yield from (
        Odd(f"{m}", (F.pad,), given((1, 0, 0, 1), m), (1, 3, 3))
        for m in ("constant", "reflect", "replicate", "circular")
    )
    yield Odd("value from a buffer", (F.pad,), lambda f: Held(lambda x, t: f(x, (1, -1), value=t), torch.tensor(-2.0)))
    yield from (
        refused(f"value {v}", (F.pad,), lambda f, v=v: lambda x: f(x, (1, 1), value=v).tanh()) for v in (INF, NAN)
    )
    up = (nn.Upsample, F.interpolate)
    for options in (
        {"scale_factor": 1.3}, {"size": (7, 4)}, {"scale_factor": (0.6, 1.7), "mode": "nearest-exact"}, {"size": 7, "mode": "area"},
        {"scale_factor": 1.3, "mode": "bilinear"}, {"scale_factor": 0.4, "mode": "bilinear", "align_corners": True},
        {"scale_factor": 1.3, "mode": "bilinear", "recompute_scale_factor": True},
        {"scale_factor": 1.3, "recompute_scale_factor": True},
    ):  # fmt: skip
        yield Odd(f"{options}", up, given(**options), (1, 5, 4))
    yield refused("antialiased", (F.interpolate,), given(scale_factor=1.3, mode="bilinear", antialias=True), (1, 5, 5))
    yield refused("bicubic", up, given(size=7, mode="bicubic"), (1, 5, 5))
    yield Odd("a fraction", (nn.UpsamplingNearest2d,), given(scale_factor=1.3), (1, 5, 4))
    yield Odd("by one", (nn.PixelShuffle, F.pixel_shuffle), given(1), (4, 2, 2))
    yield Odd("by two", (nn.PixelShuffle, F.pixel_shuffle), given(2), (4, 2, 2))


def powers() -> Iterator[Odd]:
    """Powers, exponentials and logarithms: at their poles, beyond them, and where they overflow."""
    curves = (
        (torch.exp, torch.exp_, T.exp, T.exp_), (nn.LogSigmoid, F.logsigmoid), (torch.sinh, T.sinh), (torch.cosh, T.cosh),
        (torch.square, torch.square_, T.square, T.square_), (torch.exp2, T.exp2), (torch.expm1, T.expm1), (nn.Mish, F.mish),
        (torch.erf, T.erf, torch.special.erf), (torch.atan, torch.arctan, T.atan, T.arctan), (nn.Tanhshrink, F.tanhshrink),
        (torch.asinh, torch.arcsinh, T.asinh, T.arcsinh),
    )  # fmt: skip
    for targets in curves:
        yield Odd("plain", targets, given())
        yield Odd("far out", targets, given(), reach=30.0)
    yield Odd("overflows", (torch.exp,), lambda f: lambda x: f(40 * x).tanh())
    above = (
        (torch.log, torch.log_, T.log, T.log_), (torch.sqrt, torch.sqrt_, T.sqrt, T.sqrt_), (torch.log2, T.log2),
        (torch.rsqrt, torch.rsqrt_, T.rsqrt, T.rsqrt_), (torch.log10, T.log10), (torch.log1p, T.log1p),
        (torch.reciprocal, torch.reciprocal_, T.reciprocal, T.reciprocal_),
    )  # fmt: skip
    for targets in above:
        yield Odd("of positive numbers", targets, lambda f: lambda x: f(x + 4.5))
        yield Odd("of tiny numbers", targets, lambda f: lambda x: f(x.square() + 1e-6))
        yield Odd("of what bounds cannot tell from zero", targets, lambda f: lambda x: f(_positive(x)).tanh())
    yield Odd("of negative numbers", above[-1], lambda f: lambda x: f(x - 4.5))
    power = (operator.pow, operator.ipow, torch.pow, T.pow, T.pow_)
    yield from (Odd(f"power {p}", power, given(p)) for p in (0, 1, 2, 3, 4, 7, 2.0, True))
    yield from (
        Odd(f"power {p}", power, lambda f, p=p: lambda x: f(x + 4.5, p))
        for p in (-1, -2, -3, 0.5, -0.5, 0.3, 2.5, -1.7)
    )
    yield from (Odd(f"power {p} below zero", power, lambda f, p=p: lambda x: f(x - 4.5, p)) for p in (-1, -2, -3))
    yield from (refused(f"power {p}", power, given(p)) for p in (NAN, INF, 1000))
    yield Odd("an exponent from a buffer", power, held(torch.tensor(3.0)))
    yield refused("exponents", power, held(torch.tensor([2.0, 3.0, 4.0])))
    yield refused("an exponent from the input", power, lambda f: lambda x: f(x.abs() + 1, x))
    yield from (Odd(f"of {b}", (operator.pow, torch.pow), lambda f, b=b: lambda x: f(b, x)) for b in (2, 0.5, 1.0))
    yield refused("of zero", (operator.pow, torch.pow), lambda f: lambda x: f(0.0, x.abs() + 1))
    # What only rewrites call.
    yield Odd("by a rewrite", (power_above,), lambda f: lambda x: F.rms_norm(x, (3,), eps=1e-3))
    yield Odd("by a rewrite", (log_above,), lambda f: lambda x: torch.logsumexp(x, 1, keepdim=True))


def attention() -> Iterator[Odd]:
    maxima = (torch.softmax, T.softmax, F.softmax, torch.log_softmax, T.log_softmax, F.log_softmax, F.softmin)
    yield Odd("of all sizes", maxima, lambda f: lambda x: 2 * f(x, -1))
    yield Odd("far apart", maxima, lambda f: lambda x: 2 * f(5 * x, -1))
    yield Odd("first of two", maxima, lambda f: lambda x: 2 * f(x, dim=1), (3, 2))
    yield refused("along the batch", maxima, lambda f: lambda x: 2 * f(x, 0), (13,))
    yield refused("at the end", maxima[:-1], given(1))
    yield refused("in half", maxima, lambda f: lambda x: f(x, 1, dtype=torch.float16).to(x.dtype))
    modules = (nn.Softmax, nn.LogSoftmax, nn.Softmin)
    yield Odd("inside", modules, lambda m: nn.Sequential(m(-1), nn.Identity()), (2, 3))
    yield Odd("inside", (nn.Softmax2d,), lambda m: nn.Sequential(m(), nn.Identity()), (3, 2, 1))
    yield Odd("kept", (torch.logsumexp, T.logsumexp), given(-1, True), (2, 3))
    yield Odd("dropped", (torch.logsumexp, T.logsumexp), given(1), (2, 3))
    yield refused("over the batch", (torch.logsumexp, T.logsumexp), given(0), (13,))
    yield Odd("of two", (torch.logaddexp, T.logaddexp), lambda f: lambda x: f(x, 3 * x.flip(1)))
    yield Odd("with a constant", (torch.logaddexp, T.logaddexp), held(torch.tensor([0.3, -2.0, 1.0])))
    yield Odd("by a rewrite", (differences,), lambda f: lambda x: 2 * x.softmax(1), (3, 2))
    yield Odd("halves", (F.glu,), given(1), (4, 2))
    yield Odd("halves", (nn.GLU,), given(), (2, 4))
    attends = (F.scaled_dot_product_attention,)
    square = torch.tensor([[True, False, True], [True, True, False], [False, False, True]])
    yield Odd("plain", attends, lambda f: lambda x: f(x, x.flip(1), x), (3, 2), reach=0.3)
    yield Odd("scaled", attends, lambda f: lambda x: f(x, x, x, scale=-0.3), (3, 2), reach=0.3)
    yield Odd("causal", attends, lambda f: lambda x: f(x, x, x, is_causal=True), (3, 2), reach=0.3)
    yield Odd("with a mask", attends, lambda f: Held(lambda x, m: f(x, x, x, attn_mask=m), square), (3, 2), reach=0.3)
    added = torch.tensor([[0.0, -INF, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    yield Odd("with added numbers", attends, lambda f: lambda x: f(x, x, x, added.to(x)), (3, 2), reach=0.3)
    keys = added[:, :2].clamp(-1)
    yield Odd("constant keys", attends, lambda f: Held(lambda x, k: f(x, k.expand(len(x), 3, 2), x), keys), (3, 2))
    yield Odd(
        "constant queries",
        attends,
        lambda f: Held(lambda x, k: f(k.expand(len(x), 3, 2), x, x), keys),
        (3, 2),
        reach=0.5,
    )
    matrices = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(0))
    for target in (torch.matmul, operator.matmul, T.matmul):
        yield Odd("matrices", (target,), lambda f: Held(lambda x, w: f(x, w), matrices), (2, 3, 2))
        yield Odd("matrices, left", (target,), lambda f: Held(lambda x, w: f(w, x), matrices), (2, 2, 3))
    yield refused("drops", attends, lambda f: lambda x: f(x, x, x, dropout_p=0.5), (3, 2))
    nothing = torch.tensor([[True, False], [False, False]])
    yield refused("nothing left", attends, lambda f: Held(lambda x, m: f(x, x, x, m).nan_to_num(), nothing), (2, 2))
    heads = (nn.MultiheadAttention,)
    yield Odd("two heads", heads, lambda m: _Attends(m(4, 2, batch_first=True)), (2, 4), reach=0.2)
    yield Odd("no bias", heads, lambda m: _Attends(m(4, 1, bias=False, batch_first=True)), (2, 4), reach=0.2)
    yield refused("the batch second", heads, lambda m: _Attends(m(4, 2)), (2, 4))
    yield refused("added keys", heads, lambda m: _Attends(m(4, 2, add_bias_kv=True, batch_first=True)), (2, 4))
    layers = (nn.TransformerEncoderLayer,)
    for first in (True, False):
        options = {"dropout": 0.0, "batch_first": True, "norm_first": first}
        yield Odd(f"norm first: {first}", layers, lambda m, o=options: m(4, 2, 3, **o).eval(), (2, 4), reach=0.02)
        yield refused(f"awake, norm first: {first}", layers, lambda m, o=options: m(4, 2, 3, **o), (2, 4))

    cells = (nn.RNN, nn.LSTM, nn.GRU)
    for options in ({}, {"num_layers": 2, "bias": False}, {"bidirectional": True}):
        yield Odd(f"{options}", cells, lambda m, o=options: _outputs(m(2, 3, batch_first=True, **o)), (3, 2), reach=0.3)
    yield Odd("relu", (nn.RNN,), lambda m: _outputs(m(2, 3, nonlinearity="relu", batch_first=True)), (3, 2))
    yield refused("the batch second", cells, lambda m: _outputs(m(2, 3)), (13, 2))
    yield Odd("last states", (nn.RNN, nn.GRU), lambda m: _last(m(2, 3, batch_first=True), lambda h: h[-1]), (3, 2))
    yield refused(
        "mixed last states", (nn.RNN, nn.GRU), lambda m: _last(m(2, 3, batch_first=True), lambda h: h.mean(0)), (3, 2)
    )
    yield refused("projections", (nn.LSTM,), lambda m: _outputs(m(2, 3, proj_size=1, batch_first=True)), (3, 2))
    yield refused("too long", cells, lambda m: _outputs(m(2, 3, batch_first=True)), (65, 2))


def statistics() -> Iterator[Odd]:
    affine = torch.tensor([1.0, -2.0, 0.0, 0.5])
    layer = (F.layer_norm, torch.layer_norm)
    yield Odd("plain", layer, given((4,)), (2, 4))
    yield Odd("weight and bias", layer, lambda f: Held(lambda x, w: f(x, (4,), w, w, 0.1), affine), (4,), reach=0.5)
    yield refused("no eps", layer, given((4,), None, None, 0.0), (4,))
    yield Odd("plain", (nn.LayerNorm,), given(4), (2, 4))
    yield Odd("of one", (nn.LayerNorm, nn.RMSNorm), given(1), (2, 1))
    yield Odd("over all", (nn.LayerNorm,), given((2, 4), elementwise_affine=False), (2, 4))
    yield Odd("weight", (F.rms_norm,), lambda f: Held(lambda x, w: f(x, (4,), w, 0.1), affine), (4,))
    yield Odd("usual eps", (F.rms_norm,), given((4,)), (4,), reach=0.1)
    yield Odd("plain", (nn.RMSNorm,), given(4, eps=1e-2), (2, 4))
    yield Odd("groups", (F.group_norm,), given(2), (4, 3))
    yield Odd("groups", (nn.GroupNorm,), given(2, 4), (4, 3))
    for target, shape in (
        (nn.InstanceNorm1d, (2, 4)),
        (nn.InstanceNorm2d, (2, 3, 2)),
        (nn.InstanceNorm3d, (2, 2, 1, 2)),
    ):
        yield Odd("own statistics", (target,), given(2, affine=True), shape)
        yield Odd("kept statistics", (target,), given(2, track_running_stats=True), shape)
    yield Odd("own statistics", (F.instance_norm,), given(eps=0.1), (2, 4))
    spread = (torch.var, T.var, torch.std, T.std)
    for options in (
        {"dim": 1},
        {"dim": (1, 2), "keepdim": True},
        {"dim": -1, "unbiased": False},
        {"dim": 2, "correction": 0},
    ):
        yield Odd(f"{options}", spread, given(**options), (3, 2))
        yield Odd(
            f"{options}", (torch.var_mean, torch.std_mean), lambda f, o=options: lambda x: torch.add(*f(x, **o)), (3, 2)
        )
    yield from (refused(f"{options}", spread, given(**options), (3, 2)) for options in ({}, {"dim": 0}))
    yield Odd("by a rewrite", (limited_product,), lambda f: lambda x: F.layer_norm(x, (2,)), (3, 2))
    yield Odd("by a rewrite", (variance_of,), lambda f: lambda x: F.group_norm(x, 1), (3, 2))
    yield Odd("by a rewrite", (from_mean,), lambda f: lambda x: F.layer_norm(x, (3,)), (2, 3))
    for p in (1, 2, INF):
        yield Odd(f"l{p}", (torch.norm, T.norm), given(p, 1), (3, 2))
        yield Odd(f"l{p}", (torch.linalg.vector_norm, torch.linalg.norm), given(p, 1), (3, 2))
        yield Odd(f"l{p}", (F.normalize,), given(p, 1, 0.1), (3, 2))
    yield from (refused(f"l{p}", (torch.norm, T.norm), given(p, 1), (3, 2)) for p in (3, 0))
    yield refused("of all", (torch.norm, T.norm, torch.linalg.vector_norm), given(), (3, 2))


def selection() -> Iterator[Odd]:
    mask = torch.tensor([True, False, True])
    yield from (Odd(f"{a}", (torch.roll, T.roll), given(*a), (3, 2)) for a in ((1, 1), ((-1, 2), (1, 2)), (5, -1)))
    yield from (refused(f"{a}", (torch.roll, T.roll), given(*a), (3, 2)) for a in ((1,), (1, 0)))
    yield Odd("turned", (torch.rot90, T.rot90), given(3, (1, 2)), (3, 2))
    yield refused("turned into the batch", (torch.rot90, T.rot90), given(1, (0, 1)), (13,))
    yield Odd("twice", (torch.index_select, T.index_select), held_index(torch.tensor([2, 0, 2])))
    yield Odd("twice", (T.repeat, torch.tile, T.tile), lambda f: lambda x: f(x, (1, 2, 3)), (3, 2))
    yield refused("twice the batch", (T.repeat, torch.tile, T.tile), lambda f: lambda x: f(x, (2, 1)))
    yield Odd("along the last", (torch.cumsum, T.cumsum), given(-1), (3, 2))
    yield Odd("beside the main one", (torch.diagonal, T.diagonal), given(-1, 1, 2), (3, 3))
    yield Odd("overlapping", (T.unfold,), given(1, 2, 1), (4, 2))
    yield Odd("padded", (nn.Unfold, F.unfold), given(2, padding=1, stride=2), (1, 3, 3))
    yield Odd("padded", (nn.Fold, F.fold), given((3, 3), 2, padding=1), (4, 16))
    yield Odd("by two", (nn.PixelUnshuffle, F.pixel_unshuffle), given(2), (1, 4, 2))
    yield Odd("by two", (nn.ChannelShuffle, F.channel_shuffle), given(2), (4, 1, 2))
    yield Odd("plain", (T.detach, torch.detach), lambda f: lambda x: f(x))
    yield Odd("moved", (torch.movedim, torch.moveaxis, T.movedim, T.moveaxis), given((1, 2), (2, 1)), (3, 2))
    yield refused("the batch moved", (torch.movedim, torch.moveaxis, T.movedim, T.moveaxis), given(0, 1), (13, 2))
    yield Odd("plain", (torch.fliplr, T.fliplr), given(), (3, 2))
    yield Odd("with itself", (torch.concatenate,), lambda f: lambda x: f([x, 2 * x], -1))
    yield Odd("twice", (torch.diff, T.diff), given(2, 1), (4,))
    yield from (Odd(f"{d}", (torch.tril, T.tril, torch.triu, T.triu), given(d), (3, 2)) for d in (-1, 0, 1))
    yield refused("of the batch", (torch.tril, T.tril, torch.triu, T.triu), given(), (13,))
    yield from (Odd(f"{w}", (nn.Softshrink, F.softshrink), given(w)) for w in (0.0, 0.5, 3.0))
    ramp = torch.tensor([-0.5, 0.3, 2.0])
    yield Odd("with constants", (torch.addcmul, T.addcmul), lambda f: Held(lambda x, t: f(x, x, t, value=-2), ramp))
    yield Odd("with the input", (torch.addcmul, T.addcmul), lambda f: lambda x: f(x, x, x.flip(1)))
    yield Odd("over constants", (torch.addcdiv, T.addcdiv), lambda f: Held(lambda x, t: f(x, x, t, value=-2), ramp))
    yield Odd("over the input", (torch.addcdiv, T.addcdiv), lambda f: lambda x: f(x, x, x.square() + 1))
    matrix = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0], [1.0, 1.0, -1.0]])
    yield Odd("scaled", (torch.addmm, T.addmm), lambda f: Held(lambda x, w: f(x, x, w, beta=0.5, alpha=-2), matrix))
    yield Odd("by a rewrite", (scaled_product,), lambda f: Held(lambda x, w: torch.addmm(x, x, w, alpha=3), matrix))
    yield Odd("scaled", (torch.baddbmm, T.baddbmm), lambda f: lambda x: f(x, x, x.flip(1), beta=0.0, alpha=-2), (2, 2))
    yield Odd("beyond", (torch.lerp, T.lerp), lambda f: lambda x: f(x, x.flip(1), 1.7))
    yield Odd("by tensors", (torch.lerp, T.lerp), lambda f: Held(lambda x, t: f(x, x.flip(1), t), ramp))
    yield Odd("two of the input", (torch.where,), lambda f: Held(lambda x, m: f(m, x, 2 * x), mask))
    yield Odd("a constant", (torch.where,), lambda f: Held(lambda x, m, t: f(m, t, x), mask, ramp))
    yield Odd("a number", (torch.where,), lambda f: Held(lambda x, m: f(m, x, -1.5), mask))
    yield Odd("a number", (T.where,), lambda f: Held(lambda x, m: f(x, m, -1.5), mask))
    yield refused("infinite", (torch.where,), lambda f: Held(lambda x, m: f(m, x, INF).tanh(), mask))
    yield refused("a mask of the input", (torch.where,), lambda f: lambda x: f(x > 0, x, 2 * x))
    fills = (torch.masked_fill, T.masked_fill)
    yield Odd("a number", fills, lambda f: Held(lambda x, m: f(x, m, -1.5), mask))
    yield refused("infinite", fills, lambda f: Held(lambda x, m: f(x, m, -INF).tanh(), mask))
    yield refused("a mask of the input", fills, lambda f: lambda x: f(x, x > 0, 1.0))
    yield Odd("as a mask of softmax", fills, lambda f: Held(lambda x, m: 2 * f(x, m, -INF).softmax(1), mask))
    products = (torch.bmm, T.bmm)
    yield Odd("of the input", products, lambda f: lambda x: f(x, x.flip(1)), (2, 2))
    yield Odd(
        "of heads", (torch.matmul, operator.matmul, T.matmul), lambda f: lambda x: f(x, x.transpose(2, 3)), (2, 2, 2)
    )
    yield refused("a vector of the input", (torch.matmul,), lambda f: lambda x: f(x, x[:, 0]), (13, 13))
    sums = (torch.einsum,)
    for equation, shape in (
        ("bi,bi->bi", (3,)),
        ("bij,bkj->bik", (2, 3)),
        ("bij,bjk->bik", (2, 2)),
        ("b i j, b i j -> b j i", (2, 3)),
    ):
        yield Odd(equation, sums, lambda f, e=equation: lambda x: f(e, x, x.flip(1)), shape)
    for equation in ("bi,ij->bj", "bi,i->b", "bi,ij", "bi,i->bi"):
        yield Odd(equation, sums, lambda f, e=equation: Held(lambda x, w: f(e, x, w if "j" in e else w[0]), matrix))
    yield Odd("ji,bi->bj", sums, lambda f: Held(lambda x, w: f("ji,bi->bj", w, x), matrix))
    yield refused("a list", sums, lambda f: lambda x: f("bij->bji", [x]), (2, 3))
    for equation in ("bi,bi->i", "bi,ci->bc", "bii->bi", "bij,bi->b", "...i,...i->...i"):
        yield refused(
            equation,
            sums,
            lambda f, e=equation: lambda x: f(e, *(x.clone() for _ in e.partition("->")[0].split(","))),
            (3,),
        )
    yield Odd("mT", (getattr,), lambda f: lambda x: x @ x.mT, (2, 3))
    yield refused("T", (getattr,), lambda f: lambda x: x.T, (13,))


def _positive(x: Tensor) -> Tensor:
    """More than zero, as no bound on the product knows."""
    return x * x.flip(1) + x.square() + x.flip(1).square() + 0.1


def held_index(index: Tensor) -> Callable[[Any], Any]:
    return lambda target: Held(lambda x, t: target(x, 1, t), index)


class _Attends(nn.Module):
    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class _Sized(nn.Module):
    """A transposed convolution of stride 2 that is told the size of its result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, output_size=[2 * n + 2 for n in x.shape[2:]])


def _filled(module: nn.Module, value: float) -> nn.Module:
    nn.init.constant_(module.weight, value)
    return module


def _module(operation: Any) -> nn.Module:
    return operation if isinstance(operation, nn.Module) else Held(operation)


def _first(operation: Any) -> nn.Module:
    module = _module(operation)
    return Held(lambda x: module(x)[0])


def _outputs(module: nn.Module) -> nn.Module:
    return Net(lambda m, x: m.layer(x)[0], layer=module)


def _last(module: nn.Module, take: Callable[[Tensor], Tensor]) -> nn.Module:
    return Net(lambda m, x: take(m.layer(x)[1]), layer=module)


TABLE = list(table())
CASES = [
    pytest.param(case, target, id=f"{getattr(target, '__name__', target)} {case.name}")
    for case in TABLE
    for target in case.targets
]


def test_every_registered_operation_is_tried() -> None:
    tried = {target for case in TABLE for target in case.targets}
    assert not SHIPPED - tried, "registered, and not in the table"
    assert not tried - SHIPPED, "not registered"


def points(region: ad.Box) -> Tensor:
    """[P, *shape]: corners, a diagonal, and random points of the box around one example."""
    lower, upper = (end[0] for end in (region.lower, region.upper))
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(400, *lower.shape, generator=generator, dtype=lower.dtype)
    weights[:100] = weights[:100].round()
    weights[100:301] = torch.linspace(0, 1, 201).reshape(-1, *[1] * lower.dim()).to(lower)
    found = lower + weights * (upper - lower)
    return torch.cat([found, corners(lower[None], upper[None]).squeeze(1)]) if lower.numel() <= 4 else found


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths", "ignore:This overload of")
@pytest.mark.parametrize(("case", "target"), CASES)
def test_bounds_hold_or_the_call_is_refused(case: Odd, target: Any) -> None:
    """All targets of a case have one builder, so only the first is tried in float64, with all engines, and in float32 with two."""
    first = target is case.targets[0]
    for dtype in (torch.float64, torch.float32) if first else (torch.float32,):
        torch.manual_seed(0)
        model = _module(case.model(as_called(target))).to(dtype)
        if not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules()):
            model.eval()
        centre = torch.randn(1, *case.shape, dtype=dtype)
        region = ad.Box(centre - case.reach, centre + case.reach)
        if case.refused:
            with pytest.raises(ad.AutodualError):
                ad.bounds(model, region, ad.IBP())
            continue
        with torch.no_grad():
            values = model(points(region))
        for engine in ENGINES if dtype == torch.float64 else ENGINES[: 1 + first]:
            with torch.no_grad():
                found = ad.bounds(model, region, engine).output
            allowed = (1e-9 if dtype == torch.float64 else 2e-5) * max(1.0, values.abs().max().item(), case.reach)
            assert found.contains(values, allowed).all(), f"{engine!r} in {dtype}"
