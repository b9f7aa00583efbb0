"""Which linear functions of a node are pulled back together, through which network, and how their results are added up.

Bounding a node means pulling one row back for each of its units. Dense rows do just that. Three ways give the same numbers for less:

- A unit of an early convolution sees a patch, not the image. Units whose patches cannot overlap anywhere share one row (`CellRows`),
  like the colours of a compressed Jacobian, and every sum over features becomes a sum over the cell of each unit.
- Or the network is cropped to the patch that one unit sees (`Patches`).
- Channels that are dead in every example are left out of the network (`prune`).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from autodual._tensor import Shape, added, channels_inside, channels_lie_inside, flat, flat_pair, select
from autodual.dual import AffineDual, Band, DualLayer, DualNetwork, DualNode, ElementwiseDual, Window
from autodual.dual.shape import DualPad, DualReshape
from autodual.kernels.weigh import weighable, weighted_l1
from autodual.sets import InputSet, Norm, NormSet, norm_of


class Rows(ABC):
    """Some rows to pull back from a target node. `seed` is [R, N or 1, *target shape]."""

    seed: Tensor

    def start(self, target: int) -> dict[int, Tensor]:
        """Where pulling back begins, and with what."""
        return {target: self.seed}

    @abstractmethod
    def flipped(self) -> Rows:
        """These rows with the opposite sign."""

    @abstractmethod
    def inner(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        """Sum over the features of `node` of a [R, N or 1, *shape] times b [N or 1, *shape], for every unit of the rows."""

    def norm(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        """`inner` with the absolute values of a."""
        return self.inner(node, a.abs(), b)

    def norms(self, node: int, a: Tensor, *values: Tensor) -> list[Tensor]:
        """`norm` for several b."""
        return [self.norm(node, a, b) for b in values]

    @abstractmethod
    def support(self, node: int, a: Tensor, norm: Norm, radius: Tensor) -> Tensor:
        """Half-width of a'x over a set with a norm: dual norm(radius * a), for every unit of the rows."""


