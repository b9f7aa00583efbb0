"""Exact bounds only where they count: units whose activation a cheaper bound shows to be straight need no rows.

Let rho be the radii of what enters an activation with the band slope * z + centre +- r, that is, the l1 norms of its generators. The
generators of W times its result are W (slope * generators) and W r, and by the triangle inequality their l1 norms are at most

    |W| (|slope| rho + r).

So centre +- this contains the exact interval. A ReLU that keeps its sign on the wider interval keeps it on the exact one, and has the
same band there, slope 1 or 0 and radius 0: all that is bounded after it is the same number. The other units are *open*. Rows are
pulled back for them alone: each example's own, or those of all examples together where these are hardly more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._tensor import values_at_hand
from autodual.dual import AffineDual, Band, DualLayer, DualNetwork, ElementwiseDual, OnDemand, Pass
from autodual.engines.backward.rows import CellPlan, Patches, Plan
from autodual.engines.rounding import Errors
from autodual.interval import Interval
from autodual.sets import InputSet, norm_of


@dataclass(frozen=True)
class RadiusBounds(Pass[Tensor]):
    """Radii that are at least the exact ones: |W| r, and |slope| r + radius of the band; in a proof, with room for rounding."""

    region: InputSet
    bands: dict[int, Band]
    rounding: Errors

    def input(self) -> Tensor:
        return self.rounding.with_room(0, self.region.radius.expand_as(self.region.centre))

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return self.rounding.with_room(index, layer.absolute(*operands))

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        band = self.bands[index]
        return self.rounding.with_room(index, layer.along(band.slope.abs(), operands[0]) + band.radius)


MOST_CHOSEN, MOST_AFTER_ONE = 0.75, 0.4
"""Rows are pulled back for chosen units alone if those are at most this part of all units; after a single activation there is less to
gain, since all examples share rows up to there."""
SHARED = 1.3
"""Examples share the rows of all units that are open in some of them if those are at most this many times as many."""
LEAST = 3e8
"""Multiplications that leaving units of a convolution out must save, about: what it takes to find and to gather the others."""
DEARER = 0.25
"""Part of the next node's rows, about, that exact radii here save there."""


class Settling:
    """Which units of every node need exact bounds, in one computation."""

    def __init__(self, network: DualNetwork, region: InputSet, bands: dict[int, Band], rounding: Errors) -> None:
        self.network, self.region, self.rounding = network, region, rounding
        self._reach = OnDemand(network, RadiusBounds(region, bands, rounding))

    def reach(self, source: int) -> Tensor:
        """Radii of a node that are at least the exact ones."""
        return self._reach.at(source)

    def remember(self, source: int, interval: Interval) -> None:
        """What is known of a node that has been bounded: the cheaper bound goes on from there."""
        self._reach.put(source, self.rounding.reach(source, interval))

    def chosen(
        self, source: int, centre: Tensor, plan: Plan | Patches, operations: Callable[[int], float]
    ) -> Tensor | None:
        """[N or 1, *shape] bool: units of a node to pull rows back for; None if that is best done for all of them.

        Those are the open ones and, where the next node takes far more work, all whose radius it reads: with exact radii fewer
        units are open there.

        operations: of bounding all units of a node.
        """
        if norm_of(self.region) is None or isinstance(plan, CellPlan) or torch.is_grad_enabled():
            return None
        passed = sum(i in self.network.activations for i in self.network.ancestors(source))
        if passed == 0:
            return None  # all examples share all rows
        alike = not values_at_hand(centre)  # a GPU is faster with rows that all examples share
        work = operations(source) * len(centre)
        if isinstance(plan, Patches) and (alike or work < LEAST):
            return None
        interval = Interval.around(centre, self.rounding.with_run_error(source, self.reach(source)))
        units = self._open(source, interval)
        if units is None:
            return None
        most = int((MOST_CHOSEN if passed > 1 else MOST_AFTER_ONE) * units.numel())
        count = int(units.sum())
        if count > most or (isinstance(plan, Patches) and work * (units.numel() - count) < LEAST * units.numel()):
            return None
        following = self._next(source)
        if following is not None:
            read = units | self._read(source, interval)
            more = int(read.sum()) - count
            if more * operations(source) < DEARER * units.numel() * operations(following):
                units = read
        together = units.any(0, keepdim=True)
        shared, own = int(together.sum()) * len(centre), int(units.sum())
        if alike or (shared <= SHARED * own and not isinstance(plan, Patches)):
            units, own = together, shared
        return units if own <= most else None

    def _next(self, source: int) -> int | None:
        """The first node after this one that is bounded for an activation."""
        return min((i for i in map(self.network.source, self.network.activations) if i > source), default=None)

    def _open(self, source: int, interval: Interval) -> Tensor | None:
        """Units that some activation may bend on `interval`, or whose interval is not finite; None if there is no telling."""
        found = ~interval.finite()
        for layer in self._readers(source):
            if isinstance(layer, ElementwiseDual):
                straight = layer.straight(interval) if layer.elementwise else None
                if straight is None:
                    return None
                found |= ~straight
        return found

    def _read(self, source: int, interval: Interval) -> Tensor:
        """Units whose radius matters for what comes later: not those of a ReLU that is zero."""
        found = torch.zeros_like(interval.lower, dtype=torch.bool)
        for layer in self._readers(source):
            found |= layer.band(interval).slope != 0 if isinstance(layer, ElementwiseDual) else True
        return found

    def _readers(self, source: int) -> list[DualLayer | None]:
        return [self.network.nodes[reader].layer for reader in self.network.readers[source]]


