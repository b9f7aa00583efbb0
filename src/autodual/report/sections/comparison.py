"""Several runs side by side: one table, one axis, one letter for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autodual.report.blocks import Block, Figure, Figures, Note, Section, Table
from autodual.report.charts.plots import ERROR_AXIS, Axis, Points, Series, line_chart
from autodual.report.files import Run
from autodual.report.sections.distributions import ACCURACY, Curve, epsilon_axis
from autodual.report.sections.headline import Sandwich, collapsed, contradictions, sandwich_chart
from autodual.report.sections.stages import cascade_contradictions, cascade_name
from autodual.report.sections.training import EPOCHS, History, robust_by_epoch
from autodual.report.values import DASH, count, duration, mapping, number, percent, short, text, whole

DASHES = ("", "7 3", "2 3", "9 3 2 3")
TONES = 6
FEW_POINTS = 10
"""A line of at most this many points shows each of them."""
CASCADES = (
    "A cascade has two rows: all its stages together, and its first stage alone; and a third one for the examples that were attacked, "
    "if these are not all. Of a single network, attacked error is its PGD "
    "error, and soundly certified error its certified robust error. Stage-certified error is what the stages of a cascade claim; it "
    "is no bound, and an attack may exceed it."
)

AS_RUN = "{}: what is not proved in real numbers. As run: what is not proved for the network as it runs in float32."


def letter(index: int) -> str:
    """A ... Z, then A2, B2, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def compare(runs: Sequence[Run]) -> Section:
    rates = [one for index, run in enumerate(runs) for one in _sandwiches(index, run)]
    blocks: list[Block] = [_rates(runs, rates), _conditions(runs)]
    blocks += [Note(sentence) for sentence in _differences(runs)]
    if any(one.known() for one in rates):
        shown = [one for one in rates if one.known()]
        blocks.append(sandwich_chart("Error, attacked error and certified error of all runs", shown))
    histories = [History.of(run.metrics) for run in runs]
    curves = [Curve.of(run) for run in runs]
    first, staged = _of_cascades(runs, "its first stage alone"), _of_cascades(runs, "its stages one after the other")
    error, loss = ERROR_AXIS, Axis("loss")
    certified, attacked = [curve.certified for curve in curves], [curve.attacked for curve in curves]
    figures = [
        *_by_norm("Certified accuracy", runs, certified, first),
        *_by_norm("Accuracy under attack", runs, attacked, first),
        _overlay("Robust error by epoch", EPOCHS, error, runs, [robust_by_epoch(one) for one in histories], staged),
        _overlay("Loss", EPOCHS, loss, runs, [one.training("loss") for one in histories], staged),
    ]
    drawn = [figure for figure in figures if figure is not None]
    if drawn:
        blocks.append(Figures(drawn))
    return Section("comparison", "Runs side by side", blocks)


def _sandwiches(index: int, run: Run) -> list[Sandwich]:
    """A run's rates; of a cascade its own and those of its first stage, which are never mixed."""
    name = f"{letter(index)} \N{MIDDLE DOT} {run.name}"
    if not run.is_cascade():
        return [Sandwich.of(name, run.evaluation)]
    whole_name = f"{name}, {cascade_name(run.cascade)}"
    together = [Sandwich.of_cascade(whole_name, run.cascade)]
    attacked = Sandwich.of_attacked(whole_name, run.cascade)
    if attacked is not None:
        together.append(replace(attacked, name=f"{whole_name}, first {count(attacked.examples)} examples"))
    return [*together, Sandwich.of(f"{name}, first stage alone", run.evaluation)]


