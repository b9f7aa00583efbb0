"""Class by class: how much is proved, unknown, broken and wrong, and what a class is taken for."""

from __future__ import annotations

from collections import Counter

from autodual.report.blocks import Section, Table
from autodual.report.files import EVALUATION, RunFiles
from autodual.report.sections import absence, section
from autodual.report.values import DASH, Record, count, flags, integers, percent
from autodual.report.verdicts import as_run, verdicts

COLUMNS = {"proved": "Certified accuracy", "unknown": "Unknown", "broken": "Broken", "wrong": "Wrong"}
AS_RUN = "Certified as run"
TAKEN_FOR = "Most often taken for"


@section(place=50, first_stage=True)
def classes(run: RunFiles) -> Section:
    record = run.evaluation
    labels, predicted = integers(record, "labels"), integers(record, "predicted")
    if not labels or not predicted or len(labels) != len(predicted):
        return Section("classes", "Classes", [absence(run, EVALUATION, "No table of classes to show.")])
    columns = _columns(record, labels, predicted)
    rows = []
    for label in sorted(set(labels)):
        members = [index for index, other in enumerate(labels) if other == label]
        mistaken = Counter(predicted[index] for index in members if predicted[index] != label)
        shares = [percent(sum(column[index] for index in members) / len(members)) for column in columns.values()]
        rows.append([class_name(record, label), count(len(members)), *shares, _confusion(record, mistaken)])
    shares = [percent(sum(column) / len(column)) for column in columns.values()]
    caption = "Taken for: the most frequent wrong answer without any attack, and how often."
    if set(COLUMNS.values()) <= set(columns):
        caption = f"Certified, unknown, broken by the attack and wrong without it add up to 100 %. {caption}"
    if AS_RUN in columns:
        caption = f"{caption} Certified: in real numbers; as run: {as_run(record)}."
    table = Table(
        ("Class", "Examples", *columns, TAKEN_FOR),
        rows,
        frozenset({"Class", TAKEN_FOR}),
        ["All", count(len(labels)), *shares, ""],
        caption,
    )
    return Section("classes", "Classes", [table])


def _columns(record: Record, labels: list[int], predicted: list[int]) -> dict[str, list[bool]]:
    """By heading: whether each example counts there. A column for which the record has no list is left out."""
    found = verdicts(record)
    if len(found) == len(labels):
        columns = {heading: [tone == own for tone in found] for own, heading in COLUMNS.items()}
    else:
        columns = {COLUMNS["wrong"]: [label != answer for label, answer in zip(labels, predicted, strict=True)]}
    runs = flags(record, "certified_as_run")
    if runs is not None and len(runs) == len(labels):
        columns[AS_RUN] = runs
    return columns


def class_name(record: Record, label: int | None) -> str:
    """The class's name, or its number where there is no name."""
    if label is None:
        return DASH
    names = record.get("classes")
    return str(names[label]) if isinstance(names, list) and 0 <= label < len(names) else str(label)


def _confusion(record: Record, mistaken: Counter[int]) -> str:
    if not mistaken:
        return DASH
    answer, times = min(mistaken.items(), key=lambda item: (-item[1], item[0]))
    return f"{class_name(record, answer)} ({count(times)}\N{MULTIPLICATION SIGN})"
