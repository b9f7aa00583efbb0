"""The state of one backward computation: relaxations found so far, and bounds from them.

A solver lives for one call. `relax` fixes the dual layer of an activation from the bounds on its input; after that,
`bound` bounds any node whose activations are relaxed, and `minimum` any linear function of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from autodual.bounds.backward import over_chunks, pull_back
from autodual.bounds.memory import Budget
from autodual.bounds.rows import DenseRows, Rows, plan_for
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, Lines
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec


class Solver(ABC):
    """Backward bounds with relaxations of one kind."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget) -> None:
        self.network, self.region, self.budget = network, region, budget

    @abstractmethod
    def relax(self, index: int, interval: Interval) -> None:
        """Choose the dual layer of activation `index`, whose input lies in `interval`."""

    @abstractmethod
    def bound(self, index: int) -> Interval:
        """Bounds on the value of a node."""

    @abstractmethod
    def minimum(self, index: int, spec: Spec) -> Tensor:
        """[N, K]: bounds from below on linear functions of a node. [SPAD Thm 1: J]"""

    def activation(self, index: int) -> ElementwiseDual:
        layer = self.network.nodes[index].layer
        assert isinstance(layer, ElementwiseDual)
        return layer


class DualSolver(Solver):
    """Parallel lines: a centre that goes forward, and a radius that is pulled back once for both sides."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget) -> None:
        super().__init__(network, region, budget)
        self.bands: dict[int, Band] = {}
        self.constant: set[int] = set()
        """Activations whose band does not depend on their input: nothing is pulled back through them."""
        self.centres: list[Tensor] = [region.centre]

    def relax(self, index: int, interval: Interval) -> None:
        self.bands[index] = self.activation(index).band(interval)

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

    def radius(self, index: int, rows: Rows) -> Tensor:
        """Half-width of the rows: the dual norm of the input's coefficients plus those of all unstable units."""
        total: list[Tensor] = []

        def through(activation: int, coefficients: Tensor) -> Tensor | None:
            band = self.bands[activation]
            total.append(rows.inner(activation, coefficients.abs(), band.radius))
            return None if activation in self.constant else coefficients * band.slope

        on_input = pull_back(self.network, index, rows.seed, through)
        if on_input is not None:
            total.append(self._support(rows, on_input))
        return sum(total[1:], total[0])

    def _support(self, rows: Rows, coefficients: Tensor) -> Tensor:
        if self.region.dual_norm is not None:
            return rows.support(0, coefficients, self.region)
        return rows.inner(0, coefficients, self.region.centre) - self.region.minimise(coefficients)

    def bound(self, index: int) -> Interval:
        centre = self.centre(index)
        plan = plan_for(self.network, index, self.region)
        if self.region.dual_norm is not None:
            return Interval.around(
                centre,
                over_chunks(self.network, index, plan, self.budget, centre, lambda r: self.radius(index, r)),
            )
        below = over_chunks(self.network, index, plan, self.budget, centre, lambda r: self.radius(index, r))
        above = over_chunks(self.network, index, plan, self.budget, centre, lambda r: self.radius(index, _flipped(r)))
        return Interval(centre - below, centre + above)

    def minimum(self, index: int, spec: Spec) -> Tensor:
        rows = DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *self.network.nodes[index].shape))
        return (rows.inner(index, rows.seed, self.centre(index)) - self.radius(index, rows)).T


class CrownSolver(Solver):
    """Two lines per unit: which one applies depends on the sign of the coefficient, so each side is pulled back."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget) -> None:
        super().__init__(network, region, budget)
        self.chosen: dict[int, Lines] = {}

    def relax(self, index: int, interval: Interval) -> None:
        self.chosen[index] = self.activation(index).lines(interval)

    def lower(self, index: int, rows: Rows) -> Tensor:
        """Bounds from below on the rows."""
        total: list[Tensor] = []

        def through(activation: int, coefficients: Tensor) -> Tensor:
            lines = self.chosen[activation]
            positive, negative = coefficients.clamp(min=0), coefficients.clamp(max=0)
            total.append(rows.inner(activation, positive, lines.lower_offset))
            total.append(rows.inner(activation, negative, lines.upper_offset))
            return positive * lines.lower_slope + negative * lines.upper_slope

        def add_bias(affine: int, coefficients: Tensor) -> None:
            bias = _bias(self.network, affine, coefficients)
            if bias is not None:
                total.append(rows.inner(affine, coefficients, bias))

        on_input = pull_back(self.network, index, rows.seed, through, add_bias)
        assert on_input is not None
        if self.region.dual_norm is not None:
            centre = rows.inner(0, on_input, self.region.centre)
            total.append(centre - rows.support(0, on_input, self.region))
        else:
            total.append(self.region.minimise(on_input))
        return sum(total[1:], total[0])

    def bound(self, index: int) -> Interval:
        plan, like = plan_for(self.network, index, self.region), self.region.centre
        below = over_chunks(self.network, index, plan, self.budget, like, lambda r: self.lower(index, r))
        above = over_chunks(self.network, index, plan, self.budget, like, lambda r: self.lower(index, _flipped(r)))
        return Interval(below, -above)

    def minimum(self, index: int, spec: Spec) -> Tensor:
        rows = DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *self.network.nodes[index].shape))
        return self.lower(index, rows).T


def _bias(network: DualNetwork, index: int, like: Tensor) -> Tensor | None:
    layer = network.nodes[index].layer
    assert isinstance(layer, AffineDual)
    bias = layer.bias()
    return None if bias is None else bias.to(like).expand(1, *network.nodes[index].shape)


def _flipped(rows: Rows) -> Rows:
    return replace(rows, seed=-rows.seed)  # type: ignore[type-var]


def constant_bands(solver: DualSolver, intervals: dict[int, Interval]) -> DualSolver:
    """Every activation replaced by the interval of its values: interval bounds as a dual problem."""
    for index, interval in intervals.items():
        image = solver.activation(index).image(interval)
        solver.bands[index] = Band(torch.zeros_like(image.lower), image.centre, image.radius)
        solver.constant.add(index)
    return solver
