"""Is there a counterexample? Proofs by bounds, a search, and both confirmed before a word is said."""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual._tensor import Shape, full_precision
from autodual.certificates import attack, certify
from autodual.certificates.certificate import Certificate
from autodual.engines import IBP, AlphaCrown, BoundEngine, Crown, Dual
from autodual.engines.effort import Effort, TimeLimitError, watched
from autodual.engines.prepare import Prepared, prepare
from autodual.engines.results import exceeds, only_estimates
from autodual.interchange.vnnlib import Case, Conjunction, VnnLibProperty
from autodual.sets import Box
from autodual.sets.input_sets import rounded_up
from autodual.spec import AllOf, Positive, Spec

QUICK, THOROUGH = (20, 8), (100, 256)
"""Steps and starts of a search for a counterexample."""
Round: TypeAlias = tuple[tuple[int, int], Sequence[BoundEngine]]
"""A search, and the engines that are tried after it."""
ROUNDS: tuple[Round, ...] = ((QUICK, (IBP(), Dual(), Crown())), (THOROUGH, (AlphaCrown(), AlphaCrown(steps=50))))
"""Cheapest first. The second round takes minutes where the first one takes seconds."""


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
    """[inputs], float64; where `exact` has an entry, the nearest number to it."""
    outputs: Tensor
    """[outputs]: computed in float64. The conditions are proved for the exact output, whatever the rounding here."""
    outputs_as_run: Tensor
    """[outputs]: of the network as it runs at the input rounded to its dtype, by onnx's reference where there is a file."""
    exact: Mapping[int, Fraction]
    """Inputs that must be numbers which float64 does not hold, such as 1/10. The conditions hold for these, not only nearby."""


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


LONGEST_ALARM = 1e8
"""Seconds, about three years; systems do not take much more."""


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

    @property
    def left(self) -> float | None:
        return None if self.limit is None else max(self.limit - self.seconds, 1e-3)

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
    delay, interval = signal.setitimer(signal.ITIMER_REAL, min(clock.left or 0.0, LONGEST_ALARM))
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
    engines: Sequence[BoundEngine] | None = None,
    clock: Clock | None = None,
    reference: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> Verification:
    """Decide a property of a network with inputs of this shape, if bounds or a search can.

    UNSAT: every disjunct of every case is refuted by a bound on one of its conditions that exceeds all rounding. SAT: a counterexample
    was found, is proved in float64 whatever the rounding, and holds by `reference`, [N, *shape] -> [N, outputs], too. `engines` are
    tried in their order instead of those of `ROUNDS`.
    """
    work = _Work(model, shape, asked, clock or Clock(), reference, torch.Generator().manual_seed(seed))
    outcome, found = Outcome.UNKNOWN, None
    try:
        with interrupted(work.clock):
            outcome, found = work.decide(ROUNDS if engines is None else ((QUICK, engines), (THOROUGH, ())))
    except OutOfTimeError:
        outcome, found = Outcome.TIMEOUT, None
    refutations = tuple(tuple(case) for case in work.refutations)
    return Verification(outcome, found, refutations, tuple(work.notes), work.clock.seconds)


