"""Tables: CSV files, with a header or without, whose label column is named; and how a table is split into two parts."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.data.examples import ArrayData
from autodual.data.known import expanded, is_file, reading

TABLE_SUFFIXES = (".csv", ".tsv")
MISSING = frozenset(["", "na", "n/a", "nan", "null", "none", "?", "-"])
"""What stands for a value that is not there, in small letters."""
MOST_CLASSES = 1000
ADVICE = "fill it in, or remove the line"


@dataclass(frozen=True)
class TableOptions:
    """What a name or path does not say about a table."""

    label_column: str | None = None
    """The name of the column that holds the labels, or its number: 1 for the first, -1 for the last."""
    test: str | None = None
    """A second file, to test on; a part of the first when None."""
    seed: int = 0
    """Draws that part."""


@dataclass(frozen=True)
class TableRows:
    """A file as it was read."""

    path: Path
    features: tuple[str, ...]
    values: np.ndarray
    """[N, F], float64."""
    labels: list[str]
    lines: list[int]
    """Where each row ends in the file."""
    titled: bool
    """Whether the first line names the columns."""


def load_table(
    path: Path | str, label_column: str | int, test: Path | str | None = None, *, seed: int = 0
) -> tuple[ArrayData, ArrayData]:
    """Read a CSV file as two data sets, one to train on and one to test on.

    Args:
        path: A CSV file, separated by commas, semicolons or tabs, with a header or without. All columns but one are numbers.
        label_column: The column with the labels, whatever they are: its name, or its number, 1 for the first and -1 for the last.
        test: A second file with the same columns, to test on. Without it, a fifth of each class is drawn from the first.
        seed: Draws that fifth, the same on every machine.

    Returns:
        What to train on, and what to test on; classes are numbered in the order of their names.

    Raises:
        ArgumentError: Something is missing, no number, or does not fit; the message names the line and the column.

    Examples:
        >>> import autodual as ad
        >>> train, test = ad.load_table("patients.csv", "outcome")  # doctest: +SKIP
        >>> train.features, train.classes  # doctest: +SKIP
        (('age', 'weight'), ('healthy', 'ill'))
    """
    options = TableOptions(str(label_column), None if test is None else str(test), seed)
    first, second = (load_csv(Path(path), split, options) for split in ("train", "test"))
    return first, second


def load_csv(path: Path, split: str, options: TableOptions) -> ArrayData:
    """One part of a table."""
    rows = read_rows(expanded(path), options.label_column)
    classes, number = _classes(rows)
    data = _numbered(rows, classes, number)
    if options.test is None:
        return data.select(fifth_of_each(data.labels, split, options.seed, str(path), classes))
    if split == "train":
        return data
    other = read_rows(expanded(options.test), options.label_column)
    if other.features != rows.features:
        differ = [
            name for name in (*rows.features, *other.features) if (name in rows.features) != (name in other.features)
        ]
        told = f"only one has the column {differ[0]!r}" if differ else "they stand in another order"
        raise ArgumentError(f"{other.path}: has other columns than {rows.path}: {told}")
    return _numbered(other, classes, number)


def _numbered(rows: TableRows, classes: tuple[str, ...], number: dict[str, int]) -> ArrayData:
    for label, line in zip(rows.labels, rows.lines, strict=True):
        if label not in number:
            raise ArgumentError(f"{rows.path}: line {line}: the label {label!r} does not occur in the data to train on")
    labels = torch.tensor([number[label] for label in rows.labels])
    return ArrayData(torch.from_numpy(rows.values), labels, classes, str(rows.path), rows.features)


def fifth_of_each(labels: Tensor, split: str, seed: int, where: str, classes: Sequence[str]) -> Tensor:
    """Positions of the examples to test on, a fifth of each class, or of those to train on: the same on every machine."""
    drawn, chosen = np.random.RandomState(seed), list[np.ndarray]()
    for number, name in enumerate(classes):
        members = np.flatnonzero(labels.numpy() == number)
        if len(members) == 1:
            raise ArgumentError(
                f"{where}: 1 example has the label {name!r}, but one to train and one to test on are needed; add some, "
                f"or remove the class"
            )
        chosen.append(drawn.permutation(members)[: -(-len(members) // 5)])
    test = np.sort(np.concatenate(chosen))
    return torch.from_numpy(test if split == "test" else np.setdiff1d(np.arange(len(labels)), test))


def _classes(rows: TableRows) -> tuple[tuple[str, ...], dict[str, int]]:
    """Names of the classes, in the order of their numbers if all are whole numbers, else of their letters; and each label's place."""
    counts = Counter(rows.labels)
    if len(counts) < 2:
        raise ArgumentError(
            f"{rows.path}: all {len(rows.labels)} rows have the label {rows.labels[0]!r}, but a network chooses between at least two "
            f"classes; add rows of another, or name another label column"
        )
    if len(counts) > MOST_CLASSES or (len(counts) > 20 and 2 * len(counts) > len(rows.labels)):
        raise ArgumentError(
            f"{rows.path}: the label column has {len(counts)} different values in {len(rows.labels)} rows, so it seems to hold "
            f"measurements, not classes; name another one"
        )
    if not rows.titled and [n for label, n in counts.items() if n == 1] == [1] and counts[rows.labels[0]] == 1:
        raise ArgumentError(
            f"{rows.path}: line {rows.lines[0]} may hold the names of the columns, or the only row with the label {rows.labels[0]!r}; "
            f"name the label column by its name, or remove the line"
        )
    numbers: dict[float, str] = {}
    for label in counts:
        value = int(label) if WHOLE.fullmatch(label) else _number(label)
        other = label if value is None else numbers.setdefault(value, label)
        if other != label:
            raise ArgumentError(
                f"{rows.path}: the labels {other!r} and {label!r} are one number, but would be two classes; write it in one way"
            )
    whole = len(numbers) == len(counts) and all(isinstance(value, int) for value in numbers)
    ordered = tuple(numbers[value] for value in sorted(numbers)) if whole else tuple(sorted(counts))
    return ordered, {label: number for number, label in enumerate(ordered)}


