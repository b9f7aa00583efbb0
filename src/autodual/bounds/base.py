"""What an engine is, and what it returns. A proof and an estimate are different types."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from autodual._errors import ArgumentError, UnsupportedOperationError
from autodual.bounds.rounding import Outside
from autodual.dual import DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec


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
    """Bounds on what enters every activation, by the activation's place in the network."""

    intervals: dict[int, Interval]
    sound: bool
    confidence: Confidence | None = None
    """For bounds that are not sound, but hold with a stated probability."""
    outside: dict[int, Outside] = field(default_factory=dict)
    """How far rounding may have left values outside, where that has been found out."""

    def __getitem__(self, examples: slice) -> Preactivations:
        """Those of some of the examples."""
        intervals = {i: Interval(v.lower[examples], v.upper[examples]) for i, v in self.intervals.items()}
        return replace(self, intervals=intervals, outside={i: v[examples] for i, v in self.outside.items()})


@dataclass(frozen=True)
class Bounds:
    """Bounds on the output and on what enters every activation, by the activation's name, in order."""

    output: Interval
    layers: dict[str, Interval]


class SoundBounds(Bounds):
    """Bounds that hold for every input of the set."""


class EstimatedBounds(Bounds):
    """Bounds that hold on average only: good for a loss, never for a certificate."""


@dataclass(frozen=True)
class ProbableBounds(Bounds):
    """Bounds that hold, for every example, with a stated probability."""

    confidence: Confidence


@dataclass(frozen=True)
class Minimum:
    """Bounds from below on the rows of a specification, [N, K]."""

    lower: Tensor
    sound: bool
    confidence: Confidence | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Proof(Minimum):
    """The same, with `slack` [N, K]: how far rounding may have moved each of them."""

    slack: Tensor


class BoundEngine(ABC):
    """A method to bound a network over a set of inputs."""

    def __repr__(self) -> str:
        """As it could be typed: what is as usual is left out."""
        shown: list[Field[Any]] = [f for f in fields(self) if f.repr] if is_dataclass(self) else []
        told = [f"{f.name}={getattr(self, f.name)!r}" for f in shown if getattr(self, f.name) != _usual(f)]
        return f"{type(self).__name__}({', '.join(told)})"

    @property
    def random(self) -> bool:
        """Whether bounds come from random numbers, and so depend on which examples are bounded together."""
        return False

    @abstractmethod
    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        """Bounds on what enters every activation."""

    @abstractmethod
    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        """Bounds on every activation's input and on the output."""

    @abstractmethod
    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        """A bound from below on every row of the specification."""

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        """The bounds that a proof may rest on, which say how far rounding may have moved them, if the engine knows."""
        return self.preactivations(network, region)

    @abstractmethod
    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        """The same bounds together with the rounding slack that a certificate must allow for."""


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
