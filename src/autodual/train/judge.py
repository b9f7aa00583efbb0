"""Certifying many examples, with one line of JSON for each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from autodual.bounds import BoundEngine, Dual, HighProbability
from autodual.bounds.prepare import dual_network
from autodual.certify import Certificate, HighProbabilityCertificate, certify
from autodual.certify.collapse import collapse
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
    certified_as_run: Tensor
    margins: Tensor
    """The smallest one."""

    @property
    def error(self) -> float:
        return (self.predicted != self.labels).double().mean().item()

    @property
    def robust_error(self) -> float:
        return 1 - self.certified.double().mean().item()

    @property
    def robust_error_as_run(self) -> float:
        return 1 - self.certified_as_run.double().mean().item()

    def collapse(self, classes: Sequence[str] = ()) -> str | None:
        """A sentence about a network that gives one answer for everything; None for any other."""
        return collapse(self.predicted.tolist(), self.labels.tolist(), self.margins.tolist(), classes)

    @classmethod
    def of(cls, found: Certificate | HighProbabilityCertificate) -> Judged:
        smallest = found.margins.min(1).values
        return on_cpu(cls(found.labels, found.predicted, found.certified, found.certified_as_run, smallest))

    @classmethod
    def join(cls, parts: list[Judged]) -> Judged:
        names = ("labels", "predicted", "certified", "certified_as_run", "margins")
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
    say: Callable[[str], None] = lambda line: None,
) -> Judged:
    """The same with a line of JSON per example, written by the first process; goes on where an interrupted call stopped.

    say: told which line of an earlier call cannot be right, and is found again with all that follow.
    """

    def one(part: slice) -> list[Line]:
        return _lines(part, model, data, ball, engine)

    labels = data.labels.tolist()
    lines = lines_to_file(
        LineFile(path, lambda line: fault(line, labels), say),
        question([model], data, ball, Dual() if engine is None else engine),
        one, data, "certifying", tell, group, anew,
    )  # fmt: skip
    return Judged(
        torch.tensor([line["label"] for line in lines]),
        torch.tensor([line["predicted"] for line in lines]),
        torch.tensor([line["certified"] for line in lines], dtype=torch.bool),
        torch.tensor([line["certified_as_run"] for line in lines], dtype=torch.bool),
        torch.tensor([torch.nan if line["margin"] is None else line["margin"] for line in lines]),
    )


def lines_to_file(
    file: LineFile,
    problem: Line,
    one: Callable[[slice], list[Line]],
    data: ImageData,
    what: str,
    tell: Tell,
    group: Group,
    anew: bool,
) -> list[Line]:
    """All lines of a file about `problem`: those that it holds, and the others, which `one` finds batch by batch."""
    try:
        lines = group.by_first(lambda: file.begin(problem, batch_size(data), anew))
        for turn in in_turns(one, data, what, tell, group, start=len(lines)):
            new = [line for found in turn for line in found]
            lines += new
            group.by_first(partial(file.append, new))
    finally:
        file.close()
    return lines


def fault(line: Line, labels: list[int]) -> str | None:
    """Why a line cannot be what certification says about an example with its label."""
    kinds = {
        "index": (int,), "label": (int,), "predicted": (int,), "certified": (bool,), "certified_as_run": (bool,),
        "margin": (float, type(None)),
    }  # fmt: skip
    if line.keys() != kinds.keys():
        return f"does not hold {', '.join(kinds)}, and nothing else"
    for name, kind in kinds.items():
        if type(line[name]) not in kind:
            return f"has {line[name]!r} as {name}"
    label, predicted, margin = line["label"], line["predicted"], line["margin"]
    if label != labels[line["index"]]:
        return f"has the label {label}, but its example has {labels[line['index']]}"
    if margin is not None and not math.isfinite(margin):
        return f"has {margin} as margin"
    if line["certified"] and (predicted != label or margin is None or margin <= 0):
        return f"is certified, but has the label {label}, predicted {predicted} and margin {margin}"
    if line["certified_as_run"] and not line["certified"]:
        return "is certified as it runs, but not in real numbers, which is less"
    return None


def question(models: Sequence[nn.Module], data: ImageData, ball: Perturbation, engine: BoundEngine) -> Line:
    """What the lines are about."""
    weights = hashlib.sha256()
    for model in models:
        for name, value in model.state_dict().items():
            weights.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "perturbation": repr(ball),
        "engine": repr(engine),
        "examples": len(data),
        "data": data.digest(),
        "weights": weights.hexdigest(),
    } | basis(models[0], data, ball, engine)


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
        "certified_as_run": bool(found.certified_as_run[offset]),
        "margin": margin if math.isfinite(margin) else None,
    }
