"""A run folder as it is found: every file may be missing or damaged, and then a sentence says so."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autodual._errors import ArgumentError
from autodual._files import RECORD_LIMIT, parse_json, read_content
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.records import (
    CascadeSummary,
    Environment,
    Evaluation,
    Failure,
    MetricsLine,
    parse,
    plain,
    read_if_sound,
)
from autodual.runs.row_records import CascadeFigures, RowRecord

CONFIG, ENVIRONMENT, METRICS = "config.yaml", "environment.json", "metrics.jsonl"
EVALUATION, GALLERY, CASCADE = "evaluation.json", "gallery.npz", "cascade.json"
FILES = (CONFIG, ENVIRONMENT, METRICS, EVALUATION, GALLERY, CASCADE)
LIMIT = 4 * RECORD_LIMIT
R = TypeVar("R")


@dataclass(frozen=True)
class FileProblem:
    """Why a file could not be used, as one sentence."""

    sentence: str
    missing: bool = False
    """Whether the file is not there at all; otherwise it is damaged."""


@dataclass(frozen=True)
class Picture:
    """One image of the gallery, and what the attack made of it."""

    image: NDArray[np.uint8]
    """[C, H, W]"""
    attacked: NDArray[np.uint8]
    kind: int
    """0 certified, 1 broken by the attack or wrong without it, 2 neither."""
    label: int
    predicted: int
    attacked_label: int
    index: int


@dataclass(frozen=True)
class RunFiles:
    """What a run folder holds. A record that is missing or damaged is None, and `problems` says why."""

    name: str
    config: str
    """The text of the config, to be shown as it is."""
    settings: TrainConfig | None
    """What the config says; None where that cannot be read, too."""
    environment: Environment | None
    metrics: tuple[MetricsLine, ...]
    judged: Evaluation | RowRecord | None
    """What evaluation.json holds."""
    cascade: CascadeSummary | None
    gallery: tuple[Picture, ...]
    failure: Failure | None
    """Why the run ended early; None for a run that has finished, goes on, or was stopped."""
    problems: dict[str, FileProblem]
    """By file name."""

    def damaged(self) -> list[str]:
        """Sentences about files that are there but not whole."""
        return [problem.sentence for problem in self.problems.values() if not problem.missing]

    def has(self, file: str) -> bool:
        """Whether the file is there, whole or not."""
        return file not in self.problems or not self.problems[file].missing

    @property
    def evaluation(self) -> Evaluation | None:
        """What a run is worth, example by example."""
        return self.judged if isinstance(self.judged, Evaluation) else None

    @property
    def row(self) -> RowRecord | None:
        """What `autodual reproduce` keeps of a row instead; verdicts and margins by example are in another file."""
        return self.judged if isinstance(self.judged, RowRecord) else None

    def measured(self) -> bool:
        """Whether there is anything to show, or something that is damaged."""
        return any(self.has(file) for file in (METRICS, EVALUATION, GALLERY, CASCADE))

    def is_cascade(self) -> bool:
        """Whether there are several stages; then evaluation and gallery describe the first one alone."""
        return self.has(CASCADE) or (self.settings is not None and self.settings.cascade > 1)

    def is_sample(self, examples: int) -> bool:
        """Whether so many test examples are only a part of those that there are."""
        limited = self.settings is not None and self.settings.limit_test == examples
        return limited or (self.environment is not None and examples < self.environment.data.test)


def read_run(folder: Path) -> RunFiles:
    """Reads whatever the folder holds. ArgumentError if it is no folder, or holds no file of a run."""
    if not folder.is_dir():
        raise ArgumentError(f"runs: {folder} is not a folder; give the folder that `autodual train --out` wrote")
    if not any((folder / file).is_file() for file in FILES):
        raise ArgumentError(f"runs: {folder} holds none of {', '.join(FILES)}; it is not a run folder")
    run, problems = Run(folder), dict[str, FileProblem]()

    def attempt(file: str, reader: Callable[[Path], R], otherwise: R) -> R:
        """What the file holds, or else a note of what is wrong with it. ValueError: a clause that says what."""
        if not (folder / file).is_file():
            problems[file] = FileProblem(f"{file} is missing.", missing=True)
            return otherwise
        try:
            return reader(folder / file)
        except ArgumentError as error:
            problems[file] = FileProblem(f"{file} could not be read ({str(error).removeprefix(f'{folder / file}: ')}).")
        except ValueError as error:
            problems[file] = FileProblem(f"{file} is damaged: it {error}.")
        return otherwise

    config = attempt(CONFIG, lambda path: read_content(path, LIMIT).decode(errors="replace"), "")
    settings = None
    with contextlib.suppress(ArgumentError):  # the text of a damaged config is shown all the same
        settings = run.config()
    environment = attempt(ENVIRONMENT, lambda path: _record(Environment, path), None)
    lines = attempt(METRICS, lambda path: run.metrics(), list[MetricsLine | None]())
    metrics = tuple(line for line in lines if line is not None and _impossible(plain(line)) is None)
    damaged = len(lines) - len(metrics)
    if damaged:
        words = "1 line was no record" if damaged == 1 else f"{damaged} lines were no records"
        problems[METRICS] = FileProblem(f"{METRICS} is damaged: {words} and left out.")
    judged = attempt(EVALUATION, lambda path: _evaluation(path), None)
    of_row = _cascade_of_row(judged) if isinstance(judged, RowRecord) else None
    cascade = of_row or attempt(CASCADE, lambda path: _record(CascadeSummary, path), None)
    gallery = attempt(GALLERY, _read_gallery, tuple[Picture, ...]())
    failure = read_if_sound(Failure, run.failure_file)
    name = folder.resolve().name or str(folder)
    if isinstance(judged, RowRecord):
        name = f"{judged.row} ({judged.recipe})"  # folders of several recipes have one name
    return RunFiles(name, config, settings, environment, metrics, judged, cascade, gallery, failure, problems)


def _evaluation(path: Path) -> Evaluation | RowRecord:
    """The evaluation of a run, or of a row."""
    values = _object(path)
    return _sound(RowRecord, values) if "row" in values else _same_lengths(_sound(Evaluation, values))


def _cascade_of_row(row: RowRecord) -> CascadeSummary | None:
    """What a row says of its cascade; None for a single network."""
    figures = row.figures
    if not isinstance(figures, CascadeFigures):
        return None
    return CascadeSummary(
        kind=figures.kind, perturbation=row.perturbation, engine=figures.cascade_engine, examples=row.examples, stages=figures.stages,
        errors=figures.errors, no_wrong_certificate=figures.no_wrong_certificate, collapsed=figures.collapsed, attack=figures.attack,
    )  # fmt: skip


def _record(kind: type[R], path: Path) -> R:
    """The record that a file holds. ValueError: a clause that says what is wrong with it."""
    return _sound(kind, _object(path))


def _object(path: Path) -> dict[str, Any]:
    content = read_content(path, LIMIT)
    try:
        values = parse_json(content)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ValueError("is not one JSON object")
    return values


def _sound(kind: type[R], values: dict[str, Any]) -> R:
    found = parse(kind, values)
    wrong = _impossible(plain(found))
    if wrong is not None:
        raise ValueError(wrong)
    return found


def _impossible(values: dict[str, Any]) -> str | None:
    """A clause about a rate of error that is not between 0 and 1, in a record or in those that it holds."""
    for name, value in values.items():
        if "error" in name and isinstance(value, float) and not 0 <= value <= 1:
            return f"has {value!r} as {name}"
        for inner in value if isinstance(value, list | tuple) else [value]:
            wrong = _impossible(inner) if isinstance(inner, dict) else None
            if wrong is not None:
                return wrong
    return None


def _same_lengths(found: Evaluation) -> Evaluation:
    """Returns the evaluation. ValueError if its lists, which have one entry for each example, differ in length."""
    columns = ("labels", "predicted", "margins", "certified", "certified_as_run", "attacked", "attacked_as_run")
    for name in columns:
        column = getattr(found, name)
        if column is not None and len(column) != len(found.labels):
            raise ValueError(f"has {len(column)} entries in {name} and {len(found.labels)} in labels")
    if not found.labels or (found.curve and found.curve_examples < 1):
        raise ValueError("is about no examples")
    if len(found.radii) > len(found.labels):
        raise ValueError(f"has {len(found.radii)} entries in radii and {len(found.labels)} in labels")
    return found


# gallery.npz: images, what the attack makes of them, and what becomes of them. Nothing is ever unpickled.

NOT_NPZ = (
    ValueError, OSError, EOFError, KeyError, AttributeError, NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Whatever NumPy may raise about a file that is no archive of arrays."""


def _read_gallery(path: Path) -> tuple[Picture, ...]:
    try:
        with path.open("rb") as stream:  # np.load leaves a damaged file open
            archive = np.load(stream, allow_pickle=False)
            arrays = {key: np.asarray(archive[key]) for key in archive.files}
    except NOT_NPZ:
        raise ValueError("cannot be read as an npz archive") from None
    for key in ("images", "attacked"):
        array = arrays.get(key)
        if array is None or array.dtype != np.uint8 or array.ndim != 4 or 0 in array.shape[1:]:
            raise ValueError(f"has no uint8 array [M, C, H, W] as {key}")
    images, attacked = arrays["images"], arrays["attacked"]
    if images.shape != attacked.shape:
        raise ValueError("has images and attacked of different shapes")
    columns = []
    for key in ("kind", "label", "predicted", "attacked_label", "index"):
        array = arrays.get(key)
        if array is None or array.shape != images.shape[:1] or array.dtype.kind not in "iub":
            raise ValueError(f"has no whole number for each image as {key}")
        columns.append(map(int, array.tolist()))
    return tuple(Picture(*values) for values in zip(images, attacked, *columns, strict=True))
