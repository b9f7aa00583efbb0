"""What an engine is, what it returns, and the one place that decides."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autodual._errors import ArgumentError, UnsoundError, UnsupportedOperationError
from autodual.dual import DualNetwork, ElementwiseDual
from autodual.engines.rounding import Outside
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Question, Spec

# What an engine is, and what it returns. A proof and an estimate are different types.


@dataclass(frozen=True)
class Confidence:
    """For every example, the bounds hold with probability at least 1 - delta; and what that rests on."""

    delta: float
    estimates: int
    """N: estimates that hold at once."""
    k: int
    m: int
    seed: int


@dataclass(frozen=True)
class Preactivations:
    """Bounds on what enters every activation, by the activation's place in the network. These hold for every input of the set."""

    intervals: dict[int, Interval]
    outside: dict[int, Outside] = field(default_factory=dict, kw_only=True)
    """How far rounding may have left values outside, where that has been found out."""

    def __getitem__(self, examples: slice) -> Preactivations:
        """Bounds for some of the examples."""
        intervals = {i: Interval(v.lower[examples], v.upper[examples]) for i, v in self.intervals.items()}
        return replace(self, intervals=intervals, outside={i: v[examples] for i, v in self.outside.items()})

    def with_output(self, output: Interval, layers: dict[str, Interval]) -> Bounds:
        """Bounds of the kind that rest on these."""
        return SoundBounds(output, layers)

    def proof(self, lower: Tensor, slack: Tensor, run_error: Tensor, engine: BoundEngine) -> Proof | ProbableProof:
        """What bounds that rest on these prove; estimates prove nothing."""
        return Proof(lower, slack, run_error)


class EstimatedPreactivations(Preactivations):
    """Bounds that hold on average only."""

    def with_output(self, output: Interval, layers: dict[str, Interval]) -> Bounds:
        return EstimatedBounds(output, layers)

    def proof(self, lower: Tensor, slack: Tensor, run_error: Tensor, engine: BoundEngine) -> Proof | ProbableProof:
        raise only_estimates(engine)


@dataclass(frozen=True)
class ProbablePreactivations(Preactivations):
    """Bounds that hold, for every example, with a stated probability."""

    confidence: Confidence

    def with_output(self, output: Interval, layers: dict[str, Interval]) -> Bounds:
        return ProbableBounds(output, layers, self.confidence)

    def proof(self, lower: Tensor, slack: Tensor, run_error: Tensor, engine: BoundEngine) -> Proof | ProbableProof:
        return ProbableProof(lower, slack, run_error, self.confidence)


@dataclass(frozen=True)
class Bounds:
    """Bounds on the output and on what enters every activation, by the activation's name, in order."""

    output: Interval
    layers: dict[str, Interval]


class SoundBounds(Bounds):
    """Bounds that hold for every input of the set. Those of `autodual.bounds` have room for rounding: they hold as printed."""


class EstimatedBounds(Bounds):
    """Bounds that hold on average only: good for a loss, never for a certificate."""


@dataclass(frozen=True)
class ProbableBounds(Bounds):
    """Bounds that hold, for every example, with a stated probability. Those of `autodual.bounds` have room for rounding."""

    confidence: Confidence


@dataclass(frozen=True)
class Minimum:
    """Bounds from below on the rows of a specification, [N, K]: for a loss. They claim nothing, and count no rounding."""

    lower: Tensor


@dataclass(frozen=True)
class Proof:
    """Bounds from below on the rows of a specification, [N, K] each, with all that a certificate must allow for."""

    lower: Tensor
    slack: Tensor
    """How far rounding may have moved each bound."""
    run_error: Tensor
    """How far a row of the network as it runs, in its own dtype, may be from that of the exact function."""


@dataclass(frozen=True)
class ProbableProof:
    """Bounds from below on the rows of a specification, [N, K] each, that hold with a stated probability for every example."""

    lower: Tensor
    slack: Tensor
    run_error: Tensor
    confidence: Confidence


def join_proofs(parts: Sequence[Proof | ProbableProof]) -> Proof | ProbableProof:
    """Concatenates the proofs of the parts of a batch."""
    if len(parts) == 1:
        return parts[0]
    kinds = zip(*((part.lower, part.slack, part.run_error) for part in parts), strict=True)
    lower, slack, run_error = map(torch.cat, kinds)
    return replace(parts[0], lower=lower, slack=slack, run_error=run_error)


def only_estimates(engine: BoundEngine) -> UnsoundError:
    return UnsoundError(
        f"{engine!r} only estimates bounds: they can train a network, but they certify nothing. "
        f"Use Dual(), Crown(), IBP() or another engine whose intermediate bounds are sound"
    )


