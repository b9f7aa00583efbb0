"""Ctrl-C before a command has begun anything: one line, and the exit code that shells expect."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

EXIT_CODE = 128 + signal.SIGINT


def tell_interrupted() -> None:
    if os.environ.get("RANK", "0") == "0":  # whatever could be imported by then
        print("\ninterrupted", file=sys.stderr, flush=True)


@contextmanager
def commands_end_in_one_line() -> Iterator[None]:
    """For the seconds in which PyTorch is imported, too early for `main`. Other programs keep their own way with Ctrl-C."""
    if not _is_command() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether this process is `autodual` or `python -m autodual`, which this early only its arguments say."""
    started = sys.orig_argv[-len(sys.argv) :][:1]
    return [Path(name.removeprefix("-m")).stem for name in started] == ["autodual"]


def _leave(number: int, frame: FrameType | None) -> None:
    """At once: an exception may get lost in a half-imported module, and there is nothing yet to tidy up."""
    tell_interrupted()
    os._exit(EXIT_CODE)
