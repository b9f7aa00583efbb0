"""Values out of records that may lack them, and how they are written on the page.

A record comes from a file that may be old, cut short or written by hand: whatever is absent or of another type reads
as None, and the page says so.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping

import numpy as np

Record = Mapping[str, object]
SPACE = "\N{NO-BREAK SPACE}"
DASH = "\N{EN DASH}"


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def number(record: Record, key: str) -> float | None:
    """The finite number at `key`, or None."""
    value = _float(record.get(key))
    return value if math.isfinite(value) else None


def rate(record: Record, key: str) -> float | None:
    """The share at `key`, from 0 to 1, or None."""
    value = number(record, key)
    return value if value is not None and 0 <= value <= 1 else None


def whole(record: Record, key: str) -> int | None:
    """The whole number at `key`, or None."""
    value = number(record, key)
    return int(value) if value is not None and value == int(value) else None


def text(record: Record, key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) else None


def mapping(record: Record, key: str) -> Record | None:
    value = record.get(key)
    return value if isinstance(value, dict) else None


def records(record: Record, key: str) -> list[Record]:
    """The list of records at `key`, without what is not a record."""
    value = record.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def numbers(record: Record, key: str) -> list[float] | None:
    """The list of numbers at `key`; infinities stay, and what is not a number is NaN."""
    value = record.get(key)
    return [_float(entry) for entry in value] if isinstance(value, list) else None


def integers(record: Record, key: str) -> list[int] | None:
    """The list of whole numbers at `key`; None unless every entry is one."""
    value = record.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, int) for entry in value):
        return None
    return [int(entry) for entry in value]


def flags(record: Record, key: str) -> list[bool] | None:
    """The list of yes and no at `key` (0 and 1 count); None unless every entry is one."""
    value = integers(record, key)
    return [entry == 1 for entry in value] if value is not None and set(value) <= {0, 1} else None


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.2f}{SPACE}%"


def short(value: float | None) -> str:
    """Four significant digits, without trailing zeros."""
    return DASH if value is None else f"{value:.4g}"


def count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def out_of(value: float | None, examples: int | None) -> str:
    """A rate as a count: '91 of 360'."""
    if value is None or examples is None:
        return ""
    return f"{count(round(value * examples))} of {count(examples)}"


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f}{SPACE}s"
    if seconds < 6000:
        return f"{seconds / 60:.1f}{SPACE}min"
    return f"{seconds / 3600:.1f}{SPACE}h"


def size(eps: float | None) -> str:
    """A perturbation's size: 2/255 where four digits would round a multiple of 0.25/255, else four digits."""
    if eps is None or math.isclose(float(short(eps)), eps) or not math.isclose(1020 * eps, round(1020 * eps)):
        return short(eps)
    return f"{round(1020 * eps) / 4:g}/255"


def tidy(words: str) -> str:
    """Text from a record with its long decimals written as `size` writes them."""
    return re.sub(r"\d+\.\d{5,}", lambda found: size(float(found[0])), words)


INTERVAL = f"95{SPACE}% Clopper-Pearson interval"


MOST_TRIALS = 10**6
"""More examples than this have an interval too narrow to be seen, or are an error in a record."""


def interval(value: float | None, examples: int | None) -> tuple[float, float] | None:
    """Clopper-Pearson interval at 95 % around a rate that was measured on a sample."""
    if value is None or examples is None or not 0 < examples <= MOST_TRIALS:
        return None
    return clopper_pearson(round(value * examples), examples)


def likely(value: float | None, examples: int | None) -> str:
    """The interval, rounded outwards: '93.4–96.3 %'."""
    ends = interval(value, examples)
    if ends is None:
        return DASH
    return f"{math.floor(1000 * ends[0]) / 10:.1f}{DASH}{math.ceil(1000 * ends[1]) / 10:.1f}{SPACE}%"


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
