"""Training bounds at linear cost: random projections of the generators. [SPAD Sec. 3.2, Thm 2]"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from autodual._errors import ArgumentError, UnsoundError
from autodual.bounds.base import BoundEngine, Bounds, Minimum, Preactivations, Proof
from autodual.bounds.draws import Draws, draw
from autodual.bounds.dual import Dual
from autodual.bounds.estimators import Estimator, Median
from autodual.bounds.memory import Budget
from autodual.bounds.radius import RadiusPass
from autodual.bounds.streams import StreamPass
from autodual.dual import DualNetwork, ElementwiseDual
from autodual.sets import InputSet
from autodual.spec import Spec


@dataclass(frozen=True)
class Projected(BoundEngine):
    """Bounds on what enters the activations are estimated from k random projections; the last step is the exact dual objective.

    Estimates: good for a loss, refused by `certify`.

    k: number of projections.
    merged: one Cauchy stream for all terms (cost independent of depth); False is the paper's one stream per term.
    estimator: how a norm is read off its projections.
    exact_first: exact bounds where no activation comes before; False is the paper's form.
    generator: where random numbers come from; PyTorch's global one when None.
    draws: numbers to use instead of fresh ones.
    """

    k: int = 50
    merged: bool = True
    estimator: Estimator = field(default_factory=Median)
    exact_first: bool = True
    generator: torch.Generator | None = None
    draws: Draws | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ArgumentError(f"k must be a whole number of projections, at least 1, got {self.k!r}")
        if not isinstance(self.estimator, Estimator):
            raise ArgumentError(f"estimator must be one such as Median(), got {self.estimator!r}")

    def draw(self, network: DualNetwork, region: InputSet) -> Draws:
        """Fresh random numbers for one batch."""
        return draw(network, region, self.k, self.generator)

    def with_draws(self, draws: Draws) -> Projected:
        """The same engine with given random numbers."""
        return replace(self, draws=draws)

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        if region.dual_norm is None:
            raise ArgumentError(
                f"Projected works on norm balls and boxes, whose dual norm it estimates; {type(region).__name__} has none. Use Dual()"
            )
        columns = generators(network)
        if self.k >= columns:
            warnings.warn(
                f"k = {self.k} projections are no fewer than the {columns} generators that they stand for: using exact bounds",
                stacklevel=2,
            )
            return Preactivations(Dual().preactivations(network, region).intervals, sound=False)
        numbers = self.draw(network, region) if self.draws is None else self.draws
        first = self._first(network, region) if self.exact_first else {}
        streams = StreamPass(network, region, numbers, self.estimator, self.merged, first)
        return Preactivations(streams.preactivations, sound=False)

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        return Dual(intermediate=self).bounds(network, region)

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        return Dual(intermediate=self).minimum(network, region, spec)

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        raise UnsoundError(
            "Projected() only estimates bounds: they can train a network, but they certify nothing. Use Dual() or Crown()"
        )

    @staticmethod
    def _first(network: DualNetwork, region: InputSet) -> dict[int, Tensor]:
        """Exact radii of what enters the activations that no other activation comes before."""
        found: dict[int, Tensor] = {}
        exact = RadiusPass(network, region, {}, Budget.of(None, region.centre.device))
        for index in network.activations:
            source = network.nodes[index].inputs[0]
            before = network.ancestors(source)
            if source not in found and not any(isinstance(network.nodes[i].layer, ElementwiseDual) for i in before):
                found[source] = exact.of_units(source)[0]
        return found


def generators(network: DualNetwork) -> int:
    """How many generators the exact bound carries at most: one per input feature and per hidden unit."""
    return sum(math.prod(network.nodes[i].shape) for i in (0, *network.activations))
