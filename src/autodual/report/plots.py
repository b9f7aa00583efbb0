"""Line charts, histograms and scatter plots, and the frame that they share: plot area, grid, ticks, axis titles, marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from autodual.report.blocks import count
from autodual.report.svg import (
    CHARACTER,
    LogScale,
    Scale,
    Svg,
    element,
    group,
    line,
    nice_step,
    shorten,
    tooltip,
    words,
)

WIDTH, HEIGHT = 400.0, 260.0
TOP, FLOOR = 34.0, 218.0
"""Where the plot area begins and ends; the horizontal axis is the floor."""


def percent_tick(value: float) -> str:
    return f"{100 * value:.4g}"


def plain_tick(value: float) -> str:
    return f"{value:.4g}"


def power_tick(value: float) -> str:
    """Writes a power of ten as 10³, and other values in digits: on a logarithmic axis, ticks are powers, tooltips show values."""
    if value <= 0 or not math.isclose(math.log10(value), round(math.log10(value)), abs_tol=1e-9):
        return plain_tick(value)
    return "10" + str(round(math.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


@dataclass(frozen=True)
class Axis:
    """Title with its unit, how ticks are written, and what limits the range: values beyond `least` and `most` stand at its edge.

    zero: the axis reaches to zero. whole: ticks are no fractions. log: values are positive and stand at the place of their logarithm;
    all limits say nothing then.
    """

    title: str
    tick: Callable[[float], str] = plain_tick
    most: float = math.inf
    zero: bool = True
    log: bool = False
    least: float = -math.inf
    whole: bool = False


ERROR_AXIS = Axis("error, %", percent_tick, most=1.0)
ACCURACY_AXIS = Axis("accuracy, %", percent_tick, most=1.0)


@dataclass(frozen=True)
class Mark:
    """A vertical line at a value, with a word at its top."""

    at: float
    label: str


@dataclass(frozen=True)
class Frame:
    """Scales of one chart, and everything around what is plotted."""

    x: Scale
    y: Scale
    across: Axis
    up: Axis

    @classmethod
    def around(
        cls, across: Axis, up: Axis, xs: Iterable[float], ys: Iterable[float], right: float = 12.0, fit: bool = False
    ) -> Frame:
        """A frame with room for all values, for tick labels on the left and `right` units on the right.

        fit: the horizontal axis ends at the last value instead of the next round one.
        """
        columns, end = list(xs), WIDTH - right
        if up.log:
            y: Scale = LogScale.decades(ys, FLOOR, TOP)
        else:
            inside = (max(min(value, up.most), up.least) for value in ys)
            y = Scale.around(inside, FLOOR, TOP, zero=up.zero, most=up.most, whole=up.whole)
        left = 12 + CHARACTER * max(len(up.tick(value)) for value in y.ticks)
        if across.log:
            return cls(LogScale.decades(columns, left, end, fit=fit), y, across, up)
        x = Scale.around(columns, left, end, zero=across.zero, most=across.most, steps=6, whole=across.whole)
        if fit and columns and max(columns) > x.low:
            low = min(0.0, *columns) if across.zero else min(columns)
            x = Scale.exactly(low, max(columns), left, end, steps=6, whole=across.whole)
        return cls(x, y, across, up)

    def grid(self) -> Svg:
        """Horizontal rules with their values, values below, titles of both axes."""
        left, right, middle = self.x.start, self.x.end, (self.x.start + self.x.end) / 2
        parts = []
        for value in self.y.ticks:
            height = self.y(value)
            parts.append(line(left, right, height, height, "rule"))
            parts.append(words(self.up.tick(value), left - 6, height + 4, "end", "tick"))
        for value in self.x.ticks:
            at = self.x(value)
            parts.append(line(at, at, FLOOR, FLOOR + 4, "axis"))
            parts.append(words(self.across.tick(value), at, FLOOR + 17, "middle", "tick"))
        parts.append(line(left, right, FLOOR, FLOOR, "axis"))
        parts.append(words(self.across.title, middle, HEIGHT - 6, "middle", "name"))
        parts.append(element("text", self.up.title, x=2, y=10, class_="name"))
        return group(parts)

    def marks(self, marks: Sequence[Mark]) -> Svg:
        """Vertical lines with their words, on the side where there is room."""
        parts = []
        for mark in marks:
            if self.x.low <= mark.at <= self.x.high:
                at = self.x(mark.at)
                left = at + 4 + CHARACTER * len(mark.label) > WIDTH
                place, anchor = (at - 4, "end") if left else (at + 4, "start")
                label = words(mark.label, place, TOP - 7, anchor, "name halo")
                parts.append(group([tooltip(mark.label), line(at, at, TOP - 12, FLOOR, "mark"), label]))
        return group(parts)

    def chart(self, title: str, *content: Svg) -> Svg:
        box = f"0 0 {WIDTH:g} {HEIGHT:g}"
        return element("svg", tooltip(title), self.grid(), *content, viewBox=box, role="img", class_="chart")

    def place(self, points: Points) -> str:
        """The corners of a line, as SVG writes them."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


