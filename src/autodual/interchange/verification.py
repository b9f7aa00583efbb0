"""Is there a counterexample? Proofs by bounds, a search, and both confirmed before a word is said."""

from __future__ import annotations

import contextlib
import enum
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual._tensor import Shape, full_precision
from autodual.engines import IBP, BoundEngine, Crown, Dual, Proof
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.prepare import Prepared, prepare
from autodual.engines.results import exceeds, only_estimates
from autodual.interchange.search import QUICK, THOROUGH, Effort, Goal, search
from autodual.interchange.vnnlib import Case, Conjunction, VnnLibProperty
from autodual.sets import Box
from autodual.spec import Spec

ENGINES: tuple[BoundEngine, ...] = (IBP(), Dual(), Crown())
"""In the order in which they are tried: cheapest first."""


class Outcome(enum.Enum):
    """The word that VNN-COMP wants on the first line."""

    UNSAT = "unsat"
    """Proved: there is no counterexample."""
    SAT = "sat"
    """There is a counterexample, and it was confirmed."""
    UNKNOWN = "unknown"
    """Neither was found."""
    TIMEOUT = "timeout"
    """Neither was found in the given time."""


@dataclass(frozen=True)
class Refutation:
    """The best proof about one disjunct: a lower bound on a condition that a counterexample would have to satisfy."""

    engine: str
    margin: float
    """Lower bound on row @ y - limit over the box; above zero, no output satisfies the condition."""
    slack: float
    """How far rounding may have moved the bound."""
    run_error: float
    """How far the condition of the network as it runs, in its own dtype, may be from that of the exact function."""
    holds: bool
    """margin > slack: in real numbers, no output satisfies the disjunct."""
    holds_as_run: bool
    """margin > slack + run_error: nor does an output of the network as it runs."""


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input of the box whose output satisfies a disjunct."""

    inputs: Tensor
    """[inputs], float64."""
    outputs: Tensor
    """[outputs]: computed in float64; the conditions hold whatever its rounding error."""
    outputs_as_run: Tensor
    """[outputs]: of the network as it runs at the input rounded to its dtype, by onnx's reference where there is a file."""


@dataclass(frozen=True, eq=False)
class Verification:
    """What was found out, and what it rests on. UNSAT and SAT are about the exact function, in real numbers."""

    outcome: Outcome
    counterexample: Counterexample | None
    refutations: tuple[tuple[Refutation | None, ...], ...]
    """For every case and disjunct, the best proof; None where no engine came so far."""
    notes: tuple[str, ...]
    """What kept an engine from proving anything."""
    seconds: float

    @property
    def unsat_as_run(self) -> bool:
        """Whether it is proved, too, that the network as it runs has no counterexample among the inputs of its dtype."""
        return self.outcome is Outcome.UNSAT and all(
            r is None or r.holds_as_run for case in self.refutations for r in case
        )


class OutOfTimeError(BaseException):
    """The given time is over. No Exception: it may come amid any code, and none of its handlers of errors is meant."""


@dataclass
class Clock:
    """Time since the start, of which there may be a limit in seconds."""

    limit: float | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def check(self) -> None:
        if self.limit is not None and self.seconds >= self.limit:
            raise OutOfTimeError


