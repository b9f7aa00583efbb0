"""Estimators of the scale of Cauchy samples: how an l1 norm is read off its random projections. [SPAD Thm 2; app. D]

Samples are [k, *shape]: k independent values v = scale * standard Cauchy. Spreads below are standard deviations relative to the
scale. The value of an estimate and its gradient are two questions: `docs/projections.md` has the answers in figures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.kernels.median import SOLVED, median_of_sizes, newton_scale


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
