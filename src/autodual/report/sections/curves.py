"""Curves and histograms: how far the proofs reach, by epsilon, margin and radius; and how training got there, by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autodual.report.blocks import (
    INTERVAL,
    Block,
    Figure,
    Figures,
    Note,
    Section,
    Table,
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
from autodual.report.plots import (
    ACCURACY_AXIS,
    Area,
    Axis,
    Mark,
    Points,
    Series,
    Steps,
    histogram,
    line_chart,
    make_bins,
    measured,
)
from autodual.report.run import EVALUATION, METRICS, RunFiles
from autodual.report.sections import absence, section
from autodual.report.sections.result import as_run
from autodual.report.svg import nice_step
from autodual.report.verdicts import LEGEND, verdicts
from autodual.runs.records import EpochLine, Evaluation, MetricsLine, TrainedLine, ValidationLine

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
        """Reads the curves of a record. sample: whether all examples that were evaluated are a part of those that there are."""
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
    bands = [Area("unknown", curve.proved, curve.broken, "before", "after")]
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


# Training: loss, errors, epsilon and learning rate over the epochs.

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
        _trained(history),
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
    """Sentences about what went wrong in training: it ended at a smaller eps than is certified, as in published runs, or a stage gives
    one answer for everything, by what was found last."""
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


def _trained(history: History) -> Figure | None:
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
