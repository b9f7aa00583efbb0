"""Training curves: loss, errors, epsilon and learning rate over the epochs."""

from __future__ import annotations

from autodual.report.absence import absence
from autodual.report.blocks import Block, Figure, Figures, Note, Section, Text
from autodual.report.files import METRICS, Run
from autodual.report.frame import ERROR_AXIS, Axis
from autodual.report.history import History
from autodual.report.lines import Points, Series, line_chart
from autodual.report.values import Record, count, duration, number, percent, rate, short, text, whole

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
    blocks: list[Block] = [Text(_summary(history)), Figures(figures)]
    if METRICS in run.problems:
        blocks.append(Note(run.problems[METRICS]))
    return Section("training", "Training", blocks)


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
        sentences.append(f"Last epoch: {_rates(last)}.")
    if history.validation:
        last = list(history.validation.values())[-1]
        how = f"{whole(last, 'examples') or 'some'} examples, engine {text(last, 'engine') or 'unknown'}"
        sentences.append(f"Last validation ({how}, eps {short(number(last, 'eps'))}): {_rates(last)}.")
    return " ".join(sentences)


def _rates(record: Record) -> str:
    loss = number(record, "loss")
    rates = [f"loss {short(loss)}"] if loss is not None else []
    rates += [f"error {percent(rate(record, 'error'))}", f"robust error {percent(rate(record, 'robust_error'))}"]
    return ", ".join(rates)


def _single(history: History, title: str, key: str, axis: Axis, caption: str) -> Figure | None:
    points = history.training(key)
    if not points:
        return None
    line = Series("", points, "proved", full=title)
    words = f"{title} by epoch, from {short(points[0][1])} to {short(points[-1][1])}"
    return Figure(title, line_chart(words, EPOCHS, axis, [line], marks=history.stages), caption)


def _errors(history: History) -> Figure | None:
    series = [
        Series("robust, training", history.training("robust_error"), "proved"),
        Series("robust, validation", history.validated("robust_error"), "proved", line=False, dots=True),
        Series("error, training", history.training("error"), "ink"),
        Series("error, validation", history.validated("error"), "ink", line=False, dots=True),
    ]
    if not any(one.points for one in series):
        return None
    caption = (
        "Lines: training batches at that epoch's epsilon, robust error by the training engine, "
        "so an estimate if it projects. Points: validation examples."
    )
    chart = line_chart("Error and robust error by epoch", EPOCHS, ERROR_AXIS, series, marks=history.stages)
    return Figure("Error and robust error", chart, caption)


def robust_by_epoch(history: History) -> Points:
    """The curve by which runs compare: validated if it was, else as training saw it."""
    return history.validated("robust_error") or history.training("robust_error")
