"""A captured model: a frozen list of calls whose parameters stay live."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate
from torch.nn.utils import parametrize

from autodual._tensor import Shape
from autodual.graph.registry import Call, Operand, Registry, has_hooked_parameters, with_hooked_parameters
from autodual.graph.twins import private_copy


@dataclass(frozen=True)
class Ref:
    """A reference to an earlier node."""

    index: int


@dataclass(frozen=True)
class Attribute:
    """A live parameter, buffer or tensor of the model: read anew at every use."""

    owner: nn.Module | None
    name: str
    tensor: Tensor | None = None

    def read(self, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of today, in another dtype if one is given."""
        value = self.tensor if self.owner is None else read_in(self.owner, self.name, dtype)
        assert isinstance(value, Tensor)
        return value if dtype is None else cast(value, dtype)

    @property
    def computed(self) -> bool:
        """Whether the model computes it from other tensors."""
        return self.owner is not None and parametrize.is_parametrized(self.owner, self.name)


@dataclass(frozen=True)
class Node:
    """One call. `depends` says whether its value depends on the network's input; `shape` is per example if so."""

    name: str
    path: str
    target: nn.Module | Callable[..., Any] | Attribute | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    depends: bool
    shape: Shape

    @property
    def refs(self) -> tuple[int, ...]:
        found: list[int] = []
        map_aggregate((self.args, self.kwargs), lambda a: found.append(a.index) if isinstance(a, Ref) else None)
        return tuple(found)


@dataclass(frozen=True)
class Network:
    """The graph of a model for one input shape. Holds references to the model's modules, never copies of weights."""

    model: nn.Module
    nodes: tuple[Node, ...]
    output: int
    input_shape: Shape
    batch: int
    registry: Registry
    dtype: torch.dtype
    """What the model computes in."""

    @property
    def output_shape(self) -> Shape:
        return self.nodes[self.output].shape

    def parameters_now(self, dtype: torch.dtype | None = None) -> dict[int, Any]:
        """Values of every node that does not depend on the input, computed from today's parameters.

        dtype: cast the parameters to it, and compute in it; the model's own when None.
        """
        values: dict[int, Any] = {}
        for index, node in enumerate(self.nodes):
            if node.depends:
                continue
            if isinstance(node.target, Attribute):
                values[index] = node.target.read(dtype)
            elif node.target is not None:
                args, kwargs = fill((node.args, node.kwargs), values)
                function = node.target if dtype is None else function_in(node.target, dtype)
                values[index] = function(*args, **kwargs)
        return values if dtype is None else {index: cast(value, dtype) for index, value in values.items()}

    @property
    def computes_constants(self) -> bool:
        """Whether the model computes constants, such as weights, from its parameters, so that they depend on its dtype."""
        return any(_computes_constants(node) for node in self.nodes)

    def call(
        self,
        node: Node,
        parameters: dict[int, Any],
        clean: tuple[Tensor, ...] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Call:
        """The call of an input-dependent node, as its builder sees it. dtype: what to see parameters cast to."""
        operands = {i: Operand(n.shape) for i, n in enumerate(self.nodes) if n.depends}
        args, kwargs = fill((node.args, node.kwargs), parameters | operands)
        module = node.target if isinstance(node.target, nn.Module) else None
        if module is not None:
            module = with_hooked_parameters(module, dtype)
        seen: Any = module if module is None or dtype is None else CastModule(module, dtype)
        return Call(node.path or node.name, node.shape, seen, args, kwargs, self.batch, clean, dtype or self.dtype)


class CastModule:
    """A module as a builder sees it, with every tensor cast: the same constants in another dtype, and no second run of its code."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._seen = module, dtype

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._seen[0])  # builders ask isinstance(call.module, nn.Identity)

    def __getattr__(self, name: str) -> Any:
        module, dtype = self.__dict__["_seen"]
        return read_in(module, name, dtype)


def _computes_constants(node: Node) -> bool:
    if isinstance(node.target, nn.Module):
        return parametrize.is_parametrized(node.target) or has_hooked_parameters(node.target)
    if isinstance(node.target, Attribute):
        return node.target.computed
    return not node.depends and node.target is not None


def read_in(module: nn.Module, name: str, dtype: torch.dtype | None) -> Any:
    """An attribute of a module in another dtype; what a parametrization computes is computed in that dtype, from a private copy."""
    if dtype is None:
        return getattr(module, name)
    if parametrize.is_parametrized(module, name):
        with torch.no_grad():
            return copy.deepcopy(module.parametrizations[name]).to(dtype)()  # type: ignore[index, operator]
    return cast(getattr(module, name), dtype)


def function_in(target: nn.Module | Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """A function; of a module, a private copy whose parameters and buffers have another dtype."""
    if not isinstance(target, nn.Module):
        return target
    copy = private_copy(target)
    for part in copy.modules():
        for table in ("_parameters", "_buffers"):
            tensors = getattr(part, table).items()
            vars(part)[table] = {name: None if t is None else cast(t.detach(), dtype) for name, t in tensors}
    return copy


def cast(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor, also inside tuples and lists, in another dtype; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return type(value)(cast(v, dtype) for v in value)
    return value


def fill(arguments: Any, values: dict[int, Any]) -> Any:
    """Replace references by values, inside tuples, lists, dicts and slices too. (Plain Python, which a compiler can trace.)"""
    if isinstance(arguments, Ref):
        return values[arguments.index]
    if isinstance(arguments, tuple):
        filled = [fill(a, values) for a in arguments]
        named = hasattr(arguments, "_fields")  # how Python itself knows a named tuple: they have no class in common
        return type(arguments)(*filled) if named else tuple(filled)
    if isinstance(arguments, list):
        return [fill(a, values) for a in arguments]
    if isinstance(arguments, dict):
        return {key: fill(a, values) for key, a in arguments.items()}
    if isinstance(arguments, slice):
        return slice(fill(arguments.start, values), fill(arguments.stop, values), fill(arguments.step, values))
    return arguments


def tensor_method(name: str) -> Callable[..., Any]:
    """The function behind a method call `x.name(...)`."""
    method: Callable[..., Any] = getattr(torch.Tensor, name)
    return method
