"""Files are written under another name, checked, and only then given their own."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from autodual._errors import ArgumentError, AutodualError
from autodual.train.data.known import DataFile

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
