"""Training curves: loss, errors, epsilon and learning rate over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autodual.report.blocks import Block, Figure, Figures, Note, Section, Text
from autodual.report.charts.plots import ERROR_AXIS, Axis, Mark, Points, Series, line_chart
from autodual.report.files import METRICS, Run
from autodual.report.sections.headline import absence
from autodual.report.values import Record, count, duration, number, percent, rate, short, text, whole

# metrics.jsonl as curves: one axis of epochs through all stages, the last record of an epoch counting.


@dataclass(frozen=True)
class History:
    """Records by place on the axis: epochs of later stages go on where the stage before ended."""

    epochs: dict[int, Record]
    validation: dict[int, Record]
    stages: tuple[Mark, ...]
    """Where each stage begins, if there are several."""

    @classmethod
    def of(cls, metrics: Iterable[Record]) -> History:
        placed = {"epoch": {}, "validation": {}}  # type: dict[str, dict[tuple[int, int], Record]]
        for record in metrics:
            kind, epoch = text(record, "kind"), whole(record, "epoch")
            if kind in placed and epoch is not None:
                placed[kind][whole(record, "stage") or 0, epoch] = record  # a resumed run writes an epoch again
        keys = sorted({key for kind in placed.values() for key in kind})
        place = _axis(keys)
        stages = sorted({stage for stage, _ in keys})
        begins = [Mark(min(place[key] for key in keys if key[0] == stage), f"stage {stage}") for stage in stages]
        return cls(
            {place[key]: record for key, record in sorted(placed["epoch"].items())},
            {place[key]: record for key, record in sorted(placed["validation"].items())},
            tuple(begins) if len(begins) > 1 else (),
        )

    def training(self, key: str) -> Points:
        return self._points(self.epochs, key)

    def validated(self, key: str) -> Points:
        return self._points(self.validation, key)

    def _points(self, records: dict[int, Record], key: str) -> Points:
        found = ((float(at), number(record, key)) for at, record in records.items())
        return _split([(at, value) for at, value in found if value is not None], [mark.at for mark in self.stages])

    def seconds(self) -> float:
        return sum(number(record, "seconds") or 0.0 for record in self.epochs.values())


def _axis(keys: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    place: dict[tuple[int, int], int] = {}
    shift, stage = 0, keys[0][0] if keys else 0
    for key in keys:
        if key[0] != stage:
            shift, stage = max(place.values()) + 1 - key[1], key[0]
        place[key] = key[1] + shift
    return place


def _split(points: Points, begins: Sequence[float]) -> Points:
    """A gap (NaN) before each stage, so that no line leads from the end of one stage to the beginning of the next."""
    gaps = [(at - 0.5, math.nan) for at in begins if points and points[0][0] < at <= points[-1][0]]
    return sorted([*points, *gaps])


EPOCHS = Axis("epoch", zero=False)


def training(run: Run) -> Section:
    history = History.of(run.metrics)
    if not history.epochs and not history.validation:
        return Section("training", "Training", [absence(run, METRICS, "No training curves to show.")])
    figures = [
        figure
        for figure in (
            _single(history, "Loss", "loss", Axis("loss"), "Mean over the training batches of each epoch."),
            _errors(history),
            _single(history, "Epsilon schedule", "eps", Axis("epsilon"), "Size of the perturbation trained against."),
            _single(history, "Learning rate", "lr", Axis("learning rate"), "At the end of each epoch."),
        )
        if figure is not None
    ]
    notes = [*_short_of(run, history), *_collapsed(run)]
    blocks: list[Block] = [Text(_summary(history)), *map(Note, notes), Figures(figures)]
    if METRICS in run.problems:
        blocks.append(Note(run.problems[METRICS]))
    return Section("training", "Training", blocks)


def _short_of(run: Run, history: History) -> list[str]:
    """A sentence about a training that ended at a smaller eps than the one that is certified, as runs of earlier versions may have."""
    standard = {"engine: none", "adversarial: false"} <= set(run.config.splitlines())
    sizes, certified = [y for _, y in history.training("eps") if math.isfinite(y)], number(run.evaluation, "eps")
    if standard or not sizes or certified is None or max(sizes) >= certified * (1 - 1e-9):
        return []
    return [
        f"Training ended at eps {short(max(sizes))}, but eps {short(certified)} is certified: a longer training would do better."
    ]


def _collapsed(run: Run) -> list[str]:
    """A sentence about every stage that gives one answer for everything, by what was found last."""
    last = {_stage(record): record for record in run.metrics if text(record, "kind") in ("validation", "trained")}
    found = ((stage, text(record, "collapsed")) for stage, record in last.items())
    return [f"The network of {stage} has {words}." for stage, words in found if words is not None]


def _summary(history: History) -> str:
    sentences = []
    if history.epochs:
        last = list(history.epochs.values())[-1]
        seconds = history.seconds()
        time = f", {duration(seconds)}, {duration(seconds / len(history.epochs))} each" if seconds else ""
        examples = whole(last, "examples")
        of = (
            f" in {len(history.stages)} stages"
            if history.stages
            else f" of {count(examples)} examples"
            if examples
            else ""
        )
        sentences.append(f"{len(history.epochs)} epochs{of}{time}.")
        sentences.append(f"Last epoch{f' ({_stage(last)})' if history.stages else ''}: {_rates(last)}.")
    if history.validation:
        last = list(history.validation.values())[-1]
        how = f"{f'{_stage(last)}, ' if history.stages else ''}{_examined(last)}, engine {text(last, 'engine') or 'unknown'}"
        what = "validation" if _held_out(history) else "exact evaluation"
        sentences.append(f"Last {what} ({how}, eps {short(number(last, 'eps'))}): {_rates(last)}.")
    return " ".join(sentences)


def _stage(record: Record) -> str:
    return f"stage {whole(record, 'stage') or 0}"


def _rates(record: Record) -> str:
    loss = number(record, "loss")
    rates = [f"loss {short(loss)}"] if loss is not None else []
    rates += [f"error {percent(rate(record, 'error'))}", f"robust error {percent(rate(record, 'robust_error'))}"]
    as_run = rate(record, "robust_error_as_run")
    return ", ".join(rates) + ("" if as_run is None else f" (as the network runs: {percent(as_run)})")


def _single(history: History, title: str, key: str, axis: Axis, caption: str) -> Figure | None:
    points = history.training(key)
    if not points:
        return None
    line = Series("", points, "proved", full=title)
    words = f"{title} by epoch, from {short(points[0][1])} to {short(points[-1][1])}"
    return Figure(title, line_chart(words, EPOCHS, axis, [line], marks=history.stages), caption)


def _held_out(history: History) -> bool:
    """Whether the points are of data that was not trained on."""
    return all(text(record, "split") != "train" for record in history.validation.values())


def _examined(record: Record) -> str:
    examples, training = whole(record, "examples"), text(record, "split") == "train"
    return f"{count(examples) if examples else 'some'} {'training ' if training else ''}examples"


def _errors(history: History) -> Figure | None:
    points = "validation" if _held_out(history) else "exact"
    series = [
        Series("robust, training", history.training("robust_error"), "proved"),
        Series(f"robust, {points}", history.validated("robust_error"), "proved", line=False, dots=True),
        Series("error, training", history.training("error"), "ink"),
        Series(f"error, {points}", history.validated("error"), "ink", line=False, dots=True),
    ]
    if not any(one.points for one in series):
        return None
    axis, cut = _cut(series)
    of = "validation examples" if points == "validation" else "exact bounds of training examples at the full epsilon"
    caption = (
        "Lines: training batches at that epoch's epsilon, robust error by the training engine, "
        f"so an estimate if it projects. Points: {of}.{cut}"
    )
    chart = line_chart("Error and robust error by epoch", EPOCHS, axis, series, marks=history.stages)
    return Figure("Error and robust error", chart, caption)


def _cut(series: list[Series]) -> tuple[Axis, str]:
    """An axis that ends with the lines where a few early points, measured at the full epsilon, lie far above them."""
    lines = [y for one in series if one.line for _, y in one.points if math.isfinite(y)]
    last = [one.points[-1][1] for one in series if one.points and math.isfinite(one.points[-1][1])]
    high = max([*lines, *last], default=1.0)
    above = [(x, y) for one in series if not one.line for x, y in one.points if y > 2 * high > 0]
    if not lines or not above:
        return ERROR_AXIS, ""
    named = ", ".join(f"{percent(y)} at epoch {short(x)}" for x, y in sorted(above)[:3])
    return replace(
        ERROR_AXIS, most=1.25 * high
    ), f" Above the frame, at its edge: {named}{' ...' if len(above) > 3 else ''}."


def robust_by_epoch(history: History) -> Points:
    """The curve by which runs compare: validated if it was, else as training saw it."""
    return history.validated("robust_error") or history.training("robust_error")
