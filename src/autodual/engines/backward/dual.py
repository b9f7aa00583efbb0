"""What all backward engines do with a batch, `BackwardEngine`, and the paper's exact bound, `Dual`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.dual import DualNetwork
from autodual.engines.backward.bands import DualSolver, Solver, interval_solver
from autodual.engines.effort import Budget, check_max_bytes, current
from autodual.engines.ibp import IBP, IntervalBounds, interval_bounds
from autodual.engines.results import (
    BoundEngine,
    Bounds,
    EstimatedBounds,
    Minimum,
    Preactivations,
    ProbableProof,
    Proof,
    exceeds,
    join_proofs,
    name_layers,
    require_bands,
)
from autodual.engines.rounding import Errors, NoErrors, Outside, Rounding
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec

Result = TypeVar("Result")


@dataclass(frozen=True)
class Part:
    """Some examples of a batch."""

    region: InputSet
    spec: Spec | None = None
    given: Preactivations | None = None
    """What another engine found about them, if it had to be asked about the whole batch."""


@dataclass(frozen=True, repr=False)
class BackwardEngine(BoundEngine):
    """Pulls linear functions back through relaxed activations.

    intermediate: the engine that bounds what enters the activations; itself when None.
    intersect: also run interval bounds beside it, and keep the tighter of both at every activation.
    max_bytes: limit on intermediate results; a quarter of the free memory when None.
    """

    intermediate: BoundEngine | None = None
    intersect: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.intermediate is not None and not isinstance(self.intermediate, BoundEngine):
            raise ArgumentError(f"intermediate must be an engine such as IBP(), got {type(self.intermediate).__name__}")
        check_max_bytes(self.max_bytes)

    @property
    def random(self) -> bool:
        return self.intermediate is not None and self.intermediate.random

    @property
    def cheaper(self) -> list[BoundEngine]:
        return [IBP()] if isinstance(self.intermediate, IBP) else [replace(self, intermediate=IBP())]

    @abstractmethod
    def solver(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> Solver:
        """A fresh computation, in which no activation is relaxed yet."""

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._preactivations(network, region, proof=False)

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self._preactivations(network, region, proof=True)

    def _preactivations(self, network: DualNetwork, region: InputSet, proof: bool) -> Preactivations:
        def one(part: Part) -> Preactivations:
            return self._relaxed(network, part, self._errors(network, part.region, proof))[1]

        return join_preactivations(self._in_parts(network, region, None, one, proof))

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        def one(part: Part) -> tuple[Interval, Preactivations]:
            solver, found, intervals = self._relaxed(network, part, NoErrors())
            output = solver.bound(network.output)
            return output.intersect(intervals.at(network.output)) if intervals else output, found

        return join_bounds(network, self._in_parts(network, region, None, one))

    def enclose(self, network: DualNetwork, region: InputSet) -> Bounds | None:
        def one(part: Part) -> tuple[Interval, Preactivations]:
            rounding = self._rounding(network, part.region)
            solver, found, intervals = self._relaxed(network, part, rounding)
            inside = {i: found.outside[i].around(interval) for i, interval in found.intervals.items()}
            output = solver.bound(network.output)
            if intervals is not None:
                output = intervals.intersect(network.output, output)
            return rounding.outside[network.output].around(output), replace(found, intervals=inside)

        found = join_bounds(network, self._in_parts(network, region, None, one, proof=True))
        return None if isinstance(found, EstimatedBounds) else found

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        def one(part: Part) -> Tensor:
            assert part.spec is not None
            solver, found, beside = self._relaxed(network, part, NoErrors(), exact=False)
            return _tighter(solver.minimum(network.output, part.spec), part.spec, solver, found, beside)

        return Minimum(torch.cat(self._in_parts(network, region, spec, one)))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof | ProbableProof:
        def one(part: Part) -> Proof | ProbableProof:
            assert part.spec is not None
            rounding = self._rounding(network, part.region)
            solver, found, beside = self._relaxed(network, part, rounding, exact=False)
            lower, slack, run_error = solver.prove(network.output, part.spec)
            if beside is not None:
                plain = interval_solver(network, part.region, solver.budget, rounding, found.intervals)
                other, its_slack, _ = plain.prove(network.output, part.spec)
                better = torch.where(
                    exceeds(other, its_slack, run_error), other - its_slack > lower - slack, other > lower
                )
                lower, slack = torch.where(better, other, lower), torch.where(better, its_slack, slack)
            return found.proof(lower, slack, run_error, self)

        return join_proofs(self._in_parts(network, region, spec, one, proof=True))

    def _relaxed(
        self, network: DualNetwork, part: Part, rounding: Errors, exact: bool = True
    ) -> tuple[Solver, Preactivations, IntervalBounds | None]:
        """Relaxes all activations, one after the other: the solver, what enters the activations, and interval bounds run beside it.

        exact: bound every node by `Solver.bound`, since its intervals are wanted for themselves; else by `Solver.settle`, which may
        be loose where nothing depends on it.
        """
        region = part.region
        solver = self.solver(network, region, Budget.of(self.max_bytes, region.centre.device), rounding)
        proof = isinstance(rounding, Rounding)
        given = self._given(network, region, proof) if part.given is None else part.given
        beside = interval_bounds(network, region, rounding) if self.intersect else None
        exact = exact or self.intersect  # the interval pass goes on from these bounds, also from those of stable units
        intervals: dict[int, Interval] = {}
        known: dict[int, Interval] = {}
        for index in network.activations:
            source = network.source(index)
            if source not in known:
                if given is None:
                    known[source] = solver.bound(source) if exact else solver.settle(index)
                else:
                    known[source] = given.intervals[index]
                    rounding.take(source, known[source], given.outside.get(index))
                if beside is not None:
                    known[source] = beside.intersect(source, known[source])
            intervals[index] = known[source]
            solver.relax(index, known[source])
        outside = rounding.outside_of(intervals)
        if given is None:
            return solver, Preactivations(intervals, outside=outside), beside
        return solver, replace(given, intervals=intervals, outside=outside), beside

    def _rounding(self, network: DualNetwork, region: InputSet) -> Rounding:
        return Rounding(network, region)

    def _errors(self, network: DualNetwork, region: InputSet, proof: bool) -> Errors:
        return self._rounding(network, region) if proof else NoErrors()

    def _given(self, network: DualNetwork, region: InputSet, proof: bool) -> Preactivations | None:
        """What the engine `intermediate` finds, if there is one; in a proof, with its errors."""
        if self.intermediate is None:
            return None
        ask = self.intermediate.provable if proof else self.intermediate.preactivations
        return ask(network, region)

    def _in_parts(
        self,
        network: DualNetwork,
        region: InputSet,
        spec: Spec | None,
        work: Callable[[Part], Result],
        proof: bool = False,
    ) -> list[Result]:
        """The work on as many examples at a time as the memory budget allows; random numbers must not depend on how many those are."""
        budget = Budget.of(self.max_bytes, region.centre.device)
        size, effort = budget.examples(network, region.centre), current()
        if effort is not None:
            effort.begin(lambda: self._operations(network, region, budget), len(region))
        given = self._given(network, region, proof) if self.random and size < len(region) else None
        results = []
        for start in range(0, len(region), size):
            some = slice(start, min(start + size, len(region)))
            if effort is not None:
                effort.next_part(some.stop - some.start)
            if size >= len(region):
                results.append(work(Part(region, spec)))
            else:
                part = Part(region[some], None if spec is None else spec[some], None if given is None else given[some])
                results.append(work(part))
        if effort is not None:
            effort.end()
        return results

    def _operations(self, network: DualNetwork, region: InputSet, budget: Budget) -> dict[int, float]:
        """Multiplications, about, for every node that is bounded on the way to the output of one example."""
        sources = [] if self.intermediate is not None else [network.source(i) for i in network.activations]
        solver = self.solver(network, region, budget, NoErrors())
        return {i: solver.operations(i) for i in dict.fromkeys([*sources, network.output])}


@dataclass(frozen=True, repr=False)
class Dual(BackwardEngine):
    """The paper's exact bound: one common slope per unit, u / (u - l) for ReLU. [SPAD Thm 1, Cor. 1 and 2]

    Examples:
        >>> import autodual as ad
        >>> ad.Dual(intermediate=ad.IBP())  # one backward pass, over interval bounds: faster and looser
        Dual(intermediate=IBP())
    """

    def solver(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> DualSolver:
        require_bands(network, "Dual")
        return DualSolver(network, region, budget, rounding)


def _tighter(lower: Tensor, spec: Spec, solver: Solver, found: Preactivations, beside: IntervalBounds | None) -> Tensor:
    """The better of a bound and of the interval bound, where intervals run beside."""
    if beside is None:
        return lower
    plain = interval_solver(solver.network, solver.region, solver.budget, NoErrors(), found.intervals)
    return torch.maximum(lower, plain.minimum(solver.network.output, spec))


def join_preactivations(parts: list[Preactivations]) -> Preactivations:
    """Concatenates what was found for the parts of a batch."""
    intervals = {i: _join([p.intervals[i] for p in parts]) for i in parts[0].intervals}
    outside = {
        i: Outside(torch.cat([p.outside[i].below for p in parts]), torch.cat([p.outside[i].above for p in parts]))
        for i in parts[0].outside
    }
    return replace(parts[0], intervals=intervals, outside=outside)


def join_bounds(network: DualNetwork, parts: list[tuple[Interval, Preactivations]]) -> Bounds:
    """Concatenates the bounds of the parts of a batch."""
    joined = {i: _join([p.intervals[i] for _, p in parts]) for i in network.activations}
    return parts[0][1].with_output(_join([output for output, _ in parts]), name_layers(network, joined))


def _join(intervals: list[Interval]) -> Interval:
    if len(intervals) == 1:
        return intervals[0]
    return Interval(torch.cat([i.lower for i in intervals]), torch.cat([i.upper for i in intervals]))
