"""Estimators of the scale of Cauchy samples: how an l1 norm is read off its random projections. [SPAD Thm 2; app. D]

Samples are [k, *shape]: k independent values v = scale * standard Cauchy. Spreads below are standard deviations relative to the
scale. The value of an estimate and its gradient are two questions: `docs/projections.md` has the answers in figures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from autodual import kernels
from autodual._errors import ArgumentError
from autodual._tensor import has_channels_inside, in_memory_order
from autodual.engines.projected.median import (
    CHUNK,
    comparisons_for_kernel,
    median_of_sizes,
    middle_in_place,
    middle_in_plain_operations,
)

SOLVED = 6
"""Newton steps after which the likelihood's equation counts as solved, so that its gradient is the gradient of the value."""


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


# --------------------------------------------------------------------------------------------------------
# Newton steps from the median, and a gradient that uses every sample


def newton_scale(samples: Tensor, steps: int, power: int) -> Tensor:
    """[k, *shape] -> [*shape]: Newton steps towards the maximum-likelihood scale; the gradient weighs samples by u / (1 + u^2)^power.

    NaN where a sample is NaN, infinite where one is infinite. Where the median is zero or below the smallest normal number, it is
    returned as it is, and has no gradient.
    """
    if torch.compiler.is_compiling():
        return _for_a_compiler(samples, steps, power)
    result: Tensor = _NewtonScale.apply(samples, steps, power)
    return result


def correction(k: int, steps: int) -> float:
    """What the value is multiplied by: the most likely scale is too large by k / (k - 1) on average; the median is left alone."""
    return 1 - 1 / k if steps > 0 and k > 1 else 1.0


