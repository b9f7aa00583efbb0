"""Elements, scales and axes of the charts. Every string that enters an element is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable
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


def group(children: Iterable[str], **attributes: str | float) -> Svg:
    return element("g", *children, **attributes)


def tooltip(text: str) -> Svg:
    """Shown when the pointer rests on the element that it is put into."""
    return element("title", text)


def _attribute(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "\N{HORIZONTAL ELLIPSIS}"


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
        """Covers the values, and zero where asked; `most` is a value that a rate cannot exceed; whole: ticks are no fractions."""
        found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min([*found, 0.0] if zero else found), max([*found, 0.0] if zero else found)
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = (low - (abs(low) or 1.0), high) if high >= most else (low, low + (abs(low) or 1.0))
        step = nice_step(high - low, steps, whole)
        low, high = step * math.floor(low / step + 1e-9), min(step * math.ceil(high / step - 1e-9), most)
        return cls(low, high, start, end, _multiples(low, high, step))

    @classmethod
    def exactly(cls, low: float, high: float, start: float, end: float, steps: int = 5, whole: bool = False) -> Scale:
        """Begins and ends where it is told to, with a tick at both ends and at round values between them."""
        step = nice_step(high - low, steps, whole)
        inside = [value for value in _multiples(low, high, step) if low + 0.55 * step < value < high - 0.55 * step]
        return cls(low, high, start, end, (low, *inside, high))

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


class LogScale(Scale):
    """Positive values at the place of their logarithm, with ticks at powers of ten."""

    @classmethod
    def decades(cls, values: Iterable[float], start: float, end: float, *, fit: bool = False) -> LogScale:
        """Covers the values, in whole powers of ten unless `fit`; what is not positive stands at the lower end."""
        found = [value for value in values if math.isfinite(value) and value > 0] or [1.0, 10.0]
        first, last = math.floor(math.log10(min(found)) + 1e-9), math.ceil(math.log10(max(found)) - 1e-9)
        last = max(last, first + 1)
        low, high = (min(found), max(found)) if fit and min(found) < max(found) else (10.0**first, 10.0**last)
        ticks = tuple(
            10.0**power for power in range(first, last + 1) if low * (1 - 1e-9) <= 10.0**power <= high * (1 + 1e-9)
        )
        return cls(low, high, start, end, ticks)

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * min(share, 1.0)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))