@dataclass(frozen=True)
class DenseRows(Rows):
    """One unit per row; results are [R, N]."""

    seed: Tensor

    def flipped(self) -> DenseRows:
        return DenseRows(-self.seed)

    def inner(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        a, b = flat_pair(a, b)
        if a.shape[1] == 1:
            return a.squeeze(1) @ b.T
        if b.shape[0] == 1:
            return a @ b.squeeze(0)
        return _inner_products(a, b.unsqueeze(1))[:, 0].T

    def norm(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        return weighted_l1(a, b) if weighable(a, b) else super().norm(node, a, b)

    def norms(self, node: int, a: Tensor, *values: Tensor) -> list[Tensor]:
        if a.shape[1] == 1 or weighable(a, values[0]):
            return super().norms(node, a, *values)
        flat = [flat_pair(a, b.expand(a.shape[1:])) for b in values]
        sums = _inner_products(flat[0][0].abs(), torch.stack([b for _, b in flat], dim=1))
        return [part.T for part in sums.unbind(1)]

    def support(self, node: int, a: Tensor, norm: Norm, radius: Tensor) -> Tensor:
        if norm.separable:
            return self.norm(node, a, radius.expand(len(radius), *a.shape[2:]))
        return norm.dual((a * radius).flatten(2))


@dataclass(frozen=True)
class StartedRows(DenseRows):
    """Rows that have been pulled back as far as examples can share them: to the first activations, and to the input."""

    at_nodes: dict[int, Tensor]
    """[R, N, *shape] by node."""

    def start(self, target: int) -> dict[int, Tensor]:
        return self.at_nodes

    def flipped(self) -> StartedRows:
        return StartedRows(-self.seed, {node: -values for node, values in self.at_nodes.items()})


def taken(rows: Tensor, which: Tensor) -> Tensor:
    """[R, N, *shape] out of rows [U, 1, *shape] that all examples share: `which` [R, N] of them every example takes."""
    return select(channels_inside(rows.squeeze(1)), which.flatten()).unflatten(0, which.shape)


def _inner_products(a: Tensor, b: Tensor) -> Tensor:
    """Sums over F of a [R, N, F] times b [N, K, F], as [N, K, R]. A CPU is several times faster with the fewer rows on the left."""
    if a.device.type == "cpu":
        return torch.bmm(b, a.permute(1, 2, 0))
    return torch.bmm(a.transpose(0, 1), b.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True)
class CellRows(Rows):
    """All units of one colour and some channels; results are [R, N, *cells]."""

    seed: Tensor
    colour: Shape
    period: Shape
    cells: Shape
    windows: dict[int, Window]

    def flipped(self) -> CellRows:
        return replace(self, seed=-self.seed)

    def inner(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] == 1 and b.shape[0] > 1:
            return self._inner_shared(node, a.squeeze(1), b)
        return self._cells(node, (a * b).sum(2)).sum(self._inside)

    def _inner_shared(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        """`inner` for coefficients that all examples share: a matrix product per cell."""
        count, batch = a.shape[0], b.shape[0]
        per_cell = [
            self._cells(node, v)
            .permute(*self._cell_dims, 0, 1, *self._inside)
            .reshape(-1, len(v), math.prod(v.shape[1:2]) * self._inside_size(node))
            for v in (a, b.expand(batch, *a.shape[1:]))
        ]
        return torch.bmm(per_cell[0], per_cell[1].transpose(1, 2)).permute(1, 2, 0).reshape(count, batch, *self.cells)

    def support(self, node: int, a: Tensor, norm: Norm, radius: Tensor) -> Tensor:
        if norm.separable and radius.numel() == 1:
            return self._cells(node, a.abs().sum(2)).sum(self._inside) * radius.squeeze()
        if norm.separable:
            return self.norm(node, a, radius)
        per_position = norm.gather(norm.measure(a * radius), 2)
        return norm.finish(norm.gather(self._cells(node, per_position), self._inside))

    @property
    def _inside(self) -> list[int]:
        """Positions of the dimensions inside a cell after `_cells`."""
        return [3 + 2 * d for d in range(len(self.cells))]

    @property
    def _cell_dims(self) -> list[int]:
        """Positions of the dimensions that number the cells after `_cells`."""
        return [2 + 2 * d for d in range(len(self.cells))]

    def _inside_size(self, node: int) -> int:
        return math.prod(p * s for p, s in zip(self.period, self.windows[node].stride, strict=True))

    def _cells(self, node: int, values: Tensor) -> Tensor:
        """[R, N, *space] -> [R, N, cells, inside, cells, inside ...]: the map cut where one unit's patch gives way to the next."""
        window = self.windows[node]
        pads: list[int] = []
        shape = list(values.shape[:2])
        reaches_image = True
        for d in reversed(range(len(self.cells))):
            start = self.colour[d] * window.stride[d] + window.low[d]
            length = self.cells[d] * self.period[d] * window.stride[d]
            pads += [-start, start + length - values.shape[2 + d]]
            reaches_image &= start < values.shape[2 + d] and start + length > 0
        for d in range(len(self.cells)):
            shape += [self.cells[d], self.period[d] * window.stride[d]]
        return F.pad(values, pads).reshape(shape) if reaches_image else values.new_zeros(shape)


class Plan(ABC):
    """How all units of a node are covered by rows."""

    count: int
    """Number of rows."""

    @abstractmethod
    def chunks(self, size: int, like: Tensor) -> Iterator[Rows]:
        """Rows in chunks of at most `size`."""

    @abstractmethod
    def assemble(self, results: list[Tensor]) -> Tensor:
        """Results of all chunks, in order, as [N, *shape]."""


@dataclass(frozen=True)
class DensePlan(Plan):
    shape: Shape

    @property
    def count(self) -> int:  # type: ignore[override]
        return math.prod(self.shape)

    def chunks(self, size: int, like: Tensor) -> Iterator[Rows]:
        for start in range(0, self.count, size):
            rows = min(size, self.count - start)
            seed = like.new_zeros(rows, self.count)
            seed.diagonal(start).fill_(1)
            yield DenseRows(seed.reshape(rows, 1, *self.shape))

    def assemble(self, results: list[Tensor]) -> Tensor:
        joined = torch.cat(results) if len(results) > 1 else results[0]
        return joined.T.reshape(-1, *self.shape)


@dataclass(frozen=True)
class SomeUnitsPlan(Plan):
    """One row for each of some units; results are [N, units]."""

    shape: Shape
    units: Tensor

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.units)

    def chunks(self, size: int, like: Tensor) -> Iterator[Rows]:
        for units in self.units.split(size):
            seed = like.new_zeros(len(units), math.prod(self.shape)).scatter_(1, units.unsqueeze(1), 1.0)
            yield DenseRows(seed.reshape(len(units), 1, *self.shape))

    def assemble(self, results: list[Tensor]) -> Tensor:
        return torch.cat(results).T


@dataclass(frozen=True)
class CellPlan(Plan):
    """Units `period` apart never meet on the way to the input, so they share a row.

    A period may exceed the map: it is also the size of a cell, and a cell must hold all that its unit reads.
    """

    shape: Shape
    period: Shape
    windows: dict[int, Window]

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.shape[0] * len(self._colours)

    @property
    def _colours(self) -> list[Shape]:
        return list(itertools.product(*(range(min(n, p)) for n, p in zip(self.shape[1:], self.period, strict=True))))

    def chunks(self, size: int, like: Tensor) -> Iterator[Rows]:
        channels, space = self.shape[0], self.shape[1:]
        for colour in self._colours:
            cells = tuple(-(-(n - c) // p) for n, c, p in zip(space, colour, self.period, strict=True))
            grid = tuple(slice(c, None, p) for c, p in zip(colour, self.period, strict=True))
            for start in range(0, channels, size):
                rows = min(size, channels - start)
                seed = like.new_zeros(rows, channels, *space)
                seed[:, start : start + rows][(slice(None), slice(None), *grid)] = torch.eye(
                    rows, dtype=like.dtype, device=like.device
                ).reshape(rows, rows, *[1] * len(space))
                yield CellRows(seed.unsqueeze(1), colour, self.period, cells, self.windows)

    def assemble(self, results: list[Tensor]) -> Tensor:
        batch, channels = results[0].shape[1], self.shape[0]
        whole = results[0].new_zeros(batch, *self.shape)
        remaining = iter(results)
        for colour in self._colours:
            grid = tuple(slice(c, None, p) for c, p in zip(colour, self.period, strict=True))
            start = 0
            while start < channels:
                part = next(remaining)
                place = (slice(None), slice(start, start + part.shape[0]), *grid)
                whole[place] = part.transpose(0, 1)
                start += part.shape[0]
        return whole


def plan_for(network: DualNetwork, target: int, windows: dict[int, Window] | None) -> Plan:
    """The cheaper way to cover all units of a node with rows."""
    shape = network.nodes[target].shape
    dense = DensePlan(shape)
    if windows is None:
        return dense
    sizes = [[-(-(h - a + 1) // s) for s, a, h in zip(w.stride, w.low, w.high, strict=True)] for w in windows.values()]
    period = tuple(max(size) for size in zip(*sizes, strict=True))
    cells = CellPlan(shape, period, windows)
    return cells if cells.count < dense.count else dense


def local_windows(network: DualNetwork, target: int, region: InputSet) -> dict[int, Window] | None:
    """What one unit of the target reads of every earlier node; None if some node may be read as a whole."""
    dims = len(network.nodes[target].shape) - 1
    if dims < 1 or norm_of(region) is None:
        return None
    windows = {target: Window.same(dims)}
    for index in network.ancestors(target):
        node, window = network.nodes[index], windows[index]
        if node.layer is None:
            continue
        inner: Window | None = Window.same(dims)
        if isinstance(node.layer, AffineDual):
            inner = node.layer.window(network.operand_shapes(index))
        if inner is None or len(inner.stride) != dims:
            return None
        for source in node.inputs:
            reached = window.then(inner)
            joined = reached.union(windows[source]) if source in windows else reached
            if joined is None:
                return None
            windows[source] = joined
    return windows


def features(network: DualNetwork, target: int) -> int:
    """Values that one row pulled back from a node passes through."""
    return sum(math.prod(network.nodes[i].shape) for i in network.ancestors(target))


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
        layer, inner = node.layer, Window.same(len(window.stride))
        if isinstance(layer, AffineDual):
            read = layer.window(network.operand_shapes(index))
            layer = layer.cropped(shape)
            if layer is None or read is None or _leaks(network, index, read):
                return None
            inner = read
        inputs = [_cut_out(nodes, places[i], windows[i], window.then(inner)) for i in node.inputs]
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
