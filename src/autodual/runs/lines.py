"""A file with one line of JSON per example, all about one problem; an interrupted file is gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Generic, Protocol, TypeVar

from autodual._errors import ArgumentError, AutodualError
from autodual._files import RECORD_LIMIT, claim, parse_json, read_json, write_json
from autodual.runs.records import Problem, parse, plain

LINES_LIMIT = 8 * RECORD_LIMIT
"""Bytes of a file of lines: enough for three million examples."""

Say = Callable[[str], None]


class Line(Protocol):
    """A record about one example."""

    @property
    def index(self) -> int:
        """Which example it is about."""


L = TypeVar("L", bound=Line)


def record_about(path: Path, kind: str) -> Path:
    """Where a record about a file of lines lies: a.jsonl has its problem in a.problem.json, a plain `a` in a.lines-problem.json."""
    stem = path.name.removesuffix(".jsonl")
    return path.with_name(f"{stem}.{kind}.json" if stem != path.name else f"{stem}.lines-{kind}.json")


class LineFile(Generic[L]):
    """Lines of one kind, in the order of the examples; a note beside the file says which problem they are about.

    fault: what is wrong with a line, if anything is. say: hears of lines that are done again.
    """

    def __init__(
        self, path: Path, kind: type[L], fault: Callable[[L], str | None] = lambda line: None, say: Say = lambda line: None
    ) -> None:  # fmt: skip
        self.path, self.note = path, record_about(path, "problem")
        self.kind, self.fault, self.say = kind, fault, say
        self.stream: IO[bytes] | None = None

    def begin(self, problem: Problem, batch: int, anew: bool = False, renewed: Sequence[str] = ()) -> list[L]:
        """Opens the file, and returns the lines of whole batches. What follows these is cut off: equal batches give equal numbers.

        anew: forget whatever is there. renewed: lines that differ only in these entries of their problem, or whose problem cannot be
        read, are found anew; without it, they are refused like those about another problem.
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
            lines = split_lines(self.stream, self.path)
            whole = self._in_order(lines[: problem.examples])
            if len(whole) < problem.examples:
                whole = whole[: len(whole) // batch * batch]
            self.stream.truncate(sum(map(len, lines[: len(whole)])))
        write_json(self.note, plain(problem))
        return whole

    def append(self, lines: list[L]) -> None:
        assert self.stream is not None
        with self._guarded():
            self.stream.writelines(json.dumps(plain(line), allow_nan=False).encode() + b"\n" for line in lines)
            self.stream.flush()
            os.fsync(self.stream.fileno())

    def close(self) -> None:
        if self.stream is not None:
            with suppress(OSError):  # of what could not be written, which `append` has said
                self.stream.close()

    def _is_outdated(self, problem: Problem, renewed: Sequence[str]) -> bool:
        """Whether the lines must be found anew; refuses to go on with lines about something else."""
        if not self.note.exists():
            raise ArgumentError(f"{self.path}: nothing beside it says what its lines are about; choose another file")
        before = read_problem(self.note)
        name, sentence = ("", UNREADABLE) if before is None else before.difference(problem) or ("", "")
        if not sentence:
            return False
        if not renewed or (before is not None and name not in renewed):
            raise ArgumentError(f"{self.path}: {sentence}; start anew (--overwrite), or choose another file")
        self.say(f"{self.path}: {sentence}; all is found anew")
        return True

    def _in_order(self, lines: list[bytes]) -> list[L]:
        """Records up to the first line that is damaged, wrong, or of an example that is not its turn, which is said."""
        found: list[L] = []
        for line in lines:
            record = parse_line(self.kind, line, len(found), self.fault)
            if isinstance(record, str):
                self.say(f"{self.path}: line {len(found) + 1} {record}; it and what follows are done again")
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


UNREADABLE = "another version wrote it, and what it is about is not noted in full"


def read_problem(path: Path) -> Problem | None:
    """What a file of lines is about; None if another version noted it. ArgumentError if the note is no record at all."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ArgumentError(f"{path}: holds no record")
    try:
        return parse(Problem, found)
    except ValueError:
        return None


def split_lines(stream: IO[bytes], path: Path) -> list[bytes]:
    """The lines of a file with their ends; only a line feed ends one, also after a carriage return."""
    stream.seek(0)
    if os.fstat(stream.fileno()).st_size > LINES_LIMIT:
        raise ArgumentError(
            f"{path}: is larger than {LINES_LIMIT:,} bytes, so it holds something else; choose another file"
        )
    *whole, rest = stream.read().split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def parse_line(kind: type[L], line: bytes, index: int, fault: Callable[[L], str | None]) -> L | str:
    """The record of the example `index`, or what is wrong with the line."""
    try:
        found = parse_json(line)
    except ValueError:
        found = None
    if not line.endswith(b"\n") or not isinstance(found, dict):
        return "is damaged"
    if found.get("index") != index:
        return f"is not about example {index}"
    try:
        record = parse(kind, found, exactly=True)
    except ValueError as error:
        return str(error)
    return fault(record) or record
