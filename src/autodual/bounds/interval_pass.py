"""Interval arithmetic, node by node."""

from __future__ import annotations

from autodual.dual import AffineDual, DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet


class IntervalPass:
    """Intervals of all nodes, computed when asked for; a node's interval may be narrowed from outside."""

    def __init__(self, network: DualNetwork, region: InputSet) -> None:
        self.network = network
        self.intervals: dict[int, Interval] = {0: region.box()}

    def at(self, index: int) -> Interval:
        for i in range(index + 1):
            if i not in self.intervals:
                self.intervals[i] = self._step(i)
        return self.intervals[index]

    def narrow(self, index: int, interval: Interval) -> None:
        self.intervals[index] = interval

    def _step(self, index: int) -> Interval:
        node = self.network.nodes[index]
        operands = [self.intervals[i] for i in node.inputs]
        if isinstance(node.layer, AffineDual):
            centre = node.layer.apply(*(o.centre for o in operands))
            return Interval.around(centre, node.layer.absolute(*(o.radius for o in operands)))
        assert node.layer is not None
        return node.layer.image(operands[0])
