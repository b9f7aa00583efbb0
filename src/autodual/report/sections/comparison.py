"""Several runs side by side: one table, one axis, one letter for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autodual.report.blocks import Block, Figure, Figures, Note, Section, Table
from autodual.report.charts.plots import ACCURACY_AXIS, Axis, Points, Series, Steps, line_chart
from autodual.report.charts.scatter import Spot, scatter_chart
from autodual.report.charts.svg import Svg
from autodual.report.files import RunFiles
from autodual.report.sections.cascade import cascade_contradictions, cascade_name, cascade_rates
from autodual.report.sections.epsilon import Curve, epsilon_axis
from autodual.report.sections.result import rates_of
from autodual.report.sections.training import EPOCHS, History, certified_by_epoch
from autodual.report.values import (
    DASH,
    INTERVAL,
    count,
    duration,
    interval,
    likely,
    mapping,
    number,
    percent,
    size,
    text,
    tidy,
    whole,
)
from autodual.report.verdicts import Rates, collapsed, contradictions, rates_chart

DASHES = ("", "7 3", "2 3", "9 3 2 3")
TONES = 6
FEW_POINTS = 10
"""A line of at most this many points shows each of them."""
CASCADES = (
    "A cascade has two rows: all its stages together, and its first stage alone; and a third one for the examples that were attacked, "
    "if these are not all. The certified accuracy of a cascade is the soundly certified one. Stage-certified accuracy is what its "
    "stages claim; it is no bound, and an attack may go below it."
)

PRIME = "\N{PRIME}"
AS_RUN = (
    "Certified and under attack: what is proved and broken in real numbers. As run: what is proved for the network as it runs in "
    "float32."
)


def letter(index: int) -> str:
    """A ... Z, then A2, B2, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def tone(index: int) -> str:
    return f"run-{index % TONES + 1}"


def compare(runs: Sequence[RunFiles]) -> Section:
    rates = [_rates(index, run) for index, run in enumerate(runs)]
    every = [one for own in rates for one in own]
    blocks: list[Block] = [*map(Note, _doubts(runs)), _accuracies(runs, every)]
    shown = [one for one in every if one.known()]
    blocks += _natural_against_certified(runs, rates)
    if shown:
        blocks.append(rates_chart("Certified accuracy, accuracy under attack and accuracy of all runs", shown))
    histories = [History.of(run.metrics) for run in runs]
    curves = [Curve.of(run.evaluation) for run in runs]
    first, staged = _of_cascades(runs, "its first stage alone"), _of_cascades(runs, "its stages one after the other")
    exact = all(history.validated("robust_error") for history in histories if history.epochs)
    how = "On the examples that were looked at exactly." if exact else "On training batches, by the training engine."
    figures = [
        *_by_problem("Certified accuracy", runs, [curve.proved for curve in curves], first, "before"),
        *_by_problem("Accuracy under attack", runs, [curve.broken for curve in curves], first, "after"),
        _overlay(
            "Certified accuracy by epoch", EPOCHS, ACCURACY_AXIS, runs, [certified_by_epoch(one, exact) for one in histories],
            f"{how} {staged}".strip(),
        ),
        _overlay("Loss", EPOCHS, Axis("loss"), runs, [one.training("loss") for one in histories], staged),
    ]  # fmt: skip
    drawn = [figure for figure in figures if figure is not None]
    blocks += [Figures(drawn)] if drawn else []
    return Section("comparison", "Runs side by side", [*blocks, _conditions(runs)])


def _rates(index: int, run: RunFiles) -> list[Rates]:
    """A run's rates; a cascade has its own and those of its first stage, which are never mixed."""
    name = f"{letter(index)} \N{MIDDLE DOT} {run.name}"
    if not run.is_cascade():
        return [rates_of(run, name)]
    whole_name = f"{name}, {cascade_name(run.cascade)}"
    together = [cascade_rates(run, whole_name)]
    attacked = Rates.of_attacked(whole_name, run.cascade)
    if attacked is not None:
        together.append(replace(attacked, name=f"{whole_name}, first {count(attacked.examples)} examples"))
    return [*together, rates_of(run, f"{name}, first stage alone")]


def _accuracies(runs: Sequence[RunFiles], rates: Sequence[Rates]) -> Table:
    """Columns that no run has a value for are left out."""
    cascades = any(run.is_cascade() for run in runs)
    columns: dict[str, Callable[[Rates], str]] = {"Certified accuracy": lambda one: _accuracy(one.robust)}
    captions = []
    if any(one.sample for one in rates):
        columns["Interval"] = lambda one: (
            likely(1 - one.robust, one.examples) if one.sample and one.robust is not None else DASH
        )
        captions.append(f"Interval: {INTERVAL} of certified accuracy, where only a sample was used.")
    if any(one.robust_as_run is not None for one in rates):  # older records do not say
        columns["As run"] = lambda one: _accuracy(one.robust_as_run)
        captions.append(AS_RUN)
    columns["Under attack"] = lambda one: _accuracy(one.broken)
    columns["Accuracy"] = lambda one: _accuracy(one.error)
    if cascades:
        columns["Stage-certified"] = lambda one: _accuracy(one.claimed)
        columns["Examples"] = lambda one: count(one.examples)
        captions.insert(0, CASCADES)
    rows = [[one.name, *(cell(one) for cell in columns.values())] for one in rates]
    return Table(["Run", *columns], rows, frozenset({"Run"}), caption=" ".join(captions))


def _accuracy(error: float | None) -> str:
    return percent(None if error is None else 1 - error)


