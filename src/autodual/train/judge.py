"""Certifying many examples, with one line of JSON for each."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from autodual.bounds import BoundEngine, Dual, HighProbability
from autodual.bounds.prepare import dual_network
from autodual.certify import Certificate, certify
from autodual.sets import Perturbation
from autodual.train.data import ImageData
from autodual.train.group import ALONE, Group
from autodual.train.lines import Line, LineFile
from autodual.train.share import Tell, batch_size, in_turns, on_all, on_cpu, silent


@dataclass(frozen=True)
class Judged:
    """Per example: what certification says, in order."""

    labels: Tensor
    predicted: Tensor
    certified: Tensor
    margins: Tensor
    """The smallest one."""

    @property
    def error(self) -> float:
        return (self.predicted != self.labels).double().mean().item()

    @property
    def robust_error(self) -> float:
        return 1 - self.certified.double().mean().item()

    @classmethod
    def of(cls, certificate: Certificate) -> Judged:
        smallest = certificate.margins.min(1).values
        return on_cpu(cls(certificate.labels, certificate.predicted, certificate.certified, smallest))

    @classmethod
    def join(cls, parts: list[Judged]) -> Judged:
        names = ("labels", "predicted", "certified", "margins")
        return cls(*(torch.cat([getattr(p, n) for p in parts]) for n in names))


def judge(
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    engine: BoundEngine | None = None,
    tell: Tell = silent,
    what: str = "certifying",
    group: Group = ALONE,
) -> Judged:
    """Certify all examples, some at a time."""

    def one(x: Tensor, labels: Tensor) -> Judged:
        return Judged.of(certify(model, x, labels, ball, engine))

    return Judged.join(on_all(one, data, what, tell, group))


def judge_to_file(
    path: Path,
    model: nn.Module,
    data: ImageData,
    ball: Perturbation,
    engine: BoundEngine | None,
    tell: Tell,
    group: Group = ALONE,
    anew: bool = False,
) -> Judged:
    """The same with a line of JSON per example, written by the first process; goes on where an interrupted call stopped."""

    def one(part: slice) -> list[Line]:
        return _lines(part, model, data, ball, engine)

    file, problem = LineFile(path), _problem(model, data, ball, engine)
    try:
        lines = group.by_first(lambda: file.begin(problem, batch_size(data), anew))
        for turn in in_turns(one, data, "certifying", tell, group, start=len(lines)):
            new = [line for found in turn for line in found]
            lines += new
            group.by_first(partial(file.append, new))
    finally:
        file.close()
    return Judged(
        torch.tensor([line["label"] for line in lines]),
        torch.tensor([line["predicted"] for line in lines]),
        torch.tensor([line["certified"] for line in lines], dtype=torch.bool),
        torch.tensor([torch.nan if line["margin"] is None else line["margin"] for line in lines]),
    )


def _problem(model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None) -> Line:
    """What the lines are about."""
    weights = hashlib.sha256()
    for name, value in model.state_dict().items():
        weights.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "perturbation": repr(ball),
        "engine": repr(Dual() if engine is None else engine),
        "examples": len(data),
        "data": data.digest(),
        "weights": weights.hexdigest(),
    } | basis(model, data, ball, engine)


def basis(model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None) -> Line:
    """What a certificate with a probability rests on: delta, estimates, k, m and seed. Nothing for a proof."""
    if not isinstance(engine, HighProbability):
        return {}
    x = data.scaled(slice(0, 1))
    return asdict(engine.confidence(dual_network(model, x), ball.around(x)))


def _lines(
    part: slice, model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None
) -> list[Line]:
    found = Judged.of(certify(model, data.scaled(part), data.labels[part], ball, engine))
    return [_line(part.start + offset, found, offset) for offset in range(len(found.labels))]


def _line(index: int, found: Judged, offset: int) -> Line:
    margin = found.margins[offset].item()
    return {
        "index": index,
        "label": int(found.labels[offset]),
        "predicted": int(found.predicted[offset]),
        "certified": bool(found.certified[offset]),
        "margin": margin if np.isfinite(margin) else None,
    }
