"""Estimators of the scale of Cauchy samples: how an l1 norm is read off its random projections. [SPAD Thm 2; app. D]

Samples are [k, *shape]: k independent values of scale * standard Cauchy. Spreads below are standard deviations relative to the scale.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.bounds.median import median_of_sizes


class Estimator(ABC):
    """Turns k samples into one estimate of their scale."""

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

    Solves mean(s^2 / (s^2 + x^2)) = 1/2 for s by Newton steps in log s from the median; the gradient is that of the solution,
    but not the gradient of the gradient.
    """

    steps: int = 6

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise ArgumentError(f"steps must be a whole number, not negative, got {self.steps!r}")

    def scale(self, samples: Tensor) -> Tensor:
        k, tiny = samples.shape[0], torch.finfo(samples.dtype).tiny
        logs = samples.abs().clamp(min=tiny).log()
        with torch.no_grad():
            solution = logs.median(0).values
            for _ in range(self.steps):
                solution = solution - _excess(solution, logs) / _slope(solution, logs)
            slope = _slope(solution, logs)
        scale = (solution - _excess(solution, logs) / slope).exp() * (1 - 1 / k if k > 1 else 1.0)
        return torch.where((samples == 0).all(0), torch.zeros_like(scale), scale)


def _excess(log_scale: Tensor, logs: Tensor) -> Tensor:
    return torch.sigmoid(2 * (log_scale - logs)).mean(0) - 0.5


def _slope(log_scale: Tensor, logs: Tensor) -> Tensor:
    part = torch.sigmoid(2 * (log_scale - logs))
    return (2 * part * (1 - part)).mean(0).clamp(min=0.05)
