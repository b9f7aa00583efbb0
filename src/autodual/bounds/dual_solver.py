"""Bounds from parallel lines: a centre that goes forward, and a radius that is pulled back."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual._tensor import channels_inside
from autodual.bounds.backward import Observer
from autodual.bounds.memory import Budget
from autodual.bounds.prune import alive_channels, prune
from autodual.bounds.radius import RadiusPass
from autodual.bounds.rows import Rows
from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, Band, DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet


class DualSolver(Solver):
    """One common slope per unit."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget) -> None:
        super().__init__(network, region, budget)
        self.bands: dict[int, Band] = {}
        self.constant: set[int] = set()
        self.centres: list[Tensor] = [region.centre]
        self._alive: dict[int, Tensor] = {}
        self._slim, self._kept = network, dict[int, Tensor]()

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
        for i in range(len(self.centres), index + 1):
            node = self.network.nodes[i]
            operands = [self.centres[j] for j in node.inputs]
            if isinstance(node.layer, AffineDual):
                self.centres.append(node.layer.apply(*operands))
            else:
                band = self.bands[i]
                self.centres.append(band.slope * operands[0] + band.centre)
        return self.centres[index]

    def bound(self, index: int) -> Interval:
        centre = self.centre(index)
        below, above = self._radius().of_units(index)
        return Interval(centre - below, centre + above)

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