class _NewtonScale(torch.autograd.Function):
    """Keeps the samples and the scale; the backward pass reads the samples once more."""

    generate_vmap_rule = True

    @staticmethod
    def forward(samples: Tensor, steps: int, power: int) -> Tensor:
        return _value(samples, steps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        samples, ctx.steps, ctx.power = inputs
        ctx.save_for_backward(samples, output)
        ctx.save_for_forward(samples, output)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        samples, scale = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _gradient(samples, scale, given[0], ctx.steps, ctx.power), None, None
        if ctx.power == 2 and ctx.steps >= SOLVED:
            weights, total = _weights(samples, scale, ctx.steps, ctx.power)
            return weights * (given[0] / total), None, None
        return _OnceOnly.apply(samples, scale, given[0], ctx.steps, ctx.power), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        samples, scale = ctx.saved_tensors
        weights, total = _weights(samples, scale, ctx.steps, ctx.power)
        return (weights * tangent).sum(0) / total


class _OnceOnly(torch.autograd.Function):
    """A gradient that refuses to be differentiated: it is not the gradient of the value, so its own would be that of nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(samples: Tensor, scale: Tensor, given: Tensor, steps: int, power: int) -> Tensor:
        return _gradient(samples, scale, given, steps, power)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        raise _no_second_derivative()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise _no_second_derivative()


def _no_second_derivative() -> ArgumentError:
    return ArgumentError(
        "estimator: second derivatives were asked for, but the gradient of QuietGradient(), or of MaximumLikelihood() with fewer than "
        f"{SOLVED} steps, is not the gradient of its value; use Projected(k, estimator=MaximumLikelihood()) or Median() for them"
    )


def _for_a_compiler(samples: Tensor, steps: int, power: int) -> Tensor:
    """Plain operations, which a compiler fuses. The scale is homogeneous, so it is the sum of the samples times their gradients."""
    with torch.no_grad():
        scale = _value(samples, steps)
        weights, total = _weights(samples, scale, steps, power)
        weights = weights / total
    return (weights * samples).sum(0)


def _in_place() -> bool:
    """Whether memory may be written in place: not under a compiler or a function transform."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def _value(samples: Tensor, steps: int) -> Tensor:
    k = len(samples)
    if not _in_place():
        return _newton(samples, middle_in_plain_operations(samples), samples.abs().amax(0), steps)
    flat = _flat(samples)
    if k <= kernels.LARGEST_K and kernels.usable("median", samples):
        from autodual.kernels import median as kernel

        return _shaped(kernel.newton_scale(flat, comparisons_for_kernel(k), steps, correction(k, steps)), samples)
    parts = []
    for part in flat.split(CHUNK if samples.device.type == "cpu" else max(1, flat.shape[1]), 1):
        sizes = part.abs()
        largest = sizes.amax(0)
        parts.append(_newton(part, middle_in_place(sizes), largest, steps))
    return _shaped(torch.cat(parts), samples)


def _newton(samples: Tensor, middle: Tensor, largest: Tensor, steps: int) -> Tensor:
    """Newton steps in log s for sum_i 1 - 2 p_i = 0, p = 1 / (1 + u^2), u = v / s. From the median, none is longer than 1.

    Where u^2 overflows, p is zero, as it should be.
    """
    k, tiny = len(samples), torch.finfo(samples.dtype).tiny
    scale = torch.where(middle < tiny, 1.0, middle)
    for _ in range(steps):
        ratio = samples * (1 / scale)
        part = torch.addcmul(ratio.new_ones(()), ratio, ratio).reciprocal()
        total = part.sum(0)
        slope = 4 * (total - (part * part).sum(0))
        scale = scale * ((k - 2 * total) / slope).clamp(-1, 1).exp()
    scale = torch.where(middle < tiny, middle, scale * correction(k, steps))
    return torch.where(largest == math.inf, largest, scale)


def _weights(samples: Tensor, scale: Tensor, steps: int, power: int) -> tuple[Tensor, Tensor]:
    """[k, *shape] and [*shape]: their quotient is the gradient of the scale."""
    limits = torch.finfo(samples.dtype)
    factor, largest = correction(len(samples), steps), limits.max**0.5 / 2
    none = scale < limits.tiny
    ratio = (samples * (factor / torch.where(none, 1.0, scale))).clamp(-largest, largest)
    weights = ratio / (1 + ratio * ratio) ** power
    total = (weights * ratio).sum(0) / factor
    return torch.where(none, 0.0, weights), torch.where(none, 1.0, total)


def _gradient(samples: Tensor, scale: Tensor, given: Tensor, steps: int, power: int) -> Tensor:
    """`given` times the quotient of `_weights`: the samples are read once, the gradients written once."""
    if not _in_place():
        weights, total = _weights(samples, scale, steps, power)
        return weights * (given / total)
    k, factor = len(samples), correction(len(samples), steps)
    values, (scales, gradients) = _flat(samples), (_flat_like(t, samples) for t in (scale, given))
    if k <= kernels.LARGEST_K and kernels.usable("median", samples, scale, given):
        from autodual.kernels import median as kernel

        return _shaped(kernel.gradient_of_newton_scale(values, scales, gradients, factor, power), samples)
    result = torch.empty_like(values)
    width = max(1, CACHED // k) if samples.device.type == "cpu" else max(1, values.shape[1])
    for v, s, g, r in zip(*(t.split(width, -1) for t in (values, scales, gradients, result)), strict=True):
        _write_gradient(v, s, g, r, factor, power)
    return _shaped(result, samples)


CACHED = 1 << 17
"""Samples that a CPU treats together, so that they stay in its cache."""


def _write_gradient(samples: Tensor, scale: Tensor, given: Tensor, result: Tensor, factor: float, power: int) -> None:
    """`_weights` for some units, into the memory of the result. With p = 1 / (1 + u^2), u^2 p is 1 - p."""
    limits = torch.finfo(samples.dtype)
    none, largest = scale < limits.tiny, limits.max**0.5 / 2
    ratio = torch.mul(samples, factor / torch.where(none, 1.0, scale), out=result).clamp_(-largest, largest)
    part = torch.addcmul(ratio.new_ones(()), ratio, ratio).reciprocal_()
    total = len(samples) - part.sum(0) if power == 1 else (part - part * part).sum(0)
    ratio.mul_(part if power == 1 else part.square_()).mul_(torch.where(none, 0.0, given * factor / total))


def _flat(samples: Tensor) -> Tensor:
    """[k, *shape] -> [k, units], in the order in which they lie in memory."""
    return in_memory_order(samples).reshape(len(samples), -1).contiguous()


def _flat_like(units: Tensor, samples: Tensor) -> Tensor:
    """[*shape] -> [units], in the order of `_flat(samples)`."""
    return (units.movedim(1, -1) if has_channels_inside(samples) else units).reshape(-1)


def _shaped(flat: Tensor, samples: Tensor) -> Tensor:
    """[units] or [k, units] in the order of `_flat(samples)` -> [*shape] or [k, *shape]."""
    shape = in_memory_order(samples).shape
    whole = flat.reshape(shape if flat.dim() == 2 else shape[1:])
    return whole.movedim(-1, whole.dim() - 3) if has_channels_inside(samples) else whole
