"""Interval bounds: the cheapest engine."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from autodual.bounds.base import BoundEngine, Minimum, Preactivations, Proof, SoundBounds, name_layers
from autodual.bounds.dual_solver import DualSolver, constant_bands
from autodual.bounds.interval_pass import IntervalPass
from autodual.bounds.memory import Budget
from autodual.bounds.rounding import Rounding, prove_rows
from autodual.dual import DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec


@dataclass(frozen=True, repr=False)
class IBP(BoundEngine):
    """Interval arithmetic, layer by layer; minima of linear functions are taken before the last affine layers."""

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return Preactivations(self._intervals(IntervalPass(network, region)), sound=True)

    def bounds(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        intervals = IntervalPass(network, region)
        return SoundBounds(intervals.at(network.output), name_layers(network, self._intervals(intervals)))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        found = self.preactivations(network, region)
        solver = DualSolver(network, region, Budget.of(None, region.centre.device))
        return Minimum(constant_bands(solver, found.intervals).minimum(network.output, spec), sound=True)

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        found = self._intervals(IntervalPass(network, region))
        solver = constant_bands(DualSolver(network, region, Budget.of(None, region.centre.device)), found)
        errors = Rounding(network, region, found).accumulated()
        lower, slack = prove_rows(solver, network.output, spec, errors)
        return Proof(lower, True, slack)

    def rounding(self, network: DualNetwork, region: InputSet) -> dict[int, Tensor]:
        found = self._intervals(IntervalPass(network, region))
        errors = Rounding(network, region, found).accumulated()
        return {i: errors[i] for i in network.activations}

    @staticmethod
    def _intervals(intervals: IntervalPass) -> dict[int, Interval]:
        network = intervals.network
        return {i: intervals.at(network.nodes[i].inputs[0]) for i in network.activations}
