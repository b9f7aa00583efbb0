"""One backward computation: relaxations of activations, and bounds from them, by bands (`Dual`) or by two lines per unit (`Crown`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from autodual._tensor import added, channels_inside, flat, laid_out_like, put_at
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, Lines, OnDemand, Pass
from autodual.engines.backward.radius import RadiusPass, operations_of_row, over_chunks, pull_back
from autodual.engines.backward.rows import DensePlan, DenseRows, Rows, local_windows, plan_for
from autodual.engines.backward.smaller import alive_channels, prune
from autodual.engines.errors import SAFETY, Errors
from autodual.engines.memory import Budget
from autodual.engines.rounding import Rounding, of_underflow
from autodual.interval import Interval
from autodual.sets import InputSet, norm_of
from autodual.spec import Spec

# The centres of all nodes: the network with every activation replaced by the middle of its band.


@dataclass(frozen=True)
class Centres(Pass[Tensor]):
    """c = W c + b, and slope * c + centre of the band; the owner fills `bands` on the way."""

    region: InputSet
    bands: dict[int, Band]

    def input(self) -> Tensor:
        return self.region.centre

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return layer.apply(*operands)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        band = self.bands[index]
        return layer.along(band.slope, operands[0]) + band.centre


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


# The state of one backward computation: relaxations found so far, and bounds from them.


class Solver(ABC):
    """Backward bounds with relaxations of one kind. Lives for one call.

    `relax` fixes the dual layer of an activation from the bounds on its input; after that, `bound` bounds any node whose activations
    are relaxed, and `minimum` any linear function of it.
    """

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> None:
        self.network, self.region, self.budget, self.rounding = network, region, budget, rounding

    @abstractmethod
    def relax(self, index: int, interval: Interval) -> None:
        """Choose the dual layer of activation `index`, whose input lies in `interval`."""

    @abstractmethod
    def bound(self, index: int) -> Interval:
        """Bounds on the value of a node."""

    def settle(self, index: int) -> Interval:
        """Bounds on what enters activation `index`, as tight as its dual layer can tell the difference."""
        return self.bound(self.network.source(index))

    @abstractmethod
    def operations(self, index: int) -> float:
        """Multiplications, about, that `bound` takes for one example."""

    @abstractmethod
    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds from below on the rows, and sums over activations of |coefficients| times errors and (as_run) times run errors."""

    def minimum(self, index: int, spec: Spec) -> Tensor:
        """[N, K]: bounds from below on linear functions of a node. [SPAD Thm 1: J]"""
        return self.lower(index, self.rows(index, spec))[0].T

    def prove(self, index: int, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds from below, their rounding slack, and the error of the network as it runs; [N, K] each."""
        rounding = self.rounding
        assert isinstance(rounding, Rounding)
        rows = self.rows(index, spec)
        lower, error, run_error = self.lower(index, rows, as_run=True)
        total = SAFETY * (error + rows.norm(index, rows.seed, rounding.ending(index)) + rounding.lost)
        products = sum(math.prod(node.shape) for node in self.network.nodes)
        total = total + of_underflow(products, spec.rows.dtype)  # of coefficients times values and times errors
        slack = total - rows.inner(index, rows.seed, self._drift(index, rounding))
        run_error = SAFETY * (run_error + rows.norm(index, rows.seed, rounding.at(index).run_since))
        return lower.T, slack.T, run_error.T

    def _drift(self, index: int, rounding: Rounding) -> Tensor:
        return rounding.at(index).drift

    def rows(self, index: int, spec: Spec) -> DenseRows:
        return DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *self.network.nodes[index].shape))

    def narrow(self, index: int, values: Tensor) -> Tensor:
        """The channels of a node [N, C, *space] that rows have coefficients for: all of them, unless a solver leaves some out."""
        return values


# Bounds from parallel lines: a centre that goes forward, and a radius that is pulled back.

DEEP = 3
"""From so many activations on, run errors are pulled back together with the bounds on later nodes, which makes them smaller."""
FEW_CURVED = 0.7
"""Units are singled out for exact bounds if at most this part of them needs any."""


class DualSolver(Solver):
    """One common slope per unit."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> None:
        super().__init__(network, region, budget, rounding)
        self.bands: dict[int, Band] = {}
        self.constant: set[int] = set()
        self.centres = OnDemand(network, Centres(region, self.bands))
        self._alive: dict[int, Tensor] = {}
        self._slim, self._kept = network, dict[int, Tensor]()
        self._ready, self._ready_errors = dict[int, Band](), dict[int, Tensor]()
        self._ready_run_errors = dict[int, Tensor]()
        """Bands and errors of activations as rows meet them: only channels that are kept, laid out as convolutions need them."""
        self._radius_bounds = OnDemand(network, RadiusBounds(region, self.bands, rounding))

    def relax(self, index: int, interval: Interval) -> None:
        self.set_band(index, interval, self.network.activation(index).band(interval))

    def set_band(self, index: int, interval: Interval, band: Band) -> None:
        self.bands[index] = band
        self._ready.pop(index, None)
        self.rounding.enter_band(index, interval, band)
        known = not torch.is_grad_enabled() and self.network.activation(index).elementwise
        alive = alive_channels(*self.rounding.alive(index, band)) if known else None
        if alive is not None:
            self._alive[index] = alive
            self._slim, self._kept = prune(self.network, self._alive)

    def narrow(self, index: int, values: Tensor) -> Tensor:
        return values.index_select(1, self._kept[index]) if index in self._kept else values

    def _laid_out(self, index: int, values: Tensor) -> Tensor:
        return channels_inside(self.narrow(index, values))

    def centre(self, index: int) -> Tensor:
        return self.centres.at(index)

    def bound(self, index: int) -> Interval:
        return self._bound(index, self._radius())

    def operations(self, index: int) -> float:
        return self._radius().operations(index)

    def _bound(self, index: int, radius: RadiusPass) -> Interval:
        centre = self.centre(index)
        reach = radius.of_units(index)
        self.rounding.note(index, reach.error, reach.run_error)
        return Interval(centre - reach.below, centre + reach.above)

    def settle(self, index: int) -> Interval:
        """Exact bounds only for the units that need them.

        The radius is a norm of the unit's generators, so |W| times the radii of the layer before is never smaller. Where even
        with that one the activation is straight, its band is what the exact radius would give.
        """
        source = self.network.source(index)
        radius = self._radius()
        dense = norm_of(self.region) is not None and isinstance(radius.plan(source), DensePlan)
        dense = dense and self.network.activation(index).elementwise
        if not dense or torch.is_grad_enabled() or len(self.network.readers[source]) > 1:
            return self._remember(source, self._bound(source, radius))
        centre, reach = self.centre(source), self._radius_bounds.at(source)
        curved = self.network.activation(index).band(Interval.around(centre, reach)).radius != 0
        units = flat(curved, 1).any(0).nonzero().squeeze(1)
        if len(units) > FEW_CURVED * curved[0].numel():
            return self._remember(source, self._bound(source, radius))
        error = run_error = None
        if len(units) > 0:
            exact = radius.of_some_units(source, units)
            reach, error, run_error = put_at(reach, units, exact.below), exact.error, exact.run_error
        self.rounding.note_some(source, units, error, run_error)
        return self._remember(source, Interval.around(centre, reach))

    def _remember(self, index: int, interval: Interval) -> Interval:
        self._radius_bounds.put(index, self.rounding.reach(index, interval))
        return interval

    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        radius, error, run_error = self._radius(as_run).of_rows_with_errors(index, rows)
        return rows.inner(index, rows.seed, self.centre(index)) - radius, error, run_error

    def _drift(self, index: int, rounding: Rounding) -> Tensor:
        return torch.zeros_like(self.centre(index)) if self.constant else super()._drift(index, rounding)

    def _radius(self, as_run: bool | None = None) -> RadiusPass:
        """as_run: whether to count run errors; None: only in a deep network."""
        for i, band in self.bands.items():
            if i not in self._ready:
                self._ready[i] = Band(self._laid_out(i, band.slope), band.centre, self._laid_out(i, band.radius))
                errors = self.rounding.of_activation(i, by_image=i in self.constant)
                for ready, error in zip((self._ready_errors, self._ready_run_errors), errors, strict=False):
                    ready[i] = self._laid_out(i, error)
        bands, known = dict(self._ready), dict(self._ready_errors)
        with_run = len(bands) >= DEEP if as_run is None else as_run
        run_errors = dict(self._ready_run_errors) if with_run else {}
        constant = frozenset(self.constant)
        return RadiusPass(self._slim, self.region, bands, self.budget, constant, errors=known, run_errors=run_errors)


def constant_bands(solver: DualSolver, intervals: dict[int, Interval]) -> DualSolver:
    """Every activation replaced by the interval of its values: interval bounds as a dual problem."""
    for index, interval in intervals.items():
        image = solver.network.activation(index).image(interval)
        solver.bands[index] = Band(torch.zeros_like(interval.lower), image.centre, image.radius)
        solver.constant.add(index)
    return solver


# Bounds from two lines per unit.

LowerSlope: TypeAlias = Literal["adaptive", "zero", "one"]
"""The slope of the line below: the layer's own choice, or the smallest or the largest of those that it may have."""


class CrownSolver(Solver):
    """Two lines per unit: which one applies depends on the sign of the coefficient, so each side is pulled back on its own."""

    def __init__(
        self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors, slope: LowerSlope = "adaptive"
    ) -> None:
        super().__init__(network, region, budget, rounding)
        self.slope = slope
        self.chosen: dict[int, Lines] = {}
        self._pulls_run_errors = any(not network.activation(i).elementwise for i in network.activations)
        """Whether run errors are pulled back with the bounds: absolute weights and products from layer to layer add up to far more."""

    def lines(self, index: int, interval: Interval) -> Lines:
        """The lines of activation `index`: its own, or with the smallest or the largest slope that the lower one may have."""
        layer = self.network.activation(index)
        own = layer.lines(interval)
        free = None if self.slope == "adaptive" else layer.free_slopes(interval)
        if free is None:
            return own
        return layer.lines_with(
            interval, free.lower.lower if self.slope == "zero" else free.lower.upper, own.upper_slope
        )

    def relax(self, index: int, interval: Interval) -> None:
        lines = self.lines(index, interval)
        self.chosen[index] = Lines(*(channels_inside(getattr(lines, f.name)) for f in fields(lines)))
        self.rounding.enter_lines(index, interval, lines)

    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        kinds = [self.rounding.errors, self.rounding.run_errors] if as_run else [self.rounding.errors]
        found: list[list[Tensor]] = [[] for _ in kinds]
        lower = self._lower(index, rows, [(known, to) for known, to in zip(kinds, found, strict=True) if known])
        sums = [added(parts or [torch.zeros_like(lower)]) for parts in found]
        return lower, sums[0], sums[-1]

    def _lower(self, index: int, rows: Rows, errors: list[tuple[dict[int, Tensor], list[Tensor]]]) -> Tensor:
        """errors: pairs of known errors of activations, and where to put what each adds to the rows."""
        total: list[Tensor] = []

        def through(activation: int, coefficients: Tensor) -> Tensor:
            lines = self.chosen[activation]
            coefficients = laid_out_like(coefficients, lines.lower_slope)
            if errors:
                sizes = rows.norms(activation, coefficients, *(known[activation] for known, _ in errors))
                for (_, found), size in zip(errors, sizes, strict=True):
                    found.append(size)
            positive, negative = coefficients.clamp(min=0), coefficients.clamp(max=0)
            total.append(rows.inner(activation, positive, lines.lower_offset))
            total.append(rows.inner(activation, negative, lines.upper_offset))
            if not self.network.activation(activation).elementwise:  # its two lines are parallel
                return self.network.activation(activation).back(lines.lower_slope, coefficients)
            return torch.addcmul(positive * lines.lower_slope, negative, lines.upper_slope)

        def add_bias(node: int, coefficients: Tensor) -> None:
            bias = _bias(self.network, node, coefficients)
            if bias is not None:
                total.append(rows.inner(node, coefficients, bias))

        on_input = pull_back(self.network, index, rows.seed, through, add_bias)
        assert on_input is not None
        region, norm = self.region, norm_of(self.region)
        if norm is None:
            total.append(region.minimise(on_input))
        else:
            centre = rows.inner(0, on_input, region.centre)
            total.append(centre - rows.support(0, on_input, norm, region.radius))
        return added(total)

    def operations(self, index: int) -> float:
        plan = plan_for(self.network, index, local_windows(self.network, index, self.region))
        return 2 * plan.count * operations_of_row(self.network, index)

    def bound(self, index: int) -> Interval:
        plan = plan_for(self.network, index, local_windows(self.network, index, self.region))

        def of_all(work: Callable[[Rows], Tensor], span: tuple[float, float]) -> Tensor:
            return over_chunks(self.network, index, plan, self.budget, self.region.centre, work, span)

        as_run = self._pulls_run_errors and len(self.rounding.errors) >= DEEP
        count = 1 + bool(self.rounding.errors) + as_run

        def found(rows: Rows) -> Tensor:
            """[R, N, 2 N or 3 N, ...]: results and, after them, errors, if there are any."""
            results = self.lower(index, rows, as_run)[:count]
            return results[0] if count == 1 else torch.cat(torch.broadcast_tensors(*results), dim=1)

        below, *errors = of_all(found, (0.0, 0.5)).chunk(count)
        above, *others = of_all(lambda rows: found(rows.flipped()), (0.5, 1.0)).chunk(count)
        self.rounding.note(
            index, *(torch.maximum(a, b) for a, b in zip(errors, others, strict=True)) if errors else (None,)
        )
        return Interval(below, -above)


def _bias(network: DualNetwork, index: int, like: Tensor) -> Tensor | None:
    layer = network.nodes[index].layer
    bias = layer.bias() if isinstance(layer, AffineDual) else None
    return None if bias is None else bias.to(like).expand(1, *network.nodes[index].shape)