Open: TypeAlias = dict[int, list[int]]
"""Numbers of cases, and of the disjuncts of each that are asked about."""


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
        held = itertools.chain(model.parameters(), model.buffers())
        parameter = next((t for t in held if t.is_floating_point()), torch.zeros(()))
        self.like = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        self.model = nn.Sequential(model, nn.Flatten()).eval()
        self.refutations: list[list[Refutation | None]] = [[None] * len(case.disjuncts) for case in asked.cases]
        self.notes: list[str] = []

    def decide(self, rounds: Sequence[Round]) -> tuple[Outcome, Counterexample | None]:
        if not self.asked.cases:  # no input, or no output, is asked for
            self.notes.append(
                "the property contradicts itself, such as by a lower bound above the upper one, so any network has it"
            )
            return Outcome.UNSAT, None
        with full_precision():
            prepared = self._prepared()
            for c, case in enumerate(self.asked.cases):
                if any(len(d.rows) == 0 for d in case.disjuncts):  # any input is one
                    found = self._confirmed(prepared, c, (case.inner_lower + case.inner_upper) / 2)
                    return (Outcome.UNKNOWN if found is None else Outcome.SAT), found
            for (steps, starts), engines in rounds:
                found = self._search(prepared, steps, starts)
                if found is not None:
                    return Outcome.SAT, found
                for engine in engines:
                    self._refute(engine)
                    if not self._open():
                        return Outcome.UNSAT, None
        self.clock.check()
        return Outcome.UNKNOWN, None

    def _prepared(self) -> Prepared:
        largest = torch.finfo(self.like.dtype).max
        for case in self.asked.cases:
            beyond = (torch.maximum(case.lower.abs(), case.upper.abs()) > largest).nonzero().flatten().tolist()
            if beyond:
                low, high = (f"{end[beyond[0]]:g}" for end in (case.lower, case.upper))
                raise ArgumentError(
                    f"the property allows X_{beyond[0]} between {low} and {high}, but the network computes in {self.like.dtype} and "
                    f"cannot go beyond {largest:g}; give that input narrower bounds"
                )
        region = self._box(self.asked.cases[:1])
        prepared = prepare(self.model, region.centre, region)
        outputs = math.prod(prepared.graph.output_shape)
        if outputs != self.asked.outputs:
            raise ArgumentError(f"the property is about {self.asked.outputs} outputs, but the network has {outputs}")
        return prepared

    def _open(self) -> Open:
        """What nothing refutes yet."""
        return self._those(lambda found: found is None or not found.holds)

    def _those(self, wanted: Callable[[Refutation | None], bool]) -> Open:
        found = {c: [d for d, r in enumerate(each) if wanted(r)] for c, each in enumerate(self.refutations)}
        return {c: disjuncts for c, disjuncts in found.items() if disjuncts}

    def _groups(self, some: Open) -> Iterator[Open]:
        """Cases that are asked about together: none has more than twice as many disjuncts as another."""
        sizes = {c: len(disjuncts).bit_length() for c, disjuncts in some.items()}
        for size in sorted(set(sizes.values())):
            self.clock.check()
            yield {c: disjuncts for c, disjuncts in some.items() if sizes[c] == size}

    def _disjuncts(self, group: Open) -> Iterator[list[Conjunction]]:
        """The first disjunct of every case, then the second of every one, and so on; a case with fewer repeats its last."""
        for number in range(max(map(len, group.values()))):
            yield [self.asked.cases[c].disjuncts[own[min(number, len(own) - 1)]] for c, own in group.items()]

    # Proofs.

    def _refute(self, engine: BoundEngine) -> None:
        """Bounds the conditions of all open disjuncts from below; again, and alone, where only rounding is in the way.

        Float64 decides about an example if all that is asked about it may be decided there.
        """
        self._bound(engine, self._open())
        self._bound(engine, self._those(lambda r: r is not None and not r.holds and 0 < r.margin <= r.slack))

    def _bound(self, engine: BoundEngine, some: Open) -> None:
        for group in self._groups(some):
            box = self._box([self.asked.cases[c] for c in group])
            parts = [_excluded([list(_conditions(d)) for d in disjuncts]) for disjuncts in self._disjuncts(group)]
            try:
                found = certify(
                    self.model, box.centre, AllOf(parts), box, engine, timeout=self.clock.left, progress=False
                )
                if not isinstance(found, Certificate):
                    raise only_estimates(engine)
            except (AutodualError, RuntimeError, MemoryError) as error:  # what an engine cannot do is not proved
                self.notes.append(f"{engine!r}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
                return
            self._note(group, engine, found, [part.rows.shape[1] for part in parts])

    def _note(self, group: Open, engine: BoundEngine, found: Certificate, sizes: list[int]) -> None:
        """Keeps the best bound on every disjunct; the certificate has so many rows for each of them, one after the other."""
        kinds = (found.margins.double(), found.slack.double(), found.run_error.double())
        for number, bounds in enumerate(zip(*(t.split(sizes, 1) for t in kinds), strict=True)):
            best = _best(*bounds)
            margin, slack, run_error = (t.gather(1, best).squeeze(1) for t in bounds)
            holds, as_run = exceeds(margin, slack), exceeds(margin, slack, run_error)
            columns = (t.tolist() for t in (margin, slack, run_error, holds, as_run))
            for case, values in zip(group, zip(*columns, strict=True), strict=True):
                d = group[case][min(number, len(group[case]) - 1)]
                self.refutations[case][d] = _better(self.refutations[case][d], Refutation(repr(engine), *values))

    def _box(self, cases: Sequence[Case]) -> Box:
        """[cases, *shape]: all inputs that are allowed, in the model's dtype rounded outwards, and closer in float64."""
        lower, upper = (self._stacked(cases, end) for end in ("lower", "upper"))
        ends = -rounded_up(-lower, self.like.dtype), rounded_up(upper, self.like.dtype)
        return Box(*ends).known_as(lambda: Box(lower, upper))

    def _stacked(self, cases: Sequence[Case], end: str) -> Tensor:
        return torch.stack([getattr(c, end) for c in cases]).to(self.like.device).reshape(-1, *self.shape)

    # Counterexamples.

    def _search(self, prepared: Prepared, steps: int, starts: int) -> Counterexample | None:
        for group in self._groups(self._open()):
            box = self._inner_box([self.asked.cases[c] for c in group])
            asked = list(self._disjuncts(group))
            most = max(len(d.rows) for disjuncts in asked for d in disjuncts)
            parts = [
                _excluded([list(zip(d.rows, d.inner_limits, strict=True)) for d in disjuncts], most)
                for disjuncts in asked
            ]
            try:
                with watched(Effort(self.clock.left)):
                    found = attack(self.model, box.centre, AllOf(parts), box, steps, starts, self.generator)
            except TimeLimitError:
                raise OutOfTimeError from None
            for place in found.margins.argsort().tolist():
                if bool(found.success_as_run[place]):
                    point = found.examples[place].double().reshape(-1).cpu()
                    confirmed = self._confirmed(prepared, list(group)[place], point)
                    if confirmed is not None:
                        return confirmed
        return None

    def _inner_box(self, cases: Sequence[Case]) -> Box:
        """[cases, *shape]: what the model's dtype holds of the boxes; where it holds nothing between the ends, the nearest number."""
        lower, upper = (self._stacked(cases, end) for end in ("inner_lower", "inner_upper"))
        low, high = rounded_up(lower, self.like.dtype), -rounded_up(-upper, self.like.dtype)
        nearest = lower.to(self.like.dtype)
        return Box(torch.where(low > high, nearest, low), torch.where(low > high, nearest, high))

    @torch.no_grad()
    def _confirmed(self, prepared: Prepared, number: int, x: Tensor) -> Counterexample | None:
        """The point [inputs], if it is proved that its exact output satisfies a disjunct, and if its output as it runs does, too.

        Where float64 holds no allowed input, the proof is for all numbers between the two next to it.
        """
        case = self.asked.cases[number]
        inside = torch.minimum(torch.maximum(x, case.inner_lower), case.inner_upper)
        lower, upper = inside.clone(), inside.clone()
        between = list(case.exact)
        lower[between], upper[between] = case.lower[between], case.upper[between]
        point, lower, upper = (t.reshape(1, *self.shape).to(self.like.device) for t in (inside, lower, upper))
        as_run = point.to(self.like)
        ran = (self.model(as_run) if self.reference is None else self.reference(as_run))[0].cpu().double()
        for found in case.disjuncts:
            if bool((found.rows @ ran <= found.limits).all()) and _satisfies(prepared, Box(lower, upper), found):
                return Counterexample(inside, prepared.in_double.forward(point)[0].cpu(), ran, case.exact)
        return None


def _satisfies(prepared: Prepared, region: Box, asked: Conjunction) -> bool:
    """Whether all exact outputs of a tiny box satisfy the conjunction: a proof, in float64."""
    if len(asked.rows) == 0:
        return True
    rows, limits = (t.to(region.centre.device) for t in (asked.rows, asked.inner_limits))
    proof = IBP().prove(prepared.in_double, region, Spec(-rows.unsqueeze(1)))
    return bool(exceeds(proof.lower, _sum_above((-limits).expand_as(proof.lower), proof.slack)).all())


Condition: TypeAlias = tuple[Tensor, Tensor]
"""A row [outputs] and its limit: row @ y <= limit."""


def _excluded(conjunctions: Sequence[list[Condition]], least: int = 0) -> Positive:
    """What must hold if no output satisfies all conditions of its example's conjunction; short ones repeat their first condition.

    least: the number of rows that are wanted at least.
    """
    most = max(least, *map(len, conjunctions))
    full = [found + found[:1] * (most - len(found)) for found in conjunctions]
    rows, limits = (torch.stack([torch.stack([c[k] for c in found]) for found in full]) for k in (0, 1))
    return Positive(rows, -limits, needed=1)


def _best(margin: Tensor, slack: Tensor, run_error: Tensor) -> Tensor:
    """[N, 1]: of the bounds [N, R], the number of the one that says most; NaN says nothing."""
    room, as_run = margin - slack, exceeds(margin, slack, run_error)
    room = torch.where(as_run.any(1, keepdim=True), room.masked_fill(~as_run, -torch.inf), room)
    return room.masked_fill(~room.isfinite(), -torch.inf).argmax(1, keepdim=True)


PAIRED = 8
"""Conditions up to which all sums of two are bounded, too."""


def _conditions(found: Conjunction) -> Iterator[Condition]:
    """Conditions that a counterexample satisfies: those of the conjunction, and sums of them. If a bound excludes one, none exists."""
    rows, limits = list(found.rows), list(found.limits)
    yield from zip(rows, limits, strict=True)
    if len(rows) <= PAIRED:
        for i in range(len(rows)):
            for j in range(i):
                yield from _sum(rows[i : i + 1] + rows[j : j + 1], limits[i : i + 1] + limits[j : j + 1])
    if len(rows) > 2:
        yield from _sum(rows, limits)


def _sum(rows: Sequence[Tensor], limits: Sequence[Tensor]) -> Iterator[Condition]:
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
            "exact_inputs": {f"X_{i}": str(v) for i, v in counterexample.exact.items()},
            "outputs": counterexample.outputs.tolist(),
            "outputs_as_run": counterexample.outputs_as_run.tolist(),
        },
        "cases": [[None if r is None else _record(r) for r in case] for case in found.refutations],
        "notes": list(found.notes),
        "seconds": round(found.seconds, 3),
    }


def _record(refutation: Refutation) -> dict[str, Any]:
    values = asdict(refutation).items()
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values}


def competition_text(found: Verification) -> str:
    """What VNN-COMP prints: one word, and for sat the counterexample."""
    if found.counterexample is None:
        return found.outcome.value
    exact = found.counterexample.exact
    inputs = enumerate(found.counterexample.inputs.tolist())
    values = [f"(X_{i} {_written(exact[i]) if i in exact else repr(v)})" for i, v in inputs]
    values += [f"(Y_{i} {v!r})" for i, v in enumerate(found.counterexample.outputs_as_run.tolist())]
    lines = "\n".join(values)
    return f"{found.outcome.value}\n({lines})"


def _written(value: Fraction) -> str:
    """The number itself: as a decimal if it is one, else as SMT-LIB writes a fraction."""
    twos = (value.denominator & -value.denominator).bit_length() - 1
    fives = round(math.log(value.denominator >> twos, 5))
    if 5**fives << twos != value.denominator:
        return f"(/ {value.numerator} {value.denominator})"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
