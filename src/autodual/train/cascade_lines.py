"""Certifying many examples with a cascade, with one line of JSON for each, beside those of its first stage."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from autodual.certify.cascade import Combination
from autodual.certify.cascade_records import Answers, CascadeCertificate
from autodual.certify.certify import describe
from autodual.train.data import ImageData
from autodual.train.group import ALONE, Group
from autodual.train.judge import lines_to_file, problem_of
from autodual.train.lines import Line, record_about
from autodual.train.share import Tell


def cascade_file(path: Path) -> Path:
    """Where the lines of the cascade lie: a.jsonl has them in a.cascade.jsonl, a plain `a` in a.lines-cascade.jsonl."""
    return record_about(path, "cascade").with_suffix(".jsonl")


def certify_to_file(
    path: Path, combination: Combination, data: ImageData, tell: Tell, group: Group = ALONE, anew: bool = False
) -> CascadeCertificate:
    """What `certify_all` finds, with a line of JSON per example; goes on where an interrupted call stopped."""

    def one(part: slice) -> list[Line]:
        found = combination.certify(data.scaled(part), data.labels[part])
        return [_line(part.start + offset, found, offset) for offset in range(len(found.labels))]

    problem = problem_of(combination.models, data, combination.ball, combination.engine)
    problem["combination"] = repr(combination)
    lines = lines_to_file(path, problem, one, data, "certifying the cascade", tell, group, anew)
    answers = Answers(_column(lines, "answer"), _column(lines, "certified").bool(), _column(lines, "stage"))
    return CascadeCertificate(
        combination.kind, combination.answering(), _column(lines, "label"), answers, _column(lines, "sound").bool(),
        _column(lines, "no_wrong_certificate").bool(), describe(combination.ball), repr(combination.engine),
    )  # fmt: skip


def _line(index: int, found: CascadeCertificate, offset: int) -> Line:
    return {
        "index": index,
        "label": int(found.labels[offset]),
        "answer": int(found.answers.label[offset]),
        "stage": int(found.answers.stage[offset]),
        "certified": bool(found.answers.certified[offset]),
        "sound": bool(found.sound[offset]),
        "no_wrong_certificate": bool(found.no_wrong_certificate[offset]),
    }


def _column(lines: list[Line], name: str) -> Tensor:
    return torch.tensor([int(line[name]) for line in lines])
