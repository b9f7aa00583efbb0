"""Every record of a run folder as a frozen dataclass, whose fields stand in the order of the file; `schema` reads and writes them.

config.yaml is `TrainConfig`. All rooms that write or read a run folder share these types. PyTorch is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from autodual.runs.schema import flat, optional, plain

# environment.json and failure.json


@dataclass(frozen=True)
class DataUsed:
    """The data of a run; a data set of one's own is named by its path, as seen from the run folder."""

    name: str
    train: int
    test: int
    digest: str

    def is_like(self, other: DataUsed) -> bool:
        """Whether the examples are the same; a path may be written differently."""
        return (self.train, self.test, self.digest) == (other.train, other.test, other.digest)


@dataclass(frozen=True)
class Environment:
    """Versions, machine and command of a run."""

    autodual: str
    torch: str
    python: str
    machine: str
    command: str
    started: str
    device: str
    processes: int
    data: DataUsed
    resumed: tuple[Environment, ...] | None = optional()
    """The environment of every later process that went on with the run."""


@dataclass(frozen=True)
class Failure:
    """Why a run ended before it was finished."""

    error: str
    when: str


# metrics.jsonl


@dataclass(frozen=True)
class EpochLine:
    """What one epoch of training measured, on the images that it trained on."""

    kind: Literal["epoch"]
    stage: int
    epoch: int
    step: int
    eps: float | None
    """Size of the perturbation that was trained against; None for standard training."""
    lr: float
    loss: float
    robust_error: float
    error: float
    seconds: float | None
    """None for an epoch that was interrupted."""
    examples: int


@dataclass(frozen=True)
class ValidationLine:
    """An exact evaluation during training."""

    kind: Literal["validation"]
    stage: int
    epoch: int
    split: Literal["validation", "train"]
    engine: str
    examples: int
    eps: float
    error: float
    robust_error: float
    robust_error_as_run: float | None = None
    collapsed: str | None = None


@dataclass(frozen=True)
class TrainedLine:
    """The weights that count after a stage is trained."""

    kind: Literal["trained"]
    stage: int
    epoch: int
    eps: float | None
    collapsed: str | None


MetricsLine = EpochLine | ValidationLine | TrainedLine


# Lines about examples: certificates*.jsonl and *.cascade.jsonl, attack*.jsonl, stages/open-*.jsonl


@dataclass(frozen=True)
class CertificateLine:
    """What certification says about one example."""

    index: int
    label: int
    predicted: int
    certified: bool
    certified_as_run: bool
    margin: float | None
    """The smallest one; None if it is not finite."""
    slack: float | None
    """The largest one: how far rounding may have moved a margin."""

    def fault(self) -> str | None:
        """Why it cannot be right."""
        if self.certified and (self.predicted != self.label or self.margin is None or self.margin <= 0):
            return f"is certified, but has the label {self.label}, predicted {self.predicted} and margin {self.margin}"
        if self.certified_as_run and not self.certified:
            return "is certified as it runs, but not in real numbers, which is less"
        return None


@dataclass(frozen=True)
class CascadeLine:
    """What several models answer to one example, and what is proved about it."""

    index: int
    label: int
    answer: int
    stage: int
    certified: bool
    sound: bool
    sound_as_run: bool
    no_wrong_certificate: bool

    def fault(self) -> str | None:
        """Why it cannot be right."""
        wrong = self.sound and self.answer != self.label
        return f"is proved, but has the label {self.label} and the answer {self.answer}" if wrong else None


@dataclass(frozen=True)
class AttackLine:
    """Whether an attack breaks one example: in real numbers, and in the network as it runs."""

    index: int
    broken: bool
    broken_as_run: bool


@dataclass(frozen=True)
class CascadeAttackLine:
    """Whether an attack makes several models answer wrongly, and with a certificate."""

    index: int
    found: bool
    certified_wrong: bool


@dataclass(frozen=True)
class SortingLine:
    """Whether a stage certifies its own label of a training example, and whether that is the right one."""

    index: int
    certified: bool
    right: bool


@dataclass(frozen=True)
class StillOpen:
    """stages/open-N.json: the training examples that no stage before N certifies."""

    sorted_by: str
    sound: bool
    open: tuple[int, ...]


# *.problem.json: what a file of lines is about


@dataclass(frozen=True)
class Asked:
    """How to open what was certified again; paths are seen from the file of lines."""

    target: str | None = optional()
    model: str | None = optional()
    dataset: str | None = optional()
    normalise: bool | None = optional()
    norm: str | None = optional()
    eps: float | None = optional()
    clip: tuple[float, float] | None = None


@dataclass(frozen=True)
class Basis:
    """What certificates with a probability rest on; see `Confidence`."""

    delta: float
    estimates: int
    k: int
    m: int
    seed: int


