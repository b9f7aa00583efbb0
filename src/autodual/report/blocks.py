"""What a section is made of. Sections choose blocks; the template has one macro for each and no logic of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
