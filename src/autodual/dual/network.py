"""GRAPH -> DUAL LAYERS: a network of dual layers, built from a captured one, and the one traversal of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError, CaptureError
from autodual._tensor import Shape
from autodual.dual.base import AffineDual, DualLayer, ElementwiseDual
from autodual.dual.products import BilinearDual
from autodual.graph import Network


@dataclass(frozen=True)
class DualNode:
    """One dual layer in its place. The first node of a network is its input and has no layer."""

    name: str
    layer: DualLayer | None
    inputs: tuple[int, ...]
    shape: Shape
    apart: AffineDual | None = None
    """By how much the layer's constants differ if the model computes them in float32 instead of float64; None: not at all."""


@dataclass(frozen=True)
class DualNetwork:
    """Dual layers in the order of evaluation. Built anew for every call, so it never holds a stale parameter."""

    nodes: tuple[DualNode, ...]
    output: int
    run_dtype: torch.dtype | None = None
    """What the model itself computes in; None: what it is bounded in."""
    activations: tuple[int, ...] = field(init=False)
    """Indices of the elementwise layers, in order."""
    readers: tuple[tuple[int, ...], ...] = field(init=False)
    """For every node, the nodes that read it, once for every use."""

    def __post_init__(self) -> None:
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source].append(index)
        activations = tuple(i for i, n in enumerate(self.nodes) if isinstance(n.layer, ElementwiseDual))
        object.__setattr__(self, "activations", activations)
        object.__setattr__(self, "readers", tuple(tuple(f) for f in found))

    def forward(self, x: Tensor) -> Tensor:
        """The network itself, computed from its dual layers."""
        return walk(self, Evaluation(x))

    def activation(self, index: int) -> ElementwiseDual:
        """The layer of an activation."""
        layer = self.nodes[index].layer
        assert isinstance(layer, ElementwiseDual)
        return layer

    def source(self, index: int) -> int:
        """The node that an activation reads."""
        return self.nodes[index].inputs[0]

    def operand_shapes(self, index: int) -> tuple[Shape, ...]:
        """The shapes of what a node reads, in order."""
        return tuple(self.nodes[i].shape for i in self.nodes[index].inputs)

    def ancestors(self, index: int) -> list[int]:
        """The node and everything it is computed from, last first."""
        needed = {index}
        for i in range(index, -1, -1):
            if i in needed:
                needed.update(self.nodes[i].inputs)
        return sorted(needed, reverse=True)


def apply_layer(layer: DualLayer, *operands: Tensor) -> Tensor:
    """What a layer computes, of either kind."""
    return layer.apply(*operands) if isinstance(layer, AffineDual) else layer.value(operands[0])


# The dual layer of every call, at today's parameters.


def build(network: Network, clean: Tensor | None = None, dtype: torch.dtype | None = None) -> DualNetwork:
    """Dual layers for today's parameters.

    clean: a training batch whose statistics batch normalisation may use. dtype: cast the captured graph's constants to it; what is
    bounded then is still the captured function, not what the model's code would compute in that dtype.
    """
    return _built(network, clean, dtype)[0]


def build_and_evaluate(network: Network, clean: Tensor) -> tuple[DualNetwork, Tensor]:
    """Dual layers for today's parameters, with the statistics of a training batch, and what they compute for it on the way."""
    dual, values = _built(network, clean, None)
    return dual, values[dual.output]


def _built(network: Network, clean: Tensor | None, dtype: torch.dtype | None) -> tuple[DualNetwork, list[Tensor]]:
    """Dual layers, and the value of every node for the clean batch, if there is one."""
    parameters = network.parameters_now(dtype)
    position: dict[int, int] = {}
    nodes: list[DualNode] = []
    values: list[Tensor] = []
    for index, node in enumerate(network.nodes):
        if not node.depends:
            continue
        position[index] = len(nodes)
        inputs = tuple(position[i] for i in node.refs if i in position)
        layer = None
        if node.target is not None:
            builder = network.registry.builder_of(node.target)  # type: ignore[arg-type]
            if builder is None:
                raise CaptureError(
                    f"{node.name}: has got a hook or another forward since it was captured; capture the model again"
                )
            operands = None if clean is None else tuple(values[i] for i in inputs)
            layer = builder(network.call(node, parameters, operands, dtype))
            if isinstance(layer, BilinearDual):
                inputs = (_join_operands(layer, node.name, inputs, nodes, values if clean is not None else None),)
                position[index] = len(nodes)
            if not isinstance(layer, AffineDual | ElementwiseDual):
                raise ArgumentError(
                    f"{node.name}: its builder returned {type(layer).__name__}, which is not a dual layer"
                )
        nodes.append(DualNode(node.name, layer, inputs, node.shape))
        if clean is not None:
            values.append(clean if layer is None else apply_layer(layer, *(values[i] for i in inputs)))
    return DualNetwork(tuple(nodes), position[network.output], network.dtype), values


