"""What a person sees while something runs: one live line with rate, time left, robust loss and error."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from autodual.train.loop import Progress as StepProgress
from autodual.train.stage import Watch

REFRESH = 0.5
"""Seconds between looks at figures that lie on a device."""


class Display:
    """Progress bars for training and for evaluation; on a terminal they are drawn, elsewhere a line is printed now and then."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"), console=self.console, refresh_per_second=4, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.tasks: dict[str, TaskID] = {}
        self.stop, self.looked, self.examples, self.since = stop, 0.0, 0, time.monotonic()

    def watch(self) -> Watch:
        return Watch(self._step, self._tell, self.console.print, self.stop)

    def _step(self, at: StepProgress) -> None:
        self.examples += at.examples
        now = time.monotonic()
        if now - self.looked < (REFRESH if self.console.is_terminal else 20.0) and at.batch < at.batches:
            return
        loss, robust, wrong = at.summary.tolist()
        rate = self.examples / max(now - self.since, 1e-9)
        note = f"{rate:,.0f} images/s  loss {loss:.3f}  robust error {robust / at.examples:.0%}  error {wrong / at.examples:.0%}"
        name = f"stage {at.stage}  epoch {at.epoch + 1}/{at.epochs}"
        done, total = at.epoch * at.batches + at.batch, at.epochs * at.batches
        if self.console.is_terminal:
            key = f"stage {at.stage}"
            if key not in self.tasks:
                self.tasks[key] = self.bars.add_task(name, total=total, note="")
            self.bars.update(self.tasks[key], description=name, completed=done, note=note)
        elif now - self.looked >= 20.0 or (at.batch == at.batches and (at.epoch + 1) % 10 == 0):
            self.console.print(f"{name}  {done}/{total}  {note}", highlight=False, soft_wrap=True)
        self.looked = now

    def _tell(self, what: str, done: int, of: int) -> None:
        from autodual.train.loop import StoppedError

        if self.stop():
            raise StoppedError("stopped as asked; go on with --resume")
        if self.console.is_terminal:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(what, total=of, note="")
            self.bars.update(self.tasks[what], completed=done, total=of)
