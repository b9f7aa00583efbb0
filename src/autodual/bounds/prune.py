"""Leaving out channels that are dead in every example of the batch.

Where an activation's band is zero for a whole channel, no coefficient gets past it: neither the layer that computes the channel nor
what reads it needs to. Robustly trained networks have many such channels. The bounds are the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from autodual._tensor import added, flat
from autodual.dual import AffineDual, DualLayer, DualNetwork
from autodual.dual.shape import DualReshape

WORTHWHILE = 0.85
"""Channels are left out only if at most this part of them is alive."""


@dataclass
class _Draft:
    """Changed layers and the channels that are kept of each changed node."""

    layers: dict[int, DualLayer]
    kept: dict[int, Tensor]


def alive_channels(*parts: Tensor) -> Tensor | None:
    """Indices of the channels where some part is not zero; None if leaving out the others is not worthwhile."""
    if parts[0].dim() == 1:  # one number per example: nothing to leave out
        return None
    alive = added([flat(part.abs(), 2).sum((0, 2)) for part in parts]) != 0
    count = int(alive.sum())
    return alive.nonzero().squeeze(1) if 0 < count <= WORTHWHILE * len(alive) else None


def prune(network: DualNetwork, alive: dict[int, Tensor]) -> tuple[DualNetwork, dict[int, Tensor]]:
    """The network with only the given channels of these activations, and the channels that are kept of each changed node.

    An activation is left as it is where a neighbour does not know how to be narrowed.
    """
    draft = _Draft({}, {})
    for index, channels in alive.items():
        change = _Draft(dict(draft.layers), dict(draft.kept))
        if _narrow(network, index, channels, change):
            draft = change
    nodes = [
        replace(node, layer=draft.layers.get(i, node.layer), shape=_shape(node.shape, draft.kept.get(i)))
        for i, node in enumerate(network.nodes)
    ]
    return DualNetwork(tuple(nodes), network.output), draft.kept


def _shape(shape: tuple[int, ...], kept: Tensor | None) -> tuple[int, ...]:
    return shape if kept is None else (len(kept), *shape[1:])


def _narrow(network: DualNetwork, activation: int, channels: Tensor, draft: _Draft) -> bool:
    if activation == network.output:
        return False
    draft.kept[activation] = channels
    source = network.nodes[activation].inputs[0]
    readers = network.readers[activation]
    return _narrow_result(network, source, activation, channels, draft) and all(
        _narrow_operand(network, reader, activation, channels, draft) for reader in readers
    )


def _narrow_result(network: DualNetwork, index: int, reader: int, channels: Tensor, draft: _Draft) -> bool:
    """Compute only some channels of a node that has one reader."""
    layer = draft.layers.get(index, network.nodes[index].layer)
    if not isinstance(layer, AffineDual) or network.readers[index] != (reader,):
        return False
    narrowed = layer.narrowed(results=channels)
    if narrowed is None:
        return False
    draft.layers[index], draft.kept[index] = narrowed, channels
    if not layer.channelwise:
        return True
    shape, inputs = network.nodes[index].shape, network.nodes[index].inputs
    if any(len(s) != len(shape) or s[0] != shape[0] for s in network.operand_shapes(index)):
        return False  # an operand is broadcast over the channels
    return all(_narrow_result(network, i, index, channels, draft) for i in inputs)


def _narrow_operand(network: DualNetwork, index: int, source: int, channels: Tensor, draft: _Draft) -> bool:
    """Read only some channels of a node."""
    layer = draft.layers.get(index, network.nodes[index].layer)
    if isinstance(layer, DualReshape):
        return _narrow_flattened(network, index, source, channels, draft)
    if not isinstance(layer, AffineDual) or layer.channelwise or len(network.nodes[index].inputs) != 1:
        return False
    narrowed = layer.narrowed(operands=channels)
    if narrowed is None:
        return False
    draft.layers[index] = narrowed
    return True


def _narrow_flattened(network: DualNetwork, index: int, source: int, channels: Tensor, draft: _Draft) -> bool:
    before, after = network.nodes[source].shape, network.nodes[index].shape
    if len(after) != 1 or index == network.output:
        return False
    size = math.prod(before[1:])
    features = (channels.unsqueeze(1) * size + torch.arange(size, device=channels.device)).flatten()
    draft.layers[index], draft.kept[index] = DualReshape((len(features),)), features
    return all(_narrow_operand(network, reader, index, features, draft) for reader in network.readers[index])