@dataclass(frozen=True)
class ProblemOutline:
    """What the problems of all versions hold: enough to tell a file of lines from a stranger's."""

    perturbation: str
    engine: str
    examples: int
    data: str


@dataclass(frozen=True)
class Problem:
    """The question that a file of lines answers, and what computed the answers."""

    FORMAT: ClassVar[str] = "autodual certificates 2"
    ASIDE: ClassVar[frozenset[str]] = frozenset({"format", "batch", "python", "asked"})
    """Entries that help to find the parts again, and are no parts of the question."""

    format: str
    perturbation: str
    engine: str
    examples: int
    data: str
    network: str
    dtype: str
    device: str
    batch: int
    autodual: str
    torch: str
    python: str
    basis: Basis | None = flat(optional=True)
    """None for proofs."""
    asked: Asked | None = optional()
    combination: str | None = optional()
    """The cascade that the lines are about; None for one network."""

    def __post_init__(self) -> None:
        if self.examples < 1 or self.batch < 1:
            raise ValueError("is about no examples")

    def difference(self, now: Problem, *aside: str) -> tuple[str, str] | None:
        """The first entry in which the question differs from `now`, and a sentence about it; entries `aside` do not count."""
        before, after = plain(self), plain(now)
        for name in (name for name in before | after if name not in (*self.ASIDE, *aside)):
            if before.get(name) != after.get(name):
                told = f"{name} was {_short(before.get(name))}, now {_short(after.get(name))}"
                return name, f"its certificates are about something else ({told})"
        return None


def _short(value: object) -> str:
    """Nothing that fills the screen; a digest by its first letters."""
    text = str(value)
    digest = len(text) >= 64 and set(text[:64]) <= set("0123456789abcdef")
    return f"{text[:12]}..." if digest else text[:200]


# cascade.json, and *.summary.json


@dataclass(frozen=True)
class StageCounts:
    """How many answers a stage gives, and what they are worth."""

    stage: int
    answers: int
    certified: int
    correct: int
    certified_correct: int
    certified_wrong: int
    trained_on: int | None = optional()


@dataclass(frozen=True)
class CascadeErrors:
    """Errors of a cascade on some examples."""

    error: float
    stage_certified_error: float
    sound_certified_error: float
    sound_certified_error_as_run: float


@dataclass(frozen=True, kw_only=True)
class AttackFigures:
    """What an attack on a cascade breaks, and what was claimed and proved about the same examples."""

    attacked_examples: int
    attacked_error: float
    attacked_certified_error: float
    broken_claims: int
    broken_proofs: int | None = optional()
    on_attacked: CascadeErrors


@dataclass(frozen=True, kw_only=True)
class CascadeSummary:
    """What a cascade reaches on all examples, and what an attack on all or the first of them leaves of it."""

    kind: str
    perturbation: str
    engine: str
    examples: int
    stages: tuple[StageCounts, ...]
    errors: CascadeErrors = flat()
    no_wrong_certificate: float
    collapsed: str | None = None
    attack: AttackFigures | None = flat(optional=True)
    """None where nothing was attacked."""
    models: int | None = optional()
    thresholds_fitted_on: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What all lines of a file say together."""

    perturbation: str
    engine: str
    examples: int
    error: float
    robust_error: float | None = optional()
    robust_error_as_run: float | None = optional()
    not_certified: float | None = optional()
    """Stands in the place of `robust_error` where certificates hold with a probability, which adds up over many examples."""
    not_certified_as_run: float | None = optional()
    confidence: float
    collapsed: str | None = None
    basis: Basis | None = flat(optional=True)
    cascade: CascadeSummary | None = optional()


# evaluation.json


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Errors at one size of the perturbation."""

    eps: float
    robust_error: float
    robust_error_as_run: float | None = optional()
    pgd_error: float
    pgd_error_exact: float | None = optional()


@dataclass(frozen=True)
class TrainedAt:
    """The epoch whose weights count, and the size of the perturbation that it was trained against, if there was one."""

    epoch: int
    eps: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a trained network is worth on the test images; published runs lack what is optional."""

    split: str
    examples: int
    perturbation: str
    norm: str
    eps: float
    engine: str
    dtype: str
    error: float
    robust_error: float
    robust_error_as_run: float | None = optional()
    pgd_error: float
    pgd_error_exact: float | None = optional()
    curve: tuple[CurvePoint, ...]
    margins: tuple[float | None, ...]
    radii: tuple[float, ...]
    radius_limit: float
    curve_examples: int
    labels: tuple[int, ...]
    predicted: tuple[int, ...]
    certified: tuple[bool, ...]
    certified_as_run: tuple[bool, ...] | None = optional()
    attacked: tuple[bool, ...]
    attacked_as_run: tuple[bool, ...] | None = optional()
    classes: tuple[str, ...]
    collapsed: str | None = None
    trained: TrainedAt | None = None
