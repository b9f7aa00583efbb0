"""Optimised slopes: the free slopes of every activation are improved by gradient steps, for every bound on its own.

Below an unstable ReLU every line a z with 0 <= a <= 1 is valid, and `Crown` takes a = 0 or 1. Let the intervals of the activations
before a node be fixed. Then the bound on a row c of the node is a function of the slopes that the row meets on its way to the input,

    lower(c; a)  =  min over the input set of the linear function that c becomes if every activation is replaced by its lines,

and a lower bound on c'z for *every* a. So a may be chosen by any search: here Adam, projected to the slopes that the activations allow
(`ElementwiseDual.free_slopes`), and the best a that was met is kept. Rows do not share slopes, so each has an optimum of its own, and
chunks of rows are as good as all at once. For ReLU, the largest lower(c; a) is the optimum of the linear program over the triangles of
all activations before the row [Salman et al. 2019].

Nodes are treated in order. Tighter intervals only shrink the triangles after them, so what is best for a unit is best for the margins,
too: no gradient needs to pass from one node's bounds to another's. What is proved is computed once more from the slopes found, with
its rounding; the errors of an activation are counted for the worst slopes that it allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape, channels_inside, flat, merge_leading, split_leading
from autodual.dual import CurvedDual, DualNetwork, FreeSlopes, Lines
from autodual.engines.backward.crown import Crown, CrownSolver
from autodual.engines.backward.dual import BackwardEngine
from autodual.engines.backward.rows import CellRows, DenseRows, Plan, Rows, local_windows, plan_for
from autodual.engines.best import improved
from autodual.engines.effort import Budget, current, even_split, report_progress
from autodual.engines.ibp import IBP
from autodual.engines.results import BoundEngine, Minimum, ProbableProof, Proof
from autodual.engines.rounding import Errors, Outside, Rounding, outside_of_both
from autodual.interval import Interval
from autodual.sets import InputSet, Norm
from autodual.spec import Spec

COPIES = 14
"""Tensors of the size of all coefficients of a row that are alive while its slopes are improved, about: slopes, gradients and two
moments of them, the best slopes, and what a gradient step keeps."""
CHUNK_BYTES = 256 << 20
"""On a CPU, larger chunks are no faster."""
CURVED_COPIES = 60
"""`COPIES` for activations whose offsets of lines are searched for."""
MOMENTS = 0.9, 0.99
"""Decay of the moments of gradients. [Adam]"""


@dataclass(frozen=True)
class _WithOwnLines(Rows):
    """Rows whose lines may differ from row to row: offsets are [N, *shape] or [R, N, *shape]."""

    rows: DenseRows | CellRows

    @property
    def seed(self) -> Tensor:  # type: ignore[override]
        return self.rows.seed

    def flipped(self) -> Rows:
        return replace(self, rows=self.rows.flipped())

    def inner(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        if b.dim() < a.dim():
            return self.rows.inner(node, a, b)
        products = a * b
        return self.rows.inner(node, products, torch.ones_like(products[0, :1]))

    def norm(self, node: int, a: Tensor, b: Tensor) -> Tensor:
        return self.rows.norm(node, a, b)

    def norms(self, node: int, a: Tensor, *values: Tensor) -> list[Tensor]:
        return self.rows.norms(node, a, *values)

    def support(self, node: int, a: Tensor, norm: Norm, radius: Tensor) -> Tensor:
        return self.rows.support(node, a, norm, radius)


@dataclass(frozen=True)
class _Free:
    """What the lines of one activation may be: the interval that they are for, their slopes, and on which sides there is a choice."""

    interval: Interval
    slopes: FreeSlopes
    choice: tuple[bool, bool]

    @classmethod
    def of(cls, interval: Interval, slopes: FreeSlopes) -> _Free:
        below, above = (
            span.lower is not span.upper and bool((span.upper > span.lower).any())
            for span in (slopes.lower, slopes.upper)
        )
        return cls(interval, slopes, (below, above))


@dataclass(frozen=True)
class UnitsOfExamplesPlan(Plan):
    """One row for each of some units, which may be others for every example; results for all others are NaN."""

    shape: Shape
    units: Tensor
    """[R, N]: places in the flattened shape, each of them once for an example."""

    @classmethod
    def of(cls, wanted: Tensor) -> UnitsOfExamplesPlan:
        """The units that are wanted, and where others have more of them, some more."""
        each = flat(wanted, 1)
        order = each.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        return cls(tuple(wanted.shape[1:]), order[:, : int(each.sum(1).max())].T)

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.units)

    def chunks(self, size: int, like: Tensor) -> Iterator[Rows]:
        for units in self.units.split(size):
            seed = like.new_zeros(*units.shape, math.prod(self.shape)).scatter_(2, units.unsqueeze(2), 1.0)
            yield DenseRows(seed.reshape(*units.shape, *self.shape))

    def assemble(self, results: list[Tensor]) -> Tensor:
        found = torch.cat(results).T
        nothing = found.new_full((len(found), math.prod(self.shape)), torch.nan)
        return nothing.scatter(1, self.units.T, found).reshape(-1, *self.shape)


class _Slopes:
    """The slopes of one activation for some rows, [R, N, *shape], on both sides or on those where there is a choice."""

    def __init__(self, free: _Free, own: Lines, rows: int) -> None:
        self.own = own.lower_slope.detach(), own.upper_slope.detach()
        spans = free.slopes.lower, free.slopes.upper
        self.sides = [
            _Side(span, start, rows) if choice else None
            for span, start, choice in zip(spans, self.own, free.choice, strict=True)
        ]

    def both(self, now: bool) -> tuple[Tensor, Tensor]:
        """Slopes below and above: those of now, or the best so far."""
        lower, upper = (
            own if side is None else (side.slope if now else side.best)
            for side, own in zip(self.sides, self.own, strict=True)
        )
        return lower, upper


class _Side:
    """Slopes of the lines on one side, and what the search knows of them."""

    def __init__(self, span: Interval, start: Tensor, rows: int) -> None:
        self.lowest, self.highest = (channels_inside(end.detach()) for end in (span.lower, span.upper))
        self.width = self.highest - self.lowest
        self.slope = _repeated(start.detach(), rows)
        self.best = self.slope
        self.first = self.second = torch.zeros_like(self.slope)

    def keep(self, better: Tensor) -> None:
        """Notes the slopes of the rows [R, N] that are better than ever."""
        mask = better.reshape(*better.shape, *[1] * (self.slope.dim() - 2))
        self.best = torch.where(mask, self.slope.detach(), self.best)

    def move(self, gradient: Tensor, rate: float, step: int) -> None:
        """One step of Adam upwards, in units of the width that slopes may have, back into it."""
        decay, slow = MOMENTS
        self.first = torch.lerp(gradient, self.first, decay)
        self.second = torch.lerp(gradient.square(), self.second, slow)
        size = (self.second / (1 - slow**step)).sqrt_().add_(torch.finfo(gradient.dtype).tiny)
        moved = torch.addcmul(self.slope.detach(), self.first / size, self.width, value=rate / (1 - decay**step))
        self.slope = torch.minimum(torch.maximum(moved, self.lowest), self.highest)


class SlopeSolver(CrownSolver):
    """Two lines per unit, whose slopes are optimised for every row on its own.

    Bounds on nodes are never wider than with the lines that `Crown` takes for the same intervals.
    """

    def __init__(
        self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors, steps: int, rate: float
    ) -> None:
        super().__init__(network, region, budget, rounding)
        self.steps, self.rate = steps, rate
        self.free: dict[int, _Free] = {}
        self._own = CrownSolver(network, region, budget, rounding)
        self._own.chosen = self.chosen

    def relax(self, index: int, interval: Interval) -> None:
        layer = self.network.activation(index)
        free = layer.free_slopes(interval)
        if free is None:
            super().relax(index, interval)
            return
        lines = layer.lines(interval)
        self.chosen[index] = Lines(*(channels_inside(getattr(lines, f.name)) for f in fields(lines)))
        self.free[index] = _Free.of(interval, free)
        if isinstance(self.rounding, Rounding):  # a sum over rows is wrong by no more than with the worst slopes
            slopes = free.lower.lower, free.lower.upper, free.upper.lower, free.upper.upper
            self.rounding.enter(index, interval, slopes, free.offset)

    def operations(self, index: int) -> float:
        once = super().operations(index)
        before = any(i in self.network.activations for i in self.network.ancestors(index))
        return (2 + 3 * self.steps) * once if before else once

    # Bounds on nodes.

    def bound(self, index: int) -> Interval:
        own = self._own.bound(index)
        if not any(i in self.free for i in self.network.ancestors(index)):
            return own
        plan = self._plan(index, own)
        if plan.count == 0:
            return own
        below, error = self._of_plan(index, plan, flipped=False)
        above, other = self._of_plan(index, plan, flipped=True)
        return self._agreed(index, own, Interval(below, -above), torch.maximum(error, other))

    def _plan(self, index: int, own: Interval) -> Plan:
        """The units whose bounds matter: all, or those that activations read where they are not straight, if no product reads them."""
        plan = plan_for(self.network, index, local_windows(self.network, index, self.region))
        readers = [i for i in self.network.activations if self.network.source(i) == index]
        if not all(self.network.activation(i).elementwise for i in readers) or not readers:
            return plan
        bent = torch.zeros_like(own.lower, dtype=torch.bool)
        for reader in readers:
            lines = self.network.activation(reader).lines(own.detach())
            apart = (lines.lower_slope != lines.upper_slope) | (lines.lower_offset != lines.upper_offset)
            bent = bent | (apart if apart.shape == bent.shape else torch.ones_like(bent))
        some = UnitsOfExamplesPlan.of(bent)
        return some if some.count <= plan.count else plan

    def _of_plan(self, index: int, plan: Plan, flipped: bool) -> tuple[Tensor, Tensor]:
        """Bounds from below on the rows of a plan, or on their opposites, and the sums of their errors."""
        values, errors = list[Tensor](), list[Tensor]()
        size = even_split(plan.count, self._rows_at_once(index))
        for rows in plan.chunks(size, self.region.centre):
            value, error, _ = self.lower(index, rows.flipped() if flipped else rows)
            value, error = torch.broadcast_tensors(value, error)
            values.append(value)
            errors.append(error)
            half = min(0.5, 0.5 * len(values) * size / plan.count)
            report_progress(index, 0.5 + half if flipped else half)
        return plan.assemble(values), plan.assemble(errors)

    def _agreed(self, index: int, own: Interval, found: Interval, error: Tensor) -> Interval:
        """The intersection of the bounds with the activations' own lines and of those found; NaN where nothing was looked for."""
        known = found.finite() & error.isfinite()
        found = Interval(torch.where(known, found.lower, own.lower), torch.where(known, found.upper, own.upper))
        both = own.intersect(found)
        rounding = self.rounding
        if isinstance(rounding, Rounding):
            before = rounding.outside[index]
            rounding.note(index, error)
            now = rounding.outside[index]
            now = Outside(
                *(torch.where(known, b, a) for a, b in ((before.below, now.below), (before.above, now.above)))
            )
            rounding.take(index, both, outside_of_both(both, [(own, before), (found, now)]))
        return both

    def _rows_at_once(self, index: int) -> int:
        values, like = 0, self.region.centre
        for i in self.network.ancestors(index):
            node = self.network.nodes[i]
            values += math.prod(node.shape) * (CURVED_COPIES if isinstance(node.layer, CurvedDual) else COPIES)
        limit = min(self.budget.max_bytes, CHUNK_BYTES) if like.device.type == "cpu" else self.budget.max_bytes
        return max(1, limit // (values * len(self.region) * like.element_size()))

    # Bounds on rows.

    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        assert isinstance(rows, DenseRows | CellRows)
        parts = [self._lower_of_chunk(index, some, as_run) for some in self._chunks(index, rows)]
        if len(parts) == 1:
            return parts[0]
        values, errors, run_errors = (torch.cat(kind) for kind in zip(*parts, strict=True))
        return values, errors, run_errors

    def _chunks(self, index: int, rows: DenseRows | CellRows) -> Iterator[DenseRows | CellRows]:
        size = even_split(len(rows.seed), self._rows_at_once(index))
        for seed in rows.seed.split(size):
            yield replace(rows, seed=seed)

    def _lower_of_chunk(self, index: int, rows: DenseRows | CellRows, as_run: bool) -> tuple[Tensor, Tensor, Tensor]:
        best = self._optimised(index, rows)
        chosen = self._lines(best, now=False, live=True)
        return self._with(chosen).lower(index, _WithOwnLines(rows), as_run)

    def _with(self, chosen: dict[int, Lines]) -> CrownSolver:
        """A computation with these lines in place of the activations' own."""
        solver = CrownSolver(self.network, self.region, self.budget, self.rounding)
        solver.chosen = self.chosen | chosen
        return solver

    def _lines(self, slopes: dict[int, _Slopes], now: bool, live: bool) -> dict[int, Lines]:
        """Lines with these slopes; live: with the gradients of the intervals that they are for."""
        found = {}
        for i, own in slopes.items():
            interval = self.free[i].interval
            found[i] = self.network.activation(i).lines_with(interval if live else interval.detach(), *own.both(now))
        return found

    def _optimised(self, index: int, rows: DenseRows | CellRows) -> dict[int, _Slopes]:
        """The best slopes that gradient steps find for the rows, by activation."""
        before = [i for i in self.network.ancestors(index) if i in self.free]
        with torch.enable_grad():
            slopes = {i: _Slopes(self.free[i], self.chosen[i], len(rows.seed)) for i in before}
            sides = [side for own in slopes.values() for side in own.sides if side is not None]
            if sides:
                self._improve(index, _WithOwnLines(rows), slopes, sides)
        return slopes if sides else {}

    def _improve(self, index: int, rows: _WithOwnLines, slopes: dict[int, _Slopes], sides: list[_Side]) -> None:
        plain = {i: _detached(self.chosen[i]) for i in self.chosen}
        best: Tensor | None = None
        for step in range(1, self.steps + 2):
            last = step > self.steps
            for side in sides:
                side.slope = side.slope.detach().requires_grad_(not last)
            solver = CrownSolver(self.network, self.region, self.budget, self.rounding)
            solver.chosen = plain | self._lines(slopes, now=True, live=False)
            value = solver._lower(index, rows, [])
            score = flat(value.detach(), 2).sum(2) if value.dim() > 2 else value.detach()
            if best is None:
                best = score
            else:
                better = score > best
                best = torch.where(better, score, best)
                for side in sides:
                    side.keep(better)
            if last:
                break
            gradients = torch.autograd.grad(value.sum(), [side.slope for side in sides], allow_unused=True)
            with torch.no_grad():
                for side, gradient in zip(sides, gradients, strict=True):
                    if gradient is not None:
                        side.move(gradient, self.rate * (1 - (step - 1) / self.steps), step)
            effort = current()
            if effort is not None:
                effort.check()


def _repeated(values: Tensor, rows: int) -> Tensor:
    """[R, N, *shape] from [N, *shape], each row laid out in memory as coefficients are."""
    whole = values.unsqueeze(0).expand(rows, *values.shape)
    return split_leading(channels_inside(merge_leading(whole.contiguous())), rows)


def _detached(lines: Lines) -> Lines:
    return Lines(*(getattr(lines, f.name).detach() for f in fields(lines)))


# The engine.


@dataclass(frozen=True, repr=False)
class AlphaCrown(BackwardEngine):
    """`Crown` with optimised slopes: every bound on an activation's input, and every row of the question, has slopes of its own.

    Examples that `Crown()` proves are done. For the others, slopes are improved by gradient steps, and the better bound of every row
    is kept, so that margins are never below those of `Crown()`. It takes about 3 * steps times as long as `Crown()` for these
    examples. With `intermediate`, whose bounds are taken as they are, only slopes for the question itself are optimised: cheap, and
    of little use.

    steps: gradient steps for every bound.
    lr: size of the first step, as a part of the range that a slope may have; it falls to zero.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> ball, engines = ad.LinfBall(0.08, clip=(0.0, 1.0)), (ad.Crown(), ad.AlphaCrown(steps=5))
        >>> [int(ad.certify(model, images[:100], labels[:100], ball, e).certified.sum()) for e in engines]
        [87, 88]
    """

    steps: int = 10
    lr: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ArgumentError(f"steps must be a whole number, at least 1, got {self.steps!r}")
        if isinstance(self.lr, bool) or not isinstance(self.lr, int | float) or not 0 < self.lr < math.inf:
            raise ArgumentError(f"lr must be a positive number, got {self.lr!r}")
        if self.random:
            raise ArgumentError(
                f"intermediate must be an engine whose bounds hold for certain: {self.intermediate!r} is random, and slopes would be "
                f"chosen by what its random numbers make of them"
            )

    @property
    def start(self) -> Crown:
        """The engine whose bounds are improved."""
        return Crown(self.intermediate, self.intersect, self.max_bytes)

    @property
    def coarse_in_float32(self) -> bool:
        return True

    @property
    def cheaper(self) -> list[BoundEngine]:
        return [self.start]

    @property
    def sketch(self) -> BoundEngine | None:
        return Crown(intermediate=IBP()) if self.intermediate is None else None

    def solver(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> SlopeSolver:
        _refuse_inference_mode()
        return SlopeSolver(network, region, budget, rounding, self.steps, self.lr)

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        first = self.start.minimum(network, region, spec).lower
        return Minimum(torch.maximum(first, super().minimum(network, region, spec).lower))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof | ProbableProof:
        _refuse_inference_mode()
        first = self.start.prove(network, region, spec)
        return improved(first, network, region, spec, self._prove_open)

    def _prove_open(self, network: DualNetwork, region: InputSet, spec: Spec, rows: Tensor) -> Proof | ProbableProof:
        """Proofs of the rows [N, K] that are open, and of some more: every example has as many as the one with most."""
        count = int(rows.sum(1).max())
        order = rows.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
        whole = spec.rows.expand(-1, len(region), -1)
        asked = whole.gather(0, order.T.unsqueeze(-1).expand(-1, -1, whole.shape[-1]))
        found = BackwardEngine.prove(self, network, region, Spec(asked))
        nothing = (
            whole.new_full(rows.shape, -torch.inf),
            whole.new_zeros(rows.shape),
            whole.new_full(rows.shape, torch.inf),
        )
        parts = zip(nothing, (found.lower, found.slack, found.run_error), strict=True)
        return Proof(*(unknown.scatter(1, order, known.expand(order.shape)) for unknown, known in parts))

    def _rounding(self, network: DualNetwork, region: InputSet) -> Rounding:
        return Rounding(network, region, pulls_centres=True)


def _refuse_inference_mode() -> None:
    if torch.is_inference_mode_enabled():
        raise ArgumentError(
            "AlphaCrown needs gradients, which torch.inference_mode() rules out: use torch.no_grad() instead"
        )
