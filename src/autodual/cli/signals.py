"""Ctrl-C and SIGTERM: remembered, and answered at the next step."""

from __future__ import annotations

import signal
from types import FrameType

from autodual._errors import AutodualError


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
