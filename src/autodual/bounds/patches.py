"""Bounding a convolution's units one patch at a time.

A unit of a convolution sees a patch of every earlier node, and all its units see patches of the same size. So they are the units
of *one* small network, cropped to the patch and without padding, over as many virtual examples as there are (example,
position) pairs; each virtual example has its own cut of the bands and of the input set, zero outside the image. The exact
bound of the cropped network is the exact bound of the unit, at the price of the patch instead of the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from autodual._types import Shape
from autodual.dual import AffineDual, Band, DualNetwork, DualNode, ElementwiseDual, Window
from autodual.dual.shape import DualPad
from autodual.sets import Box, InputSet, NormSet


@dataclass(frozen=True)
class Patches:
    """A network cropped to what one unit of `target` sees."""

    network: DualNetwork
    places: dict[int, int]
    """Where the activations (and the input, 0) of the whole network are in the cropped one."""
    windows: dict[int, Window]
    space: Shape
    """Spatial shape of the target: one virtual example per position."""

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
        if region.dual_norm == 1:
            return Box.around(centre, radius)
        assert region.dual_norm is not None
        return NormSet(centre, radius, region.dual_norm)

    def cut(self, index: int, values: Tensor) -> Tensor:
        """[N, C, *space] -> [N * positions, C, *patch], with zeros outside."""
        window, dims = self.windows[index], len(self.space)
        pads: list[int] = []
        for d in reversed(range(dims)):
            last = (self.space[d] - 1) * window.stride[d] + window.high[d]
            pads += [-window.low[d], last + 1 - values.shape[2 + d]]
        patches = F.pad(values, pads)
        for d in range(dims):
            patches = patches.unfold(2 + d, window.high[d] - window.low[d] + 1, window.stride[d])
        order = [0, *range(2, 2 + dims), 1, *range(2 + dims, 2 + 2 * dims)]
        return patches.permute(order).flatten(0, dims)

    def assemble(self, radius: Tensor) -> Tensor:
        """[C, N * positions] -> [N, C, *space]."""
        return radius.reshape(radius.shape[0], -1, *self.space).transpose(0, 1).contiguous()


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
                _narrowed(nodes, i, windows[j], window.then(inner)) for i, j in zip(inputs, node.inputs, strict=True)
            ]
        places[index] = len(nodes)
        nodes.append(DualNode(node.name, layer, tuple(inputs), shape))
    return Patches(DualNetwork(tuple(nodes), len(nodes) - 1), places, windows, network.nodes[target].shape[1:])


def _size(window: Window) -> Shape:
    return tuple(h - a + 1 for a, h in zip(window.low, window.high, strict=True))


def _narrowed(nodes: list[DualNode], place: int, whole: Window, read: Window) -> int:
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
