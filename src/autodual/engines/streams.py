"""A forward pass that carries k random combinations of the generators instead of the generators themselves. [SPAD Alg. 1]

The paper keeps one Cauchy stream per l1 term: the input, and every activation. A sum of independent Cauchy variables is Cauchy with
the sum of their scales, and the terms are just added, so one *merged* stream carries the same information: an activation adds
radius * fresh Cauchy to what passes through it. Cost: k + 1 vectors per layer, whatever the depth.

This file has the random numbers, the pass that carries them, and the estimators that read a norm off its projections.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape, added, channels_inside, merge_leading, split_leading, stacked
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, Pass
from autodual.kernels.median import SOLVED, median_of_sizes, newton_scale
from autodual.kernels.stream import Angles, can_be_half, fresh_stream, pass_and_add, pass_on
from autodual.sets import InputSet, Norm, Projection, norm_of

# Random numbers, drawn before the step that uses them.
#
# An activation needs k Cauchy numbers per unit and example. They are not drawn one by one: tan of a uniform angle is Cauchy (several
# times faster than `Tensor.cauchy_`, and never infinite), and an angle turned by any other angle is as uniform as before. So a batch
# shares k angles per unit, and each example turns them by an angle of its own per unit. The numbers of one example are exactly k
# independent Cauchy numbers per unit; those of two examples are independent for every one of the k. It takes k + N random numbers per
# unit instead of k * N. The input's numbers are not turned but shared by all examples, deliberately: where all radii are the same, as
# in an unclipped ball, its stream is computed once for the whole batch up to the first activation, and that part of the errors is
# common.


@dataclass(frozen=True)
class Draws:
    """The randomness of one step: Cauchy numbers for every activation, and for the input Cauchy or (l2 ball) Gaussian ones.

    Tensors are only ever overwritten in place (`renew_`), so a captured CUDA graph can be fed with fresh ones.
    """

    fresh: dict[int, Angles]
    """By the activation's place in the network."""
    first: Angles | Tensor | None
    """For the input: Cauchy as angles, or Gaussian [k, 1, *input shape]; None for an l1 ball, whose dual norm takes no projection."""
    pool: Tensor | None = None
    """The memory of all angles, where they are drawn in one go."""
    exact: bool = False
    """No numbers at all: bounds are to be exact, since so many projections would cost more."""
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    """The source of the numbers; PyTorch's global one when None."""

    def begins_for(self, norm: Norm, shape: Shape) -> bool:
        """Whether the input's numbers are those that sets of this norm need, for examples of this shape."""
        if norm.projection is Projection.CAUCHY:
            return isinstance(self.first, Angles) and self.first.fits(shape, 1)
        if norm.projection is Projection.GAUSSIAN:
            return isinstance(self.first, Tensor) and tuple(self.first.shape[2:]) == shape
        return self.first is None

    def renew_(self, generator: torch.Generator | None = None) -> Draws:
        """Fresh numbers in the same memory, from where the first ones came unless another generator is given."""
        generator = self.generator if generator is None else generator
        if self.pool is not None:
            self.pool.uniform_(0, math.pi, generator=generator)
        else:
            for part in self.fresh.values():
                part.angles.uniform_(0, math.pi, generator=generator)
                if part.turns is not None:
                    part.turns.uniform_(0, math.pi, generator=generator)
            if isinstance(self.first, Angles):
                self.first.angles.uniform_(-math.pi / 2, math.pi / 2, generator=generator)
        if isinstance(self.first, Tensor):
            self.first.normal_(generator=generator)
        return self


def passed_activations(network: DualNetwork) -> list[int]:
    """Activations that another activation comes after; streams end at the others."""
    sources = {network.source(i) for i in network.activations}
    before = {i for source in sources for i in network.ancestors(source)}
    return [i for i in network.activations if i in before]


