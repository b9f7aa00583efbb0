"""What a call may take: how much memory at once, and how much time; and what is said about it."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from autodual._errors import ArgumentError, AutodualError, MemoryBudgetError
from autodual._tensor import free_bytes
from autodual.dual import DualNetwork

if TYPE_CHECKING:
    from autodual.engines.results import BoundEngine

# Memory.

COPIES = 4
"""Tensors of coefficients that are alive at the same time, at most: before, after, a product, and a work buffer."""
CACHE_BYTES = 24 << 20
"""On a CPU, chunks that stay in the cache are faster than large ones."""
PATCH_BYTES = 8 << 20
"""Chunks of patches are faster if they are smaller still: what a larger one frees goes back to the operating system, which has to
find and clear pages for the next one."""
FEW_PATCHES = 512
"""A chunk has at least so many patches: with fewer, starting a convolution takes longer than a small chunk saves."""
DEFAULT_SHARE = 0.25
"""Part of the free memory that is taken when nothing is said."""


@dataclass(frozen=True)
class Budget:
    """A limit on the bytes of intermediate results."""

    max_bytes: int
    preferred: int
    cached: bool = False
    """Whether there is a cache that chunks should stay in."""

    @classmethod
    def of(cls, max_bytes: int | None, device: torch.device) -> Budget:
        check_max_bytes(max_bytes)
        limit = int(free_bytes(device) * DEFAULT_SHARE) if max_bytes is None else max_bytes
        cached = device.type == "cpu" and not torch.is_grad_enabled()
        return cls(limit, min(limit, CACHE_BYTES) if cached else limit, cached)

    @classmethod
    def unlimited(cls) -> Budget:
        """A budget for work that is small by construction, and for steps that must not look at the machine."""
        return cls(sys.maxsize, sys.maxsize)

    def rows(self, network: DualNetwork, target: int, like: Tensor) -> int:
        """How many rows for a batch shaped like `like` may be pulled back together."""
        widest = max(math.prod(network.nodes[i].shape) for i in network.ancestors(target))
        row = widest * like.shape[0] * like.element_size() * COPIES
        return max(1, self.preferred // row)

    def patches(self, network: DualNetwork, rows: int, like: Tensor) -> int:
        """How many virtual examples of a cropped network may be treated together."""
        widest = max(math.prod(node.shape) for node in network.nodes)
        example = widest * rows * like.element_size() * COPIES
        small = max(PATCH_BYTES, -(-FEW_PATCHES // rows) * example) if self.cached else self.preferred
        return max(1, min(self.preferred, small) // example)

    def examples(self, network: DualNetwork, like: Tensor) -> int:
        """How many examples may be treated together, so that one row of all of them, and their bounds, fit."""
        units = sum(math.prod(node.shape) for node in network.nodes)
        example = units * like.element_size() * 2 * COPIES
        if example > self.max_bytes:
            raise MemoryBudgetError(
                f"max_bytes = {self.max_bytes:,} is too little: one example of this network ({units:,} values) needs about "
                f"{example:,} bytes. Raise max_bytes, free memory, or use a cheaper engine such as IBP()"
            )
        return max(1, self.max_bytes // example)


def even_split(count: int, limit: int) -> int:
    """A chunk size of at most `limit` that leaves no small rest."""
    return -(-count // -(-count // max(1, limit)))


def check_max_bytes(max_bytes: int | None) -> None:
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0):
        raise ArgumentError(f"max_bytes must be a positive whole number of bytes, or None, got {max_bytes!r}")


# Time: how much work a call has before it, how far it has come, and when it must end.
#
# An engine says what it begins (`Effort.begin`) and how far it is (`Effort.report_progress`), chunk by chunk. Nothing is counted
# before a call has taken a second, so that short calls pay nothing. After that the operations of every step are counted from the
# shapes of the network, and the time that is left follows from the time that the steps so far have taken.

PATIENCE = 1.0
"""Seconds before anything is counted."""
OFTEN = 0.2
"""Seconds between two reports, at least."""


class TimeLimitError(AutodualError):
    """A call has reached its time limit. What it had not decided is unknown."""


@dataclass(frozen=True)
class Progress:
    """How far a call has come."""

    fraction: float
    """Part of the operations that is done."""
    elapsed: float
    """Seconds since the call began."""
    worked: float
    """Seconds since its first operation."""

    @property
    def remaining(self) -> float:
        """Seconds that are left, about: operations are counted, and taken to be as fast as those before."""
        return self.worked * (1 / self.fraction - 1) if self.fraction > 0 else float("inf")

    @property
    def expected(self) -> float:
        """Seconds that the whole call takes, about."""
        return self.elapsed + self.remaining


@dataclass
class _Sweep:
    """One sweep of an engine over a batch: steps in order, each of them for the examples of one part after the other."""

    costs: Callable[[], Mapping[int, float]]
    examples: int
    finished: int = 0
    part: int = 0
    step: int | None = None
    within: float = 0.0
    counted: Mapping[int, float] | None = None

    def operations(self) -> tuple[float, float]:
        """Operations that are done, and all operations."""
        if self.counted is None:
            self.counted = self.costs()
        each = sum(self.counted.values())
        before = 0.0
        for step, cost in self.counted.items():
            if step == self.step:
                before += self.within * cost
                break
            before += cost
        else:
            before = 0.0
        return self.finished * each + self.part * before, self.examples * each


@dataclass
class Effort:
    """The work of one call, which reports to `tell` now and then, and ends with TimeLimitError after `timeout` seconds."""

    timeout: float | None = None
    tell: Callable[[Progress], None] | None = None
    started: float = field(default_factory=lambda: time.monotonic())
    late: bool = False
    """Whether the time was up while an engine tried to improve on what others had proved, which was then kept."""
    _sweeps: list[_Sweep] = field(default_factory=list)
    _open: list[_Sweep] = field(default_factory=list)
    _told: float = -float("inf")
    _begun: float | None = None

    def begin(self, costs: Callable[[], Mapping[int, float]], examples: int) -> None:
        """Notes that a sweep over so many examples begins.

        costs: operations of its steps for one example, in the order of the steps; asked for once, if at all.
        """
        self._begun = time.monotonic() if self._begun is None else self._begun
        self._sweeps.append(_Sweep(costs, examples))
        self._open.append(self._sweeps[-1])

    def next_part(self, examples: int) -> None:
        """Notes that the next so many examples are treated, together."""
        now = self._open[-1]
        now.finished, now.part, now.step = now.finished + now.part, examples, None

    def give_up_part(self) -> None:
        """Notes that the examples treated now will come again, fewer at a time."""
        now = self._open[-1]
        now.part, now.step = 0, None

    def end(self) -> None:
        """Notes that the sweep begun last is done; one that was interrupted for it goes on."""
        now = self._open.pop()
        now.finished, now.part = now.examples, 0

    def report_progress(self, step: int, within: float) -> None:
        """Notes that the fraction `within` of a step is done for the examples treated now; ends the call if its time is up."""
        elapsed = time.monotonic() - self.started
        self.check(elapsed)
        if self._open:
            self._open[-1].step, self._open[-1].within = step, within
        if self.tell is not None and self._open and elapsed > PATIENCE and elapsed - self._told > OFTEN:
            self._told = elapsed
            self.tell(self.progress(elapsed))

    def check(self, elapsed: float | None = None) -> None:
        """Ends the call if its time is up."""
        elapsed = time.monotonic() - self.started if elapsed is None else elapsed
        if self.timeout is not None and elapsed >= self.timeout:
            raise TimeLimitError(f"not decided within the time limit of {self.timeout:g} s")

    def progress(self, elapsed: float) -> Progress:
        done, total = (sum(kind) for kind in zip(*(s.operations() for s in self._sweeps), strict=True))
        begun = self.started if self._begun is None else self._begun
        return Progress(min(1.0, done / total) if total > 0 else 0.0, elapsed, self.started + elapsed - begun)


_CURRENT: ContextVar[Effort | None] = ContextVar("autodual effort", default=None)


@contextmanager
def watched(effort: Effort) -> Iterator[Effort]:
    """Counts what engines do inside, in this thread, as the work of `effort`."""
    token = _CURRENT.set(effort)
    try:
        yield effort
    finally:
        _CURRENT.reset(token)


def current() -> Effort | None:
    """The call that is being worked on, if anyone watches."""
    return _CURRENT.get()


def report_progress(step: int, within: float) -> None:
    """Tells whoever watches how far a step has come. A compiled step is not watched."""
    if torch.compiler.is_compiling():
        return
    effort = _CURRENT.get()
    if effort is not None:
        effort.report_progress(step, within)


# What users hear of it, and what is proved when the time is up.

T = TypeVar("T")

LONG = 60.0
"""Seconds from which on a call says beforehand what it will take."""
SURE = 2.0
"""Seconds of work after which that can be told."""
SHARE = 10
"""Batches under a time limit grow as long as each takes no more than this part of it."""

Report = Callable[[Progress], None]


@contextmanager
def in_time(
    engine: BoundEngine, examples: int, timeout: float | None, progress: bool | Report | None
) -> Iterator[Effort]:
    """Work on a certificate: watched, announced if it will take long, and ended by its time limit.

    progress: True shows a line on standard error, False nothing; None shows it on a terminal, if the work takes long. Or a function,
    which is called with every report.
    """
    if timeout is not None and not (isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0):
        raise ArgumentError(f"timeout must be a positive number of seconds, or None for no limit, got {timeout!r}")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise ArgumentError(f"progress must be True, False, None or a function, got {progress!r}")
    teller = _Teller(engine, examples, timeout, progress)
    try:
        with watched(Effort(None if timeout is None else float(timeout), teller)) as effort:
            yield effort
    finally:
        teller.clear()


@dataclass(frozen=True)
class ProgressOfPart:
    """Turns the progress of a call on some examples into that of the longer call which it belongs to."""

    whole: Report
    before: int
    """Examples that were done before."""
    count: int
    of: int
    started: float
    """When the longer call began to work."""

    def __call__(self, progress: Progress) -> None:
        elapsed = time.monotonic() - self.started
        self.whole(Progress((self.before + progress.fraction * self.count) / self.of, elapsed, elapsed))


class _Teller:
    """Tells the user once what a call will take, and shows a line that says how far it is."""

    def __init__(
        self, engine: BoundEngine, examples: int, timeout: float | None, progress: bool | Report | None
    ) -> None:
        self.engine, self.examples, self.timeout, self.progress = engine, examples, timeout, progress
        self.announced, self.shown = False, False

    def __call__(self, progress: Progress) -> None:
        if callable(self.progress):
            self.progress(progress)
        if progress.worked < SURE or isinstance(self.progress, ProgressOfPart):
            return
        long = progress.expected > LONG
        if long and not self.announced:
            self.announced = True
            if self.timeout is None:
                warnings.warn(self._announcement(progress), stacklevel=2)
        if self.progress is True or (self.progress is None and (long or self.shown) and sys.stderr.isatty()):
            self.shown = True
            left = f"about {duration(progress.remaining)} left"
            print(f"\r{self.engine!r}: {progress.fraction:4.0%}, {left:<24}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line."""
        if self.shown:
            print("\r" + " " * 78 + "\r", end="", file=sys.stderr, flush=True)

    def _announcement(self, progress: Progress) -> str:
        """What the user is told once, when it is known that the call takes long."""
        many = "1 example" if self.examples == 1 else f"{self.examples} examples"
        cheaper = " or ".join(map(repr, self.engine.cheaper))
        advice = f"Cheaper, and looser: {cheaper}. " if cheaper else ""
        return (
            f"{self.engine!r} will take about {duration(progress.expected)} for {many} of this network "
            f"({progress.fraction:.1%} is done after {duration(progress.elapsed)}). {advice}timeout= sets a limit, after which "
            f"what is not decided is unknown"
        )


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if not math.isfinite(seconds):
        return "a long time"
    for size, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {name}" if seconds < 99.5 * size else f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} s"


def until_time_is_up(work: Callable[[slice], T], count: int, together: bool, effort: Effort) -> tuple[list[T], int]:
    """Results of `work` for batches of examples, and how many examples those are.

    Without a time limit, and if they must stay `together`, all examples are one batch. Else batches grow from a single example, so
    that what is found before the last one is not lost.
    """
    results = list[T]()
    done, size = 0, count if together or effort.timeout is None else 1
    while done < count:
        some = slice(done, min(done + size, count))
        began = time.monotonic()
        try:
            effort.check()
            results.append(work(some))
        except TimeLimitError:
            break
        done = some.stop
        quick = effort.timeout is None or time.monotonic() - began < effort.timeout / SHARE
        size = 2 * size if quick else size
    return results, done
