"""Certified accuracy against epsilon, under the accuracy that the attack leaves; what is between is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from autodual.report.absence import absence
from autodual.report.blocks import Figure, Figures, Section, Table
from autodual.report.files import EVALUATION, Run
from autodual.report.frame import Axis, Mark, percent_tick
from autodual.report.headline import as_run_of
from autodual.report.lines import Band, Points, Series, line_chart
from autodual.report.values import count, number, percent, rate, records, short, text, whole

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
