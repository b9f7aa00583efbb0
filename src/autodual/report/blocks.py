"""What a section is made of: blocks, for each of which the template has one macro and no logic of its own; and numbers in words."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autodual.report.svg import Svg

Tone = Literal["proved", "unknown", "broken", "wrong", "unproved", "stage-1", "stage-2", "stage-3", ""]
"""A colour by what it means; the style sheet says which colour that is, in light, in dark and in print."""


class Block:
    """What a section shows. The template has a macro for each kind of block."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Text(Block):
    """A sentence or two."""

    text: str


@dataclass(frozen=True)
class Note(Block):
    """A sentence that must not be overlooked: something is missing, damaged or contradictory."""

    text: str


@dataclass(frozen=True)
class Tile:
    """One large number."""

    name: str
    value: str
    detail: str = ""
    tone: Tone = ""
    more: Sequence[str] = ()
    """Further statements under the first."""
    large: bool = False
    """Whether this is the number that the page is about."""


@dataclass(frozen=True)
class Tiles(Block):
    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Figure:
    """A chart with its heading and what to read from it."""

    title: str
    chart: Svg
    caption: str = ""


@dataclass(frozen=True)
class Wide(Block):
    """A chart over the whole width; `legend` explains its tones."""

    chart: Svg
    legend: Sequence[tuple[str, str]] = ()
    caption: str = ""


@dataclass(frozen=True)
class Table(Block):
    """A table of texts; columns named in `words` are words (left), all others are numbers (right)."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[str] = frozenset()
    total: Sequence[str] = ()
    caption: str = ""


@dataclass(frozen=True)
class Figures(Block):
    """Charts, two beside each other where there is room; a table may take the last place; `legend` explains their tones."""

    figures: Sequence[Figure]
    table: Table | None = None
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Image:
    """A picture as a data URI, a word under it, and what it shows for those who do not see it."""

    source: str
    caption: str
    words: str


@dataclass(frozen=True)
class Card:
    """One example: its image, or that and what was made of it."""

    title: str
    images: Sequence[Image]


@dataclass(frozen=True)
class Cards(Block):
    title: str
    text: str
    tone: Tone
    cards: Sequence[Card]


@dataclass(frozen=True)
class Lines(Block):
    """Text as it is in a file; marked lines are those that other runs do not have."""

    title: str
    lines: Sequence[tuple[str, bool]]


@dataclass(frozen=True)
class Section:
    """A part of a chapter. `key` becomes the anchor; a section without anything to show holds one sentence that says why."""

    key: str
    title: str
    blocks: Sequence[Block]
    of: str = ""
    """The part of the run that it describes, where that is not the whole."""


# How numbers are written on the page.

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
