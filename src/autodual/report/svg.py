"""Elements, scales and bars of the charts. Every string that enters an element is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

CHARACTER = 6.4
"""Width of one character at the charts' font size, about, in the units of a chart."""


class Svg(str):
    """Finished markup: made by `element` only, so it is safe to put on the page as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def element(tag: str, *children: str, **attributes: str | float) -> Svg:
    """<tag attributes>children</tag>; class_ and stroke_width become class and stroke-width; text is escaped."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    written = "".join(f' {name}="{_attribute(value)}"' for name, value in names.items() if value != "")
    inside = "".join(child if isinstance(child, Svg) else escape(child) for child in children)
    return Svg(f"<{tag}{written}>{inside}</{tag}>")


def _attribute(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def group(children: Iterable[str], **attributes: str | float) -> Svg:
    return element("g", *children, **attributes)


def tooltip(text: str) -> Svg:
    """A text that is shown when the pointer rests on the element around it."""
    return element("title", text)


def line(x1: str | float, x2: str | float, y1: float, y2: float, kind: str) -> Svg:
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=kind)


def words(text: str, x: str | float, y: float, anchor: str, kind: str) -> Svg:
    """Text that begins, ends or has its middle at x."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=kind)


def shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "\N{HORIZONTAL ELLIPSIS}"


# Scales: from values to places.


def nice_step(span: float, steps: int, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that covers `span` in at most `steps` steps; whole: that is no fraction."""
    rough = span / steps
    if whole and rough < 5:
        return next(step for step in (1.0, 2.0, 5.0) if step >= rough * (1 - 1e-9))
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, laid onto the coordinates from `start` to `end`, with round ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def around(
        cls,
        values: Iterable[float],
        start: float,
        end: float,
        *,
        zero: bool = True,
        most: float = math.inf,
        steps: int = 5,
        whole: bool = False,
    ) -> Scale:
        """A scale that covers the values, and zero where asked. most: what a rate cannot exceed. whole: ticks are no fractions."""
        found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min([*found, 0.0] if zero else found), max([*found, 0.0] if zero else found)
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = (low - (abs(low) or 1.0), high) if high >= most else (low, low + (abs(low) or 1.0))
        step = nice_step(high - low, steps, whole)
        low, high = step * math.floor(low / step + 1e-9), min(step * math.ceil(high / step - 1e-9), most)
        return cls(low, high, start, end, _multiples(low, high, step))

    @classmethod
    def exactly(cls, low: float, high: float, start: float, end: float, steps: int = 5, whole: bool = False) -> Scale:
        """A scale that begins and ends where it is told to, with a tick at both ends and at round values between them."""
        step = nice_step(high - low, steps, whole)
        inside = [value for value in _multiples(low, high, step) if low + 0.55 * step < value < high - 0.55 * step]
        return cls(low, high, start, end, (low, *inside, high))

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


class LogScale(Scale):
    """Positive values at the place of their logarithm, with ticks at powers of ten."""

    @classmethod
    def decades(cls, values: Iterable[float], start: float, end: float, *, fit: bool = False) -> LogScale:
        """A scale that covers the values, in whole powers of ten unless `fit`; what is not positive stands at the lower end."""
        found = [value for value in values if math.isfinite(value) and value > 0] or [1.0, 10.0]
        first, last = math.floor(math.log10(min(found)) + 1e-9), math.ceil(math.log10(max(found)) - 1e-9)
        last = max(last, first + 1)
        low, high = (min(found), max(found)) if fit and min(found) < max(found) else (10.0**first, 10.0**last)
        powers = (10.0**power for power in range(first, last + 1))
        return cls(low, high, start, end, tuple(p for p in powers if low * (1 - 1e-9) <= p <= high * (1 + 1e-9)))

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * min(share, 1.0)


# Horizontal bars in segments. Places are percentages, so bars fill any width while their text keeps its size.

NARROWEST = 280.0
"""Width of a bar on a phone: a label is written into a segment only where it fits even there."""
LABEL, BAR, GAP, AXIS = 22.0, 30.0, 16.0, 42.0


@dataclass(frozen=True)
class Segment:
    """A part of a bar from `start` to `end`; `words` is its tooltip, `label` is written into it where it fits."""

    start: float
    end: float
    tone: str
    words: str
    label: str = ""


@dataclass(frozen=True)
class Bar:
    """Segments in a row; `tick` is a value that is marked across them, with its tooltip."""

    name: str
    segments: Sequence[Segment]
    tick: tuple[float, str] | None = None


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
        parts += [_segment(across, part, top, bar.tick) for part in bar.segments if part.end > max(part.start, low)]
        if bar.tick is not None:  # a line on a broader one in the colour of the page, so that it is seen on any segment
            at = f"{across(bar.tick[0]):.3f}%"
            lines = [line(at, at, top - 5, top + BAR + 2, kind) for kind in ("pointer-ground", "pointer")]
            parts.append(group([tooltip(bar.tick[1]), *lines]))
        parts += [_torn_end(top)] if low > 0 and bar.segments else []
        top += BAR + GAP
    top -= GAP
    axis = [line("0%", "100%", top + 3, top + 3, "axis"), words(unit, "50%", top + 38, "middle", "name")]
    for value in across.ticks:
        at = f"{across(value):.3f}%"
        anchor = "start" if across(value) < 3 else "end" if across(value) > 97 else "middle"
        axis += [line(at, at, top + 3, top + 7, "axis"), words(f"{value * scale:.4g}", at, top + 20, anchor, "tick")]
    parts.append(group(axis))
    return element("svg", tooltip(title), *parts, width="100%", height=top + AXIS, role="img", class_="bars")


def _segment(across: Scale, segment: Segment, top: float, tick: tuple[float, str] | None) -> Svg:
    """A rectangle with its label, unless that does not fit or a tick runs through it."""
    start, width = across(segment.start), across(segment.end) - across(segment.start)
    unknown = segment.tone == "unknown"
    inset = 1.0 if unknown else 0.0  # for its outline
    x, share, height, kind = f"{start:.3f}%", f"{width:.3f}%", BAR - 2 * inset, f"f-{segment.tone} segment"
    parts = [tooltip(segment.words), element("rect", x=x, width=share, y=top + inset, height=height, class_=kind)]
    crossed = tick is not None and segment.start < tick[0] < segment.end
    if segment.label and not crossed and width / 100 * NARROWEST > CHARACTER * len(segment.label) + 10:
        middle, halo = f"{(start + across(segment.end)) / 2:.3f}%", " halo" if unknown else ""
        parts.append(words(segment.label, middle, top + 19, "middle", f"inside i-{segment.tone}{halo}"))
    return group(parts)


def _torn_end(top: float) -> Svg:
    """A zigzag over the left end."""
    teeth = [(7 if index % 2 else 1, top - 1 + index * (BAR + 2) / 8) for index in range(9)]
    corners = [(-2, top - 1), *teeth, (-2, top + BAR + 1)]
    edge = element("polygon", points=" ".join(f"{x:g},{y:g}" for x, y in corners), class_="torn")
    return group([tooltip("cut here: the bar begins at 0"), edge])
