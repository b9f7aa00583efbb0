"""A file with one line of JSON per example, all about one question; interrupted, it is gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from autodual._errors import ArgumentError, AutodualError
from autodual._files import claim, write_json

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
        self.stream: IO[str] | None = None

    def begin(self, problem: Line, batch: int, anew: bool = False) -> list[Line]:
        """Open it, and return the lines of whole batches; what follows them is cut off: the same batches give the same numbers.

        anew: forget whatever is there.
        """
        if self.path.exists() and not self.path.is_file():
            raise ArgumentError(f"{self.path}: is no file that one could go on with; choose another one")
        with self._guarded():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.stream = self.path.open("a+", encoding="utf-8")
            claim(self.stream, f"{self.path}: another process is writing to it")
            if anew:
                self.stream.truncate(0)
            self.stream.seek(0)
            lines = self.stream.read().splitlines(keepends=True)
            if lines:
                self._check(problem)
            whole = self._in_order(lines[: problem["examples"]])
            if len(whole) < problem["examples"]:
                whole = whole[: len(whole) // batch * batch]
            self.stream.truncate(sum(len(line.encode()) for line in lines[: len(whole)]))
        write_json(self.note, problem)
        return whole

    def append(self, lines: list[Line]) -> None:
        assert self.stream is not None
        with self._guarded():
            self.stream.writelines(json.dumps(line) + "\n" for line in lines)
            self.stream.flush()
            os.fsync(self.stream.fileno())

    def close(self) -> None:
        if self.stream is not None:
            with suppress(OSError):  # of what could not be written, which `append` has said
                self.stream.close()

    def _check(self, problem: Line) -> None:
        """Refuse to go on with lines about something else."""
        if not self.note.exists():
            raise ArgumentError(f"{self.path}: nothing beside it says what its lines are about; choose another file")
        before = json.loads(self.note.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError(f"{self.note.name} holds no record")
        for name, now in problem.items():
            if before.get(name) != now:
                raise ArgumentError(
                    f"{self.path}: its certificates are about something else ({name} was {before.get(name)}, now {now}); "
                    "choose another file, or remove it"
                )

    def _in_order(self, lines: list[str]) -> list[Line]:
        """Up to the first that is damaged, wrong, or of an example that is not its turn, which is said."""
        found: list[Line] = []
        for line in lines:
            record, fault = _parsed(line, len(found))
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


def _parsed(line: str, index: int) -> tuple[Line, str | None]:
    """The record of the example `index`, or what is wrong with the line."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not line.endswith("\n") or not isinstance(record, dict):
        return {}, "is damaged"
    return record, None if record.get("index") == index else f"is not about example {index}"
