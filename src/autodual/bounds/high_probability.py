"""Bounds that hold with a stated probability, at linear cost. [SPAD app. "High probability bounds"; DESIGN section 2]"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import added
from autodual.bounds.base import (
    BoundEngine,
    Bounds,
    Confidence,
    Minimum,
    Preactivations,
    ProbablePreactivations,
    ProbableProof,
    Proof,
    check_switches,
    exact_is_cheaper,
    require_bands,
    warn_of_exact_bounds,
)
from autodual.bounds.centres import Centres
from autodual.bounds.draws import draw
from autodual.bounds.dual import Dual
from autodual.bounds.first import first_radii, first_sources
from autodual.bounds.projected import band_of
from autodual.bounds.reading import Reading, never_zero
from autodual.bounds.rounding import OWN, Outside, Rounding
from autodual.bounds.streams import StreamPass
from autodual.dual import Band, DualNetwork
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec

VALUES_AT_ONCE = 1 << 26
"""Values of a stream that are held together; fixed, so that the same batch and seed give the same numbers whatever memory is free."""
ROUNDING = 64
"""Estimates are enlarged by so many units in the last place. Rounding moves samples both ways, their mean by far less."""


@dataclass(frozen=True, repr=False)
class HighProbability(BoundEngine):
    """For every example, with probability at least 1 - delta over the random numbers, all its bounds hold.

    What holds then: every estimated radius is at least the exact radius *for the same dual layers*, so the bounds are sound. It does
    not follow that `Dual()` certifies the same examples. The random numbers are fresh for every layer that is estimated, since its
    dual layers were built from earlier estimates. Fix seed and delta beforehand: trying seeds until one certifies voids the rest.

    delta: probability, per example, that some bound fails.
    k: projections per estimate; `columns` // m when None. More are tighter: the enlargement is about exp(2.2 sqrt(log(N/delta) / k)).
        Nothing is estimated, with a notice, if k * m are no fewer than the input's features and hidden units: exact bounds cost less.
    m: estimators whose maximum is taken, 1 when None. The paper takes several; one over all k * m projections is never looser.
    merged: one stream, so one estimate per unit; False is the paper's one stream per term.
    exact_first: exact bounds where no activation comes before and they are no dearer than k projections; False is the paper's form.
    columns: projections per layer when k is None: the cost.
    seed: of the random numbers.
    """

    delta: float = 0.01
    k: int | None = None
    m: int | None = None
    merged: bool = True
    exact_first: bool = True
    columns: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        number = isinstance(self.delta, int | float) and not isinstance(self.delta, bool)
        if not number or not 0 < self.delta < 1:
            raise ArgumentError(f"delta must be a probability between 0 and 1, got {self.delta!r}")
        for name in ("k", "m", "columns"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not whole and not (value is None and name != "columns"):
                raise ArgumentError(f"{name} must be a whole number, at least 1, got {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**64:
            raise ArgumentError(f"seed must be a whole number of at most 64 bits, got {self.seed!r}")
        check_switches(self, "merged", "exact_first")

    def confidence(self, network: DualNetwork, region: InputSet) -> Confidence:
        """What can be promised for this network, and with which numbers."""
        k, m = self._counts()
        return Confidence(self.delta, self.estimates(network, region), k, m, self.seed)

    def estimates(self, network: DualNetwork, region: InputSet) -> int:
        """N: how many estimates must hold at once. [SPAD app.: n_2 + 2 n_3 + ... for one stream per term]"""
        total = 0
        for source in self._sources(network, region):
            before = sum(i in network.activations for i in network.ancestors(source))
            cauchy = int(region.dual_norm == 1) + before
            terms = (min(1, cauchy) if self.merged else cauchy) + int(region.dual_norm == 2)
            total += terms * math.prod(network.nodes[source].shape)
        return total

    @property
    def random(self) -> bool:
        return True

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._found(network, region, Dual().preactivations, None)

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._found(network, region, Dual().provable, Rounding(network, region))

    def _found(
        self,
        network: DualNetwork,
        region: InputSet,
        exactly: Callable[[DualNetwork, InputSet], Preactivations],
        rounding: Rounding | None,
    ) -> Preactivations:
        if region.dual_norm is None:
            raise ArgumentError(
                f"HighProbability works on norm balls and boxes, whose dual norm it estimates; {type(region).__name__} has none. "
                f"Use Dual()"
            )
        require_bands(network, "HighProbability")
        confidence = self.confidence(network, region)
        if self._exact(network):
            warn_of_exact_bounds(confidence.k * confidence.m, network)
            exact = exactly(network, region)
            return ProbablePreactivations(exact.intervals, confidence, outside=exact.outside)
        reading = Reading.of(confidence, gaussian=region.dual_norm == 2)
        generator = torch.Generator(region.centre.device).manual_seed(self.seed)
        known = first_radii(network, region, confidence.k) if self.exact_first else {}
        found = _Found(network, region, rounding)
        for index in network.activations:
            source = network.nodes[index].inputs[0]
            if source not in known:
                known[source] = self._estimate(network, region, found.wide, source, reading, generator)
            found.enter(index, known[source])
        return ProbablePreactivations(found.intervals, confidence, outside=found.outside())

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        return Dual(intermediate=self).bounds(network, region)

    def enclose(self, network: DualNetwork, region: InputSet) -> Bounds | None:
        return Dual(intermediate=self).enclose(network, region)

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        return Dual(intermediate=self).minimum(network, region, spec)

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof | ProbableProof:
        return Dual(intermediate=self).prove(network, region, spec)

    def _counts(self) -> tuple[int, int]:
        """k and m."""
        m = 1 if self.m is None else self.m
        return max(1, self.columns // m) if self.k is None else self.k, m

    def _exact(self, network: DualNetwork) -> bool:
        return exact_is_cheaper(math.prod(self._counts()), network)

    def _sources(self, network: DualNetwork, region: InputSet) -> list[int]:
        """Nodes whose radii are estimated."""
        if self._exact(network):
            return []
        exact = first_sources(network, region, self._counts()[0]) if self.exact_first else set()
        return [s for s in dict.fromkeys(network.nodes[i].inputs[0] for i in network.activations) if s not in exact]

    def _estimate(
        self,
        network: DualNetwork,
        region: InputSet,
        bands: dict[int, Band],
        source: int,
        reading: Reading,
        generator: torch.Generator,
    ) -> Tensor:
        """An upper bound on the radius of a node, from random numbers that nothing else has seen."""
        before = [i for i in network.ancestors(source) if i in network.activations]
        largest = max(math.prod(network.nodes[i].shape) for i in network.ancestors(source))
        size = max(1, min(reading.k, VALUES_AT_ONCE // (largest * len(region))))
        best: dict[int, Tensor] = {}
        for number in range(reading.m):
            totals: dict[int, Tensor] = {}
            for start in range(0, reading.k, size):
                draws = draw(network, region, min(size, reading.k - start), generator, before)
                first = number == 0 and start == 0
                streams = StreamPass(network, region, never_zero(draws), self.merged, bands, first).at(source)
                for term, samples in streams.items():
                    totals[term] = reading.add(term, totals.get(term), samples)
            for term, total in totals.items():
                value = reading.finish(term, total)
                best[term] = torch.maximum(best[term], value) if term in best else value
        radius = added(list(best.values())).to(region.centre)
        return radius * (1 + ROUNDING * torch.finfo(radius.dtype).eps)


class _Found:
    """The activations that have been relaxed so far.

    In a proof, what rounding may have done to an activation counts to the radius that its band has in streams: they estimate what all
    of that adds up to, with the coefficients that there are. What is left for an interval are the errors of its own affine layers,
    once for its centre and once for its radius, which is no larger than what the centre is summed from.
    """

    def __init__(self, network: DualNetwork, region: InputSet, rounding: Rounding | None) -> None:
        self.network, self.rounding = network, rounding
        self.intervals: dict[int, Interval] = {}
        self.bands: dict[int, Band] = {}
        self.wide: dict[int, Band] = {}
        """The same bands with room for rounding."""
        self._centres = Centres(network, region, self.bands)

    def enter(self, index: int, radius: Tensor) -> None:
        source = self.network.nodes[index].inputs[0]
        centre = self._centres.at(source)
        self.intervals[index] = interval = Interval.around(centre, radius.expand_as(centre))
        self.bands[index] = self.wide[index] = band = band_of(self.network, index, interval)
        if self.rounding is not None:
            self.rounding.note(source, self.rounding.since(source))
            self.rounding.enter(index, interval, (band.slope,), band.radius)
            self.wide[index] = replace(band, radius=band.radius + OWN * self.rounding.errors[index])

    def outside(self) -> dict[int, Outside]:
        if self.rounding is None:
            return {}
        return {i: self.rounding.outside[self.network.nodes[i].inputs[0]] for i in self.intervals}
