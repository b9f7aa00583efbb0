"""Reads and writes files. What is written is whole or not there, after a power cut too: it is moved to its place when it is complete.

What is read may be anything: a file of gigabytes, a pipe, a device, JSON a million levels deep. It is refused in one line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from autodual._errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

RECORD_LIMIT = 64 * 2**20
"""Bytes of a record; one about 100,000 examples has about 10 million."""
DEPTH_LIMIT = 32
"""Levels of a record; those that this package writes have 6 at most."""
HEADER_LIMIT = 100_000_000
"""Bytes of the head of a safetensors file, as its format has it."""


def read_content(path: Path, limit: int) -> bytes:
    """Reads a plain file of at most `limit` bytes. Nothing else is even opened, since a pipe may never answer."""
    try:
        check_plain(path)
        with path.open("rb") as stream:
            content = b"" if path.stat().st_size > limit else stream.read(limit + 1)
            size = max(len(content), path.stat().st_size)
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from None
    if size > limit:
        raise ArgumentError(f"{path}: is larger than {limit:,} bytes, so it is not what is looked for here")
    return content


@contextlib.contextmanager
def in_one_line(path: Path, words: str = "not written") -> Iterator[None]:
    """What the system says of a file that cannot be read or written becomes an ArgumentError that begins with its name."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{path}: {words}: {error.strerror or error}") from None


def append_lines(stream: IO[bytes], records: Iterable[Any]) -> None:
    """Adds a line of JSON for each record to a file, down to the disk."""
    stream.writelines(json.dumps(record, allow_nan=False).encode() + b"\n" for record in records)
    stream.flush()
    os.fsync(stream.fileno())


def check_plain(path: Path) -> None:
    """Refuses a folder, a pipe or a device. OSError if nothing is there, or if links lead nowhere."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise ArgumentError(f"{path}: is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file")


def read_json(path: Path) -> Any:
    """Reads a JSON file of any origin; ArgumentError if it cannot be read or is not JSON."""
    content = read_content(path, RECORD_LIMIT)
    try:
        return parse_json(content)
    except ValueError as error:
        raise ArgumentError(f"{path}: is not JSON: {error}") from None


def parse_json(content: bytes | str) -> Any:
    """Parses JSON of any origin.

    ValueError for what has no place in a record: NaN, numbers that no float or 64-bit integer holds, values nested beyond DEPTH_LIMIT.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        found = json.loads(text, parse_constant=_refuse_number, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("values lie inside one another too deeply") from None
    if _deeper_than(found, DEPTH_LIMIT):
        raise ValueError("values lie inside one another too deeply")
    return found


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text[:20]} is no number that JSON knows, or too large")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _whole(text: str) -> int:
    number = int(text) if len(text) <= 20 else 2**63
    return number if abs(number) < 2**63 else int(_refuse_number(text))


def _deeper_than(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(part, levels - 1) for part in inner)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, record: Any) -> None:
    write_text(path, to_json(record))


def to_json(record: Any) -> str:
    """Writes a record as JSON that every reader understands: NaN, which JSON does not know, is refused."""
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary place for a file or folder, which becomes `path` at the end, or leaves no trace."""
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
    """Replaces a file or folder that may exist, and puts it back if that fails. Names are synced, too, where the system can."""
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
    """Waits until a file is on the disk; for a folder, the names in it."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""What the system says of a file that another process has locked."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What it says where files cannot be locked, as on many network file systems."""


def claim(handle: IO[Any], path: Path, refusal: str) -> None:
    """Locks the file until it is closed. A second process is refused with these words; where there are no locks, a warning says so."""
    try:
        import fcntl
    except ImportError:  # Windows: two processes on one file are the user's own affair there
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in BUSY:
            raise ArgumentError(refusal) from None
        if error.errno not in NO_LOCKS:
            raise ArgumentError(f"{path}: cannot be locked: {error.strerror or error}") from None
        warnings.warn(
            f"{path}: its file system has no locks ({error.strerror}), so a second process is not kept out; start one at a time",
            stacklevel=2,
        )


def digest(path: Path) -> str:
    check_plain(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def encode_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Encodes tensors as a safetensors file. They must lie in the CPU's memory, each in a place of its own."""
    return bytes(_safetensors().save(tensors))


def decode_tensors(content: bytes, source: Path) -> dict[str, Tensor]:
    """Decodes the tensors of a safetensors file; `source` is its name in messages."""
    from_bytes = _safetensors().load
    from safetensors import SafetensorError

    try:
        return dict(from_bytes(content))
    except (ValueError, KeyError, SafetensorError) as error:
        raise ArgumentError(f"{source}: not a readable safetensors file: {error}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    return decode_tensors(read_weights(path), path)


def read_weights(path: Path) -> bytes:
    """Reads the bytes of a safetensors file. The head is looked at first: a large file must be as long as that says."""
    try:
        check_plain(path)
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            head = stream.read(length) if length <= min(size, HEADER_LIMIT) else b""
            if size > RECORD_LIMIT and size != 8 + length + _end_of_tensors(head):
                raise ArgumentError(f"{path}: not a readable safetensors file: its length is not what its head says")
            return start + head + stream.read()
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from None


def _end_of_tensors(head: bytes) -> int:
    """Returns where the last tensor ends, counted from the end of the head; -1 if the head does not say."""
    try:
        entries = [entry for name, entry in parse_json(head).items() if name != "__metadata__"]
        return max((int(entry["data_offsets"][1]) for entry in entries), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return -1


def _safetensors() -> ModuleType:
    """Imports safetensors, which is needed only here."""
    try:
        import safetensors.torch
    except ImportError:
        raise ArgumentError(
            "weights are kept as safetensors, which is not installed: pip install 'autodual[cli]'"
        ) from None
    return safetensors.torch