def _natural_against_certified(runs: Sequence[RunFiles], rates: Sequence[Sequence[Rates]]) -> list[Block]:
    """The price of proof, for all runs, and again for those that share a perturbation where they do not all."""
    spots = [
        [_spot(index, one) for one in own if None not in (one.error, one.robust) and not one.part]
        for index, own in enumerate(rates)
    ]
    every = [spot for own in spots for spot in own]
    if not every:
        return []
    stages = (
        " A prime marks a cascade's first stage alone." if any(spot.label.endswith(PRIME) for spot in every) else ""
    )
    sample = f" Bars: {INTERVAL}s." if any(spot.low is not None for spot in every) else ""
    caption = (
        "Better is up and to the right. Dashed, where in view: certified accuracy equal to accuracy, its upper limit."
        f"{stages}{sample}"
    )
    figures = [Figure("Accuracy against certified accuracy", _scatter("all runs", every), caption)]
    problems: dict[str, list[Spot]] = {}
    for run, own in zip(runs, spots, strict=True):
        problems.setdefault(tidy(text(run.evaluation, "perturbation") or "perturbation unknown"), []).extend(own)
    groups = {name: own for name, own in problems.items() if own}
    if len(groups) > 1:
        figures += [Figure(f"Those with {name}", _scatter(name, own)) for name, own in groups.items() if len(own) > 1]
    return [Figures(figures)]


def _spot(index: int, one: Rates) -> Spot:
    accuracy, certified = 1 - (one.error or 0.0), 1 - (one.robust or 0.0)
    low, high = (interval(certified, one.examples) if one.sample else None) or (None, None)
    words = f"{one.name}: accuracy {percent(accuracy)}, certified accuracy {percent(certified)}"
    name = f"{letter(index)}{PRIME if one.name.endswith('first stage alone') else ''}"
    return Spot(name, accuracy, certified, tone(index), words, low, high)


def _scatter(which: str, spots: Sequence[Spot]) -> Svg:
    across, up = (replace(ACCURACY_AXIS, title=f"{name}accuracy, %", zero=False) for name in ("", "certified "))
    title = f"Accuracy and certified accuracy, {which}"
    return scatter_chart(title, across, up, spots, "certified accuracy cannot exceed accuracy")


def _of_cascades(runs: Sequence[RunFiles], part: str) -> str:
    """What the curves of cascades are about."""
    names = [letter(index) for index, run in enumerate(runs) if run.is_cascade()]
    return f"Of each cascade ({', '.join(names)}): {part}." if names else ""


def _data(run: RunFiles) -> str | None:
    return text(mapping(run.environment, "data") or {}, "name")


def _conditions(runs: Sequence[RunFiles]) -> Table:
    rows = []
    for index, run in enumerate(runs):
        seconds, eps = History.of(run.metrics).seconds(), number(run.evaluation, "eps")
        perturbation = tidy(text(run.evaluation, "perturbation") or "")
        rows.append([
            f"{letter(index)} \N{MIDDLE DOT} {run.name}", count(whole(run.evaluation, "examples")),
            duration(seconds) if seconds else DASH, _data(run) or DASH,
            perturbation or (DASH if eps is None else f"eps {size(eps)}"), text(run.evaluation, "engine") or DASH,
        ])  # fmt: skip
    header = ("Run", "Examples", "Training", "Data", "Perturbation", "Engine")
    return Table(header, rows, frozenset({"Run", "Data", "Perturbation", "Engine"}))


def _doubts(runs: Sequence[RunFiles]) -> list[str]:
    """What keeps the numbers of these runs from being compared, or believed."""
    found = []
    for key, name in (("perturbation", "perturbations"), ("examples", "numbers of examples"), ("engine", "engines")):
        if len({str(run.evaluation[key]) for run in runs if key in run.evaluation}) > 1:
            found.append(name)
    if len({_data(run) for run in runs} - {None}) > 1:
        found.append("data")
    care = f"These runs were evaluated with different {' and '.join(found)}: compare them with care."
    bare = [f"Run {letter(index)} has measured nothing." for index, run in enumerate(runs) if not run.measured()]
    doubts = [
        f"Run {letter(index)}: {doubt}"
        for index, run in enumerate(runs)
        for doubt in (*collapsed(run.evaluation), *contradictions(run.evaluation), *cascade_contradictions(run.cascade))
    ]
    return [*([care] if found else []), *bare, *doubts]


def _by_problem(
    title: str, runs: Sequence[RunFiles], points: Sequence[Points], caption: str, steps: Steps
) -> list[Figure | None]:
    """One figure for each norm and data set: sizes of different ones have no axis in common."""
    problems = [(epsilon_axis(run.evaluation).title, _data(run) or "") for run in runs]
    found = list(dict.fromkeys(problem for problem, own in zip(problems, points, strict=True) if own))
    figures = []
    for problem in found:
        own = [one if other == problem else [] for other, one in zip(problems, points, strict=True)]
        label, data = problem
        apart = [
            part
            for part, others in ((label, {one for one, _ in found}), (data, {one for _, one in found}))
            if len(others) > 1
        ]
        full = ", ".join([title, *filter(None, apart)])
        figures.append(_overlay(full, Axis(label), ACCURACY_AXIS, runs, own, caption, steps))
    return figures


def _overlay(
    title: str,
    across: Axis,
    up: Axis,
    runs: Sequence[RunFiles],
    points: Sequence[Points],
    caption: str,
    steps: Steps = "",
) -> Figure | None:
    series = []
    for index, (run, found) in enumerate(zip(runs, points, strict=True)):
        name, dash = letter(index), DASHES[index % len(DASHES)]
        few = len(found) <= FEW_POINTS and not steps
        series.append(Series(name, found, tone(index), dots=few, dash=dash, full=f"{name} {run.name}", steps=steps))
    if not any(one.points for one in series):
        return None
    return Figure(title, line_chart(f"{title}, all runs", across, up, series), caption)