class BoundEngine(ABC):
    """A method to bound a network over a set of inputs."""

    def __repr__(self) -> str:
        """The engine as it could be typed; options that have their usual values are left out."""
        shown: list[Field[Any]] = [f for f in fields(self) if f.repr] if is_dataclass(self) else []
        told = [f"{f.name}={getattr(self, f.name)!r}" for f in shown if getattr(self, f.name) != _usual(f)]
        return f"{type(self).__name__}({', '.join(told)})"

    @property
    def random(self) -> bool:
        """Whether bounds come from random numbers, and so depend on which examples are bounded together."""
        return False

    @property
    def coarse_in_float32(self) -> bool:
        """Whether rounding in float32 counts in proportion to the network's values, and so is often more than a margin."""
        return False

    @property
    def cheaper(self) -> list[BoundEngine]:
        """Engines that bound the same with less work, the tightest first: what to try where this one takes too long."""
        return []

    @property
    def sketch(self) -> BoundEngine | None:
        """An engine that is far cheaper and has a slack of about this size; None if nobody has named one."""
        return None

    @abstractmethod
    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        """Bounds on what enters every activation."""

    @abstractmethod
    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        """Bounds on every activation's input and on the output."""

    @abstractmethod
    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        """Bounds from below on every row of the specification, for a loss."""

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        """Bounds that a proof may rest on, which say how far rounding may have moved them, if the engine knows."""
        return self.preactivations(network, region)

    @abstractmethod
    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof | ProbableProof:
        """Bounds from below together with their errors; an engine that only estimates raises UnsoundError."""

    def enclose(self, network: DualNetwork, region: InputSet) -> Bounds | None:
        """Bounds that hold as computed, rounded outwards; None where the engine only estimates."""
        return None


def _usual(f: Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def require_bands(network: DualNetwork, engine: str) -> None:
    """Refuse at once a network with an activation that has no pair of parallel lines."""
    for index in network.activations:
        node = network.nodes[index]
        if isinstance(node.layer, ElementwiseDual) and not node.layer.has_band:
            raise UnsupportedOperationError(
                f"{node.name}: {type(node.layer).__name__} has no band (two parallel lines), which {engine}() needs; "
                f"give it a method `band`, or use Crown(intermediate=IBP())"
            )


def generators(network: DualNetwork) -> int:
    """How many generators the exact bound carries at most: one per input feature and per hidden unit."""
    return sum(math.prod(network.nodes[i].shape) for i in (0, *network.activations))


def check_switches(engine: BoundEngine, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(engine, name), bool):
            raise ArgumentError(f"{name} must be True or False, got {getattr(engine, name)!r}")


def exact_is_cheaper(projections: int, network: DualNetwork) -> bool:
    """Whether so many projections are no fewer than the generators that they stand for."""
    return projections >= generators(network)


def warn_of_exact_bounds(projections: int, network: DualNetwork) -> None:
    warnings.warn(
        f"{projections:,} projections are no fewer than the {generators(network):,} generators that they stand for: "
        f"using exact bounds",
        stacklevel=3,
    )


def name_layers(network: DualNetwork, intervals: dict[int, Interval]) -> dict[str, Interval]:
    return {network.nodes[i].name: interval for i, interval in intervals.items()}


# The one place that decides: bounds and their errors go in, a verdict comes out.

UNLIKELY = 64
"""A margin below -slack / 64 cannot be rounding, which moves margins by a far smaller part of what it might."""


def exceeds(lower: Tensor, *errors: Tensor) -> Tensor:
    """Whether lower bounds exceed all their errors together, elementwise. NaN and infinities never do."""
    excess = lower - sum(errors[1:], errors[0])  # zero only if both are equal, and NaN or infinite if one of them is
    return (excess > 0) & (excess < torch.inf)


def proves(question: Question, lower: Tensor, *errors: Tensor) -> Tensor:
    """[N] bool: enough rows [N, R] exceed their errors for the specification to be proved."""
    return question.rule.holds(exceeds(lower, *errors) | question.idle_rows())


def worth_another_look(question: Question, lower: Tensor, slack: Tensor, run_error: Tensor) -> Tensor:
    """[N] bool: some statement about an example is open, and more exact arithmetic may settle it.

    That is so if enough rows are not clearly negative and the exact function is not proved, or if the network as it runs is not,
    although enough rows would allow it without their slack. What overflowed may be finite in a wider format.
    """
    idle = question.idle_rows()
    nearly = torch.add(lower, slack, alpha=1 / UNLIKELY)
    hopeful = question.rule.holds(~((nearly <= 0) & (nearly > -torch.inf)) | idle)
    possible_as_run = question.rule.holds(~((lower + slack <= run_error) & (run_error < torch.inf)) | idle)
    proved, proved_as_run = proves(question, lower, slack), proves(question, lower, slack, run_error)
    return hopeful & (~proved | (possible_as_run & ~proved_as_run))
