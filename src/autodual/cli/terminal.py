"""What a command says: to a person, warnings in one line and one live line of progress; to a script, one JSON object."""

from __future__ import annotations

import contextlib
import inspect
import json as json_format
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from autodual._errors import AutodualError

if TYPE_CHECKING:
    from autodual.evaluation.processes import StepProgress, Watch

TIME_IS_UP = 4
"""Exit code where --timeout ended before all was decided."""


def speaks() -> bool:
    """Whether this process talks to the user: the first of those that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def several_processes() -> bool:
    """Whether torchrun has started more than one process."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows with columns of one width each; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# What the library warns of, as a person sees it: one line each, once, without a line of source.

PACKAGE = str(Path(__file__).parents[1])


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Warnings that our code gives rise to are told by the first process; those of others look as usual."""
    told: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], filename: str, *where: Any, **more: Any) -> None:
            if not filename.startswith(PACKAGE):
                usual(message, category, filename, *where, **more)
                return
            text = " ".join(str(message).split())
            if text not in told and speaks():
                print(f"note: {text}", file=sys.stderr)
            told.add(text)

        warnings.showwarning = show
        yield


# Ctrl-C and SIGTERM: remembered, and answered at the next step.


class InterruptedRunError(AutodualError):
    """The user or the system asked to stop."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class Signals:
    """Remembers the first signal; a second one acts at once, as usual."""

    received: int | None = None

    def __enter__(self) -> Signals:
        self._before = {s: signal.signal(s, self._remember) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def stop(self) -> bool:
        return self.received is not None


# What a person sees while something runs: one live line with rate, time left, robust loss and error.

REFRESH = 0.5
"""Seconds between looks at figures that lie on a device."""
INTERVAL = 5.0
"""Seconds between lines where no bar can be drawn."""


class Display:
    """Progress of training and evaluation: bars on a terminal, elsewhere a line every few seconds and one at the end of each.

    Of several processes, the first one shows it, for all of them.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.console = Console(stderr=True, quiet=not speaks())
        self.live = self.console.is_terminal and speaks()
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"), console=self.console, refresh_per_second=4, disable=not self.live,
        )  # fmt: skip
        self.tasks: dict[str, TaskID] = {}
        self.stop, self.shown, self.rate = stop, time.monotonic(), Rate()

    def watch(self) -> Watch:
        from autodual.evaluation.processes import Watch

        return Watch(self._step, self._draw, self._say, self.stop)

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def _step(self, at: StepProgress) -> None:
        self.rate.add(at.stage, at.examples)
        done, total = at.epoch * at.batches + at.batch, at.epochs * at.batches
        if not self._due(done == total):
            return
        from autodual.certificates.certificate import fraction

        loss, robust, wrong, robust_loss, standard_loss = at.summary.tolist()
        losses = _losses(loss, robust_loss, standard_loss)
        size = "" if at.eps is None else f"  eps {fraction(at.eps)}"
        note = f"{self.rate}{losses}{size}  robust error {robust / at.own:.0%}  error {wrong / at.own:.0%}"
        self._show(f"stage {at.stage}", f"stage {at.stage}  epoch {at.epoch + 1}/{at.epochs}", done, total, note)

    def _draw(self, what: str, done: int, of: int) -> None:
        if self.live or self._due(done == of):
            self._show(what, what, done, of, "")

    def _due(self, finished: bool) -> bool:
        return finished or time.monotonic() - self.shown >= (REFRESH if self.live else INTERVAL)

    def _show(self, key: str, name: str, done: int, of: int, note: str) -> None:
        self.shown = time.monotonic()
        if not self.live:
            self._say(f"{name}  {done}/{of}  {done / of:.0%}  {note}".rstrip())
            return
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(name, total=of, note="")
        self.bars.update(self.tasks[key], description=name, completed=done, total=of, note=note)


@contextlib.contextmanager
def watched(stopped: str | None = None) -> Iterator[Watch]:
    """Shows the progress of what follows. Asked to stop, it ends the command as its signal says, with the message `stopped`, or the
    run's own."""
    from autodual.evaluation.processes import StoppedError

    with Signals() as signals:
        display = Display(signals.stop)
        try:
            with display.bars:
                yield display.watch()
        except StoppedError as error:
            raise InterruptedRunError(stopped or str(error), signals.received or 2) from None


def _losses(loss: float, robust: float, standard: float) -> str:
    """The loss that is minimised, and the robust one if that is only a part of it."""
    if math.isnan(loss) or robust == standard:
        return f"loss {loss:.3f}"
    return f"robust loss {robust:.3f}" if loss == robust else f"loss {loss:.3f}  robust loss {robust:.3f}"


class Rate:
    """Images per second of the whole job, since the first step of a stage."""

    def __init__(self) -> None:
        self.stage, self.examples, self.since = -1, 0, 0.0

    def add(self, stage: int, examples: int) -> None:
        if stage == self.stage:
            self.examples += examples
        else:  # how long the first step took is not known
            self.stage, self.examples, self.since = stage, 0, time.monotonic()

    def __str__(self) -> str:
        spent = time.monotonic() - self.since
        return f"{self.examples / spent:,.0f} images/s  " if self.examples > 0 and spent > 0 else ""


# What scripts rely on: the version, and with --json one object on standard output, and all else on standard error.

JSON = "--json"
Option = Annotated[bool, typer.Option(JSON, help="print one JSON object, and all else on standard error")]


def _print_version(asked: bool) -> None:
    if asked:
        from autodual._version import __version__

        print(f"autodual {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version, and end")
]


def autodual(version: Version = False) -> None:
    """Neural networks whose robustness is proved: train, certify, attack, look, and measure."""


_said: dict[str, Any] = {}
"""What the command that runs has answered so far."""


def answer(**values: Any) -> None:
    """Adds fields to the object of the command that runs. Records are given as `plain` makes them."""
    _said.update(values)


def asked_for(arguments: Sequence[str]) -> bool:
    """Whether a script reads the output. The arguments may not have been parsed: a mistake among them is told as an object, too."""
    options = [*arguments, "--"]
    return JSON in options[: options.index("--")]


def with_parameters(
    wrapped: Callable[..., None], command: Callable[..., None], extra: Sequence[inspect.Parameter], without: str = ""
) -> Callable[..., None]:
    """`wrapped` with the name, docstring and parameters of a command, as typer reads them: one is left out, and others are added."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints.get(each.name, each.annotation), kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command).parameters.values()
        if each.name != without
    ]
    wrapped.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in (*own, *extra)}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option --json. One that has such an option stays as it is."""
    if "json" in inspect.signature(command).parameters:
        return command

    def wrapped(*, json: bool, **arguments: Any) -> None:
        _said.clear()
        with _as_json() if json else contextlib.nullcontext():
            command(**arguments)

    extra = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Option)
    return with_parameters(wrapped, command, [extra])


@contextlib.contextmanager
def _as_json() -> Iterator[None]:
    """What is printed goes to standard error, and the object to standard output at the end. After a failure, `main` writes it."""
    ended: typer.Exit | None = None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except typer.Exit as end:
            ended = end
    write_answer()
    if ended is not None:
        raise ended


def write_answer(error: str | None = None) -> None:
    """Prints the object: what the command has answered, and why it failed, if it has. Of several processes, the first one does."""
    if speaks():
        found = _said if error is None else {**_said, "error": error}
        print(json_format.dumps(_standard(found), indent=1, allow_nan=False), flush=True)


def _standard(value: Any) -> Any:
    """JSON has no NaN and no infinity: both are null. Paths are text."""
    if isinstance(value, dict):
        return {str(name): _standard(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
