"""What has been proved, about which examples, for which arithmetic, and how."""

from __future__ import annotations

import enum
import json
import math
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.engines.results import BoundEngine, Confidence, proves
from autodual.graph.digest import digest_object, digest_tensors
from autodual.sets import GivenSet, L1Ball, L2Ball, LinfBall, Perturbation
from autodual.spec import Question, Specification, plain_labels

# Networks that have given up: one answer for everything, which is easily certified and says nothing.

FEWEST = 5
"""Examples of other classes that it takes to tell a collapsed network from a few unlucky examples."""
NEARLY = 0.02
"""A collapsed network gives other answers for no more than this part of the examples that have other labels."""


def collapse(
    predicted: Sequence[int],
    labels: Sequence[int],
    margins: Sequence[float | None] | None = None,
    classes: Sequence[str] = (),
) -> str | None:
    """A sentence that names a collapsed network by what it does; None for any other.

    Collapsed: it predicts one class for (nearly) all examples although the examples have several. Scores that are all equal, or not
    numbers, look like this, too, since the largest of them is then always the first. margins: NaN or None where none is finite.
    """
    if not predicted:
        return None
    chosen, times = Counter(predicted).most_common(1)[0]
    others = sum(label != chosen for label in labels)
    if others < FEWEST or len(predicted) - times > NEARLY * others:
        return None
    name = f"{chosen} ({classes[chosen]})" if _tells_more(chosen, classes) else str(chosen)
    share = f"all {times} examples" if times == len(predicted) else f"{times} of {len(predicted)} examples"
    why = ""
    if margins and not any(margin is not None and math.isfinite(margin) for margin in margins):
        why = ", and none of its margins is a finite number"
    return (
        f"collapsed: it predicts class {name} for {share}, although {others} of them have another label{why}. A "
        f"constant answer is easy to certify and worth nothing"
    )


def _tells_more(index: int, classes: Sequence[str]) -> bool:
    return 0 <= index < len(classes) and classes[index] != str(index)


class Verdict(enum.Enum):
    """What is known about one example; the value says what to do with it."""

    CERTIFIED = "proved: what was asked, such as the label, holds for every input of the set"
    PROBABLE = "proved with the certificate's confidence: fails with probability delta at most, for each example"
    UNKNOWN = "not proved: try a tighter engine, a smaller set, or attack() for a counterexample"
    WRONG = "the clean input already fails, as by another label: there is nothing to certify"


@dataclass(frozen=True)
class Subject:
    """What a certificate is about. Two certificates with the same subject answer the same question."""

    network: str
    """SHA-256 of the captured network: its operations, their settings and all constants."""
    inputs: str
    """SHA-256 of the inputs, and of the labels if they are what was asked about."""
    perturbation: str
    engine: str
    dtype: str
    """What the network computes in."""
    device: str
    torch: str
    python: str
    question: str = "Label()"
    """The specification, with a digest of its numbers if it is another one than labels."""

    @classmethod
    def of(
        cls, network: str, inputs: str, ball: Perturbation, engine: BoundEngine, x: Tensor, specification: Specification
    ) -> Subject:
        """network, inputs: their digests."""
        dtype, device = str(x.dtype).removeprefix("torch."), x.device.type
        if device == "cuda":
            device = torch.cuda.get_device_name(x.device)
        question = repr(specification)
        if plain_labels(specification) is None:  # plain labels are among the inputs
            question = with_digest(question, specification)
        versions = torch.__version__, platform.python_version()
        return cls(network, inputs, describe(ball), repr(engine), dtype, device, *versions, question)


SHORT = 16
"""Hexadecimal digits of a digest inside a description."""


def with_digest(name: str, value: object) -> str:
    """A name, and the first digits of the digest of what it stands for."""
    return f"{name} sha256:{digest_object(value)[:SHORT]}"


def describe(ball: Perturbation) -> str:
    """The perturbation in one line, which differs for different ones: what it does not spell out, a digest stands for.

    A tensor of eps is summarised by its range. What a perturbation of the user's own holds may not show at all.
    """
    if isinstance(ball, GivenSet):
        return with_digest(type(ball.region).__name__, ball.region)
    if type(ball) not in (LinfBall, L2Ball, L1Ball):
        name = repr(ball) if type(ball).__repr__ is not object.__repr__ else type(ball).__name__
        return with_digest(name, ball)
    scale = ball.scale if isinstance(ball, LinfBall) else None
    scaled = "" if scale is None else f" scale sha256:{digest_tensors([scale])[:SHORT]}"
    if not isinstance(ball.eps, Tensor):
        return f"{ball!r}{scaled}"
    eps = ball.eps.detach()
    if eps.numel() == 1:
        return f"{ball.with_eps(eps.item())!r}{scaled}"
    span = f"{eps.min().item():.6g}..{eps.max().item():.6g} sha256:{digest_tensors([eps])[:SHORT]}"
    return repr(ball.with_eps(0.0)).replace("eps=0.0", f"eps={span}", 1) + scaled


