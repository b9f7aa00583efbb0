"""Scalars for TensorBoard, in the run folder; a resumed run hides what it is going to write again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.evaluation.processes import Group
from autodual.training.step import SUMMARY


def summary_writer() -> Any:
    """PyTorch's writer of event files, which needs a package of its own."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ArgumentError(
            f"tensorboard: event files need the package tensorboard ({error}): pip install 'autodual[tensorboard]'"
        ) from None
    return SummaryWriter


class Events:
    """One folder of event files. Opened at the first scalar; whatever was there from `since` on does not count from then."""

    def __init__(self, folder: Path, since: int = 0) -> None:
        self.folder, self.since = folder, since
        self.writer: Any = None

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        with self._guarded():
            if self.writer is None:
                self.writer = summary_writer()(str(self.folder), purge_step=self.since)
            for name, value in values.items():
                self.writer.add_scalar(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        with self._guarded():
            if self.writer is not None:
                self.writer.flush()

    def close(self) -> None:
        with self._guarded():
            if self.writer is not None:
                self.writer.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A disk that is full shows itself at any call: the writer has a thread of its own."""
        try:
            yield
        except OSError as error:
            raise ArgumentError(f"{self.folder}: not written: {error.strerror or error}") from None


class StepLog:
    """What the steps of a stage say, as means over whole batches, shared by all processes or not.

    Summaries stay on their device until `write`: to look at each at once would wait for the device. Steps count from 0, and
    epochs end at the number of steps done; so a run that goes on after n steps writes n and above, and nothing twice.
    """

    def __init__(self, folder: Path, since: int, group: Group) -> None:
        self.events, self.next, self.group = Events(folder, since), since, group
        self.kept: list[Tensor] = []
        self.scales: list[list[float]] = []

    def add(self, summary: Tensor, own: int, whole: int) -> None:
        """own: examples that this process's summary is about; whole: those of the batch."""
        self.kept.append(summary.clone())  # the next step may use the memory again
        count = 1 / whole if own > 0 else 0.0
        self.scales.append([count if name.endswith("error") else own / whole for name in SUMMARY])

    def write(self) -> None:
        """All processes together; the first one has the files."""
        if self.kept:
            rows = torch.stack(self.kept)
            rows = self.group.add_up_(rows * torch.tensor(self.scales, dtype=rows.dtype, device=rows.device))
            self.group.by_first(lambda: self._write_rows(rows.tolist()))
            self.next += len(rows)
            self.kept, self.scales = [], []
        self.group.by_first(self.events.flush)

    def _write_rows(self, rows: list[list[float]]) -> None:
        for step, row in enumerate(rows, start=self.next):
            self.events.write("step", step, dict(zip(SUMMARY, row, strict=True)))

    def end_epoch(self, kind: str, step: int, **values: float) -> None:
        self.write()
        self.group.by_first(lambda: self.events.write(kind, step, values))

    def close(self) -> None:
        self.events.close()
