"""How far from the edge: histograms of the smallest margins and of the certified radii."""

from __future__ import annotations

import math
from statistics import median

from autodual.report.absence import absence
from autodual.report.blocks import Block, Figure, Figures, Section
from autodual.report.epsilon import epsilon_axis
from autodual.report.files import EVALUATION, Run
from autodual.report.frame import Axis, Mark
from autodual.report.histogram import Bins, histogram, make_bins
from autodual.report.values import number, numbers, short


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
