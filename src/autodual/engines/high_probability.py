"""Bounds that hold with a stated probability, at linear cost. [SPAD app. "High probability bounds"; DESIGN section 2]"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import added
from autodual.dual import Band, DualNetwork, OnDemand, walk
from autodual.engines.backward.bands import Centres
from autodual.engines.backward.dual import Dual
from autodual.engines.projected import exact_first_radii, exact_first_sources
from autodual.engines.results import (
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
from autodual.engines.rounding import SAFETY, Errors, NoErrors, Outside, Rounding
from autodual.engines.streams import COLUMNS, GAUSS, Draws, StreamPass, draw
from autodual.interval import Interval
from autodual.kernels.stream import Angles
from autodual.sets import InputSet, Projection, norm_of
from autodual.spec import Spec

# How much an estimate must be enlarged so that it is too small only with a given probability. [SPAD app. on high probability]

USELESS = 100.0
"""An estimate that must be enlarged by more than this bounds nothing; the paper's relative error would be above 0.99."""

UNDERFLOW = -600.0
"""Logarithm of a tail below which it is not computed as a number."""


def log_tail_per_estimate(delta: float, estimates: int, m: int) -> float:
    """log of the tail probability that each of the m estimators of a maximum may have, by the union bound over all estimates."""
    return (math.log(delta) - math.log(max(1, estimates))) / m


def geometric_tail(k: int, relative_error: float) -> float:
    """P(geometric mean of k |Cauchy| numbers <= 1 - relative_error), at most: a Chernoff bound. [SPAD Eq. "prob_bound"]

    The bound E |C|^-s = 1 / cos(pi s / 2) is used at its best s. With a = -(2 / pi) log(1 - relative_error) the paper's
    expression is exp(-k (a atan a - log(1 + a^2) / 2)).
    """
    return math.exp(-k * _exponent(-2 / math.pi * math.log1p(-relative_error)))


def geometric_enlargement(k: int, log_tail: float) -> float:
    """1 / (1 - relative_error) for the smallest relative error whose tail is small enough; grows beyond all bounds as k shrinks."""
    needed = -log_tail / k
    a = _smallest(lambda a: _exponent(a) >= needed)
    return math.exp(min(math.pi / 2 * a, 700.0))


def gaussian_enlargement(k: int, log_tail: float) -> float:
    """The factor for a Euclidean norm read off k Gaussian projections: sqrt(k / q) with the chi-square quantile q of the tail.

    A tail too small to be a number takes its Chernoff bound, (q/k exp(1 - q/k))^(k/2), instead.
    """
    half, tail = torch.tensor(k / 2, dtype=torch.float64), math.exp(log_tail)
    if log_tail > UNDERFLOW:
        shrink = _smallest(lambda a: bool(torch.special.gammainc(half, half * math.exp(-2 * a)) <= tail))
    else:
        shrink = _smallest(lambda a: k / 2 * (1 - 2 * a - math.exp(-2 * a)) <= log_tail)
    return math.exp(min(shrink, 700.0))


def smallest_k(log_tail: float, enlargement: Callable[[int, float], float], limit: float = USELESS) -> int:
    """The smallest k whose enlargement is at most `limit`."""
    high = 1
    while enlargement(high, log_tail) > limit:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enlargement(middle, log_tail) > limit else (low, middle)
    return high


def _exponent(a: float) -> float:
    return a * math.atan(a) - math.log1p(a * a) / 2


def _smallest(enough: Callable[[float], bool]) -> float:
    """The smallest number >= 0 that is enough, from above, to within rounding."""
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# Random projections as upper bounds that hold with a stated probability. [SPAD app. "High probability bounds"]


def never_zero(draws: Draws) -> Draws:
    """Replaces angles of zero by half of the smallest step: they are drawn only because random numbers have few digits."""
    for part in [*draws.fresh.values(), draws.first]:
        if isinstance(part, Angles):
            numbers = part.angles if part.turns is None else part.turns
            numbers.masked_fill_(numbers == 0, math.pi * torch.finfo(numbers.dtype).eps / 4)
    return draws


