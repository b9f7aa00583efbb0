"""Random projections without randomness: each of the k numbers is 1 for one generator and 0 for all others.

A stream of such draws holds the generators themselves, so its absolute values add up to the exact radius: what holds for k random
numbers on average holds here to the last digits, with as many numbers as there are generators.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import autodual as ad
from autodual.dual import DualNetwork, walk
from autodual.engines.streams import COLUMNS, GAUSS, Angles, Draws, StreamPass, passed_activations


def one_by_one(network: DualNetwork, region: ad.InputSet) -> Draws:
    """Draws that single out one input feature, or one unit of an activation, after the other."""
    places = {i: network.nodes[i].shape for i in (0, *passed_activations(network))}
    k, start, numbers = sum(map(math.prod, places.values())), 0, dict[int, Tensor]()
    for index, shape in places.items():
        own = region.centre.new_zeros(k, math.prod(shape))
        own[start : start + math.prod(shape)].fill_diagonal_(1.0)
        numbers[index], start = own.reshape(k, 1, *shape), start + math.prod(shape)
    first = {1.0: Angles.of(numbers[0]), 2.0: numbers[0], math.inf: None}[region.dual_norm or 0.0]
    return Draws({i: Angles.of(own) for i, own in numbers.items() if i != 0}, first)


def radii_from_streams(network: DualNetwork, region: ad.InputSet, merged: bool) -> dict[int, tuple[Tensor, Tensor]]:
    """By activation: the radius of what enters it, read off such streams, and the exact one for the same bands."""
    with torch.no_grad():
        exact = ad.Dual().preactivations(network, region).intervals
        bands = {index: network.activation(index).band(interval) for index, interval in exact.items()}
        carried = StreamPass(network, region, one_by_one(network, region), merged, bands)
        found = {i: walk(network, carried, network.nodes[i].inputs[0]) for i in exact}
    return {i: (_read(found[i]).expand_as(exact[i].lower), exact[i].radius) for i in exact}


def _read(streams: dict[int, Tensor]) -> Tensor:
    """The norm that each stream stands for, without an estimator."""
    norms = {GAUSS: lambda s: s.norm(dim=0), COLUMNS: lambda s: s.abs().amax(0)}
    parts = [norms.get(term, lambda s: s.abs().sum(0))(samples) for term, samples in streams.items()]
    return sum(parts[1:], parts[0])
