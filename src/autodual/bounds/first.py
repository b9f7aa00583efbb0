"""Exact radii where no activation comes before: they need no projection."""

from __future__ import annotations

from torch import Tensor

from autodual.bounds.memory import Budget
from autodual.bounds.radius import RadiusPass
from autodual.dual import AffineDual, DualNetwork
from autodual.sets import InputSet


def first_radii(network: DualNetwork, region: InputSet) -> dict[int, Tensor]:
    """[N or 1, *shape] by node, for what enters the activations that no other activation comes before."""
    return {source: _radius(network, region, source) for source in sorted(first_sources(network))}


def first_sources(network: DualNetwork) -> set[int]:
    """Nodes that enter an activation, and that no activation comes before."""
    activations = set(network.activations)
    sources = {network.nodes[i].inputs[0] for i in network.activations}
    return {source for source in sources if not set(network.ancestors(source)) & activations}


def _radius(network: DualNetwork, region: InputSet, target: int) -> Tensor:
    if region.dual_norm == 1 and _sizes_multiply(network, target):
        values = {0: region.radius.expand(-1, *region.centre.shape[1:])}
        for index in sorted(network.ancestors(target))[1:]:
            node = network.nodes[index]
            assert isinstance(node.layer, AffineDual)
            values[index] = node.layer.absolute(*(values[i] for i in node.inputs))
        return values[target]
    return RadiusPass(network, region, {}, Budget.unlimited(), static=True).of_units(target)[0]


def _sizes_multiply(network: DualNetwork, target: int) -> bool:
    """Whether |W| of the whole chain is the product of the layers' |W|: at most one of them mixes entries."""
    chain = [i for i in network.ancestors(target) if i != 0]
    if any(len(network.nodes[i].inputs) != 1 for i in chain):
        return False
    layers = [(network.nodes[i].layer, network.operand_shapes(i)) for i in chain]
    return sum(not (isinstance(a, AffineDual) and a.one_to_one(shapes)) for a, shapes in layers) <= 1
