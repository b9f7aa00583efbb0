"""Points on two axes of rates, each with its name beside it; a diagonal that no point can be above."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autodual.report.charts.plots import FLOOR, WIDTH, Axis, Frame
from autodual.report.charts.svg import CHARACTER, Svg, element, group, tooltip

RADIUS, LINE = 4.0, 13.0
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Spot:
    """A point with a short name; `words` is its tooltip."""

    label: str
    x: float
    y: float
    tone: str
    words: str
    low: float | None = None
    high: float | None = None
    """Ends of an interval of confidence around y, if there is one."""


def scatter_chart(title: str, across: Axis, up: Axis, spots: Sequence[Spot], diagonal: str = "") -> Svg:
    """Both axes begin and end at round values around the points. diagonal: what the line x = y says."""
    heights = [y for spot in spots for y in (spot.y, spot.low, spot.high) if y is not None]
    frame = Frame.around(across, up, (spot.x for spot in spots), heights, right=36)
    return frame.chart(title, _diagonal(frame, diagonal), *_spots(frame, spots))


def _diagonal(frame: Frame, words: str) -> Svg:
    low, high = max(frame.x.low, frame.y.low), min(frame.x.high, frame.y.high)
    if not words or low >= high:
        return group([])
    ends = {"x1": frame.x(low), "x2": frame.x(high), "y1": frame.y(low), "y2": frame.y(high)}
    return group([tooltip(words), element("line", **ends, class_="mark")])


def _spots(frame: Frame, spots: Sequence[Spot]) -> Iterator[Svg]:
    places = [(frame.x(spot.x), frame.y(spot.y)) for spot in spots]
    taken: list[Box] = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places]
    names = []
    for spot, (x, y) in zip(spots, places, strict=True):
        box = _free(frame, x, y, CHARACTER * len(spot.label) + 2, taken)
        taken.append(box)
        middle_x, middle_y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if math.hypot(middle_x - x, middle_y - y) > 16:  # too far away to be seen as its name
            names.append(element("line", x1=x, y1=y, x2=middle_x, y2=middle_y, class_="axis"))
        label = element(
            "text", spot.label, x=middle_x, y=box[3] - 3, text_anchor="middle", class_=f"halo t-{spot.tone}"
        )
        names.append(group([tooltip(spot.words), label]))
        if spot.low is not None and spot.high is not None:
            ends = {"x1": x, "x2": x, "y1": frame.y(spot.low), "y2": frame.y(spot.high)}
            yield element("line", **ends, class_=f"interval s-{spot.tone}")
    yield from names
    for spot, (x, y) in zip(spots, places, strict=True):
        yield element("circle", tooltip(spot.words), cx=x, cy=y, r=RADIUS, class_=f"dot f-{spot.tone}")


def _free(frame: Frame, x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """The nearest place for a name around (x, y) that covers nothing; the first one where there is none."""
    found: list[Box] = []
    for distance in (11.0, 18.0, 26.0, 34.0, 44.0, 56.0, 70.0):
        for turn in range(12):
            angle = math.pi * (turn / 6 - 0.25)
            middle_x, middle_y = x + distance * math.cos(angle), y + distance * math.sin(angle)
            box = (middle_x - width / 2, middle_y - LINE / 2, middle_x + width / 2, middle_y + LINE / 2)
            inside = box[0] > frame.x.start and box[2] < WIDTH and box[1] > 14 and box[3] < FLOOR
            found.append(box)
            if inside and not any(_overlap(box, other) for other in taken):
                return box
    return found[0]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