# Line charts: lines, steps, points, bands and intervals of confidence, each line named where it ends.

Points = Sequence[tuple[float, float]]
Steps = Literal["", "before", "after"]
"""Where a value holds: only at its point (a line leads to the next), from the point before it, or up to the point after it."""

LABEL_GAP = 14.0
LABEL_CHARACTERS = 18
HOVER_POINTS = 150
"""Places on a line that answer to the pointer, at most; a line of thousands of points needs no more."""


def stairs(points: Points, steps: Steps) -> Points:
    """The corners of a step function that has these values."""
    if not steps:
        return points
    corners = [*points[:1]]
    for (x, y), (next_x, next_y) in pairwise(points):
        corners += [(next_x, y) if steps == "after" else (x, next_y), (next_x, next_y)]
    return corners


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
    hover: bool = True
    """Whether places without a dot answer to the pointer, too."""
    steps: Steps = ""
    intervals: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): intervals of confidence."""


def measured(points: Points, tone: str, full: str, intervals: Sequence[tuple[float, float, float]] = ()) -> Series:
    """Dots without a line and without a label."""
    return Series("", points, tone, line=False, dots=True, full=full, intervals=intervals)


@dataclass(frozen=True)
class Area:
    """The area between two lines or step functions."""

    label: str
    low: Points
    high: Points
    low_steps: Steps = ""
    high_steps: Steps = ""


def line_chart(
    title: str, across: Axis, up: Axis, series: Sequence[Series], bands: Sequence[Area] = (), marks: Sequence[Mark] = ()
) -> Svg:
    """A chart of `series`; whoever hovers over a point reads both its values."""
    shown = [one for one in series if one.points]
    longest = max((len(shorten(one.label, LABEL_CHARACTERS)) for one in shown), default=0)
    points = [point for one in shown for point in one.points]
    likely = [value for one in shown for _, low, high in one.intervals for value in (low, high)]
    frame = Frame.around(
        across, up, (x for x, _ in points), [*(y for _, y in points), *likely], right=14 + CHARACTER * longest, fit=True
    )
    return frame.chart(
        title,
        group(_band(frame, band) for band in bands if len(band.low) > 1),
        frame.marks(marks),
        group(_curve(frame, one) for one in shown),
        _labels(frame, shown),
    )


def _band(frame: Frame, band: Area) -> Svg:
    around = [*stairs(band.high, band.high_steps), *reversed(stairs(band.low, band.low_steps))]
    return element("polygon", tooltip(band.label), points=frame.place(around), class_="f-unknown")


def _curve(frame: Frame, one: Series) -> Svg:
    name, parts, unbroken = one.full or one.label, [], _unbroken(one.points)
    for x, low, high in one.intervals:
        at, bottom, top = frame.x(x), frame.y(low), frame.y(high)
        ends = [(at, at, bottom, top), (at - 3, at + 3, bottom, bottom), (at - 3, at + 3, top, top)]
        lines = [line(*place, f"interval s-{one.tone}") for place in ends]
        parts.append(group([tooltip(f"{name}: {frame.up.tick(low)} to {frame.up.tick(high)}"), *lines]))
    for part in unbroken if one.line else ():
        corners = frame.place(stairs(part, one.steps))
        parts.append(element("polyline", points=corners, class_=f"line s-{one.tone}", stroke_dasharray=one.dash))
    points = [point for point in one.points if math.isfinite(point[1])]
    dots = set(points) if one.dots else {part[0] for part in unbroken if len(part) == 1}  # no line shows the latter
    every = -(-len(points) // HOVER_POINTS) or 1
    thinned = set(points[::-1][::every] if one.hover else [])  # from the end, so that the last point is kept
    for x, y in (point for point in points if point in dots or point in thinned):
        told = f"{name}: {frame.up.title} {frame.up.tick(y)} at {frame.across.title} {frame.across.tick(x)}"
        radius, seen = (3, f"dot f-{one.tone}") if (x, y) in dots else (5, "hover")
        parts.append(element("circle", tooltip(told), cx=frame.x(x), cy=frame.y(y), r=radius, class_=seen))
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
    heights = spread([frame.y(one.points[-1][1]) for one in edge], LABEL_GAP, TOP, FLOOR)
    places = [(one, frame.x(one.points[-1][0]) + 6, frame.y(one.points[-1][1])) for one in early]
    places += [(one, frame.x.end + 8, height) for one, height in zip(edge, heights, strict=True)]
    parts = []
    for one, x, y in places:
        shown, kind = shorten(one.label, LABEL_CHARACTERS), f"label halo t-{one.tone}"
        parts.append(element("text", tooltip(one.full or one.label), shown, x=x, y=y + 4, class_=kind))
    return group(parts)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places moved as little as needed to be `gap` apart, inside [low, high] where they fit."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap if moved else low))
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], high - gap * (len(moved) - 1 - index))
    return moved


# Histograms whose bins meet at a value that matters, each bar divided by what became of its examples.

BINS = 28


@dataclass(frozen=True)
class Bins:
    """Value i lies in the bin from edges[place[i]] to edges[place[i] + 1]; values beyond the edges are in the outermost bins."""

    edges: tuple[float, ...]
    place: tuple[int, ...]
    beyond: int

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.place, minlength=len(self.edges) - 1).tolist())


def make_bins(
    values: Sequence[float], pivot: float = 0.0, bins: int = BINS, least: float | None = None, most: float | None = None
) -> Bins:
    """Bins of a round width of which one begins at `pivot`; values below it are never counted in a bin above.

    The last bin includes its upper end. A few values far away would squeeze all others into one bin: the range ends five
    interquartile ranges from the middle half, but not before `least` and `most`.
    """
    data = np.asarray(values, dtype=float)
    if most is not None:
        data = np.where((data > most) & (data <= most * (1 + 1e-6)), most, data)  # a float32 that rounds `most` up
    low, quarter, three, high = np.quantile(data, [0.0, 0.25, 0.75, 1.0])
    reach = 5 * (three - quarter) or math.inf
    low, high = min(max(low, quarter - reach), pivot), max(min(high, three + reach), pivot)
    low = min(low, least) if least is not None else low
    high = max(high, most) if most is not None else high
    width = nice_step(max(high - low, 1e-12), bins)
    if least is not None and pivot - least > width:
        width = (pivot - least) / math.ceil((pivot - least) / width - 1e-9)  # so that a bin begins there, too
    place = np.floor((data - pivot) / width + 1e-9)
    first = min(math.floor((low - pivot) / width + 1e-9), -1 if (place < 0).any() else 0)
    last = max(math.ceil((high - pivot) / width - 1e-9), 1 if (place >= 0).any() else 0, first + 1)
    beyond = int(((place < first) | (data > pivot + width * (last + 1e-9))).sum())
    inside = (place.clip(first, last - 1) - first).astype(int)
    return Bins(tuple(pivot + width * index for index in range(first, last + 1)), tuple(inside.tolist()), beyond)


def histogram(title: str, across: Axis, bins: Bins, tones: Sequence[str], marks: Sequence[Mark]) -> Svg:
    """Bars of counts, each divided by what became of its examples: tones[i] is that of example i. Parts stand in the order in which
    their tones first appear."""
    frame = Frame.around(across, Axis("examples", whole=True), bins.edges, [float(max(bins.counts))], fit=True)
    order = list(dict.fromkeys(tones))
    stacks = [[0] * len(order) for _ in bins.counts]
    for place, tone in zip(bins.place, tones, strict=True):
        stacks[place][order.index(tone)] += 1
    bars = []
    for low, high, stack in zip(bins.edges[:-1], bins.edges[1:], stacks, strict=True):
        left, below = frame.x(low), 0
        for tone, number in zip(order, stack, strict=True):
            if number:
                top, floor = frame.y(below + number), frame.y(below)
                told = f"{across.tick(low)} to {across.tick(high)}: {count(number)} examples, {tone}"
                width = max(frame.x(high) - left - 1, 0.5)
                bar = element("rect", x=left + 0.5, y=top, width=width, height=floor - top, class_=f"f-{tone}")
                bars.append(group([tooltip(told), bar]))
            below += number
    return frame.chart(title, group(bars), frame.marks(marks))


# Scatter plots: points on two axes of rates, each with its name beside it; a diagonal that no point can be above.

RADIUS, LINE = 4.0, 13.0
Rectangle = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Spot:
    """A point with a short name, or none; `words` is its tooltip."""

    label: str
    x: float
    y: float
    tone: str
    words: str
    low: float | None = None
    high: float | None = None
    """Ends of an interval of confidence around y, if there is one."""


def scatter_chart(title: str, across: Axis, up: Axis, spots: Sequence[Spot], diagonal: str) -> Svg:
    """Points on two axes that begin and end at round values. diagonal: what the line x = y says."""
    heights = [y for spot in spots for y in (spot.y, spot.low, spot.high) if y is not None]
    frame = Frame.around(across, up, (spot.x for spot in spots), heights, right=36)
    low, high = max(frame.x.low, frame.y.low), min(frame.x.high, frame.y.high)
    limit = line(frame.x(low), frame.x(high), frame.y(low), frame.y(high), "mark")
    shown = [tooltip(diagonal), limit] if low < high else []
    return frame.chart(title, group(shown), *_spots(frame, spots))


def price_of_proof(which: str, spots: Sequence[Spot]) -> Svg:
    """Certified accuracy (up) against accuracy (across)."""
    across, up = (replace(ACCURACY_AXIS, title=f"{name}accuracy, %", zero=False) for name in ("", "certified "))
    title = f"Accuracy and certified accuracy, {which}"
    return scatter_chart(title, across, up, spots, "certified accuracy cannot exceed accuracy")


def _spots(frame: Frame, spots: Sequence[Spot]) -> Iterator[Svg]:
    """Draws intervals, then names over them, then points over both."""
    places = [(frame.x(spot.x), frame.y(spot.y)) for spot in spots]
    taken: list[Rectangle] = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places]
    names = []
    for spot, (x, y) in zip(spots, places, strict=True):
        if spot.low is not None and spot.high is not None:
            yield line(x, x, frame.y(spot.low), frame.y(spot.high), f"interval s-{spot.tone}")
        if not spot.label:
            continue
        box = _free_place(frame, x, y, CHARACTER * len(spot.label) + 2, taken)
        taken.append(box)
        middle_x, middle_y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if math.hypot(middle_x - x, middle_y - y) > 16:  # too far away to be seen as its name
            names.append(line(x, middle_x, y, middle_y, "axis"))
        label = words(spot.label, middle_x, box[3] - 3, "middle", f"halo t-{spot.tone}")
        names.append(group([tooltip(spot.words), label]))
    yield from names
    for spot, (x, y) in zip(spots, places, strict=True):
        yield element("circle", tooltip(spot.words), cx=x, cy=y, r=RADIUS, class_=f"dot f-{spot.tone}")


def _free_place(frame: Frame, x: float, y: float, width: float, taken: Sequence[Rectangle]) -> Rectangle:
    """The nearest place for a name around (x, y) that covers nothing; the first one where there is none."""
    found: list[Rectangle] = []
    for distance in (11.0, 18.0, 26.0, 34.0, 44.0, 56.0, 70.0):
        for turn in range(12):
            angle = math.pi * (turn / 6 - 0.25)
            middle_x, middle_y = x + distance * math.cos(angle), y + distance * math.sin(angle)
            box = (middle_x - width / 2, middle_y - LINE / 2, middle_x + width / 2, middle_y + LINE / 2)
            inside = box[0] > frame.x.start and box[2] < WIDTH and box[1] > 14 and box[3] < FLOOR
            found.append(box)
            if inside and not any(
                box[0] < right and left < box[2] and box[1] < bottom and top < box[3]
                for left, top, right, bottom in taken
            ):
                return box
    return found[0]
