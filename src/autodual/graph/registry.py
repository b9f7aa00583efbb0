"""The one registry: which operation of PyTorch is understood, and by what.

An operation is a module type, a function, or a method of Tensor. It is understood either by a *builder*, which turns one
call into one dual layer, or by a *rewrite*, which expresses the call in simpler operations. There is no second list.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from autodual._errors import ArgumentError
from autodual._tensor import Shape

Target: TypeAlias = type[nn.Module] | Callable[..., Any]
Builder: TypeAlias = Callable[["Call"], Any]
Registered = TypeVar("Registered", bound=Callable[..., Any])

_MISSING = object()
_PARAMETER_HOOKS = (WeightNorm, SpectralNorm)
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
        if rows.shape[0] == 1 or (rows.shape[0] == self.batch and bool((rows == rows[:1]).all())):
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
        if not isinstance(target, nn.Module):
            try:
                return table.get(target)
            except TypeError:  # unhashable callable
                return None
        kind = type(target)
        for cls in kind.__mro__:
            if cls in table:
                return None if self._differs(target, cls) else table[cls]
            if "forward" in vars(cls):
                return None
        return None

    def _differs(self, target: nn.Module, cls: type) -> bool:
        """Whether a module computes something else than the class that was registered: by hooks, a subclass, or other methods."""
        own = vars(target)
        return _changes_output_by_hook(target) or any(
            name in own or getattr(type(target), name, None) is not function
            for name, function in self.bodies[cls].items()
        )


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


def has_hooked_parameters(module: nn.Module) -> bool:
    """Whether the older, hook-based weight_norm or spectral_norm computes its weight."""
    return any(isinstance(hook, _PARAMETER_HOOKS) for hook in module._forward_pre_hooks.values())


def hooked_parameters(module: nn.Module) -> frozenset[str]:
    """Names of the weights that the older, hook-based weight_norm or spectral_norm writes to the module at every call."""
    return frozenset(h.name for h in module._forward_pre_hooks.values() if isinstance(h, _PARAMETER_HOOKS))


def with_hooked_parameters(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """The module; under the older, hook-based weight_norm or spectral_norm, a private copy of it with today's weight.

    These hooks write the weight to the module, where another thread, with or without gradients, may just be reading it.
    dtype: compute the weight in it.
    """
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, _PARAMETER_HOOKS)]
    if not hooks:
        return module
    copy: nn.Module = object.__new__(type(module))
    vars(copy).update(vars(module))
    if dtype is not None:
        for table in ("_parameters", "_buffers"):
            values = {name: None if v is None else v.detach().to(dtype) for name, v in getattr(module, table).items()}
            vars(copy)[table] = values
    for hook in hooks:
        hook(copy, ())
    return copy


def _changes_output_by_hook(module: nn.Module) -> bool:
    foreign = [h for h in module._forward_pre_hooks.values() if not isinstance(h, _PARAMETER_HOOKS)]
    return bool(foreign or module._forward_hooks)


def _from_fields(layer: type[Any]) -> Builder:
    if not dataclasses.is_dataclass(layer):
        return lambda call: layer()
    names = [f.name for f in dataclasses.fields(layer)]

    def build(call: Call) -> Any:
        if call.module is not None:
            return layer(**{name: getattr(call.module, name) for name in names})
        values = {n: call.argument(i, n, None) for i, n in enumerate(names, start=1)}
        return layer(**{n: v for n, v in values.items() if v is not None})

    return build
