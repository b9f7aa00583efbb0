"""The centres of all nodes: the network with every activation replaced by the middle of its band."""

from __future__ import annotations

from torch import Tensor

from autodual.dual import AffineDual, Band, DualNetwork
from autodual.sets import InputSet


class Centres:
    """Computed as far as asked for; `bands` is filled by its owner on the way, and so may be some of the values."""

    def __init__(self, network: DualNetwork, region: InputSet, bands: dict[int, Band]) -> None:
        self.network, self.bands = network, bands
        self.values: dict[int, Tensor] = {0: region.centre}
        self._next = 1

    def at(self, index: int) -> Tensor:
        while self._next <= index:
            if self._next not in self.values:
                self.values[self._next] = self._value(self._next)
            self._next += 1
        return self.values[index]

    def _value(self, index: int) -> Tensor:
        node = self.network.nodes[index]
        operands = [self.values[i] for i in node.inputs]
        if isinstance(node.layer, AffineDual):
            return node.layer.apply(*operands)
        band = self.bands[index]
        return band.slope * operands[0] + band.centre