@contextlib.contextmanager
def interrupted(clock: Clock) -> Iterator[None]:
    """Raises OutOfTimeError inside when the time is over, also amid a computation: in the main thread, which alarms reach."""
    if (
        clock.limit is None
        or threading.current_thread() is not threading.main_thread()
        or not hasattr(signal, "setitimer")
    ):
        yield
        return
    clock.check()

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before, started = signal.signal(signal.SIGALRM, ring), time.monotonic()
    delay, interval = signal.setitimer(signal.ITIMER_REAL, max(clock.limit - clock.seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if delay > 0:  # somebody else's alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(delay - (time.monotonic() - started), 1e-3), interval)


def verify(
    model: nn.Module,
    shape: Shape,
    asked: VnnLibProperty,
    engines: Sequence[BoundEngine] = ENGINES,
    clock: Clock | None = None,
    reference: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> Verification:
    """Decide a property of a network with inputs of this shape, if bounds or a search can.

    UNSAT: every disjunct of every case is refuted by a bound on one of its conditions that exceeds all rounding. SAT: a counterexample
    was found, holds in float64 whatever the rounding, and holds by `reference`, [N, *shape] -> [N, outputs], too.
    """
    work = _Work(model, shape, asked, clock or Clock(), reference, torch.Generator().manual_seed(seed))
    outcome, found = Outcome.UNKNOWN, None
    try:
        with interrupted(work.clock):
            outcome, found = work.decide(engines)
    except OutOfTimeError:
        outcome, found = Outcome.TIMEOUT, None
    refutations = tuple(tuple(case) for case in work.refutations)
    return Verification(outcome, found, refutations, tuple(work.notes), work.clock.seconds)


class _Work:
    """The work on one question: which disjuncts are refuted so far."""

    def __init__(
        self,
        model: nn.Module,
        shape: Shape,
        asked: VnnLibProperty,
        clock: Clock,
        reference: Callable[[Tensor], Tensor] | None,
        generator: torch.Generator,
    ) -> None:
        if math.prod(shape) != asked.inputs:
            raise ArgumentError(
                f"the property is about {asked.inputs} inputs, but the network has {math.prod(shape)}: {list(shape)} per example"
            )
        self.shape, self.asked, self.clock, self.reference, self.generator = shape, asked, clock, reference, generator
        parameter = next(model.parameters(), torch.zeros(()))
        self.like = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        self.model = nn.Sequential(model, nn.Flatten()).eval()
        self.refutations: list[list[Refutation | None]] = [[None] * len(case.disjuncts) for case in asked.cases]
        self.notes: list[str] = []

    def decide(self, engines: Sequence[BoundEngine]) -> tuple[Outcome, Counterexample | None]:
        if not self.asked.cases:
            return Outcome.UNSAT, None  # no input, or no output, is asked for
        with full_precision():
            prepared = self._prepared()
            found = self._search(prepared, QUICK)
            if found is not None:
                return Outcome.SAT, found
            for engine in engines:
                self._refute(prepared, engine)
                if not self._open():
                    return Outcome.UNSAT, None
            found = self._search(prepared, THOROUGH)
        return (Outcome.UNKNOWN if found is None else Outcome.SAT), found

    def _prepared(self) -> Prepared:
        case = self.asked.cases[0]
        x = ((case.lower + case.upper) / 2).to(self.like).reshape(1, *self.shape)
        region = self._box([case], self.like.dtype)
        prepared = prepare(self.model, x, region)
        outputs = math.prod(prepared.graph.output_shape)
        if outputs != self.asked.outputs:
            raise ArgumentError(f"the property is about {self.asked.outputs} outputs, but the network has {outputs}")
        return prepared

    def _box(self, cases: Sequence[Case], dtype: torch.dtype) -> Box:
        """[cases, *shape]"""
        lower, upper = (torch.stack([getattr(c, end) for c in cases]) for end in ("lower", "upper"))
        lower, upper = (t.to(self.like.device, dtype).reshape(-1, *self.shape) for t in (lower, upper))
        return Box(lower, upper)

    def _open(self) -> list[tuple[int, int]]:
        """Cases and disjuncts that nothing refutes yet."""
        return [(c, d) for c in range(len(self.refutations)) for d in self._left(c)]

    # Proofs.

    def _refute(self, prepared: Prepared, engine: BoundEngine) -> None:
        """Bounds every condition of the open disjuncts from below; cases that ask the same about other boxes are bounded together."""
        groups: dict[tuple[tuple[bytes, ...], tuple[int, ...]], list[int]] = {}
        for c, case in enumerate(self.asked.cases):
            left = self._left(c)
            if left:
                groups.setdefault((_conditions_of(case), left), []).append(c)
        for (_, left), members in groups.items():
            self.clock.check()
            disjuncts = {d: self.asked.cases[members[0]].disjuncts[d] for d in left}
            try:
                self._refute_together(prepared, engine, members, disjuncts)
            except (
                AutodualError,
                RuntimeError,
                MemoryError,
            ) as error:  # what an engine cannot do is not proved, and no more
                self.notes.append(f"{engine!r}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
                return

    def _left(self, case: int) -> tuple[int, ...]:
        """Disjuncts of a case that nothing refutes yet."""
        return tuple(d for d, found in enumerate(self.refutations[case]) if found is None or not found.holds)

    def _refute_together(
        self, prepared: Prepared, engine: BoundEngine, members: Sequence[int], disjuncts: dict[int, Conjunction]
    ) -> None:
        conditions = [(d, row, limit) for d, found in disjuncts.items() for row, limit in _conditions(found)]
        if not conditions:
            return
        owners = [d for d, _, _ in conditions]
        rows = torch.stack([row for _, row, _ in conditions]).to(self.like.device)
        limits = torch.stack([limit for _, _, limit in conditions]).to(self.like.device)
        region = self._box([self.asked.cases[c] for c in members], torch.float64)
        with torch.no_grad():
            proof = engine.prove(prepared.in_double, region, Spec(rows.unsqueeze(1)))
        if not isinstance(proof, Proof):
            raise only_estimates(engine)
        shape = (len(members), len(conditions))
        lower, slack, run_error = (t.expand(shape) for t in (proof.lower, proof.slack, proof.run_error))
        holds = exceeds(lower, _sum_above(limits, slack))
        as_run = exceeds(lower, _sum_above(limits, slack, run_error))
        for place, case in enumerate(members):
            for k, d in enumerate(owners):
                margin, its_slack, its_error = (float(t[place, k]) for t in (lower - limits, slack, run_error))
                proved = bool(holds[place, k]), bool(as_run[place, k])
                found = Refutation(repr(engine), margin, its_slack, its_error, *proved)
                self.refutations[case][d] = _better(self.refutations[case][d], found)

    # Counterexamples.

    def _search(self, prepared: Prepared, effort: Effort) -> Counterexample | None:
        goals = [Goal(case := self.asked.cases[c], case.disjuncts[d]) for c, d in self._open()]
        for goal in goals:
            if len(goal.conjunction.rows) == 0:  # any input is one
                return self._confirmed(
                    prepared, goal, ((goal.case.inner_lower + goal.case.inner_upper) / 2).reshape(self.shape)
                )
        for goal, x in search(self.model, self.shape, goals, effort, self.generator, self.like, self.clock.check):
            found = self._confirmed(prepared, goal, x.double().cpu())
            if found is not None:
                return found
        return None

    @torch.no_grad()
    def _confirmed(self, prepared: Prepared, goal: Goal, x: Tensor) -> Counterexample | None:
        """The point, if its output satisfies the conjunction in real numbers, whatever the error of float64, and as it runs."""
        case, conjunction = goal.case, goal.conjunction
        inside = torch.minimum(torch.maximum(x.reshape(-1), case.inner_lower), case.inner_upper)
        point = inside.reshape(1, *self.shape)
        scores, error = (t[0].cpu() for t in evaluate_with_error(prepared.in_double, point.to(self.like.device)))
        as_run = point.to(self.like)
        ran = (self.model(as_run) if self.reference is None else self.reference(as_run))[0].cpu().double()
        # The sum of a row has a rounding error, too: a few units in the last place of its terms.
        terms = conjunction.rows.abs() @ (scores.abs() + error)
        room = conjunction.rows.abs() @ error + 2 * (len(scores) + 2) * torch.finfo(torch.float64).eps * (
            terms + conjunction.limits.abs()
        )
        exact = conjunction.rows @ scores + room <= conjunction.inner_limits
        if not bool(exact.all()) or not bool((conjunction.rows @ ran <= conjunction.limits).all()):
            return None
        return Counterexample(inside, scores, ran)


def _conditions_of(case: Case) -> tuple[bytes, ...]:
    """Equal for cases with equal disjuncts."""
    return tuple(t.numpy().tobytes() for d in case.disjuncts for t in (d.rows, d.limits))


PAIRED = 8
"""Conditions up to which all sums of two are bounded, too."""


def _conditions(found: Conjunction) -> Iterator[tuple[Tensor, Tensor]]:
    """Conditions that a counterexample satisfies: those of the conjunction, and sums of them. If a bound excludes one, none exists."""
    rows, limits = list(found.rows), list(found.limits)
    yield from zip(rows, limits, strict=True)
    if len(rows) <= PAIRED:
        for i in range(len(rows)):
            for j in range(i):
                yield from _sum(rows[i : i + 1] + rows[j : j + 1], limits[i : i + 1] + limits[j : j + 1])
    if len(rows) > 2:
        yield from _sum(rows, limits)


def _sum(rows: Sequence[Tensor], limits: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The sum of conditions, if float64 holds its coefficients exactly; its limit is rounded up."""
    total = torch.stack(list(rows)).sum(0)
    exact = all(
        math.fsum(column) == float(sum_)
        for column, sum_ in zip(zip(*(r.tolist() for r in rows), strict=True), total, strict=True)
    )
    limit = math.nextafter(math.fsum(float(v) for v in limits), math.inf)
    if exact and (bool((total != 0).any()) or limit < 0):  # 0 <= limit excludes nothing, unless the limit is negative
        yield total, torch.tensor(limit, dtype=torch.float64)


def _sum_above(*terms: Tensor) -> Tensor:
    """A sum of float64 numbers that is not less than the exact one."""
    total = terms[0]
    for term in terms[1:]:
        total = torch.nextafter(total + term, torch.full_like(total + term, torch.inf))
    return total


def _better(before: Refutation | None, found: Refutation) -> Refutation:
    """The proof that says more: what holds as run first, then what holds, then the larger bound; NaN is worth less than any."""
    if before is None:
        return found
    return max(
        before,
        found,
        key=lambda r: (r.holds_as_run, r.holds, -math.inf if math.isnan(r.margin) else r.margin - r.slack),
    )


def report(found: Verification) -> dict[str, Any]:
    """The verification as JSON holds it: both statements, and every bound behind them; numbers that are not finite are null."""
    counterexample = found.counterexample
    return {
        "result": found.outcome.value,
        "rests_on": {Outcome.UNSAT: "real numbers", Outcome.SAT: "real numbers, and the network as it runs"}.get(
            found.outcome
        ),
        "unsat_as_run": found.unsat_as_run if found.outcome is Outcome.UNSAT else None,
        "counterexample": None
        if counterexample is None
        else {
            "inputs": counterexample.inputs.tolist(),
            "outputs": counterexample.outputs.tolist(),
            "outputs_as_run": counterexample.outputs_as_run.tolist(),
        },
        "cases": [[None if r is None else _record(r) for r in case] for case in found.refutations],
        "notes": list(found.notes),
        "seconds": round(found.seconds, 3),
    }


def _record(refutation: Refutation) -> dict[str, Any]:
    values = {
        name: getattr(refutation, name) for name in ("engine", "margin", "slack", "run_error", "holds", "holds_as_run")
    }
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def competition_text(found: Verification) -> str:
    """What VNN-COMP prints: one word, and for sat the counterexample."""
    if found.counterexample is None:
        return found.outcome.value
    values = [f"(X_{i} {v!r})" for i, v in enumerate(found.counterexample.inputs.tolist())]
    values += [f"(Y_{i} {v!r})" for i, v in enumerate(found.counterexample.outputs_as_run.tolist())]
    lines = "\n".join(values)
    return f"{found.outcome.value}\n({lines})"
