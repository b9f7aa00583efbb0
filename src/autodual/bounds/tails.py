"""How much an estimate must be enlarged so that it is too small only with a given probability. [SPAD app. on high probability]"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

USELESS = 100.0
"""An estimate that must be enlarged by more than this bounds nothing; the paper's relative error would be above 0.99."""

UNDERFLOW = -600.0
"""Logarithm of a tail below which it is not computed as a number."""


def log_tail_per_estimate(delta: float, estimates: int, m: int) -> float:
    """log of the tail probability that each of the m estimators of a maximum may have, by the union bound over all estimates."""
    return (math.log(delta) - math.log(max(1, estimates))) / m


def geometric_tail(k: int, relative_error: float) -> float:
    """P(geometric mean of k |Cauchy| numbers <= 1 - relative_error), at most: a Chernoff bound. [SPAD Eq. "prob_bound"]

    The bound E |C|^-s = 1 / cos(pi s / 2) is used at its best s. With a = -(2 / pi) log(1 - relative_error) the paper's
    expression is exp(-k (a atan a - log(1 + a^2) / 2)).
    """
    return math.exp(-k * _exponent(-2 / math.pi * math.log1p(-relative_error)))


def geometric_enlargement(k: int, log_tail: float) -> float:
    """1 / (1 - relative_error) for the smallest relative error whose tail is small enough; grows beyond all bounds as k shrinks."""
    needed = -log_tail / k
    a = _smallest(lambda a: _exponent(a) >= needed)
    return math.exp(min(math.pi / 2 * a, 700.0))


def gaussian_enlargement(k: int, log_tail: float) -> float:
    """The same for the Euclidean norm read off k Gaussian projections: sqrt(k / q) with the chi-square quantile q of the tail.

    A tail too small to be a number takes its Chernoff bound, (q/k exp(1 - q/k))^(k/2), instead.
    """
    half, tail = torch.tensor(k / 2, dtype=torch.float64), math.exp(log_tail)
    if log_tail > UNDERFLOW:
        shrink = _smallest(lambda a: bool(torch.special.gammainc(half, half * math.exp(-2 * a)) <= tail))
    else:
        shrink = _smallest(lambda a: k / 2 * (1 - 2 * a - math.exp(-2 * a)) <= log_tail)
    return math.exp(min(shrink, 700.0))


def smallest_k(log_tail: float, enlargement: Callable[[int, float], float], limit: float = USELESS) -> int:
    """The smallest k whose enlargement is at most `limit`."""
    high = 1
    while enlargement(high, log_tail) > limit:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enlargement(middle, log_tail) > limit else (low, middle)
    return high


def _exponent(a: float) -> float:
    return a * math.atan(a) - math.log1p(a * a) / 2


def _smallest(enough: Callable[[float], bool]) -> float:
    """The smallest number >= 0 that is enough, from above, to within rounding."""
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
