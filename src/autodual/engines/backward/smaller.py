"""Smaller networks with the same bounds: cropped to the patch that one unit sees, or without the channels that are dead."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from autodual._tensor import Shape, added, channels_lie_inside, flat
from autodual.dual import AffineDual, Band, DualLayer, DualNetwork, DualNode, ElementwiseDual, Window
from autodual.dual.shape import DualPad, DualReshape
from autodual.sets import InputSet, NormSet, norm_of

# Bounding a convolution's units one patch at a time.
#
# A unit of a convolution sees a patch of every earlier node, and all its units see patches of the same size. So they are the units
# of *one* small network, cropped to the patch and without padding, over as many virtual examples as there are (example,
# position) pairs; each virtual example has its own cut of the bands and of the input set, zero outside the image. The exact
# bound of the cropped network is the exact bound of the unit, at the price of the patch instead of the image.


@dataclass(frozen=True)
class Patches:
    """A network cropped to what one unit of `target` sees."""

    network: DualNetwork
    places: dict[int, int]
    """Where the activations (and the input, 0) of the whole network are in the cropped one."""
    windows: dict[int, Window]
    space: Shape
    """Spatial shape of the target: one virtual example per position."""
    lines: slice | None = None
    """Positions along the first dimension that are looked at; None: all of them."""

    @property
    def channels(self) -> int:
        """Units of the target at one position."""
        return self.network.nodes[self.network.output].shape[0]

    @property
    def values_per_line(self) -> int:
        """Values of activations and of the input that the units of one line of positions see."""
        seen = sum(math.prod(self.network.nodes[place].shape) for place in self.places.values())
        return math.prod(self.space[1:]) * seen

    @property
    def cost(self) -> int:
        """Values that one row of all virtual examples passes through."""
        return math.prod(self.space) * sum(math.prod(node.shape) for node in self.network.nodes)

    def bands(self, bands: dict[int, Band]) -> dict[int, Band]:
        """The bands of all activations, cut for the virtual examples."""
        cut = {}
        for index, place in self.places.items():
            if index in bands:
                slope, radius = self.cut(index, bands[index].slope), self.cut(index, bands[index].radius)
                cut[place] = Band(slope, torch.zeros_like(slope[:1]), radius)
        return cut

    def region(self, region: InputSet) -> InputSet:
        """The input set, cut for the virtual examples and centred at zero: only its radius counts."""
        radius = self.cut(0, region.radius.expand(len(region), *region.centre.shape[1:]))
        centre = torch.zeros_like(radius[:1]).expand_as(radius)
        norm = norm_of(region)
        assert norm is not None
        return NormSet(centre, radius, norm)

    def cut(self, index: int, values: Tensor) -> Tensor:
        """[N, C, *space] -> [N * positions, C, *patch], with zeros outside, and channels inside where they lay so."""
        window, dims = self.windows[index], len(self.space)
        pads: list[int] = []
        for d in reversed(range(dims)):
            last = (self.space[d] - 1) * window.stride[d] + window.high[d]
            pads += [-window.low[d], last + 1 - values.shape[2 + d]]
        patches = F.pad(values, pads)
        for d in range(dims):
            patches = patches.unfold(2 + d, window.high[d] - window.low[d] + 1, window.stride[d])
        patches = patches if self.lines is None else patches[:, :, self.lines]
        inside = channels_lie_inside(values)
        order = [*range(2 + dims, 2 + 2 * dims), 1] if inside else [1, *range(2 + dims, 2 + 2 * dims)]
        cut = patches.permute(0, *range(2, 2 + dims), *order).flatten(0, dims)
        return cut.movedim(-1, 1) if inside else cut

    def assemble(self, radius: Tensor) -> Tensor:
        """[C, N * positions] -> [N, C, *space], as far as the positions are looked at."""
        first = self.space[0] if self.lines is None else self.lines.stop - self.lines.start
        return radius.reshape(radius.shape[0], -1, first, *self.space[1:]).transpose(0, 1).contiguous()


def crop(network: DualNetwork, target: int, windows: dict[int, Window]) -> Patches | None:
    """The network that one unit of the target sees; None if some layer is not the same at every position."""
    nodes: list[DualNode] = []
    places: dict[int, int] = {}
    for index in reversed(network.ancestors(target)):
        node, window = network.nodes[index], windows[index]
        shape = (node.shape[0], *_size(window))
        layer, inputs = node.layer, [places[i] for i in node.inputs]
        if isinstance(layer, AffineDual):
            inner = layer.window(network.operand_shapes(index))
            layer = layer.cropped(shape)
            if layer is None or inner is None or _leaks(network, index, inner):
                return None
            inputs = [
                _cut_out(nodes, i, windows[j], window.then(inner)) for i, j in zip(inputs, node.inputs, strict=True)
            ]
        places[index] = len(nodes)
        nodes.append(DualNode(node.name, layer, tuple(inputs), shape))
    return Patches(DualNetwork(tuple(nodes), len(nodes) - 1), places, windows, network.nodes[target].shape[1:])


def _size(window: Window) -> Shape:
    return tuple(h - a + 1 for a, h in zip(window.low, window.high, strict=True))


def _cut_out(nodes: list[DualNode], place: int, whole: Window, read: Window) -> int:
    """A node that cuts what one consumer reads out of what all consumers read; the node itself if that is all of it."""
    before = tuple(r - w for r, w in zip(read.low, whole.low, strict=True))
    after = tuple(w - r for r, w in zip(read.high, whole.high, strict=True))
    if not any(before) and not any(after):
        return place
    amounts = [-n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    shape = (nodes[place].shape[0], *_size(read))
    nodes.append(DualNode(f"{nodes[place].name}[cut]", DualPad(tuple(amounts), 0.0, shape), (place,), shape))
    return len(nodes) - 1


def _leaks(network: DualNetwork, index: int, inner: Window) -> bool:
    """Whether positions outside the image would reach the input: through two windows with nothing between that is zero there."""
    if inner == Window.same(len(inner.stride)):
        return False
    pending = list(network.nodes[index].inputs)
    while pending:
        source = pending.pop()
        layer = network.nodes[source].layer
        if layer is None or isinstance(layer, ElementwiseDual):
            continue
        reads = layer.window(network.operand_shapes(source))
        if reads != Window.same(len(inner.stride)):
            return True
        pending.extend(network.nodes[source].inputs)
    return False


# Leaving out channels that are dead in every example of the batch.
#
# Where an activation's band is zero for a whole channel, no coefficient gets past it: neither the layer that computes the channel nor
# what reads it needs to. Robustly trained networks have many such channels. The bounds are the same numbers.

FEW_ALIVE = 0.85
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
    channels = alive.nonzero().squeeze(1)
    return channels if 0 < len(channels) <= FEW_ALIVE * len(alive) else None


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
    source = network.source(activation)
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
