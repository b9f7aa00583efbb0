"""Bounds from parallel lines: a centre that goes forward, and a radius that is pulled back."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual._tensor import channels_inside
from autodual.bounds.backward import Observer
from autodual.bounds.centres import Centres
from autodual.bounds.memory import Budget
from autodual.bounds.prune import alive_channels, prune
from autodual.bounds.radius import RadiusPass
from autodual.bounds.rows import DensePlan, Rows
from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, Band, DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet

WORTHWHILE = 0.7
"""Units are singled out for exact bounds if at most this part of them needs any."""


class DualSolver(Solver):
    """One common slope per unit."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget) -> None:
        super().__init__(network, region, budget)
        self.bands: dict[int, Band] = {}
        self.constant: set[int] = set()
        self.centres = Centres(network, region, self.bands)
        self._alive: dict[int, Tensor] = {}
        self._slim, self._kept = network, dict[int, Tensor]()
        self._reaches = {} if region.dual_norm is None else {0: region.radius.expand_as(region.centre)}

    def relax(self, index: int, interval: Interval) -> None:
        self.set_band(index, self.activation(index).band(interval))

    def set_band(self, index: int, band: Band) -> None:
        self.bands[index] = band
        alive = None if torch.is_grad_enabled() else alive_channels(band)
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
        centre = self.centre(index)
        below, above = self._radius().of_units(index)
        return Interval(centre - below, centre + above)

    def settle(self, index: int) -> Interval:
        """Exact bounds only for the units that need them.

        The radius is a norm of the unit's generators, so |W| times the radii of the layer before is never smaller. Where even
        with that one the activation is straight, its band is what the exact radius would give.
        """
        source = self.network.nodes[index].inputs[0]
        radius = self._radius()
        dense = self.region.dual_norm is not None and isinstance(radius.plan(source), DensePlan)
        if not dense or torch.is_grad_enabled() or len(self.network.readers[source]) > 1:
            return self._remember(source, self.bound(source))
        centre, reach = self.centre(source), self._reach(source)
        curved = self.activation(index).band(Interval.around(centre, reach)).radius != 0
        units = curved.flatten(1).any(0).nonzero().squeeze(1)
        if len(units) > WORTHWHILE * curved[0].numel():
            return self._remember(source, self.bound(source))
        if len(units) > 0:
            exact = radius.of_some_units(source, units).expand(
                len(centre), -1
            )  # one row if the examples share their radius
            reach = reach.flatten(1).index_copy(1, units, exact).reshape(centre.shape)
        return self._remember(source, Interval.around(centre, reach))

    def _remember(self, index: int, interval: Interval) -> Interval:
        self._reaches[index] = interval.radius
        return interval

    def _reach(self, index: int) -> Tensor:
        """A radius that is at least the exact one, from those known so far."""
        for i in range(index + 1):
            if i not in self._reaches:
                node = self.network.nodes[i]
                operands = [self._reaches[j] for j in node.inputs]
                if isinstance(node.layer, AffineDual):
                    self._reaches[i] = node.layer.absolute(*operands)
                else:
                    self._reaches[i] = self.bands[i].slope.abs() * operands[0] + self.bands[i].radius
        return self._reaches[index]

    def lower(self, index: int, rows: Rows, observe: Observer | None = None) -> Tensor:
        return rows.inner(index, rows.seed, self.centre(index)) - self._radius().of_rows(index, rows, observe)

    def _radius(self) -> RadiusPass:
        bands = {
            i: Band(self._laid_out(i, b.slope), b.centre, self._laid_out(i, b.radius)) for i, b in self.bands.items()
        }
        return RadiusPass(self._slim, self.region, bands, self.budget, frozenset(self.constant))


def constant_bands(solver: DualSolver, intervals: dict[int, Interval]) -> DualSolver:
    """Every activation replaced by the interval of its values: interval bounds as a dual problem."""
    for index, interval in intervals.items():
        image = solver.activation(index).image(interval)
        solver.bands[index] = Band(torch.zeros_like(image.lower), image.centre, image.radius)
        solver.constant.add(index)
    return solver
