"""Line charts: lines, points and bands, each named where it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autodual.report.frame import BOTTOM, HEIGHT, TOP, Axis, Frame, Mark
from autodual.report.svg import CHARACTER, Svg, element, group, shorten, tooltip

Points = Sequence[tuple[float, float]]

LABEL_GAP = 14.0
LABEL_CHARACTERS = 18
HOVER_POINTS = 150
"""Places on a line that answer to the pointer, at most; a line of thousands of points needs no more."""


@dataclass(frozen=True)
class Series:
    """One line (or points only) in the tone `tone`; the label stands where it ends. NaN leaves a gap."""

    label: str
    points: Points
    tone: str
    line: bool = True
    dots: bool = False
    dash: str = ""
    full: str = ""
    """The name in tooltips, where the label is an abbreviation."""


@dataclass(frozen=True)
class Band:
    """The area between two lines over the same values of x: low[i] and high[i] share their x."""

    label: str
    low: Points
    high: Points


def line_chart(
    title: str, across: Axis, up: Axis, series: Sequence[Series], bands: Sequence[Band] = (), marks: Sequence[Mark] = ()
) -> Svg:
    """A chart of `series`; whoever hovers over a point reads both its values."""
    shown = [one for one in series if one.points]
    longest = max((len(shorten(one.label, LABEL_CHARACTERS)) for one in shown), default=0)
    points = [point for one in shown for point in one.points]
    frame = Frame.around(
        across, up, (x for x, _ in points), (y for _, y in points), right=14 + CHARACTER * longest, fit=True
    )
    return frame.chart(
        title,
        group(_band(frame, band) for band in bands if len(band.low) > 1),
        frame.marks(marks),
        group(_curve(frame, one) for one in shown),
        _labels(frame, shown),
    )


def _place(frame: Frame, points: Points) -> list[str]:
    return [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points]


def _band(frame: Frame, band: Band) -> Svg:
    around = _place(frame, band.high) + _place(frame, band.low)[::-1]
    return element("polygon", tooltip(band.label), points=" ".join(around), class_="f-unknown")


def _curve(frame: Frame, one: Series) -> Svg:
    parts: list[Svg] = []
    unbroken = _unbroken(one.points)
    if one.line:
        for part in unbroken:
            line = " ".join(_place(frame, part))
            parts.append(element("polyline", points=line, class_=f"line s-{one.tone}", stroke_dasharray=one.dash))
    points = [point for point in one.points if math.isfinite(point[1])]
    dots = set(points) if one.dots else {part[0] for part in unbroken if len(part) == 1}  # no line shows the latter
    every = -(-len(points) // HOVER_POINTS) or 1
    thinned = set(points[::-1][::every])  # from the end, so that the last point is kept
    for x, y in (point for point in points if point in dots or point in thinned):
        words = f"{one.full or one.label}: {frame.up.title} {frame.up.tick(y)} at {frame.across.title} {frame.across.tick(x)}"
        radius, seen = (3, f"dot f-{one.tone}") if (x, y) in dots else (5, "hover")
        dot = element("circle", tooltip(words), cx=frame.x(x), cy=frame.y(y), r=radius, class_=seen)
        parts.append(dot)
    return group(parts)


def _unbroken(points: Points) -> list[Points]:
    """The parts between gaps; a gap is a point without a finite value."""
    parts: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            parts[-1].append(point)
        else:
            parts.append([])
    return [part for part in parts if part]


def _labels(frame: Frame, series: Sequence[Series]) -> Svg:
    """Names where their lines end; at the right edge they are pushed apart where lines end close together."""
    named = [one for one in series if one.label]
    early = [one for one in named if frame.x(one.points[-1][0]) < frame.x.end - CHARACTER * len(one.label) - 12]
    edge = sorted((one for one in named if one not in early), key=lambda one: frame.y(one.points[-1][1]))
    heights = spread([frame.y(one.points[-1][1]) for one in edge], LABEL_GAP, TOP, HEIGHT - BOTTOM)
    parts = [_label(one, frame.x(one.points[-1][0]) + 6, frame.y(one.points[-1][1])) for one in early]
    return group([*parts, *(_label(one, frame.x.end + 8, height) for one, height in zip(edge, heights, strict=True))])


def _label(one: Series, x: float, y: float) -> Svg:
    words = shorten(one.label, LABEL_CHARACTERS)
    return element("text", tooltip(one.full or one.label), words, x=x, y=y + 4, class_=f"label halo t-{one.tone}")


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places moved as little as needed to be `gap` apart, inside [low, high] where they fit."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap if moved else low))
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], high - gap * (len(moved) - 1 - index))
    return moved
