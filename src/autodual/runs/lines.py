"""A file with one line of JSON per example, all about one problem; a file that was interrupted is gone on with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, TypeVar

from autodual._errors import ArgumentError, AutodualError
from autodual._files import (
    RECORD_LIMIT,
    append_lines,
    claim,
    in_one_line,
    parse_json,
    read_content,
    read_json,
    write_json,
)
from autodual.runs.records import Basis, Summary, flat, optional, parse, plain, read_if_sound

LINES_LIMIT = 8 * RECORD_LIMIT
"""Bytes of a file of lines: enough for three million examples."""

Say = Callable[[str], None]


def finite(number: float) -> float | None:
    """The number as JSON holds it: None if it is not finite."""
    return number if math.isfinite(number) else None


# Lines about examples: certificates*.jsonl and *.cascade.jsonl, attack*.jsonl, stages/open-*.jsonl


@dataclass(frozen=True)
class Line:
    """A record about one example."""

    index: int

    def fault(self, label: int | None = None) -> str | None:
        """Why it cannot be right about an example with this label; about any example when None."""
        return None


L = TypeVar("L", bound=Line)


def lines_of(kind: type[L], start: int, *columns: Any) -> list[L]:
    """One line for each example, the first of which is the example `start`. columns: a tensor [N] for each field behind the index."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = ([finite(value) if isinstance(value, float) else value for value in row] for row in rows)
    return [kind(index, *row) for index, row in enumerate(found, start)]


@dataclass(frozen=True)
class _LabelledLine(Line):
    label: int

    def fault(self, label: int | None = None) -> str | None:
        same = label is None or label == self.label
        return None if same else f"has the label {self.label}, but its example has {label}"


@dataclass(frozen=True)
class CertificateLine(_LabelledLine):
    """What certification says about one example."""

    predicted: int
    certified: bool
    certified_as_run: bool
    margin: float | None
    """The smallest one; None if it is not finite."""
    slack: float | None
    """The largest one: how far rounding may have moved a margin."""

    def fault(self, label: int | None = None) -> str | None:
        told = f"the label {self.label}, predicted {self.predicted}"
        if self.certified and self.slack is None:  # all rows must hold, each with a slack that is finite
            return "is certified, but has no slack"
        return super().fault(label) or _fault_of_proof(self, self.predicted == self.label, told)


@dataclass(frozen=True)
class SpecificationLine(Line):
    """What certification says about one example of which something else was asked than its label."""

    right: bool
    certified: bool
    certified_as_run: bool
    margin: float | None
    """Positive if enough rows of the specification are; None if it is not finite."""
    slack: float | None
    """The largest one: how far rounding may have moved a row."""

    def fault(self, label: int | None = None) -> str | None:
        return _fault_of_proof(self, self.right, f"right {self.right}")


def _fault_of_proof(line: CertificateLine | SpecificationLine, right: bool, told: str) -> str | None:
    """Why a certificate cannot be right. right: whether what was asked holds for the clean input; told: this in words."""
    if line.certified_as_run and not line.certified:
        return "is certified as it runs, but not in real numbers, which is less"
    if line.certified and not (right and line.margin is not None and line.margin > 0):
        return f"is certified, but has {told} and margin {line.margin}"
    return None


@dataclass(frozen=True)
class CascadeLine(_LabelledLine):
    """What several models answer to one example, and what is proved about it."""

    answer: int
    stage: int
    certified: bool
    sound: bool
    sound_as_run: bool
    no_wrong_certificate: bool

    def fault(self, label: int | None = None) -> str | None:
        wrong = self.sound and self.answer != self.label
        told = f"is proved, but has the label {self.label} and the answer {self.answer}" if wrong else None
        return super().fault(label) or told


@dataclass(frozen=True)
class AttackLine(Line):
    """Whether an attack breaks one example: in real numbers, and in the network as it runs."""

    broken: bool
    broken_as_run: bool


@dataclass(frozen=True)
class CascadeAttackLine(Line):
    """Whether an attack makes several models answer wrongly, and with a certificate."""

    found: bool
    certified_wrong: bool


@dataclass(frozen=True)
class SortingLine(Line):
    """Whether a stage certifies its own label of a training example, and whether that is the right one."""

    certified: bool
    right: bool