def in_words(ball: Perturbation) -> str:
    """Where a certificate holds, as a person would say it: "at l-infinity 2/255 in [0, 1]"."""
    if isinstance(ball, GivenSet):
        return f"in a {type(ball.region).__name__} each"
    if type(ball) not in _NAMES:
        return f"under {type(ball).__name__}"
    given = ball.eps.detach() if isinstance(ball.eps, Tensor) else torch.tensor(ball.eps, dtype=torch.float64)
    eps = given.abs()  # -0.0 is written as 0
    if isinstance(ball, LinfBall) and ball.scale is not None and eps.numel():
        eps = torch.stack([eps.min().double().cpu(), eps.max().double().cpu()]) * torch.stack(
            [ball.scale.min().double().cpu(), ball.scale.max().double().cpu()]
        )
    ends = sorted({eps.min().item(), eps.max().item()}) if eps.numel() else []
    clip = ball.clip if isinstance(ball, LinfBall) else None
    inside = "" if clip is None else f" in [{clip[0]:g}, {clip[1]:g}]"
    return f"at {_NAMES[type(ball)]} {' to '.join(map(fraction, ends))}{inside}"


_NAMES: dict[type[Perturbation], str] = {LinfBall: "l-infinity", L2Ball: "l2", L1Ball: "l1"}


def fraction(eps: float) -> str:
    """A size as k/255 if it is one in float32 or float64 and has no short decimal form; as a decimal number otherwise."""
    short = f"{eps:.3g}"
    k = round(255 * eps) if 0 < eps < 256 else 0
    if math.isclose(float(short), eps, rel_tol=2**-23) or k == 0 or not math.isclose(k / 255, eps, rel_tol=2**-23):
        return f"{eps:g}"
    return f"{k}/255"