def draw(
    network: DualNetwork,
    region: InputSet,
    k: int,
    generator: torch.Generator | None = None,
    activations: Sequence[int] | None = None,
) -> Draws:
    """Fresh numbers for one batch, for all activations that a stream passes; or for those that are named."""
    like = region.centre
    if generator is not None and generator.device != like.device:
        raise ArgumentError(
            f"generator is on {generator.device}, but the input is on {like.device}; "
            f"make it with torch.Generator(device={str(like.device)!r})"
        )
    shapes = {i: network.nodes[i].shape for i in (passed_activations(network) if activations is None else activations)}
    norm = norm_of(region)
    projection = None if norm is None else norm.projection
    draws = (_in_one_piece if like.is_cuda else _apart)(shapes, like, k, projection is Projection.CAUCHY)
    if projection is Projection.GAUSSIAN:
        draws = replace(draws, first=like.new_empty(k, 1, *like.shape[1:]))
    return replace(draws, generator=generator).renew_()


def _apart(shapes: dict[int, Shape], like: Tensor, k: int, cauchy: bool) -> Draws:
    """Memory for angles, laid out as a CPU likes it; also for the input's, if those are Cauchy."""
    turns = {i: channels_inside(like.new_empty(len(like), *shape)) for i, shape in shapes.items()}
    fresh = {i: Angles(stacked(turn[:1], k), turn) for i, turn in turns.items()}
    return Draws(fresh, Angles(like.new_empty(k, 1, *like.shape[1:])) if cauchy else None)


def _in_one_piece(shapes: dict[int, Shape], like: Tensor, k: int, cauchy: bool) -> Draws:
    """Memory for angles in one piece, for a GPU, which draws many numbers as fast as a few."""
    sizes = [count * math.prod(shape) for shape in shapes.values() for count in (k, len(like))]
    pool = like.new_empty(sum(sizes) + (k * like[0].numel() if cauchy else 0))
    parts = iter(pool.split([*sizes, len(pool) - sum(sizes)]))
    fresh = {
        i: Angles(_laid_out(next(parts), (k, 1), s), _laid_out(next(parts), (len(like),), s)) for i, s in shapes.items()
    }
    return Draws(fresh, Angles(_laid_out(next(parts), (k, 1), tuple(like.shape[1:]))) if cauchy else None, pool)


def _laid_out(memory: Tensor, leading: Shape, shape: Shape) -> Tensor:
    """A view [*leading, *shape]; of images, with the channels of a position next to each other, as a GPU convolves fastest."""
    if len(shape) != 3 or shape[0] == 1:
        return memory.view(*leading, *shape)
    channels, height, width = shape
    return memory.view(*leading, height, width, channels).movedim(-1, -3)


# Estimators of the scale of Cauchy samples: how an l1 norm is read off its random projections. [SPAD Thm 2; app. D]
#
# Samples are [k, *shape]: k independent values v = scale * standard Cauchy. Spreads below are standard deviations relative to the
# scale. The value of an estimate and its gradient are two questions: `docs/projections.md` has the answers in figures.


class Estimator(ABC):
    """Turns k samples into one estimate of their scale."""

    halves: ClassVar[bool] = False
    """Whether samples may be bfloat16, where kernels are ready. Not if equal samples matter: there are many of those then."""

    @abstractmethod
    def scale(self, samples: Tensor) -> Tensor:
        """[k, *shape] -> [*shape]."""


@dataclass(frozen=True)
class Median(Estimator):
    """The paper's: the median of the absolute values, the lower of the two middle ones for even k. Spread about 1.57 / sqrt(k).

    Gradients flow through the middle sample alone. Odd k overestimates on average and even k underestimates (k = 11: mean 1.12;
    k = 10: mean 0.97, median 0.86; k = 50: mean 0.99).
    """

    def scale(self, samples: Tensor) -> Tensor:
        return median_of_sizes(samples)


@dataclass(frozen=True)
class GeometricMean(Estimator):
    """exp(mean log |x|), times cos(pi / 2k)^k if `unbiased`. Has the tail bound that certificates rest on. Spread pi / 2 / sqrt(k)."""

    unbiased: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.unbiased, bool):
            raise ArgumentError(f"unbiased must be True or False, got {self.unbiased!r}")

    def scale(self, samples: Tensor) -> Tensor:
        k = samples.shape[0]
        tiny = torch.finfo(samples.dtype).tiny
        mean = samples.abs().clamp(min=tiny).log().mean(0).exp()
        mean = torch.where((samples == 0).all(0), torch.zeros_like(mean), mean)
        return mean * math.cos(math.pi / (2 * k)) ** k if self.unbiased and k > 1 else mean


