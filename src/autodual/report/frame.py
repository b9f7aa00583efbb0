"""The part that line charts and histograms share: plot area, grid, ticks, axis titles, marked values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autodual.report.svg import CHARACTER, Scale, Svg, element, group, tooltip

WIDTH, HEIGHT = 400.0, 260.0
TOP, BOTTOM = 34.0, 42.0

Format = Callable[[float], str]


def percent_tick(value: float) -> str:
    return f"{100 * value:.3g}"


def plain_tick(value: float) -> str:
    return f"{value:.4g}"


@dataclass(frozen=True)
class Axis:
    """Title with its unit, how ticks are written, and what limits the range: values beyond `most` stand at its edge."""

    title: str
    tick: Format = plain_tick
    most: float = float("inf")
    zero: bool = True


ERROR_AXIS = Axis("error, %", percent_tick, most=1.0)


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
        """Room for all values, for tick labels on the left and `right` units on the right.

        fit: the horizontal axis ends at the last value instead of the next round one.
        """
        columns = list(xs)
        y = Scale.around((min(value, up.most) for value in ys), HEIGHT - BOTTOM, TOP, zero=up.zero, most=up.most)
        left = 12 + CHARACTER * max(len(up.tick(value)) for value in y.ticks)
        x = Scale.around(columns, left, WIDTH - right, zero=across.zero, steps=6)
        if fit and columns and max(columns) > x.low:
            x = Scale.exactly(x.low if across.zero else min(columns), max(columns), left, WIDTH - right, steps=6)
        return cls(x, y, across, up)

    def grid(self) -> Svg:
        """Horizontal rules with their values, values below, titles of both axes."""
        floor = HEIGHT - BOTTOM
        parts = []
        for value in self.y.ticks:
            height = self.y(value)
            parts.append(element("line", x1=self.x.start, x2=self.x.end, y1=height, y2=height, class_="rule"))
            parts.append(
                element("text", self.up.tick(value), x=self.x.start - 6, y=height + 4, text_anchor="end", class_="tick")
            )
        for value in self.x.ticks:
            at = self.x(value)
            parts.append(element("line", x1=at, x2=at, y1=floor, y2=floor + 4, class_="axis"))
            parts.append(
                element("text", self.across.tick(value), x=at, y=floor + 17, text_anchor="middle", class_="tick")
            )
        parts.append(element("line", x1=self.x.start, x2=self.x.end, y1=floor, y2=floor, class_="axis"))
        middle = (self.x.start + self.x.end) / 2
        parts.append(element("text", self.across.title, x=middle, y=HEIGHT - 6, text_anchor="middle", class_="name"))
        parts.append(element("text", self.up.title, x=2, y=10, class_="name"))
        return group(parts)

    def marks(self, marks: Sequence[Mark]) -> Svg:
        """Vertical lines with their words, on the side where there is room."""
        parts = []
        for mark in marks:
            if not self.x.contains(mark.at):
                continue
            at = self.x(mark.at)
            left = at + 4 + CHARACTER * len(mark.label) > WIDTH
            parts.append(
                group(
                    [
                        tooltip(mark.label),
                        element("line", x1=at, x2=at, y1=TOP - 12, y2=HEIGHT - BOTTOM, class_="mark"),
                        element(
                            "text",
                            mark.label,
                            x=at - 4 if left else at + 4,
                            y=TOP - 7,
                            text_anchor="end" if left else "start",
                            class_="name halo",
                        ),
                    ]
                )
            )
        return group(parts)

    def chart(self, title: str, *content: Svg) -> Svg:
        return element(
            "svg",
            tooltip(title),
            self.grid(),
            *content,
            viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
            role="img",
            class_="chart",
        )
