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
from autodual.bounds.streams import COLUMNS, GAUSS, StreamPass
from autodual.bounds.tails import (
    USELESS,
    gaussian_enlargement,
    geometric_enlargement,
    log_tail_per_estimate,
    smallest_k,
)
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
    k: projections per estimate; `columns` // m when None. More are tighter: the enlargement is about exp(2.5 sqrt(log(N/delta) / k)).
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
        return self._found(network, region, Dual().preactivations)

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._found(network, region, Dual().provable)

    def _found(
        self, network: DualNetwork, region: InputSet, exactly: Callable[[DualNetwork, InputSet], Preactivations]
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
            return replace(exactly(network, region), sound=False, confidence=confidence)
        reading = _Reading.of(confidence, gaussian=region.dual_norm == 2)
        generator = torch.Generator(region.centre.device).manual_seed(self.seed)
        known = first_radii(network, region, confidence.k) if self.exact_first else {}
        bands: dict[int, Band] = {}
        intervals: dict[int, Interval] = {}
        centres = Centres(network, region, bands)
        for index in network.activations:
            source = network.nodes[index].inputs[0]
            if source not in known:
                known[source] = self._estimate(network, region, bands, source, reading, generator)
            centre = centres.at(source)
            intervals[index] = Interval.around(centre, known[source].expand_as(centre))
            bands[index] = band_of(network, index, intervals[index])
        return Preactivations(intervals, sound=False, confidence=confidence)

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        return Dual(intermediate=self).bounds(network, region)

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        return Dual(intermediate=self).minimum(network, region, spec)

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
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
        reading: _Reading,
        generator: torch.Generator,
    ) -> Tensor:
        """An upper bound on the radius of a node, from random numbers that nothing else has seen."""
        before = [i for i in network.ancestors(source) if i in network.activations]
        largest = max(math.prod(network.nodes[i].shape) for i in network.ancestors(source))
        size = max(1, min(reading.k, VALUES_AT_ONCE // (largest * len(region))))
        best: dict[int, Tensor] = {}
        for _ in range(reading.m):
            totals: dict[int, Tensor] = {}
            for start in range(0, reading.k, size):
                draws = draw(network, region, min(size, reading.k - start), generator, before)
                streams = StreamPass(network, region, draws, self.merged, bands).at(source)
                for term, samples in streams.items():
                    totals[term] = reading.add(term, totals.get(term), samples)
            for term, total in totals.items():
                value = reading.finish(term, total)
                best[term] = torch.maximum(best[term], value) if term in best else value
        radius = added(list(best.values())).to(region.centre)
        return radius * (1 + ROUNDING * torch.finfo(radius.dtype).eps)


@dataclass(frozen=True)
class _Reading:
    """How one estimator turns its projections, which come in parts, into an upper bound."""

    k: int
    m: int
    cauchy: float
    gauss: float

    @classmethod
    def of(cls, confidence: Confidence, gaussian: bool) -> _Reading:
        """Refuses a number of projections that is too small to bound anything."""
        k, tail = confidence.k, log_tail_per_estimate(confidence.delta, confidence.estimates, confidence.m)
        factors = [geometric_enlargement(k, tail), gaussian_enlargement(k, tail) if gaussian else 1.0]
        if confidence.estimates > 0 and max(factors) > USELESS:
            needed = smallest_k(tail, geometric_enlargement)
            if gaussian:
                needed = max(needed, smallest_k(tail, gaussian_enlargement))
            raise ArgumentError(
                f"no useful bound exists for delta = {confidence.delta:g}, k = {k}, m = {confidence.m} and the "
                f"{confidence.estimates:,} estimates of this network: each would have to be enlarged by more than {USELESS:g}. "
                f"The smallest k that works is {needed}"
            )
        return cls(k, confidence.m, *factors)

    def add(self, term: int, total: Tensor | None, samples: Tensor) -> Tensor:
        """Samples [k', N or 1, *shape] on top of those that came before."""
        if term == COLUMNS:
            return samples.abs().amax(0)  # exact, and the same in every part
        if term == GAUSS:
            part = samples.double().square().sum(0)
        else:  # not zero: one sample that underflows must not make the whole product vanish
            part = samples.abs().clamp(min=torch.finfo(samples.dtype).tiny).log().double().sum(0)
        return part if total is None else total + part

    def finish(self, term: int, total: Tensor) -> Tensor:
        if term == COLUMNS:
            return total
        if term == GAUSS:
            return (total / self.k).sqrt() * self.gauss
        return (total / self.k).exp() * self.cauchy
