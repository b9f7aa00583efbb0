"""Horizontal bars in segments. Places are percentages, so bars fill any width while their text keeps its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autodual.report.charts.svg import CHARACTER, Scale, Svg, element, group, tooltip

NARROWEST = 280.0
"""Width of a bar on a phone: a label is written into a segment only where it fits even there."""
LABEL, BAR, GAP, AXIS = 22.0, 30.0, 16.0, 42.0


@dataclass(frozen=True)
class Segment:
    """From `start` to `end`; `words` is its tooltip, `label` is written into it where it fits."""

    start: float
    end: float
    tone: str
    words: str
    label: str = ""


@dataclass(frozen=True)
class Tick:
    """A value marked across one bar."""

    at: float
    words: str


@dataclass(frozen=True)
class Bar:
    name: str
    segments: Sequence[Segment]
    ticks: Sequence[Tick] = ()


def bar_chart(title: str, bars: Sequence[Bar], high: float, unit: str, scale: float = 1.0, low: float = 0.0) -> Svg:
    """Bars over one axis from `low` to `high`; ticks show value * scale, `unit` says of what.

    Where `low` is above zero, the bars begin before it, and the torn end of each says so.
    """
    across = Scale.exactly(low, high, 0.0, 100.0, steps=5)
    parts: list[Svg] = []
    top = 0.0
    for bar in bars:
        if bar.name:
            parts.append(element("text", bar.name, x=0.0, y=top + 14, class_="name strong"))
            top += LABEL
        parts += [_segment(across, part, top, bar.ticks) for part in bar.segments if part.end > max(part.start, low)]
        parts += [_tick(across, tick, top) for tick in bar.ticks]
        parts += [_torn(top)] if low > 0 and bar.segments else []
        top += BAR + GAP
    top -= GAP
    parts.append(_axis(across, top, unit, scale))
    return element("svg", tooltip(title), *parts, width="100%", height=top + AXIS, role="img", class_="bars")


def _share(across: Scale, value: float) -> str:
    return f"{across(value):.3f}%"


def _segment(across: Scale, segment: Segment, top: float, ticks: Sequence[Tick]) -> Svg:
    """With its label, unless that does not fit or a tick runs through it."""
    width = across(segment.end) - across(segment.start)
    inset = 1.0 if segment.tone == "unknown" else 0.0  # for its outline
    parts: list[Svg] = [
        tooltip(segment.words),
        element(
            "rect",
            x=_share(across, segment.start),
            width=f"{width:.3f}%",
            y=top + inset,
            height=BAR - 2 * inset,
            class_=f"f-{segment.tone} segment",
        ),
    ]
    crossed = any(segment.start < tick.at < segment.end for tick in ticks)
    if segment.label and not crossed and width / 100 * NARROWEST > CHARACTER * len(segment.label) + 10:
        middle = f"{(across(segment.start) + across(segment.end)) / 2:.3f}%"
        halo = " halo" if segment.tone == "unknown" else ""
        words = element(
            "text", segment.label, x=middle, y=top + 19, text_anchor="middle", class_=f"inside i-{segment.tone}{halo}"
        )
        parts.append(words)
    return group(parts)


def _tick(across: Scale, tick: Tick, top: float) -> Svg:
    """A line on a broader one in the colour of the page, so that it is seen on any segment."""
    at = _share(across, tick.at)
    lines = [
        element("line", x1=at, x2=at, y1=top - 5, y2=top + BAR + 2, class_=name)
        for name in ("pointer-ground", "pointer")
    ]
    return group([tooltip(tick.words), *lines])


def _torn(top: float) -> Svg:
    """A zigzag over the left end."""
    teeth = [(7 if index % 2 else 1, top - 1 + index * (BAR + 2) / 8) for index in range(9)]
    corners = [(-2, top - 1), *teeth, (-2, top + BAR + 1)]
    edge = element("polygon", points=" ".join(f"{x:g},{y:g}" for x, y in corners), class_="torn")
    return group([tooltip("cut here: the bar begins at 0"), edge])


def _axis(across: Scale, top: float, unit: str, scale: float) -> Svg:
    parts = [element("line", x1="0%", x2="100%", y1=top + 3, y2=top + 3, class_="axis")]
    parts.append(element("text", unit, x="50%", y=top + 38, text_anchor="middle", class_="name"))
    for value in across.ticks:
        place = across(value)
        anchor = "start" if place < 3 else "end" if place > 97 else "middle"
        words = f"{value * scale:.4g}"
        parts.append(element("line", x1=f"{place:.3f}%", x2=f"{place:.3f}%", y1=top + 3, y2=top + 7, class_="axis"))
        parts.append(element("text", words, x=f"{place:.3f}%", y=top + 20, text_anchor=anchor, class_="tick"))
    return group(parts)
