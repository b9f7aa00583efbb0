"""A file with one line of JSON per example, all about one question; interrupted, it is gone on with."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from autodual._errors import ArgumentError, AutodualError
from autodual._files import RECORD_LIMIT, claim, parse_json, read_json, write_json

LINES_LIMIT = 8 * RECORD_LIMIT
"""Bytes of a file of lines: enough for three million examples."""

ASIDE = ("format", "batch", "python", "asked")
"""Entries of a problem that help to find its parts again, and are no parts of the question."""
NOT_NOTED = "is not noted"

Line = dict[str, Any]
Fault = Callable[[Line], str | None]
"""What is wrong with a line, if anything is."""


def record_about(path: Path, kind: str) -> Path:
    """Where a record about a file of lines lies: a.jsonl has its problem in a.problem.json, a plain `a` in a.lines-problem.json."""
    stem = path.name.removesuffix(".jsonl")
    return path.with_name(f"{stem}.{kind}.json" if stem != path.name else f"{stem}.lines-{kind}.json")


class LineFile:
    """Lines in the order of the examples; a note beside the file says what they are about."""

    def __init__(
        self, path: Path, fault: Fault = lambda line: None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.path, self.note = path, record_about(path, "problem")
        self.fault, self.say = fault, say
        self.stream: IO[bytes] | None = None

    def begin(self, problem: Line, batch: int, anew: bool = False, renewed: Sequence[str] = ()) -> list[Line]:
        """Open it, and return the lines of whole batches; what follows them is cut off: the same batches give the same numbers.

        anew: forget whatever is there. renewed: lines that differ only in these entries of their problem, or were written before there
        were such entries, are found anew; without it, they are refused like those about another problem.
        """
        if self.path.exists() and not self.path.is_file():
            raise ArgumentError(f"{self.path}: is no file that one could go on with; choose another one")
        with self._guarded():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.stream = self.path.open("ab+")
            claim(self.stream, self.path, f"{self.path}: another process is writing to it")
            if not anew and self.path.stat().st_size > 0:
                anew = self._is_outdated(problem, renewed)
            if anew:
                self.stream.truncate(0)
            lines = read_lines(self.stream, self.path)
            whole = self._in_order(lines[: problem["examples"]])
            if len(whole) < problem["examples"]:
                whole = whole[: len(whole) // batch * batch]
            self.stream.truncate(sum(map(len, lines[: len(whole)])))
        write_json(self.note, problem)
        return whole

    def append(self, lines: list[Line]) -> None:
        assert self.stream is not None
        with self._guarded():
            self.stream.writelines(json.dumps(line, allow_nan=False).encode() + b"\n" for line in lines)
            self.stream.flush()
            os.fsync(self.stream.fileno())

    def close(self) -> None:
        if self.stream is not None:
            with suppress(OSError):  # of what could not be written, which `append` has said
                self.stream.close()

    def _is_outdated(self, problem: Line, renewed: Sequence[str]) -> bool:
        """Whether the lines must be found anew; refuses to go on with lines about something else."""
        if not self.note.exists():
            raise ArgumentError(f"{self.path}: nothing beside it says what its lines are about; choose another file")
        difference = differs(read_note(self.note), problem)
        if difference is None:
            return False
        name, sentence = difference
        if name not in renewed and not (renewed and sentence.endswith(NOT_NOTED)):
            raise ArgumentError(f"{self.path}: {sentence}; start anew (--overwrite), or choose another file")
        self.say(f"{self.path}: {sentence}; all is found anew")
        return True

    def _in_order(self, lines: list[bytes]) -> list[Line]:
        """Up to the first that is damaged, wrong, or of an example that is not its turn, which is said."""
        found: list[Line] = []
        for line in lines:
            record, fault = parse_line(line, len(found))
            fault = fault or self.fault(record)
            if fault is not None:
                self.say(f"{self.path}: line {len(found) + 1} {fault}; it and what follows are done again")
                break
            found.append(record)
        return found

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except AutodualError:
            raise
        except OSError as error:
            raise ArgumentError(f"{self.path}: not written: {error.strerror or error}") from None
        except ValueError as error:
            raise ArgumentError(f"{self.path}: cannot be gone on with: {error}; choose another file") from None


def read_note(path: Path) -> Line:
    """What a file of lines is about."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ArgumentError(f"{path}: holds no record")
    return found


def differs(before: Line, now: Line) -> tuple[str, str] | None:
    """The first entry in which two problems differ, and a sentence about it. Additional notes are not compared."""
    for name, value in now.items():
        if name in ASIDE or before.get(name, NOT_NOTED) == value:
            continue
        if name not in before:
            return name, f"an earlier version wrote it, and which {name} it is about {NOT_NOTED}"
        told = f"{name} was {_short(before[name])}, now {_short(value)}"
        return name, f"its certificates are about something else ({told})"
    return None


def _short(value: Any) -> str:
    """Digests by their first letters, and nothing that fills the screen."""
    text = str(value)
    return f"{text[:12]}..." if re.fullmatch(r"[0-9a-f]{64}.*", text) else text[:200]


def read_lines(stream: IO[bytes], path: Path) -> list[bytes]:
    """The lines of a file with their ends; only a line feed ends one, also after a carriage return."""
    stream.seek(0)
    if os.fstat(stream.fileno()).st_size > LINES_LIMIT:
        raise ArgumentError(
            f"{path}: is larger than {LINES_LIMIT:,} bytes, so it holds something else; choose another file"
        )
    *whole, rest = stream.read().split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def parse_line(line: bytes, index: int) -> tuple[Line, str | None]:
    """The record of the example `index`, or what is wrong with the line."""
    try:
        record = parse_json(line)
    except ValueError:
        record = None
    if not line.endswith(b"\n") or not isinstance(record, dict):
        return {}, "is damaged"
    return record, None if record.get("index") == index else f"is not about example {index}"
