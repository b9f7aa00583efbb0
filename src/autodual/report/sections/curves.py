"""How far the proofs reach: certified accuracy against epsilon, and histograms of the smallest margins and of the certified radii."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autodual.report.blocks import (
    INTERVAL,
    Figure,
    Figures,
    Section,
    Table,
    count,
    interval,
    likely,
    percent,
    plural,
    short,
    size,
)
from autodual.report.plots import (
    ACCURACY_AXIS,
    Axis,
    Band,
    Mark,
    Points,
    Series,
    histogram,
    line_chart,
    make_bins,
    measured,
)
from autodual.report.run import EVALUATION, RunFiles
from autodual.report.sections import absence, section
from autodual.report.sections.result import as_run
from autodual.report.verdicts import LEGEND, verdicts
from autodual.runs.records import Evaluation

# Certified accuracy against epsilon, under the accuracy that the attack leaves; what is between is unknown.
#
# Both are step functions. A proof for a size covers every smaller size, so between two measured sizes the proof of the larger one
# holds. An attack of a size is also one of every larger size, so between two measured sizes the attack of the smaller one succeeds.


@dataclass(frozen=True)
class Curve:
    """Accuracies by epsilon, ascending."""

    certified: Points
    attacked: Points
    certified_as_run: Points
    """Empty in published runs."""
    proved: Points
    """Certified accuracy at every size at which it is known to change: steps, each holding from the size before it."""
    broken: Points
    """Accuracy under attack: steps, each holding up to the next size."""
    clean: float
    """Accuracy of the same examples without any attack."""
    examples: int
    sample: bool
    """Whether these are a part of the examples that there are."""

    @classmethod
    def of(cls, record: Evaluation, sample: bool = False) -> Curve:
        """sample: whether all examples that were evaluated are a part of those that there are."""
        errors = sorted({point.eps: point for point in record.curve}.items())
        certified = [(eps, 1 - point.robust_error) for eps, point in errors]
        attacked = [(eps, 1 - point.pgd_error) for eps, point in errors]
        as_run = [(e, 1 - p.robust_error_as_run) for e, p in errors if p.robust_error_as_run is not None]
        examples, pairs = record.curve_examples, zip(record.labels, record.predicted, strict=True)
        right = [label == answer for label, answer in pairs][:examples]
        clean = sum(right) / len(right)
        broken = [*([(0.0, clean)] if attacked and attacked[0][0] > 0 else []), *attacked]
        part = sample or examples < record.examples
        return cls(certified, attacked, as_run, _proved(record, certified), broken, clean, examples, part)

    def intervals(self, points: Points) -> list[tuple[float, float, float]]:
        found = [(x, interval(y, self.examples)) for x, y in points] if self.sample else []
        return [(x, *ends) for x, ends in found if ends is not None]


def _proved(record: Evaluation, certified: Points) -> Points:
    """Steps of certified accuracy: from the curve, and from the certified radii where these are of the same examples."""
    radii = sorted(record.radii)
    if not certified or not radii or len(radii) != record.curve_examples:
        return certified if not certified or certified[0][0] == 0 else [(0.0, certified[0][1]), *certified]
    last, known = certified[-1][0], dict(certified)
    found, best, at = [], 0.0, len(radii)
    for eps in sorted({0.0, *(radius for radius in radii if 0 < radius <= last), *known}, reverse=True):
        while at and radii[at - 1] >= eps and radii[at - 1] > 0:
            at -= 1
        best = max(best, known.get(eps, 0.0), (len(radii) - at) / len(radii))  # proved of every smaller size, too
        found.append((eps, best))
    return found[::-1]


def epsilon_axis(record: Evaluation) -> Axis:
    return Axis(f"epsilon ({record.norm})")


@section(place=30, first_stage=True)
def epsilon(run: RunFiles) -> Section:
    """Certified accuracy and accuracy under attack by the size of the perturbation, as a chart and as a table."""
    title, record = "Certified accuracy against epsilon", run.evaluation
    if record is None or not record.curve:
        return Section("epsilon", title, [absence(run, EVALUATION, "No curve over epsilon to show.")])
    curve = Curve.of(record, run.is_sample(record.examples))
    ends = [(0.0, curve.clean), (max(x for x, _ in [*curve.broken, *curve.proved]), curve.clean)]
    series = [
        Series("accuracy", ends, "wrong", full="accuracy without attack", dash="2 3"),
        Series("under attack", curve.broken, "broken", full="accuracy under attack", steps="after"),
        Series("certified", curve.proved, "proved", full="certified accuracy", steps="before"),
    ]
    for points, line in ((curve.attacked, series[1]), (curve.certified, series[2])):
        series.append(measured(points, line.tone, line.full, curve.intervals(points)))
    bands = [Band("unknown", curve.proved, curve.broken, "before", "after")]
    marks = [Mark(record.eps, f"eps {size(record.eps)}")]
    chart = line_chart(title, epsilon_axis(record), ACCURACY_AXIS, series, bands, marks)
    whose = f"{'the first' if curve.sample else 'all'} {plural(curve.examples, 'example')}"
    whose = "the only example" if curve.examples == 1 and not curve.sample else whose
    sure = f" Bars at the dots: {INTERVAL}s, as if these were drawn at random." if curve.sample else ""
    caption = (
        "Below the lower steps examples are proved robust, above the upper ones they are broken; the hatched part is unknown. Dots: "
        "sizes that were evaluated. Between them, a proof holds for all smaller sizes and an attack for all larger ones. Measured on "
        f"{whose}.{sure}"
    )
    return Section("epsilon", title, [Figures([Figure("Accuracy", chart, caption)], _table(record, curve))])


def _table(record: Evaluation, curve: Curve) -> Table:
    runs, attacked = dict(curve.certified_as_run), dict(curve.attacked)
    header = ["eps", "certified", *(["interval"] if curve.sample else []), *(["as run"] if runs else [])]
    rows = []
    for x, proof in curve.certified:
        sure = [likely(proof, curve.examples)] if curve.sample else []
        second = [percent(runs.get(x))] if runs else []
        unknown = max(attacked[x] - proof, 0.0)
        rows.append([size(x), percent(proof), *sure, *second, percent(attacked[x]), percent(unknown)])
    caption = f"Interval: {INTERVAL} of certified accuracy." if curve.sample else ""
    if runs:
        caption = f"{caption} As run: certified {as_run(record)}.".strip()
    return Table([*header, "attacked", "unknown"], rows, caption=caption)


# How far from the edge: histograms, in which a bar is divided by what became of its examples.


@section(place=40, first_stage=True)
def margins(run: RunFiles) -> Section:
    """Histograms of the smallest margins and of the certified radii."""
    record = run.evaluation
    drawn = None if record is None else [_margins(record), _radii(run, record)]
    if drawn is None:
        blocks = [absence(run, EVALUATION, "No margins or radii to show.")]
        return Section("margins", "Margins and certified radii", blocks)
    figures = [figure for figure in drawn if figure is not None]
    charts = "".join(figure.chart for figure in figures)
    legend = [(tone, words) for tone, words in LEGEND if f'class="f-{tone}"' in charts]
    absent = [
        f"No {what} to show." for what, figure in zip(("margins", "certified radii"), drawn, strict=True) if not figure
    ]
    notes = [absence(run, EVALUATION, words) for words in absent]
    return Section("margins", "Margins and certified radii", [Figures(figures, legend=legend), *notes])


def _finite(record: Evaluation, values: Sequence[float | None]) -> tuple[list[float], list[str], str]:
    """Finite values, what became of their examples, and a sentence about the others; sorted as in LEGEND, from the axis upwards."""
    known = zip(values, verdicts(record), strict=False)
    pairs = [(value, tone) for value, tone in known if value is not None and math.isfinite(value)]
    order = [tone for tone, _ in LEGEND]
    pairs.sort(key=lambda pair: order.index(pair[1]))
    lost = len(values) - len(pairs)
    words = f" {count(lost)} without a finite value are not shown." if lost else ""
    return [value for value, _ in pairs], [tone for _, tone in pairs], words


def _beyond(beyond: int) -> str:
    return f" {count(beyond)} far away are counted in the outermost bars." if beyond else ""


def _margins(record: Evaluation) -> Figure | None:
    values, tones, lost = _finite(record, record.margins)
    if not values:
        return None
    bins, positive, every = make_bins(values), count(sum(value > 0 for value in values)), count(len(values))
    title, across = (
        f"Histogram of {every} smallest margins, {positive} of them positive",
        "smallest margin, lower bound",
    )
    chart = histogram(title, Axis(across), bins, tones, [Mark(0.0, "proved \N{RIGHTWARDS ARROW}")])
    caption = f"{positive} of {every} are above zero, median {short(median(values))}.{lost}{_beyond(bins.beyond)}"
    return Figure("Smallest margin of each example", chart, caption)


def _radii(run: RunFiles, record: Evaluation) -> Figure | None:
    eps, limit = record.eps, record.radius_limit
    values, tones, lost = _finite(record, record.radii)
    if not values:
        return None
    bins = make_bins(values, pivot=eps, least=0.0, most=limit)
    across = Axis(epsilon_axis(record).title.replace("epsilon", "certified radius"), zero=False)
    mark = Mark(eps, f"eps {size(eps)} \N{RIGHTWARDS ARROW}")
    chart = histogram(f"Histogram of {count(len(values))} certified radii", across, bins, tones, [mark])
    reaching, most = sum(value >= eps for value in values), sum(value >= limit * (1 - 1e-9) for value in values)
    sample = run.is_sample(len(values)) or len(values) < record.examples
    share = f" ({INTERVAL} of their share: {likely(reaching / len(values), len(values))})" if sample else ""
    caption = (
        f"{'The first ' if sample else ''}{plural(len(values), 'example')}, median {short(median(values))}; {count(reaching)} reach "
        f"eps{share}; {count(most)} reach the limit of the search, {size(limit)}. Colours: what became of each example at eps."
        f"{lost}{_beyond(bins.beyond)}"
    )
    return Figure("Largest radius that is certified", chart, caption)
