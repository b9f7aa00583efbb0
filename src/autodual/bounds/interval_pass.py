"""Interval arithmetic, node by node."""

from __future__ import annotations

from autodual.bounds.rounding import IntervalErrors, Outside, Rounding, outside_of_both
from autodual.dual import AffineDual, DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet


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