# *.problem.json: what a file of lines is about


@dataclass(frozen=True)
class Asked:
    """How to open what was certified again; paths are seen from the file of lines."""

    target: str | None = optional()
    model: str | None = optional()
    dataset: str | None = optional()
    normalise: bool | None = optional()
    norm: str | None = optional()
    eps: float | None = optional()
    clip: tuple[float, float] | None = None
    label_column: str | None = optional()
    test_dataset: str | None = optional()
    split_seed: int | None = optional()
    feature_eps: str | None = optional()
    per_channel: bool | None = optional()


@dataclass(frozen=True)
class ProblemOutline:
    """What the problems of all versions hold: enough to tell a file of lines from a stranger's."""

    perturbation: str
    engine: str
    examples: int
    data: str


@dataclass(frozen=True)
class Problem:
    """The question that a file of lines answers, and what computed the answers."""

    FORMAT: ClassVar[str] = "autodual certificates 2"
    ASIDE: ClassVar[frozenset[str]] = frozenset({"format", "batch", "python", "asked"})
    """Entries that help to find the parts again, and are no parts of the question."""

    format: str
    perturbation: str
    engine: str
    examples: int
    data: str
    network: str
    dtype: str
    device: str
    batch: int
    autodual: str
    torch: str
    python: str
    basis: Basis | None = flat(optional=True)
    """None for proofs."""
    asked: Asked | None = optional()
    combination: str | None = optional()
    """The cascade that the lines are about; None for one network."""
    question: str | None = optional()
    """The specification, with a digest of its numbers; None for labels."""

    def __post_init__(self) -> None:
        if self.examples < 1 or self.batch < 1:
            raise ValueError("is about no examples")

    def difference(self, now: Problem, *aside: str) -> tuple[str, str] | None:
        """The first entry in which the question differs from `now`, and a sentence about it; entries `aside` do not count."""
        before, after = plain(self), plain(now)
        for name in (name for name in before | after if name not in (*self.ASIDE, *aside)):
            if before.get(name) != after.get(name):
                told = f"{name} was {_short(before.get(name))}, now {_short(after.get(name))}"
                return name, f"its certificates are about something else ({told})"
        return None


def _short(value: object) -> str:
    """Nothing that fills the screen; a digest by its first letters."""
    text = str(value)
    return f"{text[:12]}..." if len(text) >= 64 and set(text[:64]) <= set("0123456789abcdef") else text[:200]


def record_about(path: Path, kind: str) -> Path:
    """Where a record about a file of lines lies: a.jsonl has its problem in a.problem.json, a plain `a` in a.lines-problem.json."""
    stem = path.name.removesuffix(".jsonl")
    return path.with_name(f"{stem}.{kind}.json" if stem != path.name else f"{stem}.lines-{kind}.json")


# Where lines are written, so that nothing is lost unasked.


@dataclass(frozen=True)
class Wording:
    """How the user says what shall become of a file that is there already."""

    resume: str = "--resume"
    overwrite: str = "--overwrite"
    out: str = "--out"


COMMAND = Wording()
FUNCTION = Wording("resume=True", "overwrite=True", "out")


def check_way(files: Sequence[Path], resume: bool, overwrite: bool, say: Wording = COMMAND) -> None:
    """Refuse files that hold something already, unless the user has said what shall become of them; files of others always.

    files: those of lines. A problem lies beside each of them, and a summary beside the first.
    """
    if resume and overwrite:
        raise ArgumentError(f"{say.resume} and {say.overwrite} exclude each other: go on with the file, or start anew")
    for file in files:
        with in_one_line(file, "cannot be written"), suppress(FileNotFoundError, NotADirectoryError):
            file.stat()  # a name that is too long, or a folder that may not be looked into
        if file.is_dir():
            raise ArgumentError(f"{file}: is a folder; {say.out} names a file")
        if file.exists() and not file.is_file():
            raise ArgumentError(f"{file}: is no file that one could go on with; choose another {say.out}")
        if file.exists() and file.stat().st_size > 0 and not resume and not overwrite:
            raise ArgumentError(
                f"{file}: {_held(file, say)}start anew with {say.overwrite}, or choose another {say.out}"
            )
    for file in files:
        _check_record(record_about(file, "problem"), ProblemOutline, resume or overwrite, say)
    _check_record(record_about(files[0], "summary"), Summary, resume or overwrite, say)


