"""Certificates of a data set in a file, one line for each example: found batch by batch, and gone on with after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from autodual.cascades import Combination
from autodual.cascades.records import Answers, CascadeCertificate
from autodual.certificates import certify
from autodual.certificates.proof import describe
from autodual.data import ImageData
from autodual.engines import BoundEngine
from autodual.engines.prepare import capture
from autodual.evaluation.judge import Judged, basis
from autodual.evaluation.processes import ALONE, Group, Tell, batch_size, in_turns, silent
from autodual.graph.digest import digest_network
from autodual.runs.folder import versions
from autodual.runs.lines import L, LineFile, Say, record_about
from autodual.runs.records import Asked, CascadeLine, CertificateLine, Problem
from autodual.sets import Perturbation

RENEWED = ("device", "autodual", "torch")
"""Entries of a problem that may change between two calls: lines are then found anew, since one file has one arithmetic."""


@dataclass(frozen=True)
class Ledger:
    """A file of lines, and how the work on it is shared, shown, and gone on with. The first process writes the file."""

    path: Path
    tell: Tell = silent
    group: Group = ALONE
    say: Say = lambda line: None
    """Hears which line of an earlier call cannot be right, and is found again with all that follow."""
    anew: bool = False
    renewed: Sequence[str] = ()
    """See `LineFile.begin`."""
    step: int | None = None
    """Examples at a time, between which it can be stopped; a whole batch when None."""
    asked: Asked | None = None
    """Noted beside the lines, for whoever checks them."""

    def fill(
        self,
        kind: type[L],
        problem: Problem,
        find: Callable[[slice], list[L]],
        data: ImageData,
        what: str,
        fault: Callable[[L], str | None] = lambda line: None,
    ) -> list[L]:
        """All lines about `problem`: those that the file holds, and the others, which `find` makes for some examples at a time."""
        file = LineFile(self.path, kind, fault, self.say)
        problem, step = replace(problem, asked=self.asked), self.step or batch_size(data)
        try:
            lines = self.group.by_first(lambda: file.begin(problem, step, self.anew, self.renewed))
            for turn in in_turns(find, data, what, self.tell, self.group, start=len(lines), step=step):
                new = [line for found in turn for line in found]
                lines += new
                self.group.by_first(partial(file.append, new))
        finally:
            file.close()
        return lines

    def remove(self) -> None:
        for file in (self.path, record_about(self.path, "problem")):
            file.unlink(missing_ok=True)


def problem_of(models: Sequence[nn.Module], data: ImageData, ball: Perturbation, engine: BoundEngine) -> Problem:
    """What lines about these examples are about, and what computes them."""
    x = data.scaled(slice(0, 1))
    return Problem(
        format=Problem.FORMAT,
        perturbation=repr(ball),
        engine=repr(engine),
        examples=len(data),
        data=data.digest(),
        network=" ".join(digest_network(capture(model, x)) for model in models),
        dtype=str(x.dtype).removeprefix("torch."),
        device=x.device.type,
        batch=batch_size(data),
        **versions(),
        basis=basis(models[0], data, ball, engine),
    )


def fault_in(line: CertificateLine | CascadeLine, labels: Sequence[int]) -> str | None:
    """Why a line cannot be right about an example with its label."""
    if line.label != labels[line.index]:
        return f"has the label {line.label}, but its example has {labels[line.index]}"
    return line.fault()


# One network


def judge_to_file(ledger: Ledger, model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine) -> Judged:
    """Certifies all examples, with a line for each."""
    problem, find = problem_of([model], data, ball, engine), partial(judge_lines, model, ball, engine, data)
    fault = partial(fault_in, labels=data.labels.tolist())
    return Judged.read(ledger.fill(CertificateLine, problem, find, data, "certifying", fault))


def judge_lines(
    model: nn.Module, ball: Perturbation, engine: BoundEngine, data: ImageData, part: slice
) -> list[CertificateLine]:
    """The lines of some examples."""
    return Judged.of(certify(model, data.scaled(part), data.labels[part], ball, engine)).lines(part.start)


# Several models together


def cascade_file(path: Path) -> Path:
    """Where the lines of a cascade lie, beside those of its first stage: a.jsonl has them in a.cascade.jsonl, a plain `a` in
    a.lines-cascade.jsonl."""
    return record_about(path, "cascade").with_suffix(".jsonl")


def cascade_to_file(ledger: Ledger, combination: Combination, data: ImageData) -> CascadeCertificate:
    """Certifies all examples with a cascade, with a line for each."""
    problem, find = cascade_problem(combination, data), partial(cascade_lines, combination, data)
    fault = partial(fault_in, labels=data.labels.tolist())
    return read_cascade(combination, ledger.fill(CascadeLine, problem, find, data, "certifying the cascade", fault))


def cascade_problem(combination: Combination, data: ImageData) -> Problem:
    """What lines of a cascade are about."""
    problem = problem_of(combination.models, data, combination.ball, combination.engine)
    return replace(problem, combination=repr(combination))


def cascade_lines(combination: Combination, data: ImageData, part: slice) -> list[CascadeLine]:
    """The lines of some examples."""
    found = combination.certify(data.scaled(part), data.labels[part])
    answers, proved = found.answers, (found.sound, found.sound_as_run, found.no_wrong_certificate)
    columns = (found.labels, answers.label, answers.stage, answers.certified, *proved)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [CascadeLine(index, *row) for index, row in enumerate(rows, part.start)]


def read_cascade(combination: Combination, lines: Sequence[CascadeLine]) -> CascadeCertificate:
    """What the lines of a cascade say together."""

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(line, name) for line in lines])

    answers = Answers(column("answer"), column("certified"), column("stage"))
    return CascadeCertificate(
        combination.kind, combination.answering(), column("label"), answers, column("sound"), column("sound_as_run"),
        column("no_wrong_certificate"), describe(combination.ball), repr(combination.engine),
    )  # fmt: skip
