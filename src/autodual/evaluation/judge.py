"""Certifying many examples, with one line of JSON for each."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from autodual.certificates import Certificate, HighProbabilityCertificate, certify
from autodual.certificates.certificate import collapse
from autodual.data import ImageData
from autodual.engines import BoundEngine, Dual, HighProbability
from autodual.engines.prepare import capture, dual_network
from autodual.engines.results import generators
from autodual.evaluation.processes import ALONE, Group, Tell, batch_size, in_turns, on_all, on_cpu, silent
from autodual.graph.digest import digest_network
from autodual.runs.lines import Line, LineFile
from autodual.sets import Perturbation


@dataclass(frozen=True)
class Judged:
    """Per example: what certification says, in order."""

    labels: Tensor
    predicted: Tensor
    certified: Tensor
    certified_as_run: Tensor
    margins: Tensor
    """The smallest one."""
    slack: Tensor
    """The largest one: how far rounding may have moved a margin."""

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
        smallest, slack = found.margins.min(1).values, found.slack.max(1).values
        return on_cpu(cls(found.labels, found.predicted, found.certified, found.certified_as_run, smallest, slack))

    @classmethod
    def read(cls, lines: Sequence[Line]) -> Judged:
        """From lines of JSON."""
        return cls(
            torch.tensor([line["label"] for line in lines]),
            torch.tensor([line["predicted"] for line in lines]),
            torch.tensor([line["certified"] for line in lines], dtype=torch.bool),
            torch.tensor([line["certified_as_run"] for line in lines], dtype=torch.bool),
            torch.tensor([torch.nan if line["margin"] is None else line["margin"] for line in lines]),
            torch.tensor([torch.inf if line["slack"] is None else line["slack"] for line in lines]),
        )

    @classmethod
    def join(cls, parts: list[Judged]) -> Judged:
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


def proved(found: Judged, engine: BoundEngine) -> dict[str, float]:
    """What is not certified. Over many examples the probabilities of `HighProbability` add up: that fraction is no robust error."""
    exact, as_run = found.robust_error, found.robust_error_as_run
    if isinstance(engine, HighProbability):
        return {"not_certified": exact, "not_certified_as_run": as_run, "confidence": 1 - engine.delta}
    return {"robust_error": exact, "robust_error_as_run": as_run, "confidence": 1.0}


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


SMALL_UNITS = 10_000
"""Units, the input's features included, of a network whose certificates are found for a whole batch at once."""


def at_once(model: nn.Module, data: ImageData) -> int:
    """Examples between which certification can be stopped, and goes on from: fewer of a larger network."""
    units = generators(dual_network(model, data.scaled(slice(0, 1))))
    return max(1, batch_size(data) * SMALL_UNITS // max(SMALL_UNITS, units))


RENEWED = ("device", "autodual", "torch")
"""What a run may be gone on with otherwise: its certificates are then found anew, since one file has one arithmetic."""

KINDS: dict[str, tuple[type, ...]] = {
    "index": (int,), "label": (int,), "predicted": (int,), "certified": (bool,), "certified_as_run": (bool,),
    "margin": (float, type(None)), "slack": (float, type(None)),
}  # fmt: skip
"""What a line holds."""


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
    asked: Line | None = None,
    renewed: Sequence[str] = (),
    step: int | None = None,
) -> Judged:
    """The same with a line of JSON per example, written by the first process; goes on where an interrupted call stopped.

    say: told which line of an earlier call cannot be right, and is found again with all that follow. asked: noted beside the
    lines, for whoever checks them. renewed: see `LineFile.begin`. step: examples at a time, between which it can be stopped.
    """
    labels = data.labels.tolist()
    lines = lines_to_file(
        LineFile(path, lambda line: fault(line, labels), say),
        question([model], data, ball, Dual() if engine is None else engine, asked),
        partial(judge_lines, model, data, ball, engine), data, "certifying", tell, group, anew, renewed, step,
    )  # fmt: skip
    return Judged.read(lines)


def lines_to_file(
    file: LineFile,
    problem: Line,
    one: Callable[[slice], list[Line]],
    data: ImageData,
    what: str,
    tell: Tell,
    group: Group,
    anew: bool,
    renewed: Sequence[str] = (),
    step: int | None = None,
) -> list[Line]:
    """All lines of a file about `problem`: those that it holds, and the others, which `one` finds batch by batch."""
    try:
        lines = group.by_first(lambda: file.begin(problem, step or batch_size(data), anew, renewed))
        for turn in in_turns(one, data, what, tell, group, start=len(lines), step=step):
            new = [line for found in turn for line in found]
            lines += new
            group.by_first(partial(file.append, new))
    finally:
        file.close()
    return lines


def fault(line: Line, labels: list[int]) -> str | None:
    """Why a line cannot be what certification says about an example with its label."""
    if line.keys() != KINDS.keys():
        return f"does not hold {', '.join(KINDS)}, and nothing else"
    for name, kind in KINDS.items():
        if type(line[name]) not in kind:
            return f"has {line[name]!r} as {name}"
    label, predicted, margin = line["label"], line["predicted"], line["margin"]
    if label != labels[line["index"]]:
        return f"has the label {label}, but its example has {labels[line['index']]}"
    for name in ("margin", "slack"):
        if line[name] is not None and not math.isfinite(line[name]):
            return f"has {line[name]} as {name}"
    if line["certified"] and (predicted != label or margin is None or margin <= 0):
        return f"is certified, but has the label {label}, predicted {predicted} and margin {margin}"
    if line["certified_as_run"] and not line["certified"]:
        return "is certified as it runs, but not in real numbers, which is less"
    return None


FORMAT = "autodual certificates 2"


def question(
    models: Sequence[nn.Module], data: ImageData, ball: Perturbation, engine: BoundEngine, asked: Line | None = None
) -> Line:
    """What the lines are about, and what computed them."""
    x = data.scaled(slice(0, 1))
    record = {
        "format": FORMAT,
        "perturbation": repr(ball),
        "engine": repr(engine),
        "examples": len(data),
        "data": data.digest(),
        "network": " ".join(digest_network(capture(model, x)) for model in models),
        "dtype": str(x.dtype).removeprefix("torch."),
        "device": x.device.type,
        "batch": batch_size(data),
    }
    record |= versions() | basis(models[0], data, ball, engine)
    return record if asked is None else record | {"asked": asked}


def versions() -> dict[str, str]:
    """What computes here."""
    from autodual._version import __version__

    return {"autodual": __version__, "torch": torch.__version__, "python": platform.python_version()}


def basis(model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None) -> Line:
    """What a certificate with a probability rests on: delta, estimates, k, m and seed. Nothing for a proof."""
    if not isinstance(engine, HighProbability):
        return {}
    x = data.scaled(slice(0, 1))
    return asdict(engine.confidence(dual_network(model, x), ball.around(x)))


def judge_lines(
    model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine | None, part: slice
) -> list[Line]:
    """The lines of some examples."""
    found = Judged.of(certify(model, data.scaled(part), data.labels[part], ball, engine))
    return [_line(part.start + offset, found, offset) for offset in range(len(found.labels))]


def _line(index: int, found: Judged, offset: int) -> Line:
    margin, slack = found.margins[offset].item(), found.slack[offset].item()
    return {
        "index": index,
        "label": int(found.labels[offset]),
        "predicted": int(found.predicted[offset]),
        "certified": bool(found.certified[offset]),
        "certified_as_run": bool(found.certified_as_run[offset]),
        "margin": margin if math.isfinite(margin) else None,
        "slack": slack if math.isfinite(slack) else None,
    }
