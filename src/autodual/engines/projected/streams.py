"""A forward pass that carries k random combinations of the generators instead of the generators themselves. [SPAD Alg. 1]

The paper keeps one Cauchy stream per l1 term: the input, and every activation. A sum of independent Cauchy variables is Cauchy with
the sum of their scales, and the terms are just added, so one *merged* stream carries the same information: an activation adds
radius * fresh Cauchy to what passes through it. Cost: k + 1 vectors per layer, whatever the depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._tensor import added, channels_inside, merge_leading, split_leading
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, Pass
from autodual.engines.projected.draws import Draws
from autodual.engines.projected.estimators import Estimator
from autodual.kernels.stream import Angles, can_be_half, fresh_stream, pass_and_add, pass_on
from autodual.sets import InputSet

INPUT, GAUSS, COLUMNS = 0, -1, -2
"""Keys of streams: the input's or the merged Cauchy one, the Gaussian one of an l2 ball, and the columns of an l1 ball."""

Streams = dict[int, Tensor]
"""By the term that a stream stands for: [k, N or 1, *shape]."""


@dataclass(frozen=True)
class StreamPass(Pass[Streams]):
    """The streams of one set of draws. The band of an activation must be known when a stream passes it."""

    network: DualNetwork
    region: InputSet
    draws: Draws
    merged: bool
    bands: dict[int, Band]
    columns: bool = True
    """Whether to carry the columns of an l1 ball, which are the same for all draws."""
    half: bool = False
    """Whether streams are bfloat16 from the first layer on that multiplies them, where they can be."""

    def input(self) -> Streams:
        region, first = self.region, self.draws.first
        if isinstance(first, Angles):
            examples = max(len(region.radius), first.angles.shape[1])
            return {INPUT: fresh_stream(region.radius.expand(examples, *region.centre.shape[1:]), first)}
        if first is not None:
            return {GAUSS: first * region.radius}
        if not self.columns:
            return {}
        count = region.centre.shape[1:].numel()
        basis = torch.eye(count, dtype=region.centre.dtype, device=region.centre.device)
        return {COLUMNS: basis.reshape(count, 1, *region.centre.shape[1:]) * region.radius}

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Streams]) -> Streams:
        (streams,) = operands
        band, draws = self.bands[index], self.draws.fresh[index]
        if not layer.elementwise:
            return self._product(index, layer, streams)
        slope, radius = torch.broadcast_tensors(band.slope, band.radius)
        own = INPUT if self.merged else index
        dtypes = {source: torch.bfloat16 if self._is_half(source) else radius.dtype for source in (*streams, own)}
        passed = {source: pass_on(v, slope, dtypes[source]) for source, v in streams.items() if source != own}
        if own in streams:
            return passed | {own: pass_and_add(streams[own], slope, radius, draws, dtypes[own])}
        return passed | {own: fresh_stream(radius, draws, dtypes[own])}

    def _product(self, index: int, layer: ElementwiseDual, streams: Streams) -> Streams:
        """A product of two activations, whose slope is no factor: what passes it has the shape of the result, and only adds up."""
        band, draws, own = self.bands[index], self.draws.fresh[index], INPUT if self.merged else index
        dtypes = {source: torch.bfloat16 if self._is_half(source) else band.radius.dtype for source in (*streams, own)}
        passed = {source: layer.along(band.slope, v.to(band.slope.dtype)) for source, v in streams.items()}
        fresh = fresh_stream(band.radius, draws)
        passed[own] = passed[own] + fresh if own in passed else fresh
        return {source: v.to(dtypes[source]) for source, v in passed.items()}

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Streams]) -> Streams:
        result, shapes = {}, self.network.operand_shapes(index)
        for source in {s: None for streams in operands for s in streams}:
            present = [streams[source] for streams in operands if source in streams]
            count, batch = present[0].shape[0], max(p.shape[1] for p in present)
            columns = [
                channels_inside(
                    merge_leading(streams[source].expand(count, batch, *shape))
                    if source in streams
                    else present[0].new_zeros(count * batch, *shape)
                )
                for streams, shape in zip(operands, shapes, strict=True)
            ]
            combined = _in_half(layer, columns) if self._is_half(source) else layer.linear(*columns)
            result[source] = split_leading(channels_inside(combined), count)
        return result

    def _is_half(self, source: int) -> bool:
        """Columns are no estimates, and stay as they are."""
        return self.half and source != COLUMNS and all(can_be_half(draws.angles) for draws in self.draws.fresh.values())


def read(streams: Streams, estimator: Estimator) -> Tensor:
    """The sum of the estimates of all streams: [N or 1, *shape]."""
    return added([_read_one(source, samples, estimator) for source, samples in streams.items()])


def _read_one(source: int, samples: Tensor, estimator: Estimator) -> Tensor:
    if source == GAUSS:
        wide = samples.float() if samples.dtype == torch.bfloat16 else samples
        return torch.linalg.vector_norm(wide, dim=0) / math.sqrt(len(samples))
    if source == COLUMNS:
        return samples.abs().amax(0)
    return estimator.scale(samples)


def _in_half(layer: AffineDual, columns: list[Tensor]) -> Tensor:
    """A layer's products are of bfloat16 numbers; what only scales float32 numbers leaves them so, for the layer after it."""
    with torch.autocast(columns[0].device.type, torch.bfloat16, cache_enabled=False):  # a CUDA graph cannot keep a cast
        result = layer.linear(*columns)
    return result.to(torch.bfloat16) if any(c.dtype == torch.bfloat16 for c in columns) else result
