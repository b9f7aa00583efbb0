"""Interval bounds: the cheapest engine, and the cheapest intermediate bounds of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from autodual.dual import AffineDual, DualNetwork, ElementwiseDual
from autodual.dual.network import evaluate
from autodual.engines.backward.solvers import DualSolver, constant_bands
from autodual.engines.memory import Budget
from autodual.engines.results import BoundEngine, Minimum, Preactivations, Proof, SoundBounds, name_layers
from autodual.engines.rounding import FEW, IntervalErrors, Outside, Rounding, of_sum, outside_of_both
from autodual.interval import Interval
from autodual.sets import Box, InputSet
from autodual.spec import Spec

# Interval arithmetic, node by node.


class IntervalPass:
    """Intervals of all nodes, computed when asked for; a node's interval may be narrowed from outside."""

    def __init__(self, network: DualNetwork, region: InputSet, rounding: Rounding | None = None) -> None:
        """rounding: of the computation that these intervals are part of, for a proof."""
        self.network = network
        self.intervals: dict[int, Interval] = {0: region.box()}
        self.errors = None if rounding is None else IntervalErrors(rounding)

    def at(self, index: int) -> Interval:
        for i in range(index + 1):
            if i not in self.intervals:
                self.intervals[i] = self._step(i)
        return self.intervals[index]

    def intersect(self, index: int, found: Interval) -> Interval:
        """What this pass and another bound on a node allow, from which the pass goes on."""
        own = self.at(index)
        both = found.intersect(own)
        if self.errors is not None:
            outside = self.errors.rounding.outside
            outside[index] = outside_of_both(
                both, [(found, outside[index]), (own, Outside.both(self.errors.at(index)))]
            )
            self.errors.narrow(index, outside[index].farther)
        self.intervals[index] = both
        return both

    def _step(self, index: int) -> Interval:
        node = self.network.nodes[index]
        operands = [self.intervals[i] for i in node.inputs]
        if isinstance(node.layer, AffineDual):
            centre = node.layer.apply(*(o.centre for o in operands))
            return Interval.around(centre, node.layer.absolute(*(o.radius for o in operands)))
        assert node.layer is not None
        return node.layer.image(operands[0])


# Interval bounds: the cheapest engine.


@dataclass(frozen=True, repr=False)
class IBP(BoundEngine):
    """Interval arithmetic, layer by layer; minima of linear functions are taken before the last affine layers."""

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return Preactivations(self._intervals(IntervalPass(network, region)))

    def bounds(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        intervals = IntervalPass(network, region)
        return SoundBounds(intervals.at(network.output), name_layers(network, self._intervals(intervals)))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        found = self.preactivations(network, region)
        solver = DualSolver(network, region, Budget.of(None, region.centre.device))
        return Minimum(constant_bands(solver, found.intervals).minimum(network.output, spec))

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        rounding = Rounding(network, region)
        intervals = self._noted(IntervalPass(network, region, rounding), rounding)
        outside = {i: rounding.outside[network.nodes[i].inputs[0]] for i in intervals}
        return Preactivations(intervals, outside=outside)

    def enclose(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        rounding = Rounding(network, region)
        intervals = IntervalPass(network, region, rounding)
        found, errors = self._noted(intervals, rounding), intervals.errors
        assert errors is not None
        layers = {i: rounding.outside[network.nodes[i].inputs[0]].around(v) for i, v in found.items()}
        output = Outside.both(errors.at(network.output)).around(intervals.at(network.output))
        return SoundBounds(output, name_layers(network, layers))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        rounding = Rounding(network, region)
        intervals = self._noted(IntervalPass(network, region, rounding), rounding)
        solver = DualSolver(network, region, Budget.of(None, region.centre.device), rounding)
        return Proof(*constant_bands(solver, intervals).prove(network.output, spec))

    @staticmethod
    def _intervals(intervals: IntervalPass) -> dict[int, Interval]:
        network = intervals.network
        return {i: intervals.at(network.nodes[i].inputs[0]) for i in network.activations}

    @staticmethod
    def _noted(intervals: IntervalPass, rounding: Rounding) -> dict[int, Interval]:
        """Intervals of what enters every activation, with their errors noted on the way."""
        assert intervals.errors is not None
        found: dict[int, Interval] = {}
        for index in rounding.network.activations:
            source = rounding.network.nodes[index].inputs[0]
            found[index], rounding.outside[source] = intervals.at(source), Outside.both(intervals.errors.at(source))
            layer = rounding.network.nodes[index].layer
            assert isinstance(layer, ElementwiseDual)
            flat = torch.zeros_like(found[index].lower)
            rounding.enter(index, found[index], (flat,), layer.image(found[index]).radius)
        return found


def run_error_at(network: DualNetwork, x: Tensor) -> Tensor:
    """Bounds |fl z - z| of the output, [N, *shape], for the network evaluated at the points x in their dtype."""
    return evaluate_with_error(network, x)[1]


def evaluate_with_error(network: DualNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output at the points x, computed in their dtype, and how far that, in any order of summation, may be from the exact one."""
    rounding = Rounding(replace(network, run_dtype=x.dtype), Box.around(x, torch.zeros_like(x)))
    values: list[Tensor] = []
    for index, node in enumerate(network.nodes):
        if isinstance(node.layer, ElementwiseDual):
            rounding.enter_at(index, values[node.inputs[0]])
        values.append(x if node.layer is None else evaluate(node.layer, *(values[i] for i in node.inputs)))
    return values[network.output], rounding.run(network.output)


def least_run_error(network: DualNetwork, operand: Tensor) -> Tensor:
    """What `run_error_at` counts at least, from the last layer alone, which reads `operand`: its sum is as large as |W| |z| + |b|.

    The whole error is far larger, and far more work. Zero where the last layer is not such a sum.
    """
    layer = network.nodes[network.output].layer
    if not isinstance(layer, AffineDual) or layer.exact:
        return operand.new_zeros(())
    bias = layer.bias()
    size = layer.absolute(operand.abs())
    return of_sum(FEW, operand.dtype) * (size if bias is None else size + bias.abs().to(size))
