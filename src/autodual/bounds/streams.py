"""A forward pass that carries k random combinations of the generators instead of the generators themselves. [SPAD Alg. 1]

The paper keeps one Cauchy stream per l1 term: the input, and every activation. A sum of independent Cauchy variables is Cauchy with
the sum of their scales, and the terms are just added, so one *merged* stream carries the same information: an activation adds
radius * fresh Cauchy to what passes through it. Cost: k + 1 vectors per layer, whatever the depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._tensor import merge_leading, split_leading
from autodual.bounds.draws import Draws
from autodual.bounds.estimators import Estimator
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet

INPUT = 0
GAUSS = -1
COLUMNS = -2


@dataclass(frozen=True)
class Streamed:
    """A node's values: centre [N, *shape] and streams [k, N or 1, *shape] by source."""

    centre: Tensor
    streams: dict[int, Tensor]


class StreamPass:
    """Estimated bounds on what enters every activation."""

    def __init__(
        self,
        network: DualNetwork,
        region: InputSet,
        draws: Draws,
        estimator: Estimator,
        merged: bool,
        first: dict[int, Tensor],
    ) -> None:
        """`first` holds exact radii of nodes that no activation precedes; they need no estimate."""
        self.network, self.region, self.draws = network, region, draws
        self.estimator, self.merged, self.first = estimator, merged, first
        self.preactivations: dict[int, Interval] = {}
        self.values = [Streamed(region.centre, self._input_streams())]
        for index in range(1, max(network.activations, default=0) + 1):
            self.values.append(self._step(index))

    def _input_streams(self) -> dict[int, Tensor]:
        region = self.region
        if region.dual_norm == 1:
            return {INPUT: self.draws.cauchy[INPUT] * region.radius}
        if region.dual_norm == 2:
            assert self.draws.gauss is not None
            return {GAUSS: self.draws.gauss * region.radius}
        count = region.centre.shape[1:].numel()
        basis = torch.eye(count, dtype=region.centre.dtype, device=region.centre.device)
        return {COLUMNS: basis.reshape(count, 1, *region.centre.shape[1:]) * region.radius}

    def _step(self, index: int) -> Streamed:
        node = self.network.nodes[index]
        operands = [self.values[i] for i in node.inputs]
        if isinstance(node.layer, AffineDual):
            centre = node.layer.apply(*(o.centre for o in operands))
            return Streamed(centre, _through_affine(node.layer, operands))
        assert isinstance(node.layer, ElementwiseDual)
        source = node.inputs[0]
        radius = self.first[source] if source in self.first else self._radius(operands[0])
        interval = self.preactivations[index] = Interval.around(
            operands[0].centre, radius.expand_as(operands[0].centre)
        )
        return self._through_activation(index, node.layer.band(interval), operands[0])

    def _through_activation(self, index: int, band: Band, operand: Streamed) -> Streamed:
        streams = {source: values * band.slope for source, values in operand.streams.items()}
        fresh = self.draws.cauchy[index] * band.radius
        key = INPUT if self.merged else index
        streams[key] = streams[key] + fresh if key in streams else fresh
        return Streamed(band.slope * operand.centre + band.centre, streams)

    def _radius(self, value: Streamed) -> Tensor:
        """The sum of the estimates of all streams."""
        total = torch.zeros_like(value.centre)
        for source, samples in value.streams.items():
            if source == GAUSS:
                total = total + torch.linalg.vector_norm(samples, dim=0) / math.sqrt(samples.shape[0])
            elif source == COLUMNS:
                total = total + samples.abs().amax(0)
            else:
                total = total + self.estimator.scale(samples)
        return total


def _through_affine(layer: AffineDual, operands: list[Streamed]) -> dict[int, Tensor]:
    result = {}
    for source in {s: None for o in operands for s in o.streams}:
        present = [o.streams[source] for o in operands if source in o.streams]
        count, batch = present[0].shape[0], max(p.shape[1] for p in present)
        columns = [
            merge_leading(o.streams[source].expand(count, batch, *o.centre.shape[1:]))
            if source in o.streams
            else o.centre.new_zeros(count * batch, *o.centre.shape[1:])
            for o in operands
        ]
        result[source] = split_leading(layer.linear(*columns), count)
    return result
