"""What became of the examples: of all together, by the cascade and by its first stage, class by class, and image by image."""

from __future__ import annotations

import base64
import io
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from autodual._errors import AutodualError
from autodual.report.blocks import (
    DASH,
    Block,
    Card,
    Cards,
    Image,
    Note,
    Section,
    Table,
    Text,
    Tone,
    Wide,
    count,
    percent,
    plural,
    tidy,
)
from autodual.report.run import CASCADE, EVALUATION, GALLERY, Picture, RunFiles
from autodual.report.sections import absence, section
from autodual.report.svg import Bar, Segment, bar_chart
from autodual.report.verdicts import Rates, cascade_doubts, doubts, rates_chart, rates_tiles, verdicts
from autodual.runs.records import CascadeSummary, Evaluation

DOT = " \N{MIDDLE DOT} "

# The cascade as a whole: who certifies what, what that promises, and what it does not.

PAPER = (
    "What stage-certified accuracy does not promise: a stage's certificate says that this stage's label is the same everywhere "
    "within eps of the received input. It does not say that the cascade is robust: where an earlier stage mislabels the clean "
    "input without certifying it, an attacker looks for a point nearby where that stage does certify, and the cascade then answers "
    "wrongly, with a certificate. So the truth lies between soundly certified accuracy and accuracy under attack, and may lie below "
    "stage-certified accuracy."
)
SOUND = (
    "This combination's certificate covers the answer of the whole cascade over the whole set: no attack goes below its soundly "
    "certified accuracy."
)


@section(place=10)
def cascade(run: RunFiles) -> Section | None:
    """The cascade as a whole; nothing for a single network."""
    if run.settings is not None and not run.is_cascade():
        return None
    record = run.cascade
    if record is None:
        words = (
            "The cascade was not evaluated." if run.is_cascade() else "A single network, or a cascade not evaluated."
        )
        return Section("cascade", "Cascade", [absence(run, CASCADE, words)])
    how = [cascade_name(record).capitalize(), plural(record.examples, "example"), tidy(record.perturbation)]
    notes = [] if record.collapsed is None else [f"The cascade has {record.collapsed}."]
    blocks: list[Block] = [
        Text(DOT.join([*how, f"engine {record.engine}"])),
        *map(Note, notes + cascade_doubts(record)),
    ]
    for rates in Rates.of_cascade("", record, run.is_sample(record.examples)):
        if rates.part:
            which = f"Attacked: the first {count(rates.examples)} examples only."
            blocks.append(Text(f"{which} The figures of the same examples beside it:"))
        name = "Soundly certified accuracy"
        blocks.append(rates_tiles(rates, "as the networks run", name, "attacked error", large=not rates.part))
        blocks.append(rates_chart(f"{name}, accuracy under attack and accuracy of the cascade", [rates]))
    blocks.append(Text(SOUND if record.kind in ("routed", "sum") else PAPER))
    return Section("cascade", "Result of the cascade", [*blocks, *_stages(record)])


def cascade_name(record: CascadeSummary) -> str:
    if record.kind == "sum" and record.models is not None:
        return f"sum of logits of {count(record.models)} models"
    return {"paper": "the paper's cascade", "routed": "routed cascade", "sum": "sum of logits"}.get(
        record.kind, record.kind
    )


def _stages(record: CascadeSummary) -> list[Block]:
    """What each stage certifies rightly, then what wrongly, and at the end what no stage certifies: as a bar and as a table."""
    if not record.stages:
        return [Note("cascade.json lists no stages.")]
    one = record.kind == "sum"  # which answers as one
    named = [(cascade_name(record) if one else f"stage {stage.stage}", stage) for stage in record.stages]
    parts = [
        (right := max(stage.certified_correct, 0), f"stage-{n % 3 + 1}", f"{name} certifies {right} rightly", f"{name}: {right}")
        for n, (name, stage) in enumerate(named)
    ]  # fmt: skip
    parts += [
        (wrong, "wrong", f"{name} certifies {wrong} wrongly: another label than the right one", f"wrong: {wrong}")
        for name, stage in named
        if (wrong := stage.certified_wrong) > 0
    ]
    certified = sum(part[0] for part in parts)
    rest = max(record.examples, certified, 1) - certified
    segments, start = list[Segment](), 0
    for number, *words in (*parts, (rest, "unproved", f"certified by no stage: {rest}", f"none: {rest}")):
        segments.append(Segment(start, start + number, *words))
        start += number
    chart = bar_chart("Examples certified by each stage", [Bar("", segments)], start, "examples, by who certifies them")
    header = ("Stage", "Trained on", "Answers", "Certified", "Certified wrongly", "Correct")
    rows = []
    for name, stage in named:
        numbers = (stage.trained_on, stage.answers, stage.certified, stage.certified_wrong, stage.correct)
        rows.append([name.removeprefix("stage "), *map(count, numbers)])
    caption = "Trained on: training examples that no earlier stage certified. All others: of the evaluated ones."
    legend = [(segment.tone, segment.words) for segment in segments]
    return [Wide(chart, legend), Table(header, rows, frozenset({"Stage"}), caption=caption)]