@dataclass(frozen=True)
class MaximumLikelihood(Estimator):
    """The scale under which the samples are most likely, corrected by 1 - 1/k for its bias. Spread 1.41 / sqrt(k): the smallest.

    Solves sum_i (v_i^2 - s^2) / (v_i^2 + s^2) = 0 by `steps` Newton steps in log s from the median; none at all is the median itself,
    uncorrected. The gradient is that of the solution,

        ds/dv_i = s v_i / (v_i^2 + s^2)^2 / sum_j v_j^2 / (v_j^2 + s^2)^2,

    taken at the s that was found, before its correction. From 6 steps on it is the gradient of the value, and has a gradient itself.
    """

    halves: ClassVar[bool] = True
    steps: int = SOLVED

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def scale(self, samples: Tensor) -> Tensor:
        return newton_scale(samples, self.steps, 2)


@dataclass(frozen=True)
class QuietGradient(Estimator):
    """The median in value, like the paper's, with the gradient that has the least noise: the default for training.

    With `steps`, the value is that of `MaximumLikelihood(steps)`: less spread, and right on average for odd k, too.

    Any odd function phi may weigh the samples: with u = v / s, sum_i phi(u_i) dv_i / sum_j phi(u_j) u_j tends to the gradient of s for
    many samples. Its noise depends on phi. Given v, the square of the Cauchy number of one generator among many is on average
    proportional to s^2 + v^2, so phi(u) = u / (1 + u^2) has the least noise:

        ds/dv_i = s v_i / (v_i^2 + s^2) / sum_j v_j^2 / (v_j^2 + s^2).

    In one unit that halves the variance of the maximum-likelihood gradient; in whole networks it gains less. It is the gradient of the
    solution of mean log(1 + v^2 / s^2) = 2 log 2, not of the value: second derivatives are refused.
    """

    halves: ClassVar[bool] = True
    steps: int = 0

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def scale(self, samples: Tensor) -> Tensor:
        return newton_scale(samples, self.steps, 1)


def _check_steps(steps: object) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ArgumentError(f"steps must be a whole number, not negative, got {steps!r}")


# The pass.

CAUCHY, GAUSS, COLUMNS = 0, -1, -2
"""Keys of streams. CAUCHY: the input's, to which a merged pass adds those of all activations; else these are under the activations'
own indices. GAUSS: the input's where it is an l2 ball. COLUMNS: the generators of an l1 ball, which are no projections."""

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
            return {CAUCHY: fresh_stream(region.radius.expand(examples, *region.centre.shape[1:]), first)}
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
        own = CAUCHY if self.merged else index
        dtypes = {source: torch.bfloat16 if self._is_half(source) else radius.dtype for source in (*streams, own)}
        passed = {source: pass_on(v, slope, dtypes[source]) for source, v in streams.items() if source != own}
        if own in streams:
            return passed | {own: pass_and_add(streams[own], slope, radius, draws, dtypes[own])}
        return passed | {own: fresh_stream(radius, draws, dtypes[own])}

    def _product(self, index: int, layer: ElementwiseDual, streams: Streams) -> Streams:
        """A product of two activations, whose slope is no factor: what passes it has the shape of the result, and only adds up."""
        band, draws, own = self.bands[index], self.draws.fresh[index], CAUCHY if self.merged else index
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
        """Whether a stream is kept in bfloat16. Columns never are, since they are no estimates."""
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
    """Applies a layer with products in bfloat16. Columns of float32 that it only scales stay float32, for the layer after it."""
    with torch.autocast(columns[0].device.type, torch.bfloat16, cache_enabled=False):  # a CUDA graph cannot keep a cast
        result = layer.linear(*columns)
    return result.to(torch.bfloat16) if any(c.dtype == torch.bfloat16 for c in columns) else result
