"""Time: what a proof will take, said early, and what is proved when the time is up."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from autodual._errors import ArgumentError
from autodual.engines.backward.dual import BackwardEngine, Crown, Dual
from autodual.engines.backward.slopes import AlphaCrown
from autodual.engines.best import BestOf
from autodual.engines.effort import Effort, Progress, TimeLimitError, watched
from autodual.engines.ibp import IBP
from autodual.engines.results import BoundEngine

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
class Part:
    """Hears of a call about some of the examples of a longer call, and tells that one's teller."""

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
    """Says once what a call will take, and shows how far it is."""

    def __init__(
        self, engine: BoundEngine, examples: int, timeout: float | None, progress: bool | Report | None
    ) -> None:
        self.engine, self.examples, self.timeout, self.progress = engine, examples, timeout, progress
        self.announced, self.shown = False, False

    def __call__(self, progress: Progress) -> None:
        if callable(self.progress):
            self.progress(progress)
        if progress.worked < SURE or isinstance(self.progress, Part):
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
        many = "1 example" if self.examples == 1 else f"{self.examples} examples"
        cheaper = " or ".join(map(repr, cheaper_engines(self.engine)))
        advice = f"Cheaper, and looser: {cheaper}. " if cheaper else ""
        return (
            f"{self.engine!r} will take about {duration(progress.expected)} for {many} of this network "
            f"({progress.fraction:.1%} is done after {duration(progress.elapsed)}). {advice}timeout= sets a limit, after which "
            f"what is not decided is unknown"
        )


def cheaper_engines(engine: BoundEngine) -> list[BoundEngine]:
    """Engines that bound the same with less work, the tightest first."""
    if isinstance(engine, AlphaCrown):
        return [engine.start]
    if isinstance(engine, BestOf):
        return list(engine.engines[:-1])[::-1]
    if isinstance(engine, Crown) and engine.intermediate is None:
        return [Dual(), Crown(intermediate=IBP())]
    if isinstance(engine, BackwardEngine):
        return [IBP()] if isinstance(engine.intermediate, IBP) else [replace(engine, intermediate=IBP())]
    return []


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
