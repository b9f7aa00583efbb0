"""How much work a call has before it, how far it has come, and when it must end.

An engine says what it begins (`Effort.begin`) and how far it is (`Effort.reached`), chunk by chunk. Nothing is counted before a call
has taken a second, so that short calls pay nothing. After that the operations of every step are counted from the shapes of the
network, and the time that is left follows from the time that the steps so far have taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from autodual._errors import AutodualError

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
class _Pass:
    """One pass of an engine over a batch: steps in order, each of them for the examples of one part after the other."""

    costs: Callable[[], Mapping[int, float]]
    examples: int
    finished: int = 0
    part: int = 0
    step: int | None = None
    within: float = 0.0
    counted: Mapping[int, float] | None = None

    def operations(self) -> tuple[float, float]:
        """Those that are done, and all of them."""
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
    """The work of one call: `tell` hears of it now and then; after `timeout` seconds it ends with TimeLimitError."""

    timeout: float | None = None
    tell: Callable[[Progress], None] | None = None
    started: float = field(default_factory=lambda: time.monotonic())
    _passes: list[_Pass] = field(default_factory=list)
    _open: list[_Pass] = field(default_factory=list)
    _told: float = -float("inf")
    _begun: float | None = None

    def begin(self, costs: Callable[[], Mapping[int, float]], examples: int) -> None:
        """A pass over so many examples begins.

        costs: operations of its steps for one example, in the order of the steps; asked for once, if at all.
        """
        self._begun = time.monotonic() if self._begun is None else self._begun
        self._passes.append(_Pass(costs, examples))
        self._open.append(self._passes[-1])

    def next_part(self, examples: int) -> None:
        """So many of the examples are treated together, after those before."""
        now = self._open[-1]
        now.finished, now.part, now.step = now.finished + now.part, examples, None

    def end(self) -> None:
        """The pass that was begun last is done; one that has asked for it goes on."""
        now = self._open.pop()
        now.finished, now.part = now.examples, 0

    def reached(self, step: int, within: float) -> None:
        """A step of the present part is done up to a part `within` of it."""
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
        done, total = (sum(kind) for kind in zip(*(p.operations() for p in self._passes), strict=True))
        begun = self.started if self._begun is None else self._begun
        return Progress(min(1.0, done / total) if total > 0 else 0.0, elapsed, self.started + elapsed - begun)


_CURRENT: ContextVar[Effort | None] = ContextVar("autodual effort", default=None)


@contextmanager
def watched(effort: Effort) -> Iterator[Effort]:
    """What engines do inside, in this thread, is the work of `effort`."""
    token = _CURRENT.set(effort)
    try:
        yield effort
    finally:
        _CURRENT.reset(token)


def current() -> Effort | None:
    """The call that is being worked on, if anyone watches."""
    return _CURRENT.get()


def reached(step: int, within: float) -> None:
    """Tells whoever watches how far a step has come. A compiled step is not watched."""
    if torch.compiler.is_compiling():
        return
    effort = _CURRENT.get()
    if effort is not None:
        effort.reached(step, within)
