"""Training curves: loss, errors, epsilon and learning rate over the epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autodual.report.blocks import (
    INTERVAL,
    Block,
    Figure,
    Figures,
    Note,
    Section,
    Text,
    count,
    duration,
    interval,
    likely,
    percent,
    plural,
    short,
    size,
)
from autodual.report.plots import ACCURACY_AXIS, Axis, Mark, Points, Series, Steps, line_chart, measured
from autodual.report.run import METRICS, RunFiles
from autodual.report.sections import absence, section
from autodual.report.svg import nice_step
from autodual.runs.records import EpochLine, MetricsLine, TrainedLine, ValidationLine

EPOCHS = Axis("epochs trained", whole=True)


@dataclass(frozen=True)
class History:
    """metrics.jsonl as curves over one axis of epochs, on which later stages go on where the stage before ended."""

    epochs: dict[int, EpochLine]
    """By the number of epochs that were trained then; the last line of an epoch counts, since a resumed run writes one again."""
    validation: dict[int, ValidationLine]
    stages: tuple[Mark, ...]
    """Where each stage begins, if there are several."""

    @classmethod
    def of(cls, metrics: Iterable[MetricsLine]) -> History:
        lines = [line for line in metrics if not isinstance(line, TrainedLine)]
        place: dict[tuple[int, int], int] = {}
        begins: dict[int, int] = {}
        shift = 1  # records count epochs from 0, people from 1
        for stage, epoch in sorted({(line.stage, line.epoch) for line in lines}):
            if stage not in begins:
                shift = max(place.values()) + 1 - epoch if place else 1
                begins[stage] = epoch + shift - 1
            place[stage, epoch] = epoch + shift
        lines.sort(key=lambda line: place[line.stage, line.epoch])
        marks = tuple(Mark(at, f"stage {stage}") for stage, at in begins.items())
        return cls(
            {place[line.stage, line.epoch]: line for line in lines if isinstance(line, EpochLine)},
            {place[line.stage, line.epoch]: line for line in lines if isinstance(line, ValidationLine)},
            marks if len(marks) > 1 else (),
        )

    def training(self, key: str) -> Points:
        """What was measured over the batches of an epoch, at its end. A gap (NaN) stands before each stage: no line leads from the
        end of one stage to the beginning of the next."""
        return self._points(self.epochs, key)

    def validated(self, key: str) -> Points:
        return self._points(self.validation, key)

    def certified(self, validated: bool) -> Points:
        """Certified accuracy: on examples that were looked at exactly, or as training saw it."""
        return accuracies(self.validated("robust_error") if validated else self.training("robust_error"))

    def during(self, key: str) -> Points:
        """What did not change during an epoch: steps, each holding since the epoch before."""
        points: list[tuple[float, float]] = []
        for part in self._parts(self.epochs, key):
            points += [(part[0][0], math.nan)] if points else []
            points += [(part[0][0] - 1, part[0][1]), *part]
        return points

    def _points(self, lines: Mapping[int, EpochLine | ValidationLine], key: str) -> Points:
        points: list[tuple[float, float]] = []
        for part in self._parts(lines, key):
            points += [(part[0][0] - 0.5, math.nan)] if points else []
            points += part
        return points

    def _parts(self, lines: Mapping[int, EpochLine | ValidationLine], key: str) -> list[list[tuple[float, float]]]:
        """The known values of every stage."""
        begins = [mark.at for mark in self.stages] or [-math.inf]
        parts: list[list[tuple[float, float]]] = [[] for _ in begins]
        for at, line in lines.items():
            value = getattr(line, key)
            if value is not None:
                parts[max(sum(begin < at for begin in begins) - 1, 0)].append((float(at), value))
        return [part for part in parts if part]

    def seconds(self) -> float:
        return sum(line.seconds or 0.0 for line in self.epochs.values())

    def held_out(self) -> bool:
        """Whether exact evaluations are of data that was not trained on."""
        return all(line.split != "train" for line in self.validation.values())


def accuracies(points: Points) -> Points:
    """Rates of error as accuracies."""
    return [(x, 1 - y) for x, y in points]


@section(place=70)
def training(run: RunFiles) -> Section:
    """How the run got there, epoch by epoch."""
    history = History.of(run.metrics)
    if not history.epochs and not history.validation:
        return Section("training", "Training", [absence(run, METRICS, "No training curves to show.")])
    batches, constant = "Mean over the training batches of each epoch.", "It does not change during an epoch."
    sizes, steps = f"Size of the perturbation trained against. {constant}", f"Step size of the optimiser. {constant}"
    figures = [
        _accuracies(history),
        _single("Loss", "loss", history, history.training("loss"), batches, steps=""),
        _single("Epsilon schedule", "epsilon", history, history.during("eps"), sizes),
        _single("Learning rate", "learning rate", history, history.during("lr"), steps),
    ]
    shown = [figure for figure in figures if figure is not None]
    blocks: list[Block] = [Text(_summary(history)), *map(Note, _doubts(run, history)), Figures(shown)]
    if METRICS in run.problems:
        blocks.append(Note(run.problems[METRICS].sentence))
    return Section("training", "Training", blocks)


def _doubts(run: RunFiles, history: History) -> list[str]:
    """Sentences about a training that ended at a smaller eps than the one that is certified, as published runs may have, and about
    every stage that gives one answer for everything, by what was found last."""
    found = []
    config, sizes = run.settings, [line.eps for line in history.epochs.values() if line.eps is not None]
    standard = config is not None and config.engine == "none" and not config.adversarial
    if run.evaluation is not None and sizes and not standard and max(sizes) < run.evaluation.eps * (1 - 1e-9):
        reached, certified = size(max(sizes)), size(run.evaluation.eps)
        found.append(
            f"Training ended at eps {reached}, but eps {certified} is certified: a longer training would do better."
        )
    last = {line.stage: line.collapsed for line in run.metrics if not isinstance(line, EpochLine)}
    return found + [f"The network of stage {stage} has {words}." for stage, words in last.items() if words is not None]


def _summary(history: History) -> str:
    """The last epoch and the last exact evaluation, in words."""
    sentences = []
    if history.epochs:
        last, seconds = list(history.epochs.values())[-1], history.seconds()
        each = f", {duration(seconds / len(history.epochs))} each" if len(history.epochs) > 1 else ""
        time = f", {duration(seconds)}{each}" if seconds else ""
        of = f" in {len(history.stages)} stages" if history.stages else f" of {plural(last.examples, 'example')}"
        stage = f" (stage {last.stage})" if history.stages else ""
        sentences.append(f"{plural(len(history.epochs), 'epoch')}{of}{time}.")
        sentences.append(f"Last epoch{stage}: loss {short(last.loss)}, {_rates(last)}.")
    if history.validation:
        exact = list(history.validation.values())[-1]
        stage = f"stage {exact.stage}, " if history.stages else ""
        whose = f"{count(exact.examples)} {'training ' if exact.split == 'train' else ''}examples"
        what = "validation" if history.held_out() else "exact evaluation"
        sure = f" ({INTERVAL}: {likely(1 - exact.robust_error, exact.examples)})"
        runs = exact.robust_error_as_run
        second = "" if runs is None else f"; as the network runs: {percent(1 - runs)}"
        how = f"{stage}{whose}, engine {exact.engine}, eps {size(exact.eps)}"
        sentences.append(f"Last {what} ({how}): {_rates(exact)}{sure}{second}.")
    return " ".join(sentences)


def _rates(line: EpochLine | ValidationLine) -> str:
    return f"accuracy {percent(1 - line.error)}, certified accuracy {percent(1 - line.robust_error)}"


def _single(
    title: str, axis: str, history: History, points: Points, caption: str, steps: Steps = "before"
) -> Figure | None:
    """A chart of one curve."""
    if not points:
        return None
    line = Series("", points, "run-1", full=title, steps=steps)
    words = f"{title} by epoch, from {short(points[0][1])} to {short(points[-1][1])}"
    return Figure(title, line_chart(words, EPOCHS, Axis(axis), [line], marks=history.stages), caption)


def _accuracies(history: History) -> Figure | None:
    points = "validation" if history.held_out() else "exact"
    error, robust = (accuracies(history.training(key)) for key in ("error", "robust_error"))
    intervals = []
    for at, line in history.validation.items():
        ends = interval(line.robust_error, line.examples)
        intervals += [] if ends is None else [(float(at), 1 - ends[1], 1 - ends[0])]
    series = [
        Series("accuracy", error, "run-1", full="accuracy, training"),
        measured(accuracies(history.validated("error")), "run-1", f"accuracy, {points}"),
        Series("certified", robust, "proved", dash="5 3", full="certified accuracy, training"),
        measured(history.certified(True), "proved", f"certified accuracy, {points}", intervals),
    ]
    axis, cut = _cut(series)
    whose = "validation examples" if points == "validation" else "exact bounds of training examples at the full epsilon"
    dots = f" Dots: {whose}, with {INTERVAL}s." if history.validation else ""
    caption = (
        "Lines: training batches, each with the weights and the epsilon of its moment; certified (dashed) by the training engine, "
        f"so an estimate if it projects.{dots}{cut}"
    )
    chart = line_chart("Accuracy and certified accuracy by epoch", EPOCHS, axis, series, marks=history.stages)
    return Figure("Accuracy and certified accuracy", chart, caption)


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
