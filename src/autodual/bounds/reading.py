"""Random projections as upper bounds that hold with a stated probability. [SPAD app. "High probability bounds"]"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.bounds.base import Confidence
from autodual.bounds.draws import Angles, Draws
from autodual.bounds.streams import COLUMNS, GAUSS
from autodual.bounds.tails import (
    USELESS,
    gaussian_enlargement,
    geometric_enlargement,
    log_tail_per_estimate,
    smallest_k,
)


def never_zero(draws: Draws) -> Draws:
    """Angles of zero made half of the smallest step: they have a probability only because random numbers have few digits."""
    for part in [*draws.fresh.values(), draws.first]:
        if isinstance(part, Angles):
            numbers = part.angles if part.turns is None else part.turns
            numbers.masked_fill_(numbers == 0, math.pi * torch.finfo(numbers.dtype).eps / 4)
    return draws


@dataclass(frozen=True)
class Reading:
    """How one estimator turns its projections, which come in parts, into an upper bound."""

    k: int
    m: int
    cauchy: float
    gauss: float

    @classmethod
    def of(cls, confidence: Confidence, gaussian: bool) -> Reading:
        """Refuses a number of projections that is too small to bound anything."""
        k, tail = confidence.k, log_tail_per_estimate(confidence.delta, confidence.estimates, confidence.m)
        factors = [geometric_enlargement(k, tail), gaussian_enlargement(k, tail) if gaussian else 1.0]
        if confidence.estimates > 0 and max(factors) > USELESS:
            needed = smallest_k(tail, geometric_enlargement)
            if gaussian:
                needed = max(needed, smallest_k(tail, gaussian_enlargement))
            raise ArgumentError(
                f"no useful bound exists for delta = {confidence.delta:g}, k = {k}, m = {confidence.m} and the "
                f"{confidence.estimates:,} estimates of this network: each would have to be enlarged by more than {USELESS:g}. "
                f"The smallest k that works is {needed}"
            )
        return cls(k, confidence.m, *factors)

    def add(self, term: int, total: Tensor | None, samples: Tensor) -> Tensor:
        """Samples [k', N or 1, *shape] on top of those that came before."""
        if term == COLUMNS:
            return samples.abs().amax(0)  # exact
        if term == GAUSS:
            part = samples.double().square().sum(0)
        else:  # not zero: one sample that underflows must not make the whole product vanish
            part = samples.abs().clamp(min=torch.finfo(samples.dtype).tiny).log().double().sum(0)
        return part if total is None else total + part

    def finish(self, term: int, total: Tensor) -> Tensor:
        if term == COLUMNS:
            return total
        if term == GAUSS:
            return (total / self.k).sqrt() * self.gauss
        return (total / self.k).exp() * self.cauchy
