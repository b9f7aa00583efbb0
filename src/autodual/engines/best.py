"""The best of several engines, for every row of every example: cheap ones first, and no more of them than it takes to decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.dual import DualNetwork
from autodual.engines.backward.bands import Solver
from autodual.engines.backward.crown import Crown
from autodual.engines.backward.dual import BackwardEngine, Dual, Part, join_bounds, join_preactivations
from autodual.engines.effort import Budget, TimeLimitError, current
from autodual.engines.ibp import IntervalBounds, interval_bounds
from autodual.engines.results import (
    BoundEngine,
    Bounds,
    EstimatedBounds,
    EstimatedPreactivations,
    Minimum,
    Preactivations,
    ProbableProof,
    Proof,
    SoundBounds,
    exceeds,
    join_proofs,
    proves,
)
from autodual.engines.rounding import Errors, Outside, Rounding, outside_of_both
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec

Result = TypeVar("Result")

# What is still open, and what a further proof adds.

Prove: TypeAlias = Callable[[DualNetwork, InputSet, Spec, Tensor], Proof | ProbableProof]
"""Proves the rows of a specification for some examples; the last argument tells which rows [N, K] are open."""


def with_offsets(lower: Tensor, spec: Spec) -> Tensor:
    """Approximate bounds on the rows with their offsets: the rounding of the sum is left to whoever decides."""
    offsets = None if spec.question is None else spec.question.offsets
    return lower if offsets is None else (lower.double() + offsets).to(lower)


def open_rows(proof: Proof | ProbableProof, spec: Spec) -> Tensor:
    """[N, K] bool: rows that something depends on, and that are not proved, or not for the network as it runs."""
    idle = spec.question.idle_rows() if spec.question is not None else (spec.rows == 0).all(-1).T
    return ~(exceeds(with_offsets(proof.lower, spec), proof.slack, proof.run_error) | idle)


def open_examples(network: DualNetwork, region: InputSet, spec: Spec, proof: Proof | ProbableProof) -> Tensor:
    """[N] bool: examples that are not proved, as they run, and that the centre of their set does not refute."""
    unproved = open_rows(proof, spec)
    output = network.forward(region.centre)
    if spec.question is None:
        z = output.flatten(1) if output.dim() > 1 else output.unsqueeze(1)
        at_centre = torch.einsum("knc,nc->nk", spec.rows.expand(-1, len(z), -1), z)
        return unproved.any(1) & ~(at_centre < 0).any(1)
    proved = proves(spec.question, with_offsets(proof.lower, spec), proof.slack, proof.run_error)
    return ~proved & ~(spec.question.value(output) < 0)


def better_of(one: Proof | ProbableProof, other: Proof | ProbableProof) -> Proof | ProbableProof:
    """The stronger bound of every row, with its own slack; the run error is about the network, so the smaller one holds for both.

    A row that is proved as it runs is better than one that is proved, and that is better than any other; among equals, the larger
    bound. Of two that prove nothing, so the one counts that more exact arithmetic may turn into a proof.
    """
    run_error = torch.fmin(one.run_error, other.run_error)
    ranks = [
        exceeds(p.lower, p.slack, run_error).to(torch.uint8) + exceeds(p.lower, p.slack).to(torch.uint8)
        for p in (one, other)
    ]
    larger = (other.lower > one.lower) | one.lower.isnan()
    better = (ranks[1] > ranks[0]) | ((ranks[1] == ranks[0]) & larger)
    lower, slack = (torch.where(better, b, a) for a, b in ((one.lower, other.lower), (one.slack, other.slack)))
    return replace(one, lower=lower, slack=slack, run_error=run_error)


def improved(
    found: Proof | ProbableProof, network: DualNetwork, region: InputSet, spec: Spec, prove: Prove
) -> Proof | ProbableProof:
    """`found`, and what `prove` adds for the examples that are open. If the time is up meanwhile, it stays as it is, and the call is
    told that these examples were not tried to the end."""
    some = open_examples(network, region, spec, found).nonzero().squeeze(1)
    if len(some) == 0:
        return found
    rows = open_rows(found, spec)
    part = None if len(some) == len(region) else region.take(some)
    try:
        if part is None:  # all of them, or sets of the user's own, which have slices only
            return better_of(found, prove(network, region, spec, rows))
        other = prove(network, part, spec[some], rows[some])
    except TimeLimitError:
        effort = current()
        if effort is not None:
            effort.late = True
        return found
    lower, slack, run_error = (v.expand(len(region), -1) for v in (found.lower, found.slack, found.run_error))
    before = replace(found, lower=lower[some], slack=slack[some], run_error=run_error[some])
    now = better_of(before, other)
    return replace(
        found,
        lower=lower.index_copy(0, some, now.lower),
        slack=slack.index_copy(0, some, now.slack),
        run_error=run_error.index_copy(0, some, now.run_error),
    )


# The engine.


@dataclass(frozen=True, repr=False, init=False)
class BestOf(BoundEngine):
    """The best of several engines for every example and every row of a question, in the order in which they are given.

    An example that is proved, or that its own set's centre refutes, is not given to the engines after: so name cheap ones first. Every
    bound comes with the rounding error of the engine that has found it.

    Args:
        engines: At least one, each of which can prove: no `Projected`, no `HighProbability`.
        every_activation: Takes the better interval at every activation on the way, too, and lets all engines go on from there. All
            examples take part to the end, and engines must be `Dual` and `Crown` without `intermediate`.

    Examples:
        >>> import autodual as ad
        >>> best = ad.BestOf(ad.IBP(), ad.Crown(lower="zero", intermediate=ad.IBP()), ad.Dual(), ad.Crown())
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> ball = ad.LinfBall(0.08, clip=(0.0, 1.0))
        >>> [int(ad.certify(model, images[:100], labels[:100], ball, engine).certified.sum()) for engine in (ad.IBP(), best)]
        [0, 87]
    """

    engines: tuple[BoundEngine, ...]
    every_activation: bool = False

    def __init__(self, *engines: BoundEngine, every_activation: bool = False) -> None:
        object.__setattr__(self, "engines", engines)
        object.__setattr__(self, "every_activation", every_activation)
        self._check()

    def _check(self) -> None:
        """Refuse engines that cannot be combined."""
        if not self.engines:
            raise ArgumentError("BestOf needs at least one engine, such as BestOf(IBP(), Dual(), Crown())")
        for engine in self.engines:
            if not isinstance(engine, BoundEngine):
                hint = f"; call it: {engine.__name__}()" if isinstance(engine, type) else ""
                raise ArgumentError(f"BestOf takes engines such as Dual(), got {engine!r}{hint}")
            if engine.random:
                raise ArgumentError(
                    f"{engine!r} is random: the best of several random bounds holds less often than each of them. Use Dual(), "
                    f"Crown(), IBP() or others whose bounds hold for certain"
                )
        if not isinstance(self.every_activation, bool):
            raise ArgumentError(f"every_activation must be True or False, got {self.every_activation!r}")
        for engine in self.engines if self.every_activation else ():
            if type(engine) not in (Dual, Crown) or _rests_on_another(engine):
                raise ArgumentError(
                    f"every_activation=True is for Dual() and Crown() that bound activations themselves, not for {engine!r}; interval "
                    f"bounds take part with Dual(intersect=True)"
                )

    def __repr__(self) -> str:
        shown = [*map(repr, self.engines), *(["every_activation=True"] if self.every_activation else [])]
        return f"BestOf({', '.join(shown)})"

    @property
    def coarse_in_float32(self) -> bool:
        return all(engine.coarse_in_float32 for engine in self.engines)

    @property
    def cheaper(self) -> list[BoundEngine]:
        return list(self.engines[:-1])[::-1]

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof | ProbableProof:
        if self.every_activation:
            return join_proofs(self._in_parts(network, region, spec, _Lanes.proof, proof=True))
        found = self.engines[0].prove(network, region, spec)
        for engine in self.engines[1:]:
            found = improved(found, network, region, spec, _whole(engine))
        return found

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        if self.every_activation:
            return Minimum(torch.cat(self._in_parts(network, region, spec, _Lanes.minimum)))
        return Minimum(reduce(torch.maximum, (engine.minimum(network, region, spec).lower for engine in self.engines)))

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        if self.every_activation:
            return join_preactivations(self._in_parts(network, region, None, _Lanes.preactivations))
        found = [engine.preactivations(network, region) for engine in self.engines]
        return _kind(found)(_intersections([f.intervals for f in found]))

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        if self.every_activation:
            return join_preactivations(self._in_parts(network, region, None, _Lanes.preactivations, proof=True))
        found = [engine.provable(network, region) for engine in self.engines]
        intervals = _intersections([f.intervals for f in found])
        outside = {
            i: outside_of_both(own, [(f.intervals[i], _outside(f, i)) for f in found]) for i, own in intervals.items()
        }
        return _kind(found)(intervals, outside=outside)

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        if self.every_activation:
            return join_bounds(network, self._in_parts(network, region, None, _Lanes.bounds))
        return _tightest([engine.bounds(network, region) for engine in self.engines])

    def enclose(self, network: DualNetwork, region: InputSet) -> Bounds | None:
        if self.every_activation:
            return join_bounds(network, self._in_parts(network, region, None, _Lanes.enclosed, proof=True))
        found = [engine.enclose(network, region) for engine in self.engines]
        known = [bounds for bounds in found if bounds is not None]
        return _tightest(known) if len(known) == len(found) else None

    def _in_parts(
        self,
        network: DualNetwork,
        region: InputSet,
        spec: Spec | None,
        work: Callable[[_Lanes, Spec | None], Result],
        proof: bool = False,
    ) -> list[Result]:
        """What lanes side by side find, for as many examples at a time as the memory of the first engine allows."""
        engines = [engine for engine in self.engines if isinstance(engine, BackwardEngine)]

        def one(part: Part) -> Result:
            return work(_Lanes.of(engines, network, part.region, proof), part.spec)

        return engines[0]._in_parts(network, region, spec, one, proof)


def _whole(engine: BoundEngine) -> Prove:
    return lambda network, region, spec, _: engine.prove(network, region, spec)


def _rests_on_another(engine: BoundEngine) -> bool:
    return isinstance(engine, BackwardEngine) and engine.intermediate is not None


# Several backward computations side by side, which agree on an interval at every activation.


@dataclass(frozen=True)
class _Lane:
    """One of the computations, with relaxations and errors of its own."""

    solver: Solver
    rounding: Errors
    beside: IntervalBounds | None

    @classmethod
    def of(cls, engine: BackwardEngine, network: DualNetwork, region: InputSet, proof: bool) -> _Lane:
        rounding = engine._errors(network, region, proof)
        solver = engine.solver(network, region, Budget.of(engine.max_bytes, region.centre.device), rounding)
        return cls(solver, rounding, interval_bounds(network, region, rounding) if engine.intersect else None)

    def bound(self, index: int) -> Interval:
        found = self.solver.bound(index)
        return found if self.beside is None else self.beside.intersect(index, found)


@dataclass(frozen=True)
class _Lanes:
    """All activations relaxed, in every lane for the intervals that all of them together allow."""

    lanes: list[_Lane]
    network: DualNetwork
    intervals: dict[int, Interval]

    @classmethod
    def of(cls, engines: Sequence[BackwardEngine], network: DualNetwork, region: InputSet, proof: bool) -> _Lanes:
        lanes = [_Lane.of(engine, network, region, proof) for engine in engines]
        known: dict[int, Interval] = {}
        intervals: dict[int, Interval] = {}
        for index in network.activations:
            source = network.source(index)
            if source not in known:
                known[source] = _agreed(lanes, source)
            intervals[index] = known[source]
            for lane in lanes:
                lane.solver.relax(index, known[source])
        return cls(lanes, network, intervals)

    def proof(self, spec: Spec | None) -> Proof | ProbableProof:
        assert spec is not None
        proofs: list[Proof | ProbableProof] = [
            Proof(*lane.solver.prove(self.network.output, spec)) for lane in self.lanes
        ]
        return reduce(better_of, proofs)

    def minimum(self, spec: Spec | None) -> Tensor:
        assert spec is not None
        return reduce(torch.maximum, (lane.solver.minimum(self.network.output, spec) for lane in self.lanes))

    def preactivations(self, _: Spec | None = None) -> Preactivations:
        return Preactivations(self.intervals, outside=self.lanes[0].rounding.outside_of(self.intervals))

    def bounds(self, _: Spec | None = None) -> tuple[Interval, Preactivations]:
        output = reduce(Interval.intersect, (lane.bound(self.network.output) for lane in self.lanes))
        return output, self.preactivations()

    def enclosed(self, _: Spec | None = None) -> tuple[Interval, Preactivations]:
        output, found = self.network.output, self.preactivations()
        ends = list[Interval]()
        for lane in self.lanes:
            assert isinstance(lane.rounding, Rounding)
            own = lane.bound(output)
            ends.append(lane.rounding.outside[output].around(own))
        inside = {i: found.outside[i].around(interval) for i, interval in found.intervals.items()}
        return reduce(Interval.intersect, ends), replace(found, intervals=inside)


def _agreed(lanes: list[_Lane], source: int) -> Interval:
    """What all lanes together allow at a node; the rounding of each is told how far outside of that values may lie."""
    found = [lane.bound(source) for lane in lanes]
    both = reduce(Interval.intersect, found)
    roundings = [lane.rounding for lane in lanes if isinstance(lane.rounding, Rounding)]
    if roundings:
        outside = outside_of_both(both, [(f, r.outside[source]) for f, r in zip(found, roundings, strict=True)])
        for rounding in roundings:
            rounding.take(source, both, outside)
    for lane in lanes:
        if lane.beside is not None:  # images are then taken of the interval that errors are counted for
            lane.beside.go_on_from(source, both)
    return both


# Intersections.


def _intersections(found: list[dict[int, Interval]]) -> dict[int, Interval]:
    return {i: reduce(Interval.intersect, (intervals[i] for intervals in found)) for i in found[0]}


def _outside(found: Preactivations, index: int) -> Outside:
    """How far values may lie outside; not at all for an engine that answers for its own rounding."""
    if index in found.outside:
        return found.outside[index]
    return Outside.both(torch.zeros_like(found.intervals[index].lower))


def _kind(found: list[Preactivations]) -> type[Preactivations]:
    """The type of bounds that rest on all of these: estimates, if one of them is."""
    return Preactivations if all(type(f) is Preactivations for f in found) else EstimatedPreactivations


def _tightest(found: list[Bounds]) -> Bounds:
    layers = {name: reduce(Interval.intersect, (f.layers[name] for f in found)) for name in found[0].layers}
    output = reduce(Interval.intersect, (f.output for f in found))
    return (SoundBounds if all(isinstance(f, SoundBounds) for f in found) else EstimatedBounds)(output, layers)