# The network, or the first stage alone.


@section(place=20, first_stage=True)
def result(run: RunFiles) -> Section:
    """Certified accuracy, and what became of all other examples: unknown, broken by the attack, or wrong."""
    record = run.evaluation
    if record is None:
        return Section("result", "Result", [absence(run, EVALUATION, "No result to show.")])
    rates = Rates.of("", record, run.is_sample(record.examples))
    how = [plural(record.examples, f"{record.split} example"), tidy(record.perturbation), f"engine {record.engine}"]
    accuracies = [1 - error for error in (rates.robust, rates.broken, rates.error) if error is not None]
    title = "Certified accuracy {}, accuracy under attack {}, accuracy {}".format(*map(percent, accuracies))
    blocks: list[Block] = [
        Text(DOT.join([*how, record.dtype])),
        *map(Note, doubts(record)),
        rates_tiles(rates, as_run(record)),
        rates_chart(title, [rates]),
        Text(_meaning(record)),
    ]
    return Section("result", "Result", blocks)


def as_run(record: Evaluation) -> str:
    """In plain words: the arithmetic of the network as it runs."""
    return f"as the network runs in {record.dtype}"


def _meaning(record: Evaluation) -> str:
    proved, attacked, exact = percent(1 - record.robust_error), percent(1 - record.pgd_error), record.pgd_error_exact
    start = "The truth lies between the proof and the attack:"
    if record.robust_error_as_run is None or exact is None:  # a published run
        gap = f"{100 * (record.robust_error - record.pgd_error):.2f} percentage points"
        robust = f"at least {proved} of the examples are robust, at most {attacked}"
        return f"{start} {robust}. The gap, {gap}, is what neither settles."
    return (
        f"{start} in real numbers, at least {proved} of the examples are robust, at most {percent(1 - exact)}; {as_run(record)}, "
        f"at least {percent(1 - record.robust_error_as_run)} and at most {attacked}. The gap, "
        f"{100 * (record.robust_error - exact):.2f} percentage points in real numbers, is what neither settles."
    )


# Class by class.


@section(place=50, first_stage=True)
def classes(run: RunFiles) -> Section:
    """How much of a class is proved, unknown, broken and wrong, and what the class is taken for."""
    record = run.evaluation
    if record is None:
        return Section("classes", "Classes", [absence(run, EVALUATION, "No table of classes to show.")])
    names = {"proved": "Certified accuracy", "unknown": "Unknown", "broken": "Broken", "wrong": "Wrong"}
    found = verdicts(record)
    columns = {heading: [tone == own for tone in found] for own, heading in names.items()}
    caption = (
        "Certified, unknown, broken by the attack and wrong without it add up to 100 %. "
        "Taken for: the most frequent wrong answer without any attack, and how often."
    )
    if record.certified_as_run is not None:
        columns["Certified as run"] = list(record.certified_as_run)
        caption += f" Certified: in real numbers; as run: {as_run(record)}."
    rows = []
    for label in sorted(set(record.labels)):
        members = [index for index, other in enumerate(record.labels) if other == label]
        shares = [percent(sum(column[index] for index in members) / len(members)) for column in columns.values()]
        mistaken = Counter(record.predicted[index] for index in members if record.predicted[index] != label)
        answer, times = min(mistaken.items(), key=lambda item: (-item[1], item[0]), default=(0, 0))
        often = f"{class_name(run, answer)} ({count(times)}\N{MULTIPLICATION SIGN})" if times else DASH
        rows.append([class_name(run, label), count(len(members)), *shares, often])
    total = [percent(sum(column) / len(column)) for column in columns.values()]
    header, words = (
        ("Class", "Examples", *columns, "Most often taken for"),
        frozenset({"Class", "Most often taken for"}),
    )
    table = Table(header, rows, words, ["All", count(len(found)), *total, ""], caption)
    return Section("classes", "Classes", [table])