def _join_operands(
    layer: BilinearDual, name: str, inputs: tuple[int, ...], nodes: list[DualNode], values: list[Tensor] | None
) -> int:
    """Adds the node that puts the two operands of a product side by side; returns its place."""
    joining, shape = layer.joined()
    nodes.append(DualNode(f"{name}[operands]", joining, inputs, shape))
    if values is not None:
        values.append(apply_layer(joining, *(values[i] for i in inputs)))
    return len(nodes) - 1


# The one traversal.
#
# A pass says what happens at the input, at an affine node and at an activation, and nothing else. `walk` visits what a node is
# computed from and drops values that nothing reads any more. `OnDemand` keeps them: it goes as far as it is asked to, and whoever owns
# it may put another value in a node's place, from which the pass then goes on.

T = TypeVar("T")


class Pass(ABC, Generic[T]):
    """What is computed for every node, from what was computed for its operands."""

    @abstractmethod
    def input(self) -> T:
        """The value of node 0."""

    @abstractmethod
    def affine(self, index: int, layer: AffineDual, operands: Sequence[T]) -> T:
        """The value of a node W x + b."""

    @abstractmethod
    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[T]) -> T:
        """The value of a node f(x)."""


def walk(network: DualNetwork, what: Pass[T], target: int | None = None) -> T:
    """The value of a node, by default the output; each value is dropped after its last reader on the way."""
    target = network.output if target is None else target
    needed = network.ancestors(target)[::-1]
    last_reader = {source: index for index in needed for source in network.nodes[index].inputs}
    values: dict[int, T] = {}
    for index in needed:
        values[index] = _visit(network, what, index, values)
        for source in set(network.nodes[index].inputs):
            if last_reader[source] == index:
                del values[source]
    return values[target]


class OnDemand(Generic[T]):
    """The values of a pass, computed when they are asked for, and kept.

    keep: or else a value is dropped when its last reader is visited.
    """

    def __init__(self, network: DualNetwork, what: Pass[T], keep: bool = True) -> None:
        self.network, self._what, self._keep = network, what, keep
        self._values: dict[int, T] = {}

    def at(self, index: int) -> T:
        """The value of a node; those that it is computed from are visited first, in order."""
        if index not in self._values:
            for i in self._missing(index):
                self._values[i] = _visit(self.network, self._what, i, self._values)
                if not self._keep:
                    self._drop_before(i)
        return self._values[index]

    def put(self, index: int, value: T) -> None:
        """Sets the value of a node, whether or not it was visited."""
        self._values[index] = value

    def __contains__(self, index: int) -> bool:
        return index in self._values

    def _missing(self, index: int) -> list[int]:
        """The nodes to visit before the value of a node is known, in order of evaluation, with the node itself."""
        found: set[int] = set()
        waiting = [index]
        while waiting:
            one = waiting.pop()
            if one not in self._values and one not in found:
                found.add(one)
                waiting += self.network.nodes[one].inputs
        return sorted(found)

    def _drop_before(self, index: int) -> None:
        for source in set(self.network.nodes[index].inputs):
            if max(self.network.readers[source]) == index:
                del self._values[source]


def _visit(network: DualNetwork, what: Pass[T], index: int, values: dict[int, T]) -> T:
    """The value of one node, whose operands have their values."""
    node = network.nodes[index]
    if node.layer is None:
        return what.input()
    operands = [values[i] for i in node.inputs]
    if isinstance(node.layer, AffineDual):
        return what.affine(index, node.layer, operands)
    return what.activation(index, node.layer, operands)


@dataclass(frozen=True)
class Evaluation(Pass[Tensor]):
    """The network's own values at x."""

    x: Tensor

    def input(self) -> Tensor:
        return self.x

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return layer.apply(*operands)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        return layer.value(operands[0])
