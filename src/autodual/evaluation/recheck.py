"""Certificates of a file computed again, some of them, and compared with what is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from torch import nn

from autodual._errors import ArgumentError
from autodual._files import check_plain, read_json
from autodual.cascades import Combination
from autodual.data import ImageData
from autodual.engines import BoundEngine, HighProbability
from autodual.evaluation.judge import ENGINES, Judged, judged_summary
from autodual.evaluation.ledger import cascade_lines, cascade_problem, fault_in, judge_lines, problem_of, read_cascade
from autodual.runs.folder import Run, versions
from autodual.runs.lines import L, parse_line, read_problem, record_about, split_lines
from autodual.runs.records import CascadeLine, CertificateLine, Problem
from autodual.runs.schema import entry_names, plain
from autodual.sets import Perturbation

Expected = list[tuple[Path, dict[str, Any]]]
"""Records beside a file of lines, and what they must say."""


@dataclass(frozen=True)
class Recheck(Generic[L]):
    """A file of certificates, and how its lines are found again."""

    problem: Problem
    """As it is noted beside the file."""
    kind: type[L]
    lines: list[L | str]
    """Per example, in order: the record, or what is wrong with its line."""
    data: ImageData
    find: Callable[[ImageData, slice], list[L]]
    """Lines of some of the data."""
    expected: Callable[[list[L]], Expected]
    """What records beside the file must say if the lines are these."""

    @property
    def entries(self) -> tuple[str, ...]:
        """What is compared of a line."""
        return entry_names(self.kind)

    def contradictions(self) -> list[str]:
        """Sentences about records that say something else than all lines together; none while lines are missing."""
        lines = [line for line in self.lines if not isinstance(line, str)]
        if len(lines) < len(self.data):
            return []
        return [
            f"{path.name} has {_short(found[name])} as {name}, but the lines say {_short(value)}"
            for path, expected in self.expected(lines)
            for found in [_record(path)]
            for name, value in expected.items()
            if name in found and not _same(found[name], value)
        ]

    def differences(self, sample: list[int], tell: Callable[[int], None]) -> list[str]:
        """Sentences about lines that cannot be right, and about those of the sample that are not what is found now.

        What differs when the sample is computed by itself is computed once more among the examples that it was computed with:
        how far rounding goes, and where float64 is used, may depend on these. Where certificates are random, the numbers that an
        example gets depend on its whole batch, so there is no first try.
        """
        batch = self.problem.batch
        told = {i: [f"line {i + 1} {line}"] for i, line in enumerate(self.lines) if isinstance(line, str)}
        left = [index for index in sample if index not in told]
        if self.problem.basis is None:
            parts = [left[first : first + batch] for first in range(0, len(left), batch)]
            left = [index for part in parts for index in self._suspects(part, tell)]
        for start in sorted({index // batch * batch for index in left}):
            stop = min(len(self.data), start + batch)
            found = self.find(self.data, slice(start, stop))
            told |= {i: self._compare(i, found[i - start]) for i in left if start <= i < stop}
            tell(sum(index < stop for index in sample))
        tell(len(sample))
        return [sentence for index in sorted(told) for sentence in told[index]]

    def _suspects(self, part: list[int], tell: Callable[[int], None]) -> list[int]:
        some = self.data.select(torch.tensor(part, device=self.data.device))
        found = self.find(some, slice(0, len(part)))
        tell(0)
        return [i for i, line in zip(part, found, strict=True) if self._compare(i, line)]

    def _compare(self, index: int, found: L) -> list[str]:
        written = self.lines[index]
        assert not isinstance(written, str)
        return compare(written, replace(found, index=index))  # type: ignore[type-var]  # every line is a dataclass


def compare(written: L, found: L) -> list[str]:
    """Sentences about entries that differ. Margins may differ by their slack, once for each time that they were computed."""
    told = []
    for name in entry_names(type(found)):
        before, now = getattr(written, name), getattr(found, name)
        if name not in ("margin", "slack"):
            same = before == now
        elif before is None or now is None:
            same = before is now
        elif name == "margin":
            slack = getattr(found, "slack", None)
            same = abs(before - now) <= 2 * (math.inf if slack is None else slack)
        else:  # a slack of another size would be that of another computation
            same = now / 2 <= before <= 2 * now
        if not same:
            told.append(f"example {found.index}: {name} is written as {before}, but is {now}")
    return told


def noted_problem(file: Path) -> Problem:
    """What a file of lines that can be checked is about."""
    try:
        check_plain(file)
    except OSError as error:
        raise ArgumentError(f"{file}: cannot be read: {error.strerror or error}") from None
    about = record_about(file, "problem")
    if not about.exists():
        raise ArgumentError(
            f"{file}: {about.name} is not beside it, which says what certificates are about; check another file"
        )
    problem = read_problem(about)
    if problem is None or problem.format != Problem.FORMAT:
        raise ArgumentError(
            f"{file}: {about.name} is damaged, or was written by another version, which did not note all that a check needs; certify "
            f"again to have a file that can be checked"
        )
    return problem


def recheck(
    file: Path, problem: Problem, model: nn.Module, combination: Combination | None, data: ImageData, ball: Perturbation
) -> Recheck[CertificateLine] | Recheck[CascadeLine]:
    """Opens a file that is about `problem`, to be checked against a network or cascade. ArgumentError if it is about another one."""
    engine = _engine(file, problem)
    if problem.combination is None:
        now, find = problem_of([model], data, ball, engine), partial(judge_lines, model, ball, engine)
        lines = _lines(file, problem, now, CertificateLine, data)
        return Recheck(problem, CertificateLine, lines, data, find, partial(_beside, file, ball, engine, data))
    if combination is None:
        raise ArgumentError(f"{file}: is about a cascade, but what it names is none")
    cascade = combination.with_engine(engine)
    rows = _lines(file, problem, cascade_problem(cascade, data), CascadeLine, data)
    return Recheck(
        problem, CascadeLine, rows, data, partial(cascade_lines, cascade), partial(_beside_cascade, file, cascade)
    )


def _engine(file: Path, problem: Problem) -> BoundEngine:
    """The engine that the problem names."""
    engines, basis = list(ENGINES.values()), problem.basis
    try:
        engines = engines if basis is None else [HighProbability(basis.delta, basis.k, seed=basis.seed)]
    except ValueError:
        engines = []
    for engine in engines:
        if repr(engine) == problem.engine:
            return engine
    raise ArgumentError(f"{file}: by the engine {problem.engine[:100]}, which `certify` cannot make again")


def _lines(file: Path, problem: Problem, now: Problem, kind: type[L], data: ImageData) -> list[L | str]:
    difference = problem.difference(now, "device", *versions())
    if difference is not None:
        raise ArgumentError(f"{file}: {difference[1]}{made_with(problem, data)}; it cannot be checked against this")
    with file.open("rb") as stream:
        content = split_lines(stream, file)
    if not content:
        raise ArgumentError(f"{file}: holds no certificates yet")
    if len(content) > len(data):
        raise ArgumentError(f"{file}: has {len(content)} lines about {len(data)} examples")
    fault: Callable[[Any], str | None] = partial(fault_in, labels=data.labels.tolist())
    return [parse_line(kind, line, index, fault) for index, line in enumerate(content)]


def made_with(problem: Problem, data: ImageData) -> str:
    """A clause about what computed the file, where that is not what computes now."""
    now = {"device": data.device.type} | versions()
    other = [
        f"{name} {getattr(problem, name)[:40]}, now {value}"
        for name, value in now.items()
        if getattr(problem, name) != value
    ]
    return f"; it was made with {', '.join(other)}" if other else ""


def _beside(
    file: Path, ball: Perturbation, engine: BoundEngine, data: ImageData, lines: list[CertificateLine]
) -> Expected:
    """The summary that `certify` writes, and the evaluation of a run."""
    found = Judged.read(lines)
    said = plain(judged_summary(found, ball, engine, None, data.classes))
    each = {name: getattr(found, name).tolist() for name in ("labels", "predicted", "certified", "certified_as_run")}
    run = Run(file.parent)
    more: Expected = [(run.evaluation_file, said | each)] if file.name == run.certificates_file.name else []
    return [(record_about(file, "summary"), said), *more]


def _beside_cascade(file: Path, cascade: Combination, lines: list[CascadeLine]) -> Expected:
    """The summary that `certify` writes beside the lines of the first stage."""
    summary = file.with_name(file.name.removesuffix("cascade.jsonl") + "summary.json")
    return [(summary, {"examples": len(lines), "cascade": read_cascade(cascade, lines).summary()})]


def _record(path: Path) -> dict[str, Any]:
    """What a record beside the file says; nothing where there is none."""
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise ArgumentError(f"{path}: holds no record")
    return found


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
