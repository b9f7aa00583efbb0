"""Bounds from parallel lines: a centre that goes forward, and a radius that is pulled back."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual._tensor import channels_inside, flat
from autodual.bounds.centres import Centres
from autodual.bounds.memory import Budget
from autodual.bounds.prune import alive_channels, prune
from autodual.bounds.radius import RadiusPass
from autodual.bounds.rounding import Outside, Rounding
from autodual.bounds.rows import DensePlan, Rows
from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, Band, DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet

DEEP = 3
"""From so many activations on, what the network as it runs is wrong by is pulled back with the bounds on what comes after them."""
WORTHWHILE = 0.7
"""Units are singled out for exact bounds if at most this part of them needs any."""


class DualSolver(Solver):
    """One common slope per unit."""

    def __init__(
        self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Rounding | None = None
    ) -> None:
        super().__init__(network, region, budget, rounding)
        self.bands: dict[int, Band] = {}
        self.constant: set[int] = set()
        self.centres = Centres(network, region, self.bands)
        self._alive: dict[int, Tensor] = {}
        self._slim, self._kept = network, dict[int, Tensor]()
        self._ready, self._ready_errors = dict[int, Band](), dict[int, Tensor]()
        self._ready_run_errors = dict[int, Tensor]()
        """Bands and errors of activations as rows meet them: of the channels that are kept, in the order of convolutions."""
        self._reaches = dict[int, Tensor]()
        if region.dual_norm is not None:
            reach = region.radius.expand_as(region.centre)
            self._reaches[0] = reach if rounding is None else rounding.with_room(0, reach)

    def relax(self, index: int, interval: Interval) -> None:
        self.set_band(index, interval, self.activation(index).band(interval))

    def set_band(self, index: int, interval: Interval, band: Band) -> None:
        self.bands[index] = band
        self._ready.pop(index, None)
        parts = [band.slope, band.radius]
        if self.rounding is not None:
            self.rounding.enter(index, interval, (band.slope,), band.radius)
            # A unit whose band is not zero has an error that is not zero, if only for underflow.
            parts = [self.rounding.errors[index], self.rounding.run_errors[index]]
        alive = None if torch.is_grad_enabled() else alive_channels(*parts)
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

    def _bound(self, index: int, radius: RadiusPass) -> Interval:
        centre = self.centre(index)
        reach = radius.of_units(index)
        if self.rounding is not None:
            self.rounding.note(index, reach.error)
            if reach.run_error is not None:
                self.rounding.note_run(index, reach.run_error)
        return Interval(centre - reach.below, centre + reach.above)

    def settle(self, index: int) -> Interval:
        """Exact bounds only for the units that need them.

        The radius is a norm of the unit's generators, so |W| times the radii of the layer before is never smaller. Where even
        with that one the activation is straight, its band is what the exact radius would give.
        """
        source = self.network.nodes[index].inputs[0]
        radius = self._radius()
        dense = self.region.dual_norm is not None and isinstance(radius.plan(source), DensePlan)
        if not dense or torch.is_grad_enabled() or len(self.network.readers[source]) > 1:
            return self._remember(source, self._bound(source, radius))
        centre, reach = self.centre(source), self._reach(source)
        curved = self.activation(index).band(Interval.around(centre, reach)).radius != 0
        units = flat(curved, 1).any(0).nonzero().squeeze(1)
        if len(units) > WORTHWHILE * curved[0].numel():
            return self._remember(source, self._bound(source, radius))
        error = run_error = None
        if len(units) > 0:
            exact = radius.of_some_units(source, units)
            reach, error, run_error = _put(reach, units, exact.below), exact.error, exact.run_error
        self._note_some(source, units, error)
        if self.rounding is not None and run_error is not None:
            unknown = torch.full_like(self.centre(source), torch.inf)
            self.rounding.note_run(source, _put(unknown, units, run_error))
        return self._remember(source, Interval.around(centre, reach))

    def _note_some(self, index: int, units: Tensor, error: Tensor | None) -> None:
        """Errors of some units; the others' bounds have room for theirs."""
        if self.rounding is None:
            return
        none = torch.zeros_like(self.centre(index))
        self.rounding.note(index, None if error is None else _put(none, units, error))
        found = self.rounding.outside[index]
        below = _put(none, units, flat(found.below, 1)[:, units])
        above = below if found.above is found.below else _put(none, units, flat(found.above, 1)[:, units])
        self.rounding.outside[index] = Outside(below, above)

    def _remember(self, index: int, interval: Interval) -> Interval:
        self._reaches[index] = interval.radius
        if self.rounding is not None:
            self._reaches[index] = self.rounding.with_room(
                index, self._reaches[index] + self.rounding.outside[index].farther
            )
        return interval

    def _reach(self, index: int) -> Tensor:
        """A radius that is at least the exact one, from those known so far; in a proof, with room for all that rounding may do."""
        for i in range(index + 1):
            if i not in self._reaches:
                node = self.network.nodes[i]
                operands = [self._reaches[j] for j in node.inputs]
                if isinstance(node.layer, AffineDual):
                    reach = node.layer.absolute(*operands)
                else:
                    reach = self.bands[i].slope.abs() * operands[0] + self.bands[i].radius
                self._reaches[i] = reach if self.rounding is None else self.rounding.with_room(i, reach)
        return self._reaches[index]

    def lower(self, index: int, rows: Rows) -> Tensor:
        return rows.inner(index, rows.seed, self.centre(index)) - self._radius().of_rows(index, rows)

    def lower_with_errors(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        radius, error, run_error = self._radius(as_run).of_rows_with_errors(index, rows)
        return rows.inner(index, rows.seed, self.centre(index)) - radius, error, run_error

    def _drift(self, index: int) -> Tensor:
        return torch.zeros_like(self.centre(index)) if self.constant else super()._drift(index)

    def _radius(self, as_run: bool | None = None) -> RadiusPass:
        """as_run: with the errors of the network as it runs; if nothing is said, where it is deep."""
        for i, band in self.bands.items():
            if i not in self._ready:
                self._ready[i] = Band(self._laid_out(i, band.slope), band.centre, self._laid_out(i, band.radius))
                if self.rounding is not None:
                    error = self.rounding.error_of_image(i) if i in self.constant else self.rounding.errors[i]
                    self._ready_errors[i] = self._laid_out(i, error)
                    run_error = self.rounding.run(i) if i in self.constant else self.rounding.run_errors[i]
                    self._ready_run_errors[i] = self._laid_out(i, run_error)
        bands, errors = dict(self._ready), dict(self._ready_errors)
        with_run = len(bands) >= DEEP if as_run is None else as_run
        run_errors = dict(self._ready_run_errors) if with_run else {}
        constant = frozenset(self.constant)
        return RadiusPass(self._slim, self.region, bands, self.budget, constant, errors=errors, run_errors=run_errors)


def constant_bands(solver: DualSolver, intervals: dict[int, Interval]) -> DualSolver:
    """Every activation replaced by the interval of its values: interval bounds as a dual problem."""
    for index, interval in intervals.items():
        image = solver.activation(index).image(interval)
        solver.bands[index] = Band(torch.zeros_like(image.lower), image.centre, image.radius)
        solver.constant.add(index)
    return solver


def _put(values: Tensor, units: Tensor, some: Tensor) -> Tensor:
    """[N, *shape] with other values [N or 1, len(units)] at some units."""
    return flat(values, 1).index_copy(1, units, some.expand(len(values), -1)).reshape(values.shape)
