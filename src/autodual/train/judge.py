"""Certifying many examples, with one line of JSON for each."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import beside, write_json
from autodual.bounds import BoundEngine, Dual
from autodual.certify import Certificate, certify
from autodual.sets import Perturbation
from autodual.train.data import ImageData
from autodual.train.group import ALONE, Group
from autodual.train.share import Tell, batch_size, in_turns, on_all, silent


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
        return cls(*(t.cpu() for t in (certificate.labels, certificate.predicted, certificate.certified, smallest)))

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
) -> Judged:
    """The same with a line of JSON per example, written by the first process; goes on where an interrupted call stopped."""

    def begin() -> list[dict[str, Any]]:
        _claim(path, model, data, ball, engine)
        return _whole_batches(path, data)

    def one(part: slice) -> list[dict[str, Any]]:
        return _lines(part, model, data, ball, engine)

    lines = group.by_first(begin)
    try:
        with path.open("a", encoding="utf-8") if group.first else nullcontext() as stream:
            for turn in in_turns(one, data, "certifying", tell, group, start=len(lines)):
                new = [line for found in turn for line in found]
                lines += new
                if stream is not None:
                    stream.writelines(json.dumps(line) + "\n" for line in new)
                    stream.flush()
                    os.fsync(stream.fileno())
    except OSError as error:
        raise ArgumentError(f"{path}: not written: {error.strerror or error}") from None
    return Judged(
        torch.tensor([line["label"] for line in lines]),
        torch.tensor([line["predicted"] for line in lines]),
        torch.tensor([line["certified"] for line in lines], dtype=torch.bool),
        torch.tensor([torch.nan if line["margin"] is None else line["margin"] for line in lines]),
    )


def _claim(path: Path, model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None) -> None:
    """Note beside the file what its lines are about; refuse to go on with lines about something else."""
    note = beside(path, "problem")
    weights = hashlib.sha256()
    for name, value in model.state_dict().items():
        weights.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    problem = {
        "perturbation": repr(ball),
        "engine": repr(Dual() if engine is None else engine),
        "examples": len(data),
        "data": data.digest(),
        "weights": weights.hexdigest(),
    }
    if path.exists() and path.stat().st_size > 0:
        before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        other = [k for k, v in problem.items() if before.get(k) != v]
        if other:
            raise ArgumentError(
                f"{path}: its certificates are about something else ({other[0]} was {before.get(other[0])}, now {problem[other[0]]}); "
                f"choose another file, or remove it"
            )
    write_json(note, problem)


def _lines(
    part: slice, model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None
) -> list[dict[str, Any]]:
    found = Judged.of(certify(model, data.scaled(part), data.labels[part], ball, engine))
    return [_line(part.start + offset, found, offset) for offset in range(len(found.labels))]


def _line(index: int, found: Judged, offset: int) -> dict[str, Any]:
    margin = found.margins[offset].item()
    return {
        "index": index,
        "label": int(found.labels[offset]),
        "predicted": int(found.predicted[offset]),
        "certified": bool(found.certified[offset]),
        "margin": margin if np.isfinite(margin) else None,
    }


def _whole_batches(path: Path, data: ImageData) -> list[dict[str, Any]]:
    """The lines of complete batches, after which the file is cut: the same batches give the same numbers to the last bit."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(data):
        whole = whole[: len(whole) // batch_size(data) * batch_size(data)]
    os.truncate(path, sum(map(len, whole)))
    return [json.loads(line) for line in whole]
