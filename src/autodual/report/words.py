"""How numbers are written on the page."""

from __future__ import annotations

import functools
import math
import re

import numpy as np

SPACE = "\N{NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
INTERVAL = f"95{SPACE}% Clopper-Pearson interval"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.2f}{SPACE}%"


def short(value: float) -> str:
    """Four significant digits, without trailing zeros."""
    return f"{value:.4g}"


def count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def out_of(value: float, examples: int) -> str:
    """A rate as a count: '91 of 360'."""
    return f"{count(round(value * examples))} of {count(examples)}"


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f}{SPACE}s"
    return f"{seconds / 60:.1f}{SPACE}min" if seconds < 6000 else f"{seconds / 3600:.1f}{SPACE}h"


def size(eps: float) -> str:
    """A perturbation's size: 2/255 where four digits would round a multiple of 0.25/255, else four digits."""
    if math.isclose(float(short(eps)), eps) or not math.isclose(1020 * eps, round(1020 * eps)):
        return short(eps)
    return f"{round(1020 * eps) / 4:g}/255"


def tidy(words: str) -> str:
    """Text from a record with its long decimals written as `size` writes them."""
    return re.sub(r"\d+\.\d{5,}", lambda found: size(float(found[0])), words)


def likely(value: float, examples: int) -> str:
    """The interval of a rate that was measured on a sample, rounded outwards: '93.4–96.3 %'."""
    ends = interval(value, examples)
    if ends is None:
        return DASH
    return f"{math.floor(1000 * ends[0]) / 10:.1f}{DASH}{math.ceil(1000 * ends[1]) / 10:.1f}{SPACE}%"


MOST_TRIALS = 10**6
"""More examples than this have an interval too narrow to be seen, or are an error in a record."""


def interval(value: float, examples: int) -> tuple[float, float] | None:
    """Clopper-Pearson interval at 95 % around a rate that was measured on a sample."""
    return clopper_pearson(round(value * examples), examples) if 0 < examples <= MOST_TRIALS else None


@functools.cache
def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Interval that contains the true rate with probability `level` at least, whatever that rate is.

    The lower end is the rate p at which `successes` or more of `trials` have probability (1 - level) / 2; the upper end likewise with
    failures. [C. Clopper and E. Pearson, The use of confidence or fiducial limits, 1934]
    """
    return _least_rate(successes, trials, level), 1 - _least_rate(trials - successes, trials, level)


def _least_rate(successes: int, trials: int, level: float) -> float:
    if successes == 0:
        return 0.0
    logs = np.concatenate([[0.0], np.log(np.arange(1, trials + 1)).cumsum()])  # of factorials
    these = np.arange(successes, trials + 1)
    ways = logs[trials] - logs[these] - logs[trials - these]
    low, high = 0.0, successes / trials
    for _ in range(40):
        rate = (low + high) / 2
        tail = np.exp(ways + these * math.log(rate) + (trials - these) * math.log1p(-rate)).sum()
        low, high = (rate, high) if tail < (1 - level) / 2 else (low, rate)
    return low