@dataclass(frozen=True)
class ConfidenceRadius:
    """Turns k projections, which come in parts, into an upper bound on a radius that holds with a stated confidence."""

    k: int
    m: int
    cauchy: float
    gauss: float

    @classmethod
    def of(cls, confidence: Confidence, gaussian: bool) -> ConfidenceRadius:
        """The estimator that the confidence asks for; refuses a number of projections that is too small to bound anything."""
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
        """Adds samples [k', N or 1, *shape] to the total of those that came before."""
        if term == COLUMNS:
            return samples.abs().amax(0)  # exact
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

    Args:
        delta: Probability, per example, that some bound fails.
        k: Projections per estimate; `columns` // m when None. More are tighter: the enlargement is about exp(2.2
            sqrt(log(N/delta) / k)). Nothing is estimated, with a notice, if k * m are no fewer than the input's features and
            hidden units: exact bounds cost less.
        m: Estimators whose maximum is taken, 1 when None. The paper takes several; one over all k * m projections is never
            looser.
        merged: One stream, so one estimate per unit; False is the paper's one stream per term.
        exact_first: Exact bounds where no activation comes before and they are no dearer than k projections; False is the paper's
            form.
        columns: Projections per layer when k is None: the cost.
        seed: Of the random numbers.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> engine = ad.HighProbability(delta=0.01, k=500)
        >>> found = ad.certify(ad.load_digits_network(), images[:5], labels[:5], ad.LinfBall(0.02), engine)
        >>> found.confidence, found.verdicts[0].name
        (0.99, 'PROBABLE')
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
        norm, total = norm_of(region), 0
        projection = None if norm is None else norm.projection
        for source in self._sources(network, region):
            before = sum(i in network.activations for i in network.ancestors(source))
            cauchy = int(projection is Projection.CAUCHY) + before
            terms = (min(1, cauchy) if self.merged else cauchy) + int(projection is Projection.GAUSSIAN)
            total += terms * math.prod(network.nodes[source].shape)
        return total

    @property
    def random(self) -> bool:
        return True

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._found(network, region, Dual().preactivations, NoErrors())

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._found(network, region, Dual().provable, Rounding(network, region))

    def _found(
        self,
        network: DualNetwork,
        region: InputSet,
        exactly: Callable[[DualNetwork, InputSet], Preactivations],
        rounding: Errors,
    ) -> Preactivations:
        """Bounds of all activations that hold with the stated confidence, each from fresh draws and from the bounds before it."""
        norm = norm_of(region)
        if norm is None:
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
        estimator = ConfidenceRadius.of(confidence, gaussian=norm.projection is Projection.GAUSSIAN)
        generator = torch.Generator(region.centre.device).manual_seed(self.seed)
        known = exact_first_radii(network, region, confidence.k) if self.exact_first else {}
        found = _Found(network, region, rounding)
        for index in network.activations:
            source = network.source(index)
            if source not in known:
                known[source] = self._estimate(network, region, found.wide, source, estimator, generator)
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
        exact = exact_first_sources(network, region, self._counts()[0]) if self.exact_first else set()
        return [s for s in dict.fromkeys(network.source(i) for i in network.activations) if s not in exact]

    def _estimate(
        self,
        network: DualNetwork,
        region: InputSet,
        bands: dict[int, Band],
        source: int,
        estimator: ConfidenceRadius,
        generator: torch.Generator,
    ) -> Tensor:
        """An upper bound on the radius of a node, from random numbers that nothing else has seen."""
        before = [i for i in network.ancestors(source) if i in network.activations]
        largest = max(math.prod(network.nodes[i].shape) for i in network.ancestors(source))
        size = max(1, min(estimator.k, VALUES_AT_ONCE // (largest * len(region))))
        best: dict[int, Tensor] = {}
        for number in range(estimator.m):
            totals: dict[int, Tensor] = {}
            for start in range(0, estimator.k, size):
                draws = draw(network, region, min(size, estimator.k - start), generator, before)
                first = number == 0 and start == 0
                carried = StreamPass(network, region, never_zero(draws), self.merged, bands, first)
                streams = walk(network, carried, source)
                for term, samples in streams.items():
                    totals[term] = estimator.add(term, totals.get(term), samples)
            for term, total in totals.items():
                value = estimator.finish(term, total)
                best[term] = torch.maximum(best[term], value) if term in best else value
        radius = added(list(best.values())).to(region.centre)
        return radius * (1 + ROUNDING * torch.finfo(radius.dtype).eps)


class _Found:
    """The activations that have been relaxed so far.

    In a proof, the rounding error of an activation is added to the radius that its band has in streams, which so estimate what all
    such errors add up to. What is left for an interval are the errors of its own affine layers, once for its centre and once for its
    radius, which is no larger than what the centre is summed from.
    """

    def __init__(self, network: DualNetwork, region: InputSet, rounding: Errors) -> None:
        self.network, self.rounding = network, rounding
        self.intervals: dict[int, Interval] = {}
        self.bands: dict[int, Band] = {}
        self.wide: dict[int, Band] = {}
        """These bands with room for rounding."""
        self._centres = OnDemand(network, Centres(region, self.bands))

    def enter(self, index: int, radius: Tensor) -> None:
        source = self.network.source(index)
        centre = self._centres.at(source)
        self.intervals[index] = interval = Interval.around(centre, radius.expand_as(centre))
        self.bands[index] = self.wide[index] = band = self.network.activation(index).band(interval)
        if isinstance(self.rounding, Rounding):
            self.rounding.note(source, self.rounding.at(source).since)
            self.rounding.enter_band(index, interval, band, centre)
            self.wide[index] = replace(band, radius=band.radius + SAFETY * self.rounding.errors[index])

    def outside(self) -> dict[int, Outside]:
        return self.rounding.outside_of(self.intervals)
