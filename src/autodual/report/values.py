"""Values out of records that may lack them, and how they are written on the page.

A record comes from a file that may be old, cut short or written by hand: whatever is absent or of another type reads
as None, and the page says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f}{SPACE}s"
    if seconds < 6000:
        return f"{seconds / 60:.1f}{SPACE}min"
    return f"{seconds / 3600:.1f}{SPACE}h"
