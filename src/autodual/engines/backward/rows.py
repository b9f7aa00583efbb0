"""Which linear functions of a node are pulled back together, and how their results are added up.

Bounding a node means pulling one row back for each of its units. Dense rows do just that. But a unit of an early convolution
sees a patch, not the image: units whose patches cannot overlap anywhere share one row, like the colours of a compressed
Jacobian, and every sum over features becomes a sum over the cell of each unit: the same numbers from far fewer rows.
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

from autodual._tensor import Shape, flat_pair
from autodual.dual import AffineDual, DualNetwork, Window
from autodual.kernels.weigh import weighable, weighted_l1
from autodual.sets import InputSet, Norm, norm_of


class Rows(ABC):
    """Some rows to pull back from a target node. `seed` is [R, N or 1, *target shape]."""

    seed: Tensor

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