def class_name(run: RunFiles, label: int) -> str:
    """The class's name, or its number where there is no name."""
    names = () if run.evaluation is None else run.evaluation.classes
    return names[label] if 0 <= label < len(names) else str(label)


# Image by image.

MOST = 24
"""Images of a kind on the page; more would make it large, not clearer."""
KINDS: tuple[tuple[Tone, str, str], ...] = (
    ("broken", "Right, then broken by the attack", "A perturbation inside the set gives these another label."),
    ("proved", "Proved", "No perturbation of the set changes these labels. The attack is shown, and fails."),
    ("unknown", "Unknown", "The attack fails, and there is no proof either."),
    (
        "wrong",
        "Wrong without any attack",
        "The network gives these another label as they are: an attack has nothing to break.",
    ),
)


@section(place=60, first_stage=True)
def gallery(run: RunFiles) -> Section | None:
    """Images that are right and then broken by the attack, proved, unknown, or wrong without any attack."""
    if not run.gallery and run.environment is not None and run.environment.data.kind is not None:
        return None  # no images
    if not run.gallery:
        return Section("gallery", "Gallery", [absence(run, GALLERY, "No images to show.")])
    largest = max(int(np.abs(_change(picture)).max()) for picture in run.gallery)
    gain = max(1, 127 // max(largest, 1))  # one whole factor for all images, at which no change is cut off
    blocks: list[Block] = [
        Text(f"Each image, what the attack made of it, and the change {gain} times as strong (grey: no change).")
    ]
    for tone, title, words in KINDS:
        members = [picture for picture in run.gallery if _verdict(picture) == tone]
        if len(members) > MOST:
            words += f" The first {MOST} of {len(members)}."
        if members:
            blocks.append(Cards(title, words, tone, [_card(run, picture, gain) for picture in members[:MOST]]))
        else:
            blocks.append(Text(f"{title}: no image in this gallery."))
    return Section("gallery", "Gallery", blocks)


def _verdict(picture: Picture) -> Tone:
    if picture.label != picture.predicted:
        return "wrong"
    return "proved" if picture.kind == 0 else "broken" if picture.kind == 1 else "unknown"


def _change(picture: Picture) -> NDArray[np.int16]:
    return picture.attacked.astype(np.int16) - picture.image.astype(np.int16)


def _card(run: RunFiles, picture: Picture, gain: int) -> Card:
    label, predicted, attacked = (
        class_name(run, number) for number in (picture.label, picture.predicted, picture.attacked_label)
    )
    name = f"example {picture.index}"
    image = Image(data_uri(picture.image), f"read as {predicted}", f"{name}: image of {label}, read as {predicted}")
    if _verdict(picture) == "wrong":
        return Card(f"{label} ({name})", [image])
    kept = f"attacked: {attacked}"
    if _verdict(picture) == "broken" and picture.attacked_label == picture.label:
        kept = "attacked: broken, but not by the image that was kept"
    broken = Image(data_uri(picture.attacked), kept, f"{name} under attack, read as {attacked}")
    change = data_uri((128 + gain * _change(picture)).clip(0, 255).astype(np.uint8))
    told = f"what the attack changed, {gain} times as strong"
    return Card(f"{label} ({name})", [image, broken, Image(change, f"change, {gain}\N{MULTIPLICATION SIGN}", told)])


def data_uri(image: NDArray[np.uint8]) -> str:
    """[C, H, W] bytes as a PNG for the page; other than three channels are shown as their mean, grey."""
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise AutodualError("images need Pillow, which is not installed: pip install 'autodual[cli]'") from None
    shown = image.transpose(1, 2, 0) if len(image) == 3 else image.mean(axis=0).round().astype(np.uint8)
    stream = io.BytesIO()
    Pillow.fromarray(np.ascontiguousarray(shown)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
