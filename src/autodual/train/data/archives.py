"""Reading compressed files: only members that are asked for by name, and never to a path that an archive names."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from autodual.train.data.store import SourceError, pieces

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