@dataclass(frozen=True, repr=False)
class Claim:
    """Bounds on every row of a specification, with their errors: what certificates of either kind consist of."""

    margins: Tensor
    """[N, R]: lower bounds over the set; for labels, on z_label - z_j. +inf where there is nothing to prove, as at j = label."""
    slack: Tensor
    """[N, R]: how far rounding may have moved each margin."""
    run_error: Tensor
    """[N, R]: how far each margin of the network as it runs, in its own dtype, may be from that of the exact function."""
    output: Tensor
    """[N, *shape]: what the model computes for the clean input."""
    question: Question
    subject: Subject
    where: str
    """The perturbation in words, such as "at l-infinity 2/255"."""
    reached: Tensor | None = field(default=None, kw_only=True)
    """[N] bool: what was bounded before a time limit; the rest is unknown. None if everything was."""

    @property
    def labels(self) -> Tensor:
        """[N]: the labels that were asked about."""
        if self.question.labels is None:
            raise ArgumentError(f"this certificate is about {self.question.specification!r}, which has no labels")
        return self.question.labels

    @property
    def predicted(self) -> Tensor:
        """[N]: the number of the largest output for the clean input, which is the label that a classifier gives it."""
        return self.output.flatten(1).argmax(1) if self.output.dim() > 1 else torch.zeros_like(self.output).long()

    @property
    def right(self) -> Tensor:
        """[N] bool: what was asked holds for the clean input, as the model runs."""
        return self.question.holds(self.output)

    @property
    def certified(self) -> Tensor:
        """[N] bool: holds for the function over the real numbers that the weights define. NaN and infinite bounds never certify."""
        return self._proved(self.slack)

    @property
    def certified_as_run(self) -> Tensor:
        """[N] bool: holds as well for the network evaluated in its own dtype, in any order of summation: margin > slack + run_error.

        Excluded are TF32, bfloat16, Winograd and FFT convolutions and fast-math; docs/certificates.md says what is counted.
        """
        return self._proved(self.slack, self.run_error)

    def _proved(self, *errors: Tensor) -> Tensor:
        detached = [error.detach() for error in errors]
        return proves(self.question, self.margins.detach(), *detached) & self.right

    @property
    def error(self) -> float:
        """Fraction of the clean inputs for which what was asked does not hold: that get a wrong label."""
        return (~self.right).double().mean().item()

    @property
    def perturbation(self) -> str:
        return self.subject.perturbation

    @property
    def engine(self) -> str:
        return self.subject.engine

    def _verdicts(self, proved: Verdict) -> list[Verdict]:
        return [
            Verdict.WRONG if not r else proved if c else Verdict.UNKNOWN
            for r, c in zip(self.right.tolist(), self.certified.tolist(), strict=True)
        ]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __str__(self) -> str:
        """One line: how many are certified, of what, where and how."""
        certified, as_run, n = int(self.certified.sum()), int(self.certified_as_run.sum()), len(self.margins)
        asked = "" if self.subject.question == "Label()" else f" for {self.question.specification!r}"
        counts = [f"{as_run} as run"] if as_run != certified else []
        wrong = int((~self.right).sum())
        counts += [f"{count} {name}" for count, name in ((n - certified - wrong, "unknown"), (wrong, "wrong")) if count]
        if self.reached is not None:
            counts.append(f"{int((~self.reached).sum())} not reached in time")
        return f"{certified} of {n} {self._promise()} {self.where}{asked} by {self.engine}{''.join(f', {c}' for c in counts)}"

    def _promise(self) -> str:
        return "certified"

    def to_json(self) -> str:
        """Everything as JSON; infinite or undefined numbers are null."""
        return json.dumps(self._record(), allow_nan=False)

    def _record(self) -> dict[str, Any]:
        """For labels: what they are, and what was predicted. For any other question: whether it holds at the clean inputs."""
        asked: dict[str, Any] = {"right": self.right.tolist(), "output": _finite(self.output.detach().tolist())}
        if self.question.labels is not None:
            asked = {"labels": self.labels.tolist(), "predicted": self.predicted.tolist()}
        return {
            **asdict(self.subject),
            "examples": len(self.margins),
            "error": self.error,
            **asked,
            "certified": self.certified.tolist(),
            "certified_as_run": self.certified_as_run.tolist(),
            "margins": _finite(self.margins.detach().tolist()),
            "slack": _finite(self.slack.detach().tolist()),
            "run_error": _finite(self.run_error.detach().tolist()),
            **({} if self.reached is None else {"reached": self.reached.tolist()}),
        }


@dataclass(frozen=True, repr=False)
class Certificate(Claim):
    """A proof, for every certified example, that what was asked holds for all inputs of its set: none gets another label."""

    @property
    def verdicts(self) -> list[Verdict]:
        """CERTIFIED, UNKNOWN or WRONG for each example; the value of a verdict says what to do next."""
        return self._verdicts(Verdict.CERTIFIED)

    @property
    def robust_error(self) -> float:
        """Fraction of the examples that are not certified: an upper bound on the error under any attack, in real numbers."""
        return 1.0 - self.certified.double().mean().item()

    @property
    def certified_accuracy(self) -> float:
        """Fraction of the examples that are certified: a lower bound on the accuracy under any attack, in real numbers."""
        return self.certified.double().mean().item()

    @property
    def robust_error_as_run(self) -> float:
        """Fraction that is not certified for the network as it runs: an upper bound on the error of the running model."""
        return 1.0 - self.certified_as_run.double().mean().item()

    def _record(self) -> dict[str, Any]:
        rates = ("robust_error", "robust_error_as_run", "certified_accuracy")
        return super()._record() | {name: getattr(self, name) for name in rates}


@dataclass(frozen=True, repr=False)
class HighProbabilityCertificate(Claim):
    """No proof: for each example, the bounds hold with probability at least 1 - delta over the random numbers.

    It has no `robust_error`: over many examples the deltas add up, and a fraction of them would say less than it seems to.
    """

    basis: Confidence
    """delta, the number of estimates N that must hold at once, k, m and the seed."""

    @property
    def verdicts(self) -> list[Verdict]:
        """PROBABLE, UNKNOWN or WRONG for each example; the value of a verdict says what to do next."""
        return self._verdicts(Verdict.PROBABLE)

    @property
    def confidence(self) -> float:
        """1 - delta, for each example by itself."""
        return 1.0 - self.basis.delta

    @property
    def delta(self) -> float:
        return self.basis.delta

    def _record(self) -> dict[str, Any]:
        return super()._record() | {"confidence": self.confidence} | asdict(self.basis)

    def _promise(self) -> str:
        return f"certified, each with probability {self.confidence:g},"


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if math.isfinite(value) else None
