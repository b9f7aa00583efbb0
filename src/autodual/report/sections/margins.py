"""How far from the edge: histograms of the smallest margins and of the certified radii."""

from __future__ import annotations

import math
from statistics import median

from autodual.report.blocks import Block, Figure, Figures, Section
from autodual.report.charts.plots import Axis, Bins, Mark, histogram, make_bins
from autodual.report.files import EVALUATION, RunFiles
from autodual.report.sections import absence, section
from autodual.report.sections.epsilon import epsilon_axis
from autodual.report.values import INTERVAL, Record, count, likely, number, numbers, plural, short, size, whole
from autodual.report.verdicts import LEGEND, UNPROVED, verdicts

ORDER = ("proved", "unknown", "broken", "wrong", "unproved")
"""From the axis upwards."""


@section(place=40, first_stage=True)
def margins(run: RunFiles) -> Section:
    record = run.evaluation
    margin, radius = _margins(record), _radii(run)
    figures = [figure for figure in (margin, radius) if figure is not None]
    blocks: list[Block] = []
    if figures:
        drawn = "".join(figure.chart for figure in figures)
        legend = [(tone, words) for tone, words in (*LEGEND, UNPROVED) if f'class="f-{tone}"' in drawn]
        blocks.append(Figures(figures, legend=legend))
    if margin is None or radius is None:
        what = "margins" if margin is None else "certified radii"
        missing = f"No {what} to show." if figures else "No margins or radii to show."
        blocks.append(absence(run, EVALUATION, missing))
    return Section("margins", "Margins and certified radii", blocks)


def _finite(record: Record, key: str, proved_from: float) -> tuple[list[float], list[str], str]:
    """Finite values, what became of their examples, and a sentence about the others; sorted by ORDER."""
    values = numbers(record, key) or []
    known = verdicts(record)[: len(values)]
    if len(known) < len(values):
        known = ["proved" if value >= proved_from and value > 0 else "unproved" for value in values]
    pairs = [(value, tone) for value, tone in zip(values, known, strict=True) if math.isfinite(value)]
    pairs.sort(key=lambda pair: ORDER.index(pair[1]))
    lost = len(values) - len(pairs)
    words = f" {count(lost)} without a finite value are not shown." if lost else ""
    return [value for value, _ in pairs], [tone for _, tone in pairs], words


def _beyond(bins: Bins) -> str:
    return f" {count(bins.beyond)} far away are counted in the outermost bars." if bins.beyond else ""


def _margins(record: Record) -> Figure | None:
    values, tones, lost = _finite(record, "margins", 0.0)
    if not values:
        return None
    bins = make_bins(values)
    positive = sum(value > 0 for value in values)
    chart = histogram(
        f"Histogram of {count(len(values))} smallest margins, {count(positive)} of them positive",
        Axis("smallest margin, lower bound"),
        bins,
        tones,
        [Mark(0.0, "proved \N{RIGHTWARDS ARROW}")],
    )
    caption = f"{count(positive)} of {count(len(values))} are above zero, median {short(median(values))}.{lost}{_beyond(bins)}"
    return Figure("Smallest margin of each example", chart, caption)


def _radii(run: RunFiles) -> Figure | None:
    record = run.evaluation
    eps, limit = number(record, "eps"), number(record, "radius_limit")
    pivot = eps if eps is not None else 0.0
    values, tones, lost = _finite(record, "radii", pivot)
    if not values:
        return None
    bins = make_bins(values, pivot=pivot, least=0.0, most=limit)
    reaching = sum(value >= pivot for value in values)
    chart = histogram(
        f"Histogram of {count(len(values))} certified radii",
        Axis(epsilon_axis(record).title.replace("epsilon", "certified radius"), zero=False),
        bins,
        tones,
        [Mark(pivot, f"eps {size(eps)} \N{RIGHTWARDS ARROW}")] if eps is not None else [],
    )
    examples = whole(record, "examples")
    sample = run.is_sample(len(values)) or (examples is not None and len(values) < examples)
    words = f"{'The first ' if sample else ''}{plural(len(values), 'example')}, median {short(median(values))}"
    if eps is not None:
        share = f" ({INTERVAL} of their share: {likely(reaching / len(values), len(values))})" if sample else ""
        words += f"; {count(reaching)} reach eps{share}"
    if limit is not None:
        most = sum(value >= limit * (1 - 1e-9) for value in values)
        words += f"; {count(most)} reach the limit of the search, {size(limit)}"
    colours = " Colours: what became of each example at eps." if eps is not None else ""
    return Figure("Largest radius that is certified", chart, f"{words}.{colours}{lost}{_beyond(bins)}")
