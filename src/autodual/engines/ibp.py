"""Interval bounds: the cheapest engine, and the cheapest intermediate bounds of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from autodual.dual import AffineDual, DualNetwork, ElementwiseDual, OnDemand, Pass, walk
from autodual.dual.network import Evaluation
from autodual.engines.backward.bands import interval_solver
from autodual.engines.effort import Budget
from autodual.engines.results import BoundEngine, Minimum, Preactivations, Proof, SoundBounds, name_layers
from autodual.engines.rounding import SAFETY, Errors, NoErrors, Outside, Rounding, outside_of_both
from autodual.interval import Interval
from autodual.sets import Box, InputSet
from autodual.spec import Spec

# Interval arithmetic, node by node.


@dataclass(frozen=True)
class Intervals(Pass[Interval]):
    """W c + b and |W| r for centre and radius, and the image of the interval under an activation."""

    region: InputSet

    def input(self) -> Interval:
        return self.region.box()

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Interval]) -> Interval:
        centre = layer.apply(*(o.centre for o in operands))
        return Interval.around(centre, layer.absolute(*(o.radius for o in operands)))

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Interval]) -> Interval:
        return layer.image(operands[0])


@dataclass(frozen=True)
class IntervalErrors(Pass[Tensor]):
    """How far rounding may have moved the intervals: here, errors add up from layer to layer."""

    rounding: Rounding

    def input(self) -> Tensor:
        return self.rounding.at(0).local

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return SAFETY * (layer.absolute(*operands) + self.rounding.at(index).local)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        return self.rounding.error_of_image(index)


class IntervalBounds:
    """Intervals of all nodes, computed when asked for; a node's interval may be narrowed from outside."""

    def __init__(self, network: DualNetwork, region: InputSet) -> None:
        self.network = network
        self._intervals = OnDemand(network, Intervals(region))

    def at(self, index: int) -> Interval:
        return self._intervals.at(index)

    def intersect(self, index: int, found: Interval) -> Interval:
        """Narrows the interval of a node to what another bound allows, too, and returns it; later nodes are computed from it."""
        both = found.intersect(self.at(index))
        self.go_on_from(index, both)
        return both

    def go_on_from(self, index: int, interval: Interval) -> None:
        """Replaces the interval of a node by a narrower one that others have agreed on."""
        self._intervals.put(index, interval)


class ProvableIntervals(IntervalBounds):
    """Interval bounds whose rounding errors are counted. `rounding` is that of the computation which uses them."""

    def __init__(self, network: DualNetwork, region: InputSet, rounding: Rounding) -> None:
        super().__init__(network, region)
        self._rounding = rounding
        self._errors = OnDemand(network, IntervalErrors(rounding))

    def outside(self, index: int) -> Outside:
        """How far rounding may have moved the interval of a node."""
        return Outside.both(self._errors.at(index))

    def intersect(self, index: int, found: Interval) -> Interval:
        own, its_outside = self.at(index), self.outside(index)
        both = found.intersect(own)
        found_outside = self._rounding.outside[index]
        self._rounding.take(index, both, outside_of_both(both, [(found, found_outside), (own, its_outside)]))
        self.go_on_from(index, both)
        return both

    def go_on_from(self, index: int, interval: Interval) -> None:
        """Replaces the interval of a node, and its error by what the rounding was told of how far outside of it values may lie."""
        super().go_on_from(index, interval)
        self._errors.put(index, self._rounding.outside[index].farther)


def interval_bounds(network: DualNetwork, region: InputSet, rounding: Errors) -> IntervalBounds:
    """Interval bounds for another computation to use; their rounding is counted if that of the computation is."""
    if isinstance(rounding, Rounding):
        return ProvableIntervals(network, region, rounding)
    return IntervalBounds(network, region)


# Interval bounds: the cheapest engine.


@dataclass(frozen=True, repr=False)
class IBP(BoundEngine):
    """Interval arithmetic, layer by layer; minima of linear functions are taken before the last affine layers."""

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return Preactivations(self._intervals(IntervalBounds(network, region)))

    def bounds(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        intervals = IntervalBounds(network, region)
        return SoundBounds(intervals.at(network.output), name_layers(network, self._intervals(intervals)))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        found = self.preactivations(network, region)
        # A training step must not look at the machine, and a few rows of the last layers are little work.
        budget = Budget.unlimited() if torch.is_grad_enabled() else Budget.of(None, region.centre.device)
        solver = interval_solver(network, region, budget, NoErrors(), found.intervals)
        return Minimum(solver.minimum(network.output, spec))

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        rounding = Rounding(network, region)
        intervals = self._noted(ProvableIntervals(network, region, rounding), rounding)
        return Preactivations(intervals, outside=rounding.outside_of(intervals))

    def enclose(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        rounding = Rounding(network, region)
        intervals = ProvableIntervals(network, region, rounding)
        found = self._noted(intervals, rounding)
        layers = {i: outside.around(found[i]) for i, outside in rounding.outside_of(found).items()}
        output = intervals.outside(network.output).around(intervals.at(network.output))
        return SoundBounds(output, name_layers(network, layers))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        rounding = Rounding(network, region)
        intervals = self._noted(ProvableIntervals(network, region, rounding), rounding)
        solver = interval_solver(network, region, Budget.of(None, region.centre.device), rounding, intervals)
        return Proof(*solver.prove(network.output, spec))

    @staticmethod
    def _intervals(intervals: IntervalBounds) -> dict[int, Interval]:
        network = intervals.network
        return {i: intervals.at(network.source(i)) for i in network.activations}

    @staticmethod
    def _noted(intervals: ProvableIntervals, rounding: Rounding) -> dict[int, Interval]:
        """Intervals of what enters every activation, with their errors noted on the way."""
        found: dict[int, Interval] = {}
        for index in rounding.network.activations:
            source = rounding.network.source(index)
            found[index] = interval = intervals.at(source)
            rounding.take(source, interval, intervals.outside(source))
            zero_slope = torch.zeros_like(interval.lower)
            rounding.enter(index, interval, (zero_slope,), rounding.network.activation(index).image(interval).radius)
        return found


def evaluate_with_error(network: DualNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output at the points x, computed in their dtype, and how far that, in any order of summation, may be from the exact one."""
    rounding = Rounding(replace(network, run_dtype=x.dtype), Box.around(x, torch.zeros_like(x)))
    return walk(network, _EvaluationWithError(x, rounding)), rounding.at(network.output).run


@dataclass(frozen=True)
class _EvaluationWithError(Evaluation):
    """The network's own values at x, of which the rounding is told."""

    rounding: Rounding

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        self.rounding.enter_at(index, operands[0])
        return layer.value(operands[0])
