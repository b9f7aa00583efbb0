"""Histograms whose bins meet at a value that matters, with the side beyond it marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autodual.report.frame import BOTTOM, HEIGHT, Axis, Frame, Mark
from autodual.report.svg import Svg, element, group, nice_step, tooltip
from autodual.report.values import count

BINS = 28


@dataclass(frozen=True)
class Bins:
    """counts[i] values lie in [edges[i], edges[i + 1]); values beyond the edges are in the outermost bins."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    beyond: int


def make_bins(
    values: Sequence[float], pivot: float = 0.0, bins: int = BINS, least: float | None = None, most: float | None = None
) -> Bins:
    """Bins of a round width of which one begins at `pivot`; values below it are never counted in a bin above.

    A few values far away would squeeze all others into one bin: the range ends five interquartile ranges from the middle half,
    but not before `least` and `most`.
    """
    data = np.asarray(values, dtype=float)
    low, quarter, three, high = np.quantile(data, [0.0, 0.25, 0.75, 1.0])
    reach = 5 * (three - quarter) or math.inf
    low, high = min(max(low, quarter - reach), pivot), max(min(high, three + reach), pivot)
    low = min(low, least) if least is not None else low
    high = max(high, most) if most is not None else high
    width = nice_step(max(high - low, 1e-12), bins)
    place = np.floor((data - pivot) / width + 1e-9)
    first = min(math.floor((low - pivot) / width + 1e-9), -1 if (place < 0).any() else 0)
    last = max(math.floor((high - pivot) / width + 1e-9) + 1, first + 1)
    beyond = int(((place < first) | (place >= last)).sum())
    counts = np.bincount((place.clip(first, last - 1) - first).astype(int), minlength=last - first)
    return Bins(tuple(pivot + width * index for index in range(first, last + 1)), tuple(counts.tolist()), beyond)


def histogram(
    title: str, across: Axis, bins: Bins, proved_from: float, marks: Sequence[Mark], what: str = "examples"
) -> Svg:
    """Bars from `proved_from` on are in the tone of what is proved, the others in that of what is unknown."""
    frame = Frame.around(across, Axis(what, _whole_tick), bins.edges, [float(max(bins.counts))], fit=True)
    floor = HEIGHT - BOTTOM
    bars = []
    for low, high, number in zip(bins.edges[:-1], bins.edges[1:], bins.counts, strict=True):
        if not number:
            continue
        tone = "proved" if low >= proved_from - 1e-9 * (high - low) else "unknown"
        left, top = frame.x(low), frame.y(number)
        words = f"{across.tick(low)} to {across.tick(high)}: {count(number)} {what}"
        width = max(frame.x(high) - left - 1, 0.5)
        bars.append(
            element("rect", tooltip(words), x=left + 0.5, y=top, width=width, height=floor - top, class_=f"f-{tone}")
        )
    return frame.chart(title, group(bars), frame.marks(marks))


def _whole_tick(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else ""
