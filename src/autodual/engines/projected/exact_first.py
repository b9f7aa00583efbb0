"""Exact radii where no activation comes before, and where they are cheap: they need no projection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from autodual.dual import AffineDual, DualNetwork, ElementwiseDual, Pass, walk
from autodual.engines.backward.radius import RadiusPass
from autodual.engines.backward.smaller import Patches
from autodual.engines.memory import Budget
from autodual.sets import InputSet, norm_of


def exact_first_radii(network: DualNetwork, region: InputSet, k: int) -> dict[int, Tensor]:
    """Exact radii [N or 1, *shape] of `exact_first_sources`, by node."""
    return {source: _radius(network, region, source) for source in sorted(exact_first_sources(network, region, k))}


def exact_first_sources(network: DualNetwork, region: InputSet, k: int) -> set[int]:
    """Nodes that enter an activation, that no activation comes before, and whose exact radii are no dearer than k projections.

    The answer depends on shapes alone, not on the size of the batch.
    """
    activations = set(network.activations)
    sources = {network.source(i) for i in network.activations}
    first = {source for source in sources if not set(network.ancestors(source)) & activations}
    return {source for source in first if _is_product(network, region, source) or _fits(network, region, source, k)}


def _radius(network: DualNetwork, region: InputSet, target: int) -> Tensor:
    if _is_product(network, region, target):
        return walk(network, _Product(region), target)
    return RadiusPass(network, region, {}, Budget.unlimited(), static=True).of_units(target).below


@dataclass(frozen=True)
class _Product(Pass[Tensor]):
    """Radii |W| r from layer to layer."""

    region: InputSet

    def input(self) -> Tensor:
        return self.region.radius.expand(-1, *self.region.centre.shape[1:])

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return layer.absolute(*operands)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        raise AssertionError("there is none before a first layer")


def _is_product(network: DualNetwork, region: InputSet, target: int) -> bool:
    """Whether |W| of the whole chain, applied to the radius, is the product of the layers' |W|."""
    return _separable(region) and _mixes_once(network, target)


def _separable(region: InputSet) -> bool:
    norm = norm_of(region)
    return norm is not None and norm.separable


def _mixes_once(network: DualNetwork, target: int) -> bool:
    """Whether a node is the end of a chain of layers at most one of which mixes entries."""
    chain = [i for i in network.ancestors(target) if i != 0]
    if any(len(network.nodes[i].inputs) != 1 for i in chain):
        return False
    layers = [(network.nodes[i].layer, network.operand_shapes(i)) for i in chain]
    return sum(not (isinstance(a, AffineDual) and a.one_to_one(shapes)) for a, shapes in layers) <= 1


def _fits(network: DualNetwork, region: InputSet, target: int, k: int) -> bool:
    """Whether pulling back all units of a node holds no more values, per example, than k projections of it do."""
    plan = RadiusPass(network, region, {}, Budget.unlimited(), static=True).plan(target)
    units = math.prod(network.nodes[target].shape)
    if isinstance(plan, Patches):
        patch = math.prod(plan.network.nodes[0].shape)
        return patch * (math.prod(plan.space) if _separable(region) else units) <= k * units
    if len(region.radius) == 1 and _mixes_once(network, target):
        return True  # the rows are those of one layer's weights, for all examples
    return plan.count * max(math.prod(network.nodes[i].shape) for i in network.ancestors(target)) <= k * units
