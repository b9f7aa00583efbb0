"""Reading and writing files of data sets: written under another name, checked, and only then given their own."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

from autodual._errors import ArgumentError, AutodualError
from autodual.data.known import DataFile

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that are there, and the bytes there will be, if that is known."""

CHUNK = 1 << 20


class SourceError(AutodualError):
    """A source cannot give the files; another may. Never leaves `fetch`."""


def store(chunks: Iterable[bytes], file: DataFile, folder: Path) -> None:
    """Writes the file if the chunks are its contents; otherwise nothing remains."""
    part = folder / f"{file.name}.part"
    digest, size = hashlib.sha256(), 0
    try:
        with part.open("wb") as out:
            for chunk in chunks:
                size += len(chunk)
                if size > file.size:
                    break  # wrong, and who knows how much more of it there is
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if size != file.size:
            found = f"more than {file.size}" if size > file.size else str(size)
            raise SourceError(f"{file.name}: expected {file.size} bytes, found {found}")
        if digest.hexdigest() != file.sha256:
            raise SourceError(
                f"{file.name}: wrong checksum, expected SHA-256 {file.sha256}, found {digest.hexdigest()}"
            )
        os.replace(part, folder / file.name)
    finally:
        remove(part)


def pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """What read(size) gives, until it gives nothing."""
    while chunk := read(CHUNK):
        yield chunk


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
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


# Reading compressed files: only members that are asked for by name, and never to a path that an archive names.

LIMIT = 1 << 28  # bytes in a member: several times what any of ours has


def unzipped(path: Path) -> Iterator[bytes]:
    """The contents of a .gz file, piece by piece."""
    with _damage(path), gzip.open(path) as file:
        yield from pieces(file.read)


def members(path: Path, names: Collection[str]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and contents of the plain files in a .tar.gz that have these names; each is read before the next; all must be there."""
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
                yield member.name, _contents(path, file)
    if missing:
        raise SourceError(f"{path.name} lacks {', '.join(sorted(missing))}")


def _contents(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    with _damage(path):
        yield from pieces(file.read)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise SourceError(f"{path.name} cannot be unpacked ({error})") from error
