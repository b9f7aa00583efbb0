"""What is on this machine, and whether it is what was published."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autodual.train.data.archives import LIMIT, unzipped
from autodual.train.data.known import KNOWN, DataFile, KnownData, known
from autodual.train.data.places import data_folder, find_file
from autodual.train.data.store import SourceError, pieces


class FileState(enum.Enum):
    """What was found of a file, and what to do."""

    RIGHT = "as published"
    MISSING = "missing: run `autodual data fetch`"
    WRONG_SIZE = "wrong size: remove it and run `autodual data fetch`"
    WRONG_CONTENTS = "wrong contents: remove it and run `autodual data fetch`"
    UNREADABLE = "cannot be read: check its permissions, or remove it and run `autodual data fetch`"


@dataclass(frozen=True)
class FileCheck:
    """One file of a data set: what was expected, what was found (of the contents, if it is compressed)."""

    name: str
    state: FileState
    path: Path | None
    expected_size: int
    expected_sha256: str
    size: int | None = None
    sha256: str | None = None

    @property
    def ok(self) -> bool:
        return self.state is FileState.RIGHT


@dataclass(frozen=True)
class CatalogueEntry:
    """One known data set, and what is there of it."""

    data: KnownData
    folder: Path | None
    """Where its files belong; None for the one that is shipped."""
    present: bool
    """Whether all files are there, by their names and nothing else; `verify` reads them."""


def verify(name: str, folder: Path | str | None = None) -> tuple[FileCheck, ...]:
    """Looks at size and SHA-256 of every file of a known data set; none for the one that is shipped."""
    data = known(name)
    return tuple(_check(file, find_file(data, file.name, folder)) for file in data.files)


def catalogue(folder: Path | str | None = None) -> tuple[CatalogueEntry, ...]:
    """The data sets that are known by name, with what is there of them."""
    return tuple(
        CatalogueEntry(
            data,
            data_folder(folder) / data.folder if data.files else None,
            all(find_file(data, file.name, folder) is not None for file in data.files),
        )
        for data in KNOWN.values()
    )


def _check(file: DataFile, path: Path | None) -> FileCheck:
    if path is None:
        return FileCheck(file.name, FileState.MISSING, None, file.size, file.sha256)
    try:
        size, sha256 = _measured(unzipped(path) if path.suffix == ".gz" else _pieces(path))
    except (SourceError, OSError):
        return FileCheck(file.name, FileState.UNREADABLE, path, file.size, file.sha256)
    state = FileState.RIGHT if sha256 == file.sha256 else FileState.WRONG_CONTENTS
    if size != file.size:
        state = FileState.WRONG_SIZE
    return FileCheck(file.name, state, path, file.size, file.sha256, size, sha256)


def _measured(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Size and SHA-256; of what is larger than any of our files, no more than the beginning."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        size += len(chunk)
        digest.update(chunk)
        if size > LIMIT:
            break
    return size, digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from pieces(file.read)
