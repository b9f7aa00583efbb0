"""Certified accuracy against epsilon, and how far from the edge: histograms of margins and certified radii."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from autodual.report.blocks import Block, Figure, Figures, Section, Table
from autodual.report.charts.plots import (
    Axis,
    Band,
    Bins,
    Mark,
    Points,
    Series,
    histogram,
    line_chart,
    make_bins,
    percent_tick,
)
from autodual.report.files import EVALUATION, Run
from autodual.report.sections.headline import absence, as_run_of
from autodual.report.values import count, number, numbers, percent, rate, records, short, text, whole

# Certified accuracy against epsilon, under the accuracy that the attack leaves; what is between is unknown.

ACCURACY = Axis("accuracy, %", percent_tick, most=1.0)


@dataclass(frozen=True)
class Curve:
    """Accuracies by epsilon, ascending; a rate that was not measured has no point."""

    certified: Points
    attacked: Points
    certified_as_run: Points
    """Empty in older records."""

    @classmethod
    def of(cls, run: Run) -> Curve:
        rates: dict[str, dict[float, float]] = {"robust_error": {}, "pgd_error": {}, "robust_error_as_run": {}}
        for point in records(run.evaluation, "curve"):
            eps = number(point, "eps")
            for key, found in rates.items():
                error = rate(point, key)
                if eps is not None and error is not None:
                    found[eps] = 1 - error
        return cls(*(sorted(found.items()) for found in rates.values()))


def epsilon_axis(run: Run) -> Axis:
    norm = text(run.evaluation, "norm")
    return Axis(f"epsilon ({norm})" if norm else "epsilon")


def epsilon(run: Run) -> Section:
    title = "Certified accuracy against epsilon"
    curve = Curve.of(run)
    if not curve.certified and not curve.attacked:
        return Section("epsilon", title, [absence(run, EVALUATION, "No curve over epsilon to show.")])
    eps, error = number(run.evaluation, "eps"), rate(run.evaluation, "error")
    certified, attacked = dict(curve.certified), dict(curve.attacked)
    both = sorted(set(certified) & set(attacked))
    band = Band("unknown", [(x, certified[x]) for x in both], [(x, attacked[x]) for x in both])
    series = [
        Series("under attack", curve.attacked, "attack", dots=True, full="accuracy under attack"),
        Series("certified", curve.certified, "proved", dots=True, full="certified accuracy"),
    ]
    if error is not None and 0.0 not in certified:
        series.append(Series("", [(0.0, 1 - error)], "ink", line=False, dots=True, full="accuracy without attack"))
    marks = [Mark(eps, f"eps {short(eps)}")] if eps is not None else []
    chart = line_chart("Certified accuracy against epsilon", epsilon_axis(run), ACCURACY, series, [band], marks)
    sizes = sorted({*certified, *attacked})
    rows = [
        [short(x), percent(attacked.get(x)), percent(certified.get(x)), _difference(attacked.get(x), certified.get(x))]
        for x in sizes
    ]
    header = ["eps", "attacked", "certified", "unknown"]
    if curve.certified_as_run:  # an older record does not say
        as_run = dict(curve.certified_as_run)
        header.insert(3, "as run")
        rows = [[*row[:3], percent(as_run.get(x)), row[3]] for x, row in zip(sizes, rows, strict=True)]
    table = Table(header, rows)
    return Section("epsilon", title, [Figures([Figure("Accuracy", chart, _caption(run, curve))], table)])


def _caption(run: Run, curve: Curve) -> str:
    examples = whole(run.evaluation, "curve_examples")
    measured = (
        f"{count(examples)} examples" if examples is not None else "examples that the evaluation chose, perhaps not all"
    )
    words = "Above the upper line an attack succeeds, below the lower one there is proof; the hatched band between them is unknown."
    if not curve.attacked or not curve.certified:
        words = "Below the line there is proof." if curve.certified else "Above the line an attack succeeds."
    second = f" In the table, as run: certified {as_run_of(run.evaluation)}, too." if curve.certified_as_run else ""
    return f"{words} The point at zero: all examples, no attack. Lines: {measured}.{second}"


def _difference(high: float | None, low: float | None) -> str:
    return percent(None if high is None or low is None else high - low)


# How far from the edge: histograms of the smallest margins and of the certified radii.


def distributions(run: Run) -> Section:
    title = "Margins and certified radii"
    blocks: list[Block] = []
    figures = [figure for figure in (_margins(run), _radii(run)) if figure is not None]
    if figures:
        blocks.append(Figures(figures))
    if len(figures) < 2:
        missing = (
            "No margins or radii"
            if not figures
            else "No certified radii"
            if numbers(run.evaluation, "margins")
            else "No margins"
        )
        blocks.append(absence(run, EVALUATION, f"{missing} to show."))
    return Section("margins", title, blocks)


def _finite(run: Run, key: str) -> tuple[list[float], str]:
    values = numbers(run.evaluation, key) or []
    finite = [value for value in values if math.isfinite(value)]
    lost = len(values) - len(finite)
    return finite, f" {lost} without a finite value are not shown." if lost else ""


def _beyond(bins: Bins) -> str:
    return f" {bins.beyond} far away are counted in the outermost bars." if bins.beyond else ""


def _margins(run: Run) -> Figure | None:
    values, lost = _finite(run, "margins")
    if not values:
        return None
    bins = make_bins(values)
    positive = sum(value > 0 for value in values)
    chart = histogram(
        f"Histogram of {len(values)} smallest margins, {positive} of them positive",
        Axis("smallest margin, lower bound"),
        bins,
        proved_from=0.0,
        marks=[Mark(0.0, "certified \N{RIGHTWARDS ARROW}")],
    )
    caption = f"{positive} of {len(values)} are above zero, median {short(median(values))}.{lost}{_beyond(bins)}"
    return Figure("Smallest margin of each example", chart, caption)


def _radii(run: Run) -> Figure | None:
    values, lost = _finite(run, "radii")
    if not values:
        return None
    eps, limit = number(run.evaluation, "eps"), number(run.evaluation, "radius_limit")
    pivot = eps if eps is not None else 0.0
    bins = make_bins(values, pivot=pivot, least=0.0, most=limit)
    reaching = sum(value >= pivot for value in values)
    chart = histogram(
        f"Histogram of {len(values)} certified radii",
        Axis(epsilon_axis(run).title.replace("epsilon", "certified radius"), zero=False),
        bins,
        proved_from=pivot,
        marks=[Mark(pivot, f"eps {short(eps)} \N{RIGHTWARDS ARROW}")] if eps is not None else [],
    )
    words = f"{len(values)} examples, median {short(median(values))}"
    if eps is not None:
        words += f"; {reaching} reach eps"
    if limit is not None:
        words += (
            f"; {sum(value >= limit * (1 - 1e-9) for value in values)} reach the limit of the search, {short(limit)}"
        )
    return Figure("Largest radius that is certified", chart, f"{words}.{lost}{_beyond(bins)}")