# Open units differ from example to example. Examples with about as many of them are treated together, so that rows [R, N, ...] can
# be each example's own, and one example's bands serve all its rows.

EVEN = 0.5
"""Examples share a block if the last of them has at least this part of the first one's open units."""
FEW_ROWS = 512
"""Blocks of fewer rows are not worth being even."""


@dataclass(frozen=True)
class Block:
    """Open units of some examples, R or fewer of each."""

    examples: Tensor
    """[N]: which examples."""
    units: Tensor
    """[R, N]: which units, in the flattened shape; any where an example has fewer."""
    rank: Tensor
    place: Tensor
    """[P] each: where an open unit is in `units`, once for every open unit."""

    def put(self, values: Tensor, whole: Tensor) -> None:
        """Writes values [R, K, N] of the open units into `whole` [K, all examples, all units]."""
        found = values.movedim(1, 0)[:, self.rank, self.place]
        whole[:, self.examples[self.place], self.units[self.rank, self.place]] = found


def blocks(chosen: Tensor, limit: int) -> Iterator[Block]:
    """All open units, `chosen` [N, units], in blocks of at most `limit` rows."""
    limit = max(1, limit)
    counts, order = chosen.sum(1).sort(descending=True, stable=True)
    each = [count for count in counts.tolist() if count > 0]
    order, counts = order[: len(each)], counts[: len(each)]
    place, units = chosen.index_select(0, order).nonzero().T
    ends = counts.cumsum(0)
    rank = torch.arange(len(units), device=units.device) - (ends - counts)[place]
    first = begin = 0
    while first < len(each):
        most = each[first]
        even = bisect_left(each, -EVEN * most, key=lambda count: -count)
        last = min(max(even, first + FEW_ROWS // most), first + max(1, limit // most), len(each))
        end = begin + sum(each[first:last])
        yield from _split(order[first:last], units[begin:end], rank[begin:end], place[begin:end] - first, most, limit)
        first, begin = last, end


def _split(examples: Tensor, units: Tensor, rank: Tensor, place: Tensor, most: int, limit: int) -> Iterator[Block]:
    """One block, or several if an example, then alone, has more than `limit` open units."""
    for start in range(0, most, limit):
        some = slice(None) if most <= limit else slice(start, start + limit)
        rows, places = rank[some] - start, place[some]
        table = units.new_zeros(min(limit, most - start), len(examples))
        table[rows, places] = units[some]
        yield Block(examples, table, rows, places)
