"""Interval bounds: the cheapest engine."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from autodual.bounds.base import BoundEngine, Minimum, Preactivations, Proof, SoundBounds, name_layers
from autodual.bounds.dual_solver import DualSolver, constant_bands
from autodual.bounds.interval_pass import IntervalPass
from autodual.bounds.memory import Budget
from autodual.bounds.rounding import interval_errors
from autodual.dual import DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec


@dataclass(frozen=True, repr=False)
class IBP(BoundEngine):
    """Interval arithmetic, layer by layer; minima of linear functions are taken before the last affine layers."""

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return Preactivations(self._intervals(IntervalPass(network, region)), sound=True)

    def rounding(self, network: DualNetwork, region: InputSet) -> dict[int, Tensor]:
        intervals = IntervalPass(network, region)
        intervals.at(len(network.nodes) - 1)
        errors = interval_errors(network, intervals.intervals)
        return {i: errors[i] for i in network.activations}

    def bounds(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        intervals = IntervalPass(network, region)
        return SoundBounds(intervals.at(network.output), name_layers(network, self._intervals(intervals)))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        found = self.preactivations(network, region)
        solver = DualSolver(network, region, Budget.of(None, region.centre.device))
        return Minimum(constant_bands(solver, found.intervals).minimum(network.output, spec), sound=True)

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        intervals = IntervalPass(network, region)
        found = self._intervals(intervals)
        intervals.at(len(network.nodes) - 1)
        errors = interval_errors(network, intervals.intervals)
        solver = constant_bands(DualSolver(network, region, Budget.of(None, region.centre.device)), found)
        rows, terms = solver.rows(network.output, spec), list[Tensor]()
        lower = solver.lower(
            network.output, rows, lambda node, a: terms.append(rows.inner(node, a.abs(), errors[node]))
        )
        return Proof(lower.T, True, sum(terms[1:], terms[0]).T)

    @staticmethod
    def _intervals(intervals: IntervalPass) -> dict[int, Interval]:
        network = intervals.network
        return {i: intervals.at(network.nodes[i].inputs[0]) for i in network.activations}
