"""Certifying many examples with a cascade, with one line of JSON for each, beside those of its first stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from autodual.cascades.load import Combination
from autodual.cascades.records import Answers, CascadeCertificate
from autodual.certificates.proof import describe
from autodual.data import ImageData
from autodual.evaluation.judge import lines_to_file, question
from autodual.evaluation.processes import ALONE, Group, Tell
from autodual.runs.lines import Line, LineFile, record_about

CASCADE_KINDS = {
    "index": int, "label": int, "answer": int, "stage": int, "certified": bool, "sound": bool,
    "sound_as_run": bool, "no_wrong_certificate": bool,
}  # fmt: skip
"""What a line holds."""


def cascade_file(path: Path) -> Path:
    """Where the lines of the cascade lie: a.jsonl has them in a.cascade.jsonl, a plain `a` in a.lines-cascade.jsonl."""
    return record_about(path, "cascade").with_suffix(".jsonl")


def certify_to_file(
    path: Path,
    combination: Combination,
    data: ImageData,
    tell: Tell,
    group: Group = ALONE,
    anew: bool = False,
    say: Callable[[str], None] = lambda line: None,
    asked: Line | None = None,
    renewed: Sequence[str] = (),
    step: int | None = None,
) -> CascadeCertificate:
    """What `certify_all` finds, with a line of JSON per example; goes on where an interrupted call stopped.

    say: told which line of an earlier call cannot be right, and is found again with all that follow. renewed: see `LineFile.begin`.
    step: examples at a time, between which it can be stopped.
    """

    labels = data.labels.tolist()
    file = LineFile(path, lambda line: cascade_fault(line, labels), say)
    problem, one = cascade_question(combination, data, asked), partial(cascade_lines, combination, data)
    lines = lines_to_file(file, problem, one, data, "certifying the cascade", tell, group, anew, renewed, step)
    return read_cascade(combination, lines)


def read_cascade(combination: Combination, lines: list[Line]) -> CascadeCertificate:
    """What the lines of a cascade say together."""
    answers = Answers(_column(lines, "answer"), _column(lines, "certified").bool(), _column(lines, "stage"))
    return CascadeCertificate(
        combination.kind, combination.answering(), _column(lines, "label"), answers, _column(lines, "sound").bool(),
        _column(lines, "sound_as_run").bool(), _column(lines, "no_wrong_certificate").bool(),
        describe(combination.ball), repr(combination.engine),
    )  # fmt: skip


def cascade_question(combination: Combination, data: ImageData, asked: Line | None = None) -> Line:
    """What the lines of a cascade are about."""
    problem = question(combination.models, data, combination.ball, combination.engine, asked)
    return problem | {"combination": repr(combination)}


def cascade_lines(combination: Combination, data: ImageData, part: slice) -> list[Line]:
    """The lines of some examples."""
    found = combination.certify(data.scaled(part), data.labels[part])
    return [_line(part.start + offset, found, offset) for offset in range(len(found.labels))]


def _line(index: int, found: CascadeCertificate, offset: int) -> Line:
    return {
        "index": index,
        "label": int(found.labels[offset]),
        "answer": int(found.answers.label[offset]),
        "stage": int(found.answers.stage[offset]),
        "certified": bool(found.answers.certified[offset]),
        "sound": bool(found.sound[offset]),
        "sound_as_run": bool(found.sound_as_run[offset]),
        "no_wrong_certificate": bool(found.no_wrong_certificate[offset]),
    }


def cascade_fault(line: Line, labels: list[int]) -> str | None:
    """Why a line cannot be what a cascade says about an example with its label."""
    if line.keys() != CASCADE_KINDS.keys():
        return f"does not hold {', '.join(CASCADE_KINDS)}, and nothing else"
    for name, kind in CASCADE_KINDS.items():
        if type(line[name]) is not kind:
            return f"has {line[name]!r} as {name}"
    label, answer = line["label"], line["answer"]
    if label != labels[line["index"]]:
        return f"has the label {label}, but its example has {labels[line['index']]}"
    if line["sound"] and answer != label:
        return f"is proved, but has the label {label} and the answer {answer}"
    return None


def _column(lines: list[Line], name: str) -> Tensor:
    return torch.tensor([int(line[name]) for line in lines])