def _check_record(path: Path, kind: type[ProblemOutline] | type[Summary], may_replace: bool, say: Wording) -> None:
    """Refuse to write over a record beside the lines that is not one of ours, or that nobody has given up."""
    if not path.exists() and not path.is_symlink():
        return
    if read_if_sound(kind, path) is None:
        raise ArgumentError(
            f"{path}: would be written over, but is not from `autodual certify`; move it away, or choose another {say.out}"
        )
    if not may_replace:
        raise ArgumentError(
            f"{path}: is left from certificates that are not there any more; find them anew with {say.resume} or {say.overwrite}, or "
            f"choose another {say.out}"
        )


def _held(file: Path, say: Wording) -> str:
    """Says what a file holds, and whether one can go on with it."""
    note = record_about(file, "problem")
    about = read_if_sound(ProblemOutline, note)
    if about is None or file.stat().st_size > LINES_LIMIT:
        return "exists already, and holds no certificates that one could go on with; "
    done = read_content(file, LINES_LIMIT).count(b"\n")
    what = f"{done} of {about.examples} certificates of {about.perturbation} by {about.engine}"
    if read_if_sound(Problem, note) is None:
        return f"holds {what} already, from another version, which one cannot go on with; "
    return f"holds {what} already; go on with {say.resume}, "


class LineFile(Generic[L]):
    """Lines of one kind, in the order of the examples; a note beside the file says which problem they are about.

    labels: those of the examples, where lines say them. say: hears of lines that are done again.
    """

    def __init__(
        self,
        path: Path,
        kind: type[L],
        labels: Sequence[int] = (),
        say: Say = lambda line: None,
        wording: Wording = COMMAND,
    ) -> None:
        self.path, self.note, self.wording = path, record_about(path, "problem"), wording
        self.summary = record_about(path, "summary")
        self.kind, self.labels, self.say = kind, labels, say
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
            size = self.path.stat().st_size
            if anew or (size > 0 and self._is_outdated(problem, renewed)):
                size = self.stream.truncate(0)
            if size > LINES_LIMIT:
                raise ArgumentError(
                    f"{self.path}: is larger than {LINES_LIMIT:,} bytes, so it holds something else; choose another file"
                )
            self.stream.seek(0)
            lines = split_lines(self.stream.read())
            whole: list[L] = []
            for record in parse_lines(self.kind, lines[: problem.examples], self.labels):
                if isinstance(record, str):
                    self.say(f"{self.path}: line {len(whole) + 1} {record}; it and what follows are done again")
                    break
                whole.append(record)
            if len(whole) < problem.examples:
                whole = whole[: len(whole) // batch * batch]
            self.stream.truncate(sum(map(len, lines[: len(whole)])))
            if len(whole) < problem.examples and read_if_sound(Summary, self.summary) is not None:
                self.summary.unlink()  # of lines that are not there any more
        write_json(self.note, plain(problem))
        return whole

    def append(self, lines: list[L]) -> None:
        assert self.stream is not None
        with self._guarded():
            append_lines(self.stream, map(plain, lines))

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
            raise ArgumentError(
                f"{self.path}: {sentence}; start anew ({self.wording.overwrite}), or choose another file"
            )
        self.say(f"{self.path}: {sentence}; all is found anew")
        return True

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with in_one_line(self.path):
                yield
        except AutodualError:
            raise
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


def split_lines(content: bytes) -> list[bytes]:
    """Splits bytes into lines that keep their ends. Only a line feed ends a line, also after a carriage return."""
    *whole, rest = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def parse_lines(kind: type[L], lines: Iterable[bytes], labels: Sequence[int] = ()) -> Iterator[L | str]:
    """The record of each line, or what is wrong with it. Line i must be about example i, whose label is labels[i] if there are any."""
    for index, line in enumerate(lines):
        try:
            found = parse_json(line)
        except ValueError:
            found = None
        if not line.endswith(b"\n") or not isinstance(found, dict):
            yield "is damaged"
        elif found.get("index") != index:
            yield f"is not about example {index}"
        else:
            try:
                record = parse(kind, found, exactly=True)
                yield record.fault(labels[index] if labels else None) or record
            except ValueError as error:
                yield str(error)
