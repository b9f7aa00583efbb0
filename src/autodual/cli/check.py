"""`autodual certify --check FILE`: some certificates of a file computed again, and compared with what is written."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from autodual._errors import ArgumentError
from autodual._files import check_plain
from autodual.cascades import Combination
from autodual.cli.target import Target, open_target
from autodual.cli.terminal import Display
from autodual.data import ImageData
from autodual.engines import IBP, BoundEngine, Crown, Dual, HighProbability
from autodual.evaluation.cascade_lines import (
    CASCADE_KINDS,
    cascade_fault,
    cascade_lines,
    cascade_question,
    read_cascade,
)
from autodual.evaluation.judge import FORMAT, KINDS, Judged, fault, judge_lines, proved, question, versions
from autodual.runs.folder import NAMED, from_folder
from autodual.runs.lines import Line, differs, parse_line, read_lines, read_note, record_about
from autodual.sets import Perturbation
from autodual.training.trained import CERTIFICATES

SHOWN = 20
"""Differences that are told one by one."""
ASKED = {"model": str, "dataset": str, "normalise": bool, "norm": str, "eps": float, "clip": list | None}
"""What a file may say about how to open what it is about."""
NUMBERS = ("margin", "slack")
"""What rounding may move: it depends on which examples are computed together."""


Find = Callable[[ImageData, slice], list[Line]]
"""Lines of some of the data."""


@dataclass(frozen=True)
class Check:
    """A file of certificates, and how its lines are found again."""

    lines: list[Line | str]
    """Per example, in order: the record, or what is wrong with its line."""
    data: ImageData
    find: Find
    batch: int
    drawn: bool
    """Whether an example's random numbers depend on the others of its batch."""
    numbers: tuple[str, ...]
    records: Callable[[list[Line]], list[tuple[Path, Line]]]
    """Records beside the file, and what they must say if the lines are these."""

    def contradictions(self) -> list[str]:
        """Sentences about records that say something else than all lines together; none while lines are missing."""
        lines = [line for line in self.lines if not isinstance(line, str)]
        if len(lines) < len(self.data):
            return []
        return [
            f"{path.name} has {_short(found[name])} as {name}, but the lines say {_short(value)}"
            for path, expected in self.records(lines)
            for found in [_record(path)]
            for name, value in expected.items()
            if name in found and not _same(found[name], value)
        ]

    def differences(self, sample: list[int], tell: Callable[[int], None]) -> list[str]:
        """Sentences about lines that cannot be right, and about those of the sample that are not what is found now.

        What differs when the sample is computed by itself is computed once more among the examples that it was computed with:
        how far rounding goes, and where float64 is used, may depend on these.
        """
        told = {i: [f"line {i + 1} {line}"] for i, line in enumerate(self.lines) if isinstance(line, str)}
        left = [index for index in sample if index not in told]
        if not self.drawn:
            parts = [left[first : first + self.batch] for first in range(0, len(left), self.batch)]
            left = [index for part in parts for index in self._suspects(part, tell)]
        for start in sorted({index // self.batch * self.batch for index in left}):
            stop = min(len(self.data), start + self.batch)
            found = self.find(self.data, slice(start, stop))
            told |= {i: self._compare(i, found[i - start]) for i in left if start <= i < stop}
            tell(sum(index < stop for index in sample))
        tell(len(sample))
        return [sentence for index in sorted(told) for sentence in told[index]]

    def _suspects(self, part: list[int], tell: Callable[[int], None]) -> list[int]:
        some = self.data.select(torch.tensor(part, device=self.data.device))
        found = self.find(some, slice(0, len(part)))
        tell(0)
        return [i for i, line in zip(part, found, strict=True) if self._compare(i, line | {"index": i})]

    def _compare(self, index: int, found: Line) -> list[str]:
        written = self.lines[index]
        assert not isinstance(written, str)
        return compare(written, found, self.numbers)


def check_file(place: Path, sample: int, seed: int | None, changes: dict[str, Any], display: Display) -> int:
    """Tells what was compared, and every difference; the exit code."""
    file = place / CERTIFICATES if place.is_dir() else place
    note = _note(file)
    opened = _open(file, note, changes)
    check = _prepared(file, note, opened)
    seed = secrets.randbelow(2**32) if seed is None else seed
    chosen = sorted(random.Random(seed).sample(range(len(check.lines)), min(sample, len(check.lines))))
    with display.bars:
        watch = display.watch()
        told = check.differences(chosen, lambda done: watch.tell("checking", done, len(chosen)))
    told = told or check.contradictions()
    for sentence in told[:SHOWN]:
        print(f"{file}: {sentence}")
    if len(told) > SHOWN:
        print(f"{file}: {len(told) - SHOWN} more differences")
    result = f"{len(told)} differences" if told else "all as written"
    compared = ", ".join(("label", *(name for name in _compared(note) if name not in ("index", "label"))))
    print(
        f"{file}: {len(chosen)} of {len(check.lines)} examples computed again ({note['perturbation']}, {note['engine']}, seed {seed}; "
        f"{compared}): {result}{_unfinished(check)}{_made_with(note, opened)}"
    )
    return 1 if told else 0


def compare(written: Line, found: Line, numbers: tuple[str, ...] = NUMBERS) -> list[str]:
    """Sentences about entries that differ. Margins may differ by their slack, once for each time that they were computed."""
    told = []
    for name in found:
        before, now = written[name], found[name]
        if name not in numbers:
            same = before == now
        elif before is None or now is None:
            same = before is now
        elif name == "margin":
            same = abs(before - now) <= 2 * (math.inf if found["slack"] is None else found["slack"])
        else:  # a slack of another size would be that of another computation
            same = now / 2 <= before <= 2 * now
        if not same:
            told.append(f"example {found['index']}: {name} is written as {before}, but is {now}")
    return told


def _compared(note: Line) -> list[str]:
    return list(CASCADE_KINDS if "combination" in note else KINDS)


def _note(file: Path) -> Line:
    try:
        check_plain(file)
    except OSError as error:
        raise ArgumentError(f"{file}: cannot be read: {error.strerror or error}") from None
    about = record_about(file, "problem")
    if not about.exists():
        raise ArgumentError(
            f"{file}: {about.name} is not beside it, which says what certificates are about; check another file"
        )
    note = read_note(about)
    if note.get("format") != FORMAT:
        raise ArgumentError(
            f"{file}: was written by another version, which did not note the network that it is about (or by something else); certify "
            f"again to have a file that can be checked"
        )
    return note


def _open(file: Path, note: Line, changes: dict[str, Any]) -> Target:
    """What the file says that it is about; `changes` win over it, for whoever has moved something."""
    asked, examples = note.get("asked", {}), note.get("examples")
    fine = isinstance(asked, dict) and all(isinstance(asked[k], kind) for k, kind in ASKED.items() if k in asked)
    if not fine or type(examples) is not int or examples < 1 or not isinstance(note.get("network"), str):
        raise ArgumentError(f"{record_about(file, 'problem')}: is damaged; certify again")
    folder, given = file.parent, {name: asked[name] for name in ASKED if name in asked}
    for name in NAMED:
        if isinstance(given.get(name), str):
            given[name] = from_folder(name, given[name], folder)
    place = folder / str(asked.get("target", "."))
    try:
        return open_target(place, examples, given | changes)
    except ArgumentError as error:
        raise ArgumentError(f"{file}: what it is about cannot be opened: {error}") from None


def _prepared(file: Path, note: Line, opened: Target) -> Check:
    engine = _engine(file, note)
    labels = opened.data.labels.tolist()
    if "combination" in note:
        if opened.combination is None:
            raise ArgumentError(f"{file}: is about a cascade, but what it names is none")
        cascade = opened.combination.with_engine(engine)
        problem, wrong = cascade_question(cascade, opened.data), cascade_fault
        find: Find = partial(cascade_lines, cascade)
        records = partial(_cascade_records, file, cascade)
    else:
        problem, wrong = question([opened.model], opened.data, opened.ball, engine), fault
        find = partial(_find, opened, engine)
        records = partial(_records, file, opened.ball, engine)
    difference = differs(note, {k: v for k, v in problem.items() if k not in ("device", *versions())})
    if difference is not None:
        raise ArgumentError(f"{file}: {difference[1]}{_made_with(note, opened)}; it cannot be checked against this")
    lines = _lines(file, lambda line: wrong(line, labels), len(labels))
    batch = note.get("batch")
    if type(batch) is not int or batch < 1:
        raise ArgumentError(f"{record_about(file, 'problem')}: is damaged; certify again")
    numbers = tuple(name for name in NUMBERS if name in _compared(note))
    return Check(lines, opened.data, find, batch, isinstance(engine, HighProbability), numbers, records)


def _records(file: Path, ball: Perturbation, engine: BoundEngine, lines: list[Line]) -> list[tuple[Path, Line]]:
    """Of one network: the summary that `certify` writes, and the evaluation of a run."""
    found = Judged.read(lines)
    said = {"perturbation": repr(ball), "engine": repr(engine), "examples": len(lines), "error": found.error}
    said |= proved(found, engine)
    each = {name: getattr(found, name).tolist() for name in ("labels", "predicted", "certified", "certified_as_run")}
    beside = [(record_about(file, "summary"), said)]
    return [*beside, (file.with_name("evaluation.json"), said | each)] if file.name == CERTIFICATES else beside


def _cascade_records(file: Path, cascade: Combination, lines: list[Line]) -> list[tuple[Path, Line]]:
    """Of all stages together: they are summed up beside the first stage alone."""
    summary = file.with_name(file.name.removesuffix("cascade.jsonl") + "summary.json")
    return [(summary, {"examples": len(lines), "cascade": read_cascade(cascade, lines).summary()})]


def _record(path: Path) -> Line:
    """What a record beside the file says; nothing where there is none."""
    return read_note(path) if path.exists() else {}


def _same(found: Any, expected: Any) -> bool:
    """Equal but for the last digits of fractions."""
    if isinstance(found, int | float) and isinstance(expected, float) and not isinstance(found, bool):
        return abs(found - expected) < 1e-9
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_same(found[name], expected[name]) for name in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."


def _unfinished(check: Check) -> str:
    """A word about a file that ends too early."""
    there, wanted = len(check.lines), len(check.data)
    return f"; the file ends after {there} of {wanted} examples" if there < wanted else ""


def _find(opened: Target, engine: BoundEngine, data: ImageData, part: slice) -> list[Line]:
    return judge_lines(opened.model, data, opened.ball, engine, part)


def _engine(file: Path, note: Line) -> BoundEngine:
    """The engine that the note names."""
    for engine in (Dual(), Crown(), IBP()):
        if repr(engine) == note.get("engine"):
            return engine
    try:
        drawn = HighProbability(note["delta"], note["k"], seed=note["seed"])
        if repr(drawn) == note["engine"]:
            return drawn
    except (KeyError, TypeError, ValueError):
        pass
    raise ArgumentError(f"{file}: by the engine {str(note.get('engine'))[:100]}, which `certify` cannot make again")


def _lines(file: Path, wrong: Callable[[Line], str | None], examples: int) -> list[Line | str]:
    with file.open("rb") as stream:
        content = read_lines(stream, file)
    if not content:
        raise ArgumentError(f"{file}: holds no certificates yet")
    if len(content) > examples:
        raise ArgumentError(f"{file}: has {len(content)} lines about {examples} examples")
    found: list[Line | str] = []
    for index, line in enumerate(content):
        record, trouble = parse_line(line, index)
        trouble = trouble or wrong(record)
        found.append(record if trouble is None else trouble)
    return found


def _made_with(note: Line, opened: Target) -> str:
    """What computed the file, where that is not what computes now."""
    now = {"device": opened.data.device.type} | versions()
    other = [
        f"{name} {str(note.get(name))[:40]}, now {value}" for name, value in now.items() if note.get(name) != value
    ]
    return f"; it was made with {', '.join(other)}" if other else ""
