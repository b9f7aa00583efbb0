"""Certifying many examples, some at a time: what was found about each of them, and what it says together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from autodual.certificates import Certificate, HighProbabilityCertificate, certify
from autodual.certificates.certificate import collapse
from autodual.data import ImageData
from autodual.engines import IBP, BoundEngine, Crown, Dual, HighProbability
from autodual.engines.prepare import dual_network
from autodual.engines.results import generators
from autodual.evaluation.processes import ALONE, Group, Tell, batch_size, on_all, on_cpu, silent
from autodual.runs.records import Basis, CertificateLine, Summary
from autodual.sets import Perturbation


@dataclass(frozen=True)
class Judged:
    """What certification says about examples, in order: [N] each."""

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
    def read(cls, lines: Sequence[CertificateLine]) -> Judged:
        """What these lines say."""
        return cls(
            torch.tensor([line.label for line in lines]),
            torch.tensor([line.predicted for line in lines]),
            torch.tensor([line.certified for line in lines], dtype=torch.bool),
            torch.tensor([line.certified_as_run for line in lines], dtype=torch.bool),
            torch.tensor([torch.nan if line.margin is None else line.margin for line in lines]),
            torch.tensor([torch.inf if line.slack is None else line.slack for line in lines]),
        )

    def lines(self, start: int) -> list[CertificateLine]:
        """One line for each example, the first of which is the example `start`."""
        columns = (self.labels, self.predicted, self.certified, self.certified_as_run, self.margins, self.slack)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            CertificateLine(index, *verdict, *(number if math.isfinite(number) else None for number in (margin, slack)))
            for index, (*verdict, margin, slack) in enumerate(rows, start)
        ]

    @classmethod
    def join(cls, parts: list[Judged]) -> Judged:
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


def basis(model: nn.Module, data: ImageData, ball: Perturbation, engine: BoundEngine) -> Basis | None:
    """What a certificate with a probability rests on; None for a proof."""
    if not isinstance(engine, HighProbability):
        return None
    x = data.scaled(slice(0, 1))
    return Basis(**asdict(engine.confidence(dual_network(model, x), ball.around(x))))


def judged_summary(
    found: Judged, ball: Perturbation, engine: BoundEngine, rests_on: Basis | None, classes: Sequence[str]
) -> Summary:
    """What all certificates say together. Over many examples the probabilities of `HighProbability` add up: what these do not certify
    is no robust error."""
    exact, as_run = found.robust_error, found.robust_error_as_run
    rates: dict[str, Any] = {"robust_error": exact, "robust_error_as_run": as_run, "confidence": 1.0}
    if isinstance(engine, HighProbability):
        rates = {"not_certified": exact, "not_certified_as_run": as_run, "confidence": 1 - engine.delta}
    return Summary(
        perturbation=repr(ball), engine=repr(engine), examples=len(found.labels), error=found.error, **rates,
        collapsed=found.collapse(classes), basis=rests_on,
    )  # fmt: skip


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


ENGINES: dict[str, BoundEngine] = {"dual": Dual(), "crown": Crown(), "ibp": IBP()}
"""Engines that prove, by their names on the command line."""

SMALL_UNITS = 10_000
"""Units, the input's features included, of a network whose certificates are found for a whole batch at once."""


def at_once(model: nn.Module, data: ImageData) -> int:
    """How many examples are certified between two points at which the work can be stopped: fewer for a larger network."""
    units = generators(dual_network(model, data.scaled(slice(0, 1))))
    return max(1, batch_size(data) * SMALL_UNITS // max(SMALL_UNITS, units))
