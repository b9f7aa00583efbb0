"""Several runs side by side: one table, one axis, one letter for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autodual.report.blocks import Block, Figure, Figures, Note, Section, Table, Wide
from autodual.report.epsilon import ACCURACY, Curve, epsilon_axis
from autodual.report.files import Run
from autodual.report.frame import ERROR_AXIS, Axis
from autodual.report.headline import LEGEND, Sandwich, contradictions, sandwich_chart
from autodual.report.history import History
from autodual.report.lines import Points, Series, line_chart
from autodual.report.training import EPOCHS, robust_by_epoch
from autodual.report.values import DASH, count, duration, mapping, number, percent, rate, short, text, whole

DASHES = ("", "7 3", "2 3", "9 3 2 3")
TONES = 6


def letter(index: int) -> str:
    """A ... Z, then A2, B2, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def compare(runs: Sequence[Run]) -> Section:
    blocks: list[Block] = [_rates(runs), _conditions(runs)]
    blocks += [Note(sentence) for sentence in _differences(runs)]
    bars = [Sandwich.of(f"{letter(index)} \N{MIDDLE DOT} {run.name}", run.evaluation) for index, run in enumerate(runs)]
    if any(bar.known() for bar in bars):
        blocks.append(Wide(sandwich_chart("Error, PGD error and certified robust error of all runs", bars), LEGEND))
    histories = [History.of(run.metrics) for run in runs]
    curves = [Curve.of(run) for run in runs]
    figures = [
        _overlay("Certified accuracy", epsilon_axis(runs[0]), ACCURACY, runs, lambda index: curves[index].certified),
        _overlay("Accuracy under attack", epsilon_axis(runs[0]), ACCURACY, runs, lambda index: curves[index].attacked),
        _overlay("Robust error by epoch", EPOCHS, ERROR_AXIS, runs, lambda i: robust_by_epoch(histories[i])),
        _overlay("Loss", EPOCHS, Axis("loss"), runs, lambda index: histories[index].training("loss")),
    ]
    shown = [figure for figure in figures if figure is not None]
    if shown:
        blocks.append(Figures(shown))
    return Section("comparison", "Runs side by side", blocks)


def _rates(runs: Sequence[Run]) -> Table:
    columns = [("Error", "error"), ("PGD error", "pgd_error"), ("Certified robust error", "robust_error")]
    cascade = [("Stage-certified error", "stage_certified_error"), ("Soundly certified error", "sound_certified_error")]
    cascade = cascade if any(run.cascade for run in runs) else []
    rows = [
        [
            f"{letter(index)} \N{MIDDLE DOT} {run.name}",
            *(percent(rate(run.evaluation, key)) for _, key in columns),
            *(percent(rate(run.cascade, key)) for _, key in cascade),
        ]
        for index, run in enumerate(runs)
    ]
    return Table(["Run", *(name for name, _ in [*columns, *cascade])], rows, frozenset({"Run"}))


def _conditions(runs: Sequence[Run]) -> Table:
    rows = []
    for index, run in enumerate(runs):
        seconds = History.of(run.metrics).seconds()
        row = [
            letter(index),
            count(whole(run.evaluation, "examples")),
            duration(seconds) if seconds else DASH,
            text(mapping(run.environment, "data") or {}, "name") or DASH,
            text(run.evaluation, "perturbation") or f"eps {short(number(run.evaluation, 'eps'))}",
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
    doubts = [(letter(index), doubt) for index, run in enumerate(runs) for doubt in contradictions(run.evaluation)]
    return [*(care if found else []), *(f"Run {name}: {doubt}" for name, doubt in doubts)]


def _overlay(title: str, across: Axis, up: Axis, runs: Sequence[Run], points: Callable[[int], Points]) -> Figure | None:
    series = [
        Series(
            letter(i), points(i), f"run-{i % TONES + 1}", dash=DASHES[i % len(DASHES)], full=f"{letter(i)} {run.name}"
        )
        for i, run in enumerate(runs)
    ]
    if not any(one.points for one in series):
        return None
    return Figure(title, line_chart(f"{title}, all runs", across, up, series))
