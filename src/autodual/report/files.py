"""A run folder as it is found: every file may be missing or damaged, and then a sentence says so."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodual._errors import ArgumentError, AutodualError
from autodual._files import RECORD_LIMIT, parse_json, read_content
from autodual.report.values import Record, mapping, whole
from autodual.runs.folder import read_yaml

# gallery.npz: images, what the attack makes of them, and what becomes of them. Nothing is ever unpickled.

Bytes = NDArray[np.uint8]


class GalleryError(AutodualError, ValueError):
    """The file is not a gallery; the message is a clause that says why."""


@dataclass(frozen=True)
class Picture:
    """One image of the gallery; numbers that the file does not hold are None."""

    image: Bytes
    """[C, H, W]"""
    attacked: Bytes
    kind: int
    """0 certified, 1 broken by the attack or wrong without it, 2 neither."""
    label: int | None
    predicted: int | None
    attacked_label: int | None
    index: int | None


Gallery = tuple[Picture, ...]


def read_gallery(path: Path) -> Gallery:
    try:
        with path.open("rb") as stream:  # np.load leaves a damaged file open
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise GalleryError("it is not an npz archive")
            arrays = {key: np.asarray(archive[key]) for key in archive.files}
    except (
        ValueError,
        OSError,
        EOFError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        MemoryError,
    ) as error:
        raise (
            error if isinstance(error, GalleryError) else GalleryError("it cannot be read as an npz archive")
        ) from None
    images, attacked = _images(arrays, "images"), _images(arrays, "attacked")
    if images.shape != attacked.shape:
        raise GalleryError("images and attacked differ in shape")
    kinds = _numbers(arrays, "kind", len(images))
    columns = [_numbers(arrays, key, len(images)) for key in ("label", "predicted", "attacked_label", "index")]
    if None in kinds:
        raise GalleryError("kind is missing or has another length than images")
    return tuple(
        Picture(image, attack, kind or 0, *numbers)
        for image, attack, kind, *numbers in zip(images, attacked, kinds, *columns, strict=True)
    )


def _images(arrays: dict[str, NDArray[np.generic]], key: str) -> Bytes:
    array = arrays.get(key)
    if array is None or array.dtype != np.uint8 or array.ndim != 4 or 0 in array.shape[1:]:
        raise GalleryError(f"{key} is not a uint8 array [M, C, H, W]")
    return array.astype(np.uint8)


def _numbers(arrays: dict[str, NDArray[np.generic]], key: str, length: int) -> list[int | None]:
    array = arrays.get(key)
    if array is None or array.shape != (length,) or array.dtype.kind not in "iub":
        return [None] * length
    return [int(value) for value in array.tolist()]


CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
EVALUATION = "evaluation.json"
GALLERY = "gallery.npz"
CASCADE = "cascade.json"
FAILURE = "failure.json"
LIMIT = 4 * RECORD_LIMIT
FILES = (CONFIG, ENVIRONMENT, METRICS, EVALUATION, GALLERY, CASCADE)


@dataclass(frozen=True)
class Problem:
    """Why a file could not be used, as one sentence."""

    sentence: str
    missing: bool = False
    """Whether the file is not there at all; otherwise it is damaged."""


@dataclass(frozen=True)
class RunFiles:
    """What a run folder holds; a record that could not be read is empty, and `problems` says why."""

    name: str
    config: str = ""
    """The text of the config, to be shown as it is."""
    settings: Record = field(default_factory=dict)
    """What the config says; empty where it is not YAML."""
    environment: Record = field(default_factory=dict)
    metrics: tuple[Record, ...] = ()
    evaluation: Record = field(default_factory=dict)
    cascade: Record = field(default_factory=dict)
    gallery: Gallery | None = None
    failure: Record = field(default_factory=dict)
    """Why the run ended early; empty for a run that has finished, goes on, or was stopped."""
    problems: dict[str, Problem] = field(default_factory=dict)
    """By file name."""

    def damaged(self) -> list[str]:
        """Sentences about files that are there but not whole."""
        return [problem.sentence for problem in self.problems.values() if not problem.missing]

    def has(self, file: str) -> bool:
        """Whether the file is there, whole or not."""
        return file not in self.problems or not self.problems[file].missing

    def measured(self) -> bool:
        """Whether there is anything to show, or something that is damaged."""
        return any(self.has(file) for file in (METRICS, EVALUATION, GALLERY, CASCADE))

    def is_cascade(self) -> bool:
        """Whether there are several stages; then evaluation and gallery describe the first one alone."""
        return self.has(CASCADE) or (whole(self.settings, "cascade") or 1) > 1

    def is_sample(self, examples: int | None) -> bool:
        """Whether so many test examples are only a part of those that there are."""
        available = whole(mapping(self.environment, "data") or {}, "test")
        limited = examples == whole(self.settings, "limit_test")
        return examples is not None and (limited or (available is not None and examples < available))

    def is_single(self) -> bool:
        """Whether this is known to be a single network; an old config does not say."""
        return not self.has(CASCADE) and whole(self.settings, "cascade") == 1


def read_run(folder: Path) -> RunFiles:
    """Read whatever the folder holds. Refused: a path that is no folder, or holds no file of a run."""
    if not folder.is_dir():
        raise ArgumentError(f"runs: {folder} is not a folder; give the folder that `autodual train --out` wrote")
    if not any((folder / file).is_file() for file in FILES):
        raise ArgumentError(f"runs: {folder} holds none of {', '.join(FILES)}; it is not a run folder")
    problems: dict[str, Problem] = {}
    return RunFiles(
        name=folder.resolve().name or str(folder),
        config=_read_text(folder / CONFIG, problems),
        settings=_read_settings(folder / CONFIG),
        environment=_read_record(folder / ENVIRONMENT, problems),
        metrics=_read_lines(folder / METRICS, problems),
        evaluation=_read_record(folder / EVALUATION, problems),
        cascade=_read_record(folder / CASCADE, problems),
        gallery=_read_pictures(folder / GALLERY, problems),
        failure=_read_record(folder / FAILURE, {}),
        problems=problems,
    )


def _read_text(path: Path, problems: dict[str, Problem]) -> str:
    if not path.is_file():
        problems[path.name] = Problem(f"{path.name} is missing.", missing=True)
        return ""
    try:
        return read_content(path, LIMIT).decode("utf-8", errors="replace")
    except ArgumentError as error:
        reason = str(error).removeprefix(f"{path}: ")
        problems[path.name] = Problem(f"{path.name} could not be read ({reason}).")
        return ""


def _read_settings(path: Path) -> Record:
    """What the config says; nothing where it cannot be read as YAML, since its text is shown all the same."""
    try:
        values = read_yaml(path)
    except ArgumentError:
        return {}
    return values if isinstance(values, dict) else {}


def _read_record(path: Path, problems: dict[str, Problem]) -> Record:
    content = _read_text(path, problems)
    if path.name in problems:
        return {}
    record = _parse(content)
    if record is None:
        problems[path.name] = Problem(f"{path.name} is damaged: it is not one JSON object.")
    return record or {}


def _read_lines(path: Path, problems: dict[str, Problem]) -> tuple[Record, ...]:
    parsed = [_parse(line) for line in _read_text(path, problems).split("\n") if line.strip()]
    damaged = parsed.count(None)
    if damaged:
        lines = "1 line was" if damaged == 1 else f"{damaged} lines were"
        problems[path.name] = Problem(f"{path.name} is damaged: {lines} not a JSON object and left out.")
    return tuple(record for record in parsed if record is not None)


def _read_pictures(path: Path, problems: dict[str, Problem]) -> Gallery | None:
    if not path.is_file():
        problems[path.name] = Problem(f"{path.name} is missing.", missing=True)
        return None
    try:
        return read_gallery(path)
    except GalleryError as error:
        problems[path.name] = Problem(f"{path.name} is damaged: {error}.")
        return None


def _parse(content: str) -> dict[str, object] | None:
    try:
        record = parse_json(content)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