def read_rows(path: Path, label_column: str | None) -> TableRows:
    """The rows of a CSV file; refuses what is missing or no number, with its line."""
    if not is_file(path):
        raise ArgumentError(f"{path}: there is no such file; check the path")
    with reading(path):
        content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ArgumentError(f"{path}: line {line} is not UTF-8 text; save the table as CSV in UTF-8") from None
    lines = _split(path, text)
    first = next(lines, None)
    if first is None:
        raise ArgumentError(f"{path}: is empty")
    header, cells = first
    place = _label_place(path, cells, label_column)
    titled = any(_number(cell) is None for i, cell in enumerate(cells) if i != place) or (
        label_column is not None and cells[place] == label_column
    )
    if titled and any(cell.lower() in MISSING for i, cell in enumerate(cells) if i != place):
        bad = next(i for i, cell in enumerate(cells) if i != place and cell.lower() in MISSING)
        raise ArgumentError(
            f"{path}: line {header}: column {bad + 1} has no name; name every column, or give no names at all "
            f"(pandas writes such a column unless it is told to_csv(..., index=False))"
        )
    names = cells if titled else [str(i + 1) for i in range(len(cells))]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ArgumentError(f"{path}: line {header}: two columns are called {twice[0]!r}; give each a name of its own")
    if len(names) < 2:
        raise ArgumentError(f"{path}: line {header} has one column, but at least a feature and a label are needed")
    values, labels, places = list[list[float]](), list[str](), list[int]()
    for number, row in lines if titled else ((header, cells), *lines):
        if len(row) != len(names):
            raise ArgumentError(
                f"{path}: line {number} has {len(row)} values, but line {header} has {len(names)}; every row needs one for each column"
            )
        values.append([_value(path, number, names[i], cell) for i, cell in enumerate(row) if i != place])
        if row[place].lower() in MISSING:
            raise ArgumentError(f"{path}: line {number}, column {names[place]!r}: the label is missing; {ADVICE}")
        labels.append(row[place])
        places.append(number)
    if not labels:
        raise ArgumentError(f"{path}: has a header and no rows")
    features = tuple(name for i, name in enumerate(names) if i != place)
    return TableRows(path, features, np.array(values, dtype=np.float64), labels, places, titled)


def _split(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the numbers of their lines, without empty ones. What separates values is what the first line has most of."""
    start = next((line for line in islice(io.StringIO(text, newline=""), 1000) if line.strip()), "")
    separator = max(";\t,", key=start.count)  # a comma may also be part of a number
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ArgumentError(f"{path}: line {reader.line_num}: {error}; save the table as CSV anew") from None


def _label_place(path: Path, cells: list[str], label_column: str | None) -> int:
    shown = ", ".join(cells[:20]) + (", ..." if len(cells) > 20 else "")
    if label_column is None:
        raise ArgumentError(
            f"{path}: which column holds the labels is not said; name it with --label-column (label_column in Python), out of: {shown}"
        )
    if label_column in cells:
        return cells.index(label_column)
    try:
        place = int(label_column)
    except ValueError:
        raise ArgumentError(
            f"{path}: has no column {label_column!r} to take labels from; its first line is: {shown}"
        ) from None
    if not 1 <= abs(place) <= len(cells):
        raise ArgumentError(
            f"{path}: has no column {place} to take labels from; it has {len(cells)}, of which 1 is the first"
        )
    return place - 1 if place > 0 else len(cells) + place


WHOLE = re.compile(r"[-+]?\d{1,4000}", re.ASCII)  # Python reads no more than 4300 digits
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf(inity)?|nan)", re.ASCII | re.IGNORECASE)


def _number(cell: str) -> float | None:
    """A decimal number as other programs write it; Python alone would read 1_0 as ten."""
    return float(cell) if NUMBER.fullmatch(cell) else None


def _value(path: Path, line: int, column: str, cell: str) -> float:
    if cell.lower() in MISSING:
        raise ArgumentError(f"{path}: line {line}, column {column!r}: the value is missing ({cell!r}); {ADVICE}")
    number = _number(cell)
    if number is None:
        shown = cell if len(cell) <= 40 else f"{cell[:40]}..."
        if _number(cell.replace(",", ".")) is not None:
            raise ArgumentError(
                f"{path}: line {line}, column {column!r}: {shown!r} has a comma, but numbers need a decimal point; save the table "
                f"with decimal points, and without separators of thousands"
            )
        raise ArgumentError(
            f"{path}: line {line}, column {column!r}: {shown!r} is no number; features are numbers, so give each kind a column of 0 "
            f"and 1, or remove the column"
        )
    if not math.isfinite(number) or abs(number) > torch.finfo(torch.float32).max:
        raise ArgumentError(
            f"{path}: line {line}, column {column!r}: {cell[:40]} is too large to compute with; {ADVICE}"
        )
    return number
