"""Interval bounds: the cheapest engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autodual.bounds.base import BoundEngine, Minimum, Preactivations, Proof, SoundBounds, name_layers
from autodual.bounds.dual_solver import DualSolver, constant_bands
from autodual.bounds.interval_pass import IntervalPass
from autodual.bounds.memory import Budget
from autodual.bounds.rounding import Outside, Rounding
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

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        rounding = Rounding(network, region)
        intervals = self._noted(IntervalPass(network, region, rounding), rounding)
        outside = {i: rounding.outside[network.nodes[i].inputs[0]] for i in intervals}
        return Preactivations(intervals, sound=True, outside=outside)

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        rounding = Rounding(network, region)
        intervals = self._noted(IntervalPass(network, region, rounding), rounding)
        solver = DualSolver(network, region, Budget.of(None, region.centre.device), rounding)
        lower, slack = constant_bands(solver, intervals).prove(network.output, spec)
        return Proof(lower, True, slack)

    @staticmethod
    def _intervals(intervals: IntervalPass) -> dict[int, Interval]:
        network = intervals.network
        return {i: intervals.at(network.nodes[i].inputs[0]) for i in network.activations}

    @staticmethod
    def _noted(intervals: IntervalPass, rounding: Rounding) -> dict[int, Interval]:
        """The same, with errors on the way."""
        assert intervals.errors is not None
        found: dict[int, Interval] = {}
        for index in rounding.network.activations:
            source = rounding.network.nodes[index].inputs[0]
            found[index], rounding.outside[source] = intervals.at(source), Outside.both(intervals.errors.at(source))
            zero = torch.zeros_like(found[index].lower)
            rounding.enter(index, found[index], (zero,), zero)
        return found
