"""Class by class: how many, how often wrong, how often without a proof, and what it is taken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autodual.report.absence import absence
from autodual.report.blocks import Section, Table
from autodual.report.files import EVALUATION, Run
from autodual.report.headline import as_run_of
from autodual.report.values import DASH, Record, count, flags, integers, percent

AS_RUN = "Robust error as run"
TAKEN_FOR = "Most often taken for"


def classes(run: Run) -> Section:
    labels, predicted = integers(run.evaluation, "labels"), integers(run.evaluation, "predicted")
    if not labels or not predicted or len(labels) != len(predicted):
        return Section("classes", "Classes", [absence(run, EVALUATION, "No table of classes to show.")])
    wrong = [label != answer for label, answer in zip(labels, predicted, strict=True)]
    columns = {"Error": wrong, "PGD error": _broken(run.evaluation, len(labels))}
    columns["Robust error"] = _column(run.evaluation, "certified", True, len(labels))
    as_run = _column(run.evaluation, "certified_as_run", True, len(labels))
    if as_run is not None:  # an older record does not say
        columns[AS_RUN] = as_run
    rows = []
    for label in sorted(set(labels)):
        members = [index for index, other in enumerate(labels) if other == label]
        mistaken = Counter(predicted[index] for index in members if wrong[index])
        rates = [_rate(column, members) for column in columns.values()]
        rows.append([class_name(run, label), count(len(members)), *rates, _confusion(run, mistaken)])
    everything = range(len(labels))
    total = ["All", count(len(labels)), *(_rate(column, everything) for column in columns.values()), ""]
    caption = "Taken for: the most frequent wrong answer without any attack, and how often."
    if as_run is not None:
        caption = f"Robust error: in real numbers; as run: {as_run_of(run.evaluation)}. {caption}"
    header = ("Class", "Examples", *columns, TAKEN_FOR)
    return Section("classes", "Classes", [Table(header, rows, frozenset({"Class", TAKEN_FOR}), total, caption)])


def _broken(record: Record, length: int) -> list[bool] | None:
    """What the attack breaks as the network runs, like the PGD error; an older record has one list only."""
    found = _column(record, "attacked_as_run", False, length)
    return _column(record, "attacked", False, length) if found is None else found


def class_name(run: Run, label: int | None) -> str:
    """The class's name, or its number where there is no name."""
    if label is None:
        return DASH
    names = run.evaluation.get("classes")
    return str(names[label]) if isinstance(names, list) and 0 <= label < len(names) else str(label)


def _column(record: Record, key: str, inverted: bool, length: int) -> list[bool] | None:
    column = flags(record, key)
    return [flag != inverted for flag in column] if column is not None and len(column) == length else None


def _rate(column: list[bool] | None, members: Sequence[int]) -> str:
    return percent(None if column is None else sum(column[index] for index in members) / len(members))


def _confusion(run: Run, mistaken: Counter[int]) -> str:
    if not mistaken:
        return DASH
    answer, times = min(mistaken.items(), key=lambda item: (-item[1], item[0]))
    return f"{class_name(run, answer)} ({times}\N{MULTIPLICATION SIGN})"
