"""Files that are whole or not there: written beside their place, then moved onto it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autodual._errors import ArgumentError


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, record: Any) -> None:
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary place for a file or folder that becomes `path` at the end, or leaves no trace."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        holder = Path(tempfile.mkdtemp(prefix=".writing-", dir=path.parent))
    except OSError as error:
        raise ArgumentError(f"{path}: cannot write there: {error.strerror or error}") from None
    temporary = holder / path.name
    try:
        yield temporary
        _sync(temporary)
        if temporary.is_dir() and path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except OSError as error:
        raise ArgumentError(f"{path}: not written, nothing is lost: {error.strerror or error}") from None
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _sync(path: Path) -> None:
    for file in path.iterdir() if path.is_dir() else [path]:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
