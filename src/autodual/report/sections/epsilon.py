"""Certified accuracy against epsilon, under the accuracy that the attack leaves; what is between is unknown.

Both are step functions. A proof for a size covers every smaller size, so between two measured sizes the proof of the larger one holds.
An attack of a size is also one of every larger size, so between two measured sizes the attack of the smaller one succeeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autodual.report.blocks import Figure, Figures, Section, Table
from autodual.report.charts.plots import ACCURACY_AXIS, Axis, Band, Mark, Points, Series, line_chart
from autodual.report.files import EVALUATION, RunFiles
from autodual.report.sections import absence, section
from autodual.report.values import (
    INTERVAL,
    Record,
    integers,
    interval,
    likely,
    number,
    numbers,
    percent,
    plural,
    rate,
    records,
    size,
    text,
    whole,
)
from autodual.report.verdicts import as_run


@dataclass(frozen=True)
class Curve:
    """Accuracies by epsilon, ascending; a rate that was not measured has no point."""

    certified: Points
    attacked: Points
    certified_as_run: Points
    """Empty in older records."""
    proved: Points
    """Certified accuracy at every size at which it is known to change: steps, each holding from the size before it."""
    broken: Points
    """Accuracy under attack: steps, each holding up to the next size."""
    clean: float | None
    """Accuracy of the same examples without any attack."""
    examples: int | None
    """The number of them, where that is known."""
    sample: bool
    """Whether these are a part of the examples that there are."""

    @classmethod
    def of(cls, record: Record, sample: bool = False) -> Curve:
        """sample: whether all examples that were evaluated are a part of those that there are."""
        errors: dict[str, dict[float, float]] = {"robust_error": {}, "pgd_error": {}, "robust_error_as_run": {}}
        for point in records(record, "curve"):
            eps = number(point, "eps")
            for key, found in errors.items():
                error = rate(point, key)
                if eps is not None and error is not None:
                    found[eps] = 1 - error
        certified, attacked, certified_as_run = (sorted(found.items()) for found in errors.values())
        examples, every = whole(record, "curve_examples"), whole(record, "examples")
        sample = sample or (examples is not None and every is not None and examples < every)
        clean = _clean(record, examples)
        proved = _proved(record, certified, examples)
        start = [] if clean is None else [(0.0, clean)]
        broken = [*(start if attacked and attacked[0][0] > 0 else []), *attacked]
        return cls(certified, attacked, certified_as_run, proved, broken, clean, examples, sample)


def _clean(record: Record, examples: int | None) -> float | None:
    """Accuracy of the first `examples`; that of all where the record does not say which were used."""
    labels, predicted = integers(record, "labels"), integers(record, "predicted")
    if examples and labels and predicted and len(labels) == len(predicted) >= examples:
        return sum(label == answer for label, answer in zip(labels[:examples], predicted, strict=False)) / examples
    error = rate(record, "error")
    return None if error is None else 1 - error


def _proved(record: Record, certified: Points, examples: int | None) -> Points:
    """Steps of certified accuracy: from the certified radii of the same examples, where they are known, and from the curve."""
    radii = [radius for radius in numbers(record, "radii") or [] if math.isfinite(radius)]
    if not certified or not radii or len(radii) != examples:
        return certified if not certified or certified[0][0] == 0 else [(0.0, certified[0][1]), *certified]
    last = certified[-1][0]
    steps = sorted({0.0, *(radius for radius in radii if 0 < radius <= last), *(eps for eps, _ in certified)})
    found, best, ordered, at = [], 0.0, sorted(radii), len(radii)
    known = dict(certified)
    for eps in reversed(steps):  # what is proved of a size is proved of every smaller one
        while at and ordered[at - 1] >= eps and ordered[at - 1] > 0:
            at -= 1
        best = max(best, known.get(eps, 0.0), (len(radii) - at) / len(radii))
        found.append((eps, best))
    return found[::-1]


def epsilon_axis(record: Record) -> Axis:
    norm = text(record, "norm")
    return Axis(f"epsilon ({norm})" if norm else "epsilon")


@section(place=30, first_stage=True)
def epsilon(run: RunFiles) -> Section:
    title, record = "Certified accuracy against epsilon", run.evaluation
    sample = run.is_sample(whole(record, "examples"))
    curve, eps = Curve.of(record, sample), number(record, "eps")
    if not curve.certified and not curve.attacked:
        return Section("epsilon", title, [absence(run, EVALUATION, "No curve over epsilon to show.")])
    series = [
        Series("under attack", curve.broken, "broken", full="accuracy under attack", steps="after"),
        Series("certified", curve.proved, "proved", full="certified accuracy", steps="before"),
        *(
            Series("", points, tone, line=False, dots=True, full=full, intervals=_intervals(curve, points))
            for points, tone, full in (
                (curve.attacked, "broken", "accuracy under attack"),
                (curve.certified, "proved", "certified accuracy"),
            )
        ),
    ]
    if curve.clean is not None:
        ends = [(0.0, curve.clean), (max(x for x, _ in [*curve.broken, *curve.proved]), curve.clean)]
        series.insert(0, Series("accuracy", ends, "wrong", full="accuracy without attack", dash="2 3"))
    bands = []
    if curve.certified and curve.attacked and curve.certified[-1][0] == curve.attacked[-1][0]:
        bands.append(Band("unknown", curve.proved, curve.broken, "before", "after"))
    marks = [Mark(eps, f"eps {size(eps)}")] if eps is not None else []
    chart = line_chart(title, epsilon_axis(record), ACCURACY_AXIS, series, bands, marks)
    return Section(
        "epsilon", title, [Figures([Figure("Accuracy", chart, _caption(record, curve))], _table(record, curve))]
    )


def _intervals(curve: Curve, points: Points) -> list[tuple[float, float, float]]:
    found = [(x, interval(y, curve.examples)) for x, y in points] if curve.sample else []
    return [(x, *ends) for x, ends in found if ends is not None]


def _table(record: Record, curve: Curve) -> Table:
    certified, attacked, runs = (dict(points) for points in (curve.certified, curve.attacked, curve.certified_as_run))
    header = [
        "eps",
        "certified",
        *(["interval"] if curve.sample else []),
        *(["as run"] if runs else []),
        "attacked",
        "unknown",
    ]
    rows = []
    for x in sorted({*certified, *attacked}):
        proof, attack = certified.get(x), attacked.get(x)
        unknown = None if proof is None or attack is None else max(attack - proof, 0.0)
        rows.append([
            size(x), percent(proof), *([likely(proof, curve.examples)] if curve.sample else []),
            *([percent(runs.get(x))] if runs else []), percent(attack), percent(unknown),
        ])  # fmt: skip
    caption = f"Interval: {INTERVAL} of certified accuracy." if curve.sample else ""
    if runs:
        caption = f"{caption} As run: certified {as_run(record)}.".strip()
    return Table(header, rows, caption=caption)


def _caption(record: Record, curve: Curve) -> str:
    words = "Below the lower steps examples are proved robust, above the upper ones they are broken; the hatched part is unknown."
    if not curve.attacked or not curve.certified:
        words = "Below the steps there is proof." if curve.certified else "Above the steps an attack succeeds."
    whose = "examples that the evaluation chose, perhaps not all"
    if curve.examples is not None:
        whose = f"{'the first' if curve.sample else 'all'} {plural(curve.examples, 'example')}"
        whose = "the only example" if curve.examples == 1 and not curve.sample else whose
    between = "Dots: sizes that were evaluated. Between them, a proof holds for all smaller sizes and an attack for all larger ones."
    sure = f" Bars at the dots: {INTERVAL}s, as if these were drawn at random." if curve.sample else ""
    return f"{words} {between} Measured on {whose}.{sure}"
