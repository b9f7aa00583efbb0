"""Training curves: loss, errors, epsilon and learning rate over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autodual.report.blocks import Block, Figure, Figures, Note, Section, Text
from autodual.report.charts.plots import ACCURACY_AXIS, Axis, Mark, Points, Series, line_chart
from autodual.report.charts.svg import nice_step
from autodual.report.files import METRICS, RunFiles
from autodual.report.sections import absence, section
from autodual.report.values import (
    INTERVAL,
    Record,
    count,
    duration,
    interval,
    likely,
    number,
    percent,
    plural,
    rate,
    short,
    size,
    text,
    whole,
)

# metrics.jsonl as curves: one axis of epochs through all stages, the last record of an epoch counting.


@dataclass(frozen=True)
class History:
    """Records by the number of epochs that were trained then; later stages go on where the stage before ended."""

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
        place: dict[tuple[int, int], int] = {}
        begins: dict[int, int] = {}
        shift = 1  # records count epochs from 0, people from 1
        for stage, epoch in sorted({key for kind in placed.values() for key in kind}):
            if stage not in begins:
                shift = max(place.values()) + 1 - epoch if place else 1
                begins[stage] = epoch + shift - 1
            place[stage, epoch] = epoch + shift
        marks = tuple(Mark(at, f"stage {stage}") for stage, at in begins.items())
        return cls(
            {place[key]: record for key, record in sorted(placed["epoch"].items())},
            {place[key]: record for key, record in sorted(placed["validation"].items())},
            marks if len(marks) > 1 else (),
        )

    def training(self, key: str) -> Points:
        """What was measured over the batches of an epoch, at its end."""
        return self._points(self.epochs, key)

    def validated(self, key: str) -> Points:
        return self._points(self.validation, key)

    def during(self, key: str) -> Points:
        """What did not change during an epoch: steps, each holding since the epoch before."""
        points: list[tuple[float, float]] = []
        for part in self._parts(self.epochs, key):
            points += [(part[0][0], math.nan)] if points else []
            points += [(part[0][0] - 1, part[0][1]), *part]
        return points

    def _points(self, records: dict[int, Record], key: str) -> Points:
        """A gap (NaN) before each stage: no line leads from the end of one stage to the beginning of the next."""
        points: list[tuple[float, float]] = []
        for part in self._parts(records, key):
            points += [(part[0][0] - 0.5, math.nan)] if points else []
            points += part
        return points

    def _parts(self, records: dict[int, Record], key: str) -> list[list[tuple[float, float]]]:
        """The known values of every stage."""
        begins = [mark.at for mark in self.stages] or [-math.inf]
        parts: list[list[tuple[float, float]]] = [[] for _ in begins]
        for at, record in records.items():
            value = number(record, key)
            if value is not None:
                parts[max(sum(begin < at for begin in begins) - 1, 0)].append((float(at), value))
        return [part for part in parts if part]

    def seconds(self) -> float:
        return sum(number(record, "seconds") or 0.0 for record in self.epochs.values())


EPOCHS = Axis("epochs trained", whole=True)


@section(place=70)
def training(run: RunFiles) -> Section:
    history = History.of(run.metrics)
    if not history.epochs and not history.validation:
        return Section("training", "Training", [absence(run, METRICS, "No training curves to show.")])
    loss = history.training("loss")
    figures = [
        _accuracies(history),
        _single(history, "Loss", loss, Axis("loss"), "Mean over the training batches of each epoch."),
        _constant(history, "Epsilon schedule", "eps", Axis("epsilon"), "Size of the perturbation trained against."),
        _constant(history, "Learning rate", "lr", Axis("learning rate"), "Step size of the optimiser."),
    ]
    notes = [*_short_of(run, history), *_collapsed(run)]
    shown = [figure for figure in figures if figure is not None]
    blocks: list[Block] = [Text(_summary(history)), *map(Note, notes), Figures(shown)]
    if METRICS in run.problems:
        blocks.append(Note(run.problems[METRICS].sentence))
    return Section("training", "Training", blocks)


def _short_of(run: RunFiles, history: History) -> list[str]:
    """A sentence about a training that ended at a smaller eps than the one that is certified, as runs of earlier versions may have."""
    standard = run.settings.get("engine") == "none" and run.settings.get("adversarial") is False
    sizes, certified = [y for _, y in history.training("eps") if math.isfinite(y)], number(run.evaluation, "eps")
    if standard or not sizes or certified is None or max(sizes) >= certified * (1 - 1e-9):
        return []
    return [
        f"Training ended at eps {size(max(sizes))}, but eps {size(certified)} is certified: a longer training would do better."
    ]


def _collapsed(run: RunFiles) -> list[str]:
    """A sentence about every stage that gives one answer for everything, by what was found last."""
    last = {_stage(record): record for record in run.metrics if text(record, "kind") in ("validation", "trained")}
    found = ((stage, text(record, "collapsed")) for stage, record in last.items())
    return [f"The network of {stage} has {words}." for stage, words in found if words is not None]


def _summary(history: History) -> str:
    sentences = []
    if history.epochs:
        last = list(history.epochs.values())[-1]
        seconds = history.seconds()
        each = f", {duration(seconds / len(history.epochs))} each" if len(history.epochs) > 1 else ""
        time = f", {duration(seconds)}{each}" if seconds else ""
        examples = whole(last, "examples")
        of = f" of {plural(examples, 'example')}" if examples else ""
        of = f" in {len(history.stages)} stages" if history.stages else of
        sentences.append(f"{plural(len(history.epochs), 'epoch')}{of}{time}.")
        sentences.append(f"Last epoch{f' ({_stage(last)})' if history.stages else ''}: {_rates(last)}.")
    if history.validation:
        last = list(history.validation.values())[-1]
        how = f"{f'{_stage(last)}, ' if history.stages else ''}{_examined(last)}, engine {text(last, 'engine') or 'unknown'}"
        what = "validation" if _held_out(history) else "exact evaluation"
        sentences.append(f"Last {what} ({how}, eps {size(number(last, 'eps'))}): {_rates(last, sample=True)}.")
    return " ".join(sentences)


def _stage(record: Record) -> str:
    return f"stage {whole(record, 'stage') or 0}"


def _rates(record: Record, sample: bool = False) -> str:
    """In words; with an interval of confidence where only some examples were looked at."""
    loss, error, robust = number(record, "loss"), rate(record, "error"), rate(record, "robust_error")
    rates = [f"loss {short(loss)}"] if loss is not None else []
    rates.append(f"accuracy {percent(None if error is None else 1 - error)}")
    rates.append(f"certified accuracy {percent(None if robust is None else 1 - robust)}")
    examples = whole(record, "examples")
    if sample and robust is not None and examples:
        rates[-1] += f" ({INTERVAL}: {likely(1 - robust, examples)})"
    as_run = rate(record, "robust_error_as_run")
    return ", ".join(rates) + ("" if as_run is None else f"; as the network runs: {percent(1 - as_run)}")


def _single(
    history: History, title: str, points: Points, axis: Axis, caption: str, steps: bool = False
) -> Figure | None:
    if not points:
        return None
    line = Series("", points, "run-1", full=title, steps="before" if steps else "")
    words = f"{title} by epoch, from {short(points[0][1])} to {short(points[-1][1])}"
    return Figure(title, line_chart(words, EPOCHS, axis, [line], marks=history.stages), caption)


def _constant(history: History, title: str, key: str, axis: Axis, caption: str) -> Figure | None:
    """Steps, since it does not change during an epoch."""
    words = f"{caption} It does not change during an epoch."
    return _single(history, title, history.during(key), axis, words, steps=True)


def _held_out(history: History) -> bool:
    """Whether the points are of data that was not trained on."""
    return all(text(record, "split") != "train" for record in history.validation.values())


def _examined(record: Record) -> str:
    examples, training = whole(record, "examples"), text(record, "split") == "train"
    return f"{count(examples) if examples else 'some'} {'training ' if training else ''}examples"


def accuracies(points: Points) -> Points:
    """Rates of error as accuracies."""
    return [(x, 1 - y) for x, y in points]


def _accuracies(history: History) -> Figure | None:
    points = "validation" if _held_out(history) else "exact"
    series = [
        Series("accuracy", accuracies(history.training("error")), "run-1", full="accuracy, training"),
        Series("", accuracies(history.validated("error")), "run-1", line=False, dots=True, full=f"accuracy, {points}"),
        Series(
            "certified",
            accuracies(history.training("robust_error")),
            "proved",
            dash="5 3",
            full="certified accuracy, training",
        ),
        Series(
            "",
            accuracies(history.validated("robust_error")),
            "proved",
            line=False,
            dots=True,
            full=f"certified accuracy, {points}",
            intervals=_intervals(history),
        ),
    ]
    if not any(one.points for one in series):
        return None
    axis, cut = _cut(series)
    whose = "validation examples" if points == "validation" else "exact bounds of training examples at the full epsilon"
    dots = f" Dots: {whose}, with {INTERVAL}s." if history.validation else ""
    caption = (
        "Lines: training batches, each with the weights and the epsilon of its moment; certified (dashed) by the training engine, "
        f"so an estimate if it projects.{dots}{cut}"
    )
    chart = line_chart("Accuracy and certified accuracy by epoch", EPOCHS, axis, series, marks=history.stages)
    return Figure("Accuracy and certified accuracy", chart, caption)


def _intervals(history: History) -> list[tuple[float, float, float]]:
    found = []
    for at, record in history.validation.items():
        ends = interval(rate(record, "robust_error"), whole(record, "examples"))
        found += [] if ends is None else [(float(at), 1 - ends[1], 1 - ends[0])]
    return found


def _cut(series: list[Series]) -> tuple[Axis, str]:
    """An axis to 100 % that begins below the lines; a few early points, measured at the full epsilon, may lie far below it."""
    lines = [y for one in series if one.line for _, y in one.points if math.isfinite(y)]
    last = [one.points[-1][1] for one in series if one.points and math.isfinite(one.points[-1][1])]
    room = max((1 - y for y in [*lines, *last]), default=1.0)
    below = [(x, y) for one in series if not one.line for x, y in one.points if 1 - y > 2 * room > 0]
    low = 1 - 1.25 * room
    if not 0 < low < 1 or not lines:
        return ACCURACY_AXIS, ""
    axis = replace(ACCURACY_AXIS, zero=False, least=low - low % nice_step(1 - low, 5))
    if not below:
        return replace(axis, least=-math.inf), ""
    named = ", ".join(f"{percent(y)} at epoch {short(x)}" for x, y in sorted(below)[:3])
    return axis, f" Below the frame, at its edge: {named}{' ...' if len(below) > 3 else ''}."


def certified_by_epoch(history: History, validated: bool) -> Points:
    """The curve by which runs compare: on examples that were looked at exactly, or as training saw it."""
    return accuracies((history.validated if validated else history.training)("robust_error"))
