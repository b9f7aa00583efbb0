"""A run folder as it is found: every file may be missing or damaged, and then a sentence says so."""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autodual._errors import ArgumentError, AutodualError
from autodual._files import RECORD_LIMIT, parse_json, read_content
from autodual.report.values import Record

# gallery.npz: images, the same images attacked, and what became of them. Nothing is ever unpickled.

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
    """0 certified, 1 broken by the attack, 2 neither."""
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
class Run:
    """What a run folder holds; a record that could not be read is empty, and `problems` says why."""

    name: str
    config: str = ""
    environment: Record = field(default_factory=dict)
    metrics: tuple[Record, ...] = ()
    evaluation: Record = field(default_factory=dict)
    cascade: Record = field(default_factory=dict)
    gallery: Gallery | None = None
    failure: Record = field(default_factory=dict)
    """Why it ended before it was finished; empty of a run that was finished, goes on, or was stopped."""
    problems: dict[str, str] = field(default_factory=dict)
    """File name -> one sentence."""

    def damaged(self) -> list[str]:
        """Sentences about files that are there but not whole."""
        return [sentence for file, sentence in self.problems.items() if self.has(file)]

    def has(self, file: str) -> bool:
        """Whether the file is there, whole or not."""
        return not self.problems.get(file, "").endswith("is missing.")

    def measured(self) -> bool:
        """Whether there is anything to show, or something that is damaged."""
        return any(self.has(file) for file in (METRICS, EVALUATION, GALLERY, CASCADE))

    def is_cascade(self) -> bool:
        """Whether there are several stages; then evaluation and gallery are of the first one alone."""
        return self.has(CASCADE) or re.search(r"^cascade: *(?!1 *$)\d+ *$", self.config, re.MULTILINE) is not None

    def is_single(self) -> bool:
        """Whether this is known to be a single network; an old config does not say."""
        return not self.has(CASCADE) and re.search(r"^cascade: *1 *$", self.config, re.MULTILINE) is not None


def read_run(folder: Path) -> Run:
    """Read whatever the folder holds. Refused: a path that is no folder, or holds no file of a run."""
    if not folder.is_dir():
        raise ArgumentError(f"runs: {folder} is not a folder; give the folder that `autodual train --out` wrote")
    if not any((folder / file).is_file() for file in FILES):
        raise ArgumentError(f"runs: {folder} holds none of {', '.join(FILES)}; it is not a run folder")
    problems: dict[str, str] = {}
    return Run(
        name=folder.resolve().name or str(folder),
        config=_read_text(folder / CONFIG, problems),
        environment=_read_record(folder / ENVIRONMENT, problems),
        metrics=_read_lines(folder / METRICS, problems),
        evaluation=_read_record(folder / EVALUATION, problems),
        cascade=_read_record(folder / CASCADE, problems),
        gallery=_read_pictures(folder / GALLERY, problems),
        failure=_read_record(folder / FAILURE, {}),
        problems=problems,
    )


def _read_text(path: Path, problems: dict[str, str]) -> str:
    if not path.is_file():
        problems[path.name] = f"{path.name} is missing."
        return ""
    try:
        return read_content(path, LIMIT).decode("utf-8", errors="replace")
    except ArgumentError as error:
        problems[path.name] = f"{path.name} could not be read ({str(error).removeprefix(f'{path}: ')})."
        return ""


def _read_record(path: Path, problems: dict[str, str]) -> Record:
    content = _read_text(path, problems)
    if path.name in problems:
        return {}
    record = _parse(content)
    if record is None:
        problems[path.name] = f"{path.name} is damaged: it is not one JSON object."
    return record or {}


def _read_lines(path: Path, problems: dict[str, str]) -> tuple[Record, ...]:
    parsed = [_parse(line) for line in _read_text(path, problems).split("\n") if line.strip()]
    damaged = parsed.count(None)
    if damaged:
        lines = "1 line was" if damaged == 1 else f"{damaged} lines were"
        problems[path.name] = f"{path.name} is damaged: {lines} not a JSON object and left out."
    return tuple(record for record in parsed if record is not None)


def _read_pictures(path: Path, problems: dict[str, str]) -> Gallery | None:
    if not path.is_file():
        problems[path.name] = f"{path.name} is missing."
        return None
    try:
        return read_gallery(path)
    except GalleryError as error:
        problems[path.name] = f"{path.name} is damaged: {error}."
        return None


def _parse(content: str) -> dict[str, object] | None:
    try:
        record = parse_json(content)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