def _rates(runs: Sequence[Run], rates: Sequence[Sandwich]) -> Table:
    cascades = any(run.is_cascade() for run in runs)
    names = ("Attacked error", "Soundly certified error") if cascades else ("PGD error", "Certified robust error")
    header, captions = ["Run", "Error", *names], []
    rows = [[one.name, *map(percent, (one.error, one.attacked, one.robust))] for one in rates]
    if any(one.robust_as_run is not None for one in rates):  # older records do not say
        header.append("As run")
        captions.append(AS_RUN.format(names[1]))
        rows = [[*row, percent(one.robust_as_run)] for row, one in zip(rows, rates, strict=True)]
    if cascades:
        header += ["Stage-certified error", "Examples"]
        captions.insert(0, CASCADES)
        rows = [[*row, percent(one.claimed), count(one.examples)] for row, one in zip(rows, rates, strict=True)]
    return Table(header, rows, frozenset({"Run"}), caption=" ".join(captions))


def _of_cascades(runs: Sequence[Run], part: str) -> str:
    """What the curves of cascades are of."""
    names = [letter(index) for index, run in enumerate(runs) if run.is_cascade()]
    return f"Of each cascade ({', '.join(names)}): {part}." if names else ""


def _conditions(runs: Sequence[Run]) -> Table:
    rows = []
    for index, run in enumerate(runs):
        seconds, eps = History.of(run.metrics).seconds(), number(run.evaluation, "eps")
        row = [
            letter(index),
            count(whole(run.evaluation, "examples")),
            duration(seconds) if seconds else DASH,
            text(mapping(run.environment, "data") or {}, "name") or DASH,
            text(run.evaluation, "perturbation") or (DASH if eps is None else f"eps {short(eps)}"),
            text(run.evaluation, "engine") or DASH,
        ]
        rows.append(row)
    header = ("Run", "Examples", "Training", "Data", "Perturbation", "Engine")
    return Table(header, rows, frozenset({"Run", "Data", "Perturbation", "Engine"}))


def _differences(runs: Sequence[Run]) -> list[str]:
    """What keeps the numbers of these runs from being compared."""
    found = []
    for key, name in (("perturbation", "perturbations"), ("examples", "numbers of examples"), ("engine", "engines")):
        if len({str(run.evaluation[key]) for run in runs if key in run.evaluation}) > 1:
            found.append(name)
    care = [f"These runs were evaluated with different {' and '.join(found)}: compare their robust errors with care."]
    doubts = [
        (letter(index), doubt)
        for index, run in enumerate(runs)
        for doubt in (*collapsed(run.evaluation), *contradictions(run.evaluation), *cascade_contradictions(run.cascade))
    ]
    bare = [f"Run {letter(index)} has measured nothing." for index, run in enumerate(runs) if not run.measured()]
    return [*(care if found else []), *bare, *(f"Run {name}: {doubt}" for name, doubt in doubts)]


def _by_norm(title: str, runs: Sequence[Run], points: Sequence[Points], caption: str) -> list[Figure | None]:
    """One figure for each norm: sizes of different norms have no axis in common."""
    axes = [epsilon_axis(run) for run in runs]
    labels = list(dict.fromkeys(axis.title for axis, found in zip(axes, points, strict=True) if found))
    figures = []
    for label in labels:
        own = [found if axis.title == label else [] for axis, found in zip(axes, points, strict=True)]
        full = title if len(labels) == 1 else f"{title}, {label}"
        figures.append(_overlay(full, Axis(label), ACCURACY, runs, own, caption))
    return figures


def _overlay(
    title: str, across: Axis, up: Axis, runs: Sequence[Run], points: Sequence[Points], caption: str
) -> Figure | None:
    series = []
    for index, (run, found) in enumerate(zip(runs, points, strict=True)):
        name = letter(index)
        tone, dash = f"run-{index % TONES + 1}", DASHES[index % len(DASHES)]
        few = len(found) <= FEW_POINTS
        series.append(Series(name, found, tone, dots=few, dash=dash, full=f"{name} {run.name}"))
    if not any(one.points for one in series):
        return None
    return Figure(title, line_chart(f"{title}, all runs", across, up, series), caption)
