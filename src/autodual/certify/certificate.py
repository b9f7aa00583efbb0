"""What has been proved, about which examples, and how."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from autodual.bounds.base import Confidence


class Verdict(enum.Enum):
    """What is known about one example; the value says what to do with it."""

    CERTIFIED = "proved: no input of the set is given another label"
    PROBABLE = "proved with the certificate's confidence: fails with probability delta at most, for each example"
    UNKNOWN = "not proved: try a tighter engine, a smaller set, or attack() for a counterexample"
    WRONG = "the clean input already gets another label: there is nothing to certify"


@dataclass(frozen=True)
class Certificate:
    """Bounds on every margin, and which examples they certify.

    An example is certified only when every margin is finite and exceeds its rounding slack.
    """

    margins: Tensor
    """[N, C]: lower bound on z_label - z_j over the set; +inf at j = label."""
    slack: Tensor
    """[N, C]: how far rounding may have moved each margin, for the dtype that was used."""
    predicted: Tensor
    """[N]: the label that the model gives to the clean input."""
    labels: Tensor
    perturbation: str
    engine: str

    proved_verdict: ClassVar[Verdict] = Verdict.CERTIFIED

    @property
    def confidence(self) -> float:
        """How sure each certified example is: 1, since this is a proof."""
        return 1.0

    @property
    def certified(self) -> Tensor:
        """[N] bool; NaN and infinite bounds never certify."""
        margins, slack = self.margins.detach(), self.slack.detach()
        other = torch.ones_like(margins, dtype=torch.bool).scatter(1, self.labels.unsqueeze(1), False)
        proved = (margins > slack) & margins.isfinite() & slack.isfinite()
        return (proved | ~other).all(1) & (self.predicted == self.labels)

    @property
    def verdicts(self) -> list[Verdict]:
        wrong = (self.predicted != self.labels).tolist()
        return [
            Verdict.WRONG if w else self.proved_verdict if c else Verdict.UNKNOWN
            for w, c in zip(wrong, self.certified.tolist(), strict=True)
        ]

    @property
    def robust_error(self) -> float:
        """Fraction of the examples that are not certified: an upper bound on the error under any attack."""
        return 1.0 - self.certified.double().mean().item()

    @property
    def error(self) -> float:
        """Fraction of the clean inputs that get a wrong label."""
        return (self.predicted != self.labels).double().mean().item()

    def to_json(self) -> str:
        """Everything as JSON; infinite or undefined numbers are null."""
        return json.dumps(self._record(), allow_nan=False)

    def _record(self) -> dict[str, Any]:
        return {
            "perturbation": self.perturbation,
            "engine": self.engine,
            "confidence": self.confidence,
            "dtype": str(self.margins.dtype).removeprefix("torch."),
            "examples": len(self.labels),
            "error": self.error,
            "robust_error": self.robust_error,
            "labels": self.labels.tolist(),
            "predicted": self.predicted.tolist(),
            "certified": self.certified.tolist(),
            "margins": _finite(self.margins.detach().tolist()),
            "slack": _finite(self.slack.detach().tolist()),
        }


@dataclass(frozen=True)
class HighProbabilityCertificate(Certificate):
    """No proof: for each example, the bounds hold with probability at least 1 - delta over the random numbers."""

    basis: Confidence
    """delta, the number of estimates N that must hold at once, k, m and the seed."""

    proved_verdict: ClassVar[Verdict] = Verdict.PROBABLE

    @property
    def confidence(self) -> float:
        """1 - delta, for each example by itself; for all of them together, delta adds up."""
        return 1.0 - self.basis.delta

    @property
    def delta(self) -> float:
        return self.basis.delta

    def _record(self) -> dict[str, Any]:
        return super()._record() | asdict(self.basis)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if math.isfinite(value) else None
