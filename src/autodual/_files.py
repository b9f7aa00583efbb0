"""Files that are whole or not there, after a power cut too: written beside their place, then moved onto it. Weights: safetensors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from torch import Tensor

from autodual._errors import ArgumentError


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, record: Any) -> None:
    write_text(path, to_json(record))


def to_json(record: Any) -> str:
    """As JSON that every reader understands: without NaN, which JSON does not know."""
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


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
        for written in temporary.iterdir() if temporary.is_dir() else (temporary,):
            _sync(written)
        _move(temporary, path, holder / "before")
    except OSError as error:
        raise ArgumentError(f"{path}: not written, nothing is lost: {error.strerror or error}") from None
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _move(source: Path, target: Path, aside: Path) -> None:
    """Onto a file or folder that may exist, which is put back if that fails. Names are synced, too, where the system can."""
    if source.is_dir() and target.exists():
        os.replace(target, aside)
    try:
        os.replace(source, target)
    except OSError:
        if aside.exists():
            os.replace(aside, target)
        raise
    for folder in (target, target.parent) if target.is_dir() else (target.parent,):
        with contextlib.suppress(OSError):
            _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int = os.O_RDWR) -> None:
    """Onto the disk; of a folder, the names in it."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def claim(handle: IO[str], refusal: str) -> None:
    """The file for this process alone, until it is closed; a second process is refused with these words."""
    try:
        import fcntl
    except ImportError:  # Windows: two processes on one file are the user's own affair there
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ArgumentError(refusal) from None


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def encode_tensors(tensors: dict[str, Tensor]) -> bytes:
    """As a safetensors file holds them. They must lie in the CPU's memory, each in a place of its own."""
    return bytes(_safetensors().save(tensors))


def decode_tensors(content: bytes, source: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; `source` is its name in messages."""
    from_bytes = _safetensors().load
    from safetensors import SafetensorError

    try:
        return dict(from_bytes(content))
    except (ValueError, KeyError, SafetensorError) as error:
        raise ArgumentError(f"{source}: not a readable safetensors file: {error}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from None
    return decode_tensors(content, path)


def _safetensors() -> ModuleType:
    """The library, imported when it is needed."""
    try:
        import safetensors.torch
    except ImportError:
        raise ArgumentError(
            "weights are kept as safetensors, which is not installed: pip install 'autodual[cli]'"
        ) from None
    return safetensors.torch
