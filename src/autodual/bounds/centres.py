"""The centres of all nodes: the network with every activation replaced by the middle of its band."""

from __future__ import annotations

from torch import Tensor

from autodual.dual import AffineDual, Band, DualNetwork
from autodual.sets import InputSet


class Centres:
    """Computed as far as asked for; `bands` is filled by its owner on the way."""

    def __init__(self, network: DualNetwork, region: InputSet, bands: dict[int, Band]) -> None:
        self.network, self.bands = network, bands
        self.values: list[Tensor] = [region.centre]

    def at(self, index: int) -> Tensor:
        for i in range(len(self.values), index + 1):
            node = self.network.nodes[i]
            operands = [self.values[j] for j in node.inputs]
            if isinstance(node.layer, AffineDual):
                self.values.append(node.layer.apply(*operands))
            else:
                band = self.bands[i]
                self.values.append(band.slope * operands[0] + band.centre)
        return self.values[index]
