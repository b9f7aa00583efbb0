"""The training loop: one for every way of training. Stateless randomness makes every resumed run the run it would have been."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual._files import in_one_line
from autodual.data import Examples, ImageData, augment
from autodual.evaluation.processes import UNWATCHED, Group, Share, StepProgress, StoppedError, Watch
from autodual.runs import checkpoint
from autodual.runs.checkpoint import Extra, Position
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.records import EpochLine
from autodual.runs.schedule import lr_at, trained_eps
from autodual.training.objectives import SUMMARY
from autodual.training.setup import Pace, make_objective, make_optimiser, set_lr
from autodual.training.step import (
    Average,
    NotFiniteError,
    inner,
    kept_random_state,
    make_step,
    seed_globally,
    take_statistics,
    unchanged,
)

CHECKPOINT_SECONDS = 60.0

# How an epoch is cut into batches, and the one size that some networks cannot be trained with.


def batches_in(examples: int, size: int) -> int:
    """Batches of an epoch; a single example that is left goes with the batch before it, since one has no batch statistics."""
    return max(1, math.ceil((examples - 1) / size)) if size > 1 else examples


def cut(order: Tensor, number: int, size: int) -> Tensor:
    """The batch of this number; the last one holds all that is left."""
    last = number + 1 == batches_in(len(order), size)
    return order[number * size :] if last else order[number * size : (number + 1) * size]


def check_single(model: nn.Module, image: Tensor) -> None:
    """Refuse a network that cannot be trained on one image at a time, [1, *shape]; leaves it and the random state alone."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(model).train()(image)
    except ValueError as error:
        raise ArgumentError(
            f"batch: the network cannot be trained on one image at a time ({' '.join(str(error).split())}); batch normalisation "
            f"needs several: use a larger batch, and at least two images"
        ) from error


# Scalars for TensorBoard, in the run folder; a resumed run hides what it is going to write again.


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
    """One folder of event files. Opened at the first scalar; whatever was there from `since` on does not count from then.

    A disk that is full shows itself at any call: the writer has a thread of its own.
    """

    def __init__(self, folder: Path, since: int = 0) -> None:
        self.folder, self.since = folder, since
        self.writer: Any = None

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        with in_one_line(self.folder):
            if self.writer is None:
                self.writer = summary_writer()(str(self.folder), purge_step=self.since)
            for name, value in values.items():
                self.writer.add_scalar(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        if self.writer is not None:
            with in_one_line(self.folder):
                self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            with in_one_line(self.folder):
                self.writer.close()


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
        """Keeps the summary of a step. own: examples of this process that it is about; whole: examples of the batch."""
        self.kept.append(summary.clone())  # the next step may use the memory again
        each = 1 / whole if own > 0 else 0.0
        self.scales.append([each if name.endswith("error") else own / whole for name in SUMMARY])

    def write(self) -> None:
        """All processes together; the first one has the files."""
        found: list[list[float]] = []
        if self.kept:
            rows = torch.stack(self.kept)
            found = self.group.add_up_(rows * torch.tensor(self.scales, dtype=rows.dtype, device=rows.device)).tolist()

        def write_rows() -> None:
            for step, row in enumerate(found, start=self.next):
                self.events.write("step", step, dict(zip(SUMMARY, row, strict=True)))
            self.events.flush()

        self.group.by_first(write_rows)
        self.next += len(found)
        self.kept, self.scales = [], []

    def end_epoch(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self.write()
        self.group.by_first(lambda: self.events.write(kind, step, values))


@dataclass
class Loop:
    """Trains one network on some examples. The watch is asked after every step whether to stop."""

    config: TrainConfig
    run: Run
    stage: int
    model: nn.Module
    data: Examples
    validate: Callable[[nn.Module, int], dict[str, float]] | None = None
    watch: Watch = UNWATCHED
    log: StepLog | None = field(default=None, init=False)
    average: Average | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.group = self.watch.group
        self.average = None if self.config.average == "none" else Average(self.config, self.model)

    def fit(self) -> None:
        """Trains from the newest whole checkpoint of this stage, or from the start, to the end."""
        try:
            with kept_random_state(self.data.device):
                self._fit()
        except BaseException:
            with suppress(AutodualError):  # what went wrong before is what matters
                self._close_log()
            raise
        self._close_log()
        self._settle(self.config.epochs - 1)
        self.group.same_(self.model)
        self.model.eval()

    def _settle(self, epoch: int) -> None:
        """Gives the model the weights and statistics that count at the end of an epoch."""
        if self.average is not None and self.average.begun(epoch):
            self.average.apply()
        if self.config.precise_statistics:
            take_statistics(self.model, self.data, self.config.batch)

    @contextmanager
    def _settled(self, epoch: int) -> Iterator[None]:
        """Lends the model what counts at the end of an epoch; training goes on with what it had."""
        if self.average is None and not self.config.precise_statistics:
            yield
            return
        with unchanged(self.model):
            self._settle(epoch)
            self.group.same_(self.model)
            yield

    def _fit(self) -> None:
        config, device = self.config, self.data.device
        pace = Pace(config, device)
        optimiser = make_optimiser(config, self.model)
        generator = torch.Generator(device)
        if 1 in (config.batch, len(self.data)):
            self.group.by_first(lambda: check_single(self.model, self.data.scaled(slice(0, 1))))
        position, sums = self._resume(optimiser, device)
        if config.tensorboard:
            self.log = StepLog(self.run.events / f"stage-{self.stage}", position.step, self.group)
        if position.step == 0:
            self._save(optimiser, position, sums)  # so that whoever resumes knows which metrics came before
        self.model.train()
        objective = self.group.wrap(make_objective(config, self.model, pace))
        after = None if self.average is None else self.average.after_step
        step = make_step(objective, optimiser, generator, config.clip_gradients, config.batch, self._images, after)
        batches = batches_in(len(self.data), config.batch)
        saved = time.monotonic()
        # Processes draw different numbers; a process alone draws those that it always drew.
        rank = () if self.group.alone else (self.group.rank,)
        for epoch in range(position.epoch, config.epochs):
            started, first = time.monotonic(), position.batch
            set_lr(optimiser, lr_at(config, epoch))
            shuffled = torch.Generator("cpu").manual_seed(_seed(config, self.stage, "order", epoch))
            order = torch.randperm(len(self.data), generator=shuffled).to(device)
            for batch in range(first, batches):
                index = cut(order, batch, config.batch)
                share = self.group.share(index)
                generator.manual_seed(_seed(config, self.stage, "step", position.step, *rank))
                seed_globally(_seed(config, self.stage, "model", position.step, *rank), device)
                size = pace.at(epoch, (batch + 1) / batches)
                inner(objective).regularising = pace.regularising
                if self.average is not None:
                    self.average.before_step(position.step)
                try:
                    summary = step(self.data.stored[share.index], self.data.labels[share.index], share.weight)
                except NotFiniteError as error:
                    at = f" (eps {size:g})" if trained_eps(config, epoch) is not None else ""
                    raise NotFiniteError(
                        f"stage {self.stage}, epoch {epoch}, step {position.step}{at}: {error}"
                    ) from None
                self._count(summary, share, len(index), sums)
                position = Position(self.stage, epoch, batch + 1, position.step + 1)
                counts = (batch + 1, batches, summary, len(share.index), len(index))
                told = None if trained_eps(config, epoch) is None else size
                self.watch.step(StepProgress(self.stage, epoch, config.epochs, *counts, told))
                stop, due = self.group.any(self.watch.stop(), time.monotonic() - saved > CHECKPOINT_SECONDS)
                if stop or due:
                    self._save(optimiser, position, sums)
                    saved = time.monotonic()
                    if stop:
                        raise StoppedError(f"{self.run.folder}: stopped as asked; go on with --resume")
            every = config.evaluate_every
            validating = every > 0 and ((epoch + 1) % every == 0 or epoch + 1 == config.epochs)
            if validating:
                self._save(optimiser, position, sums)  # a validation may take long, and be interrupted
            self._end_epoch(epoch, position.step, sums, None if first > 0 else time.monotonic() - started)
            if self.average is not None:
                self.average.end_epoch(epoch)
            if validating and self.validate is not None:
                self.group.same_(self.model)
                self.model.eval()
                with self._settled(epoch):
                    self._log("validation", position.step, self.validate(self.model, epoch))
                self.model.train()
            position = Position(self.stage, epoch + 1, 0, position.step)
            sums.zero_()
        self._save(optimiser, position, sums)

    def _images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The images augmented, as the network takes them; data of another kind as they are."""
        if isinstance(self.data, ImageData):
            images = augment(
                images, generator, self.config.crop, self.config.flip, edge=self.config.crop_fill == "edge"
            )
        return self.data.as_input(images)

    def _count(self, summary: Tensor, share: Share, whole: int, sums: Tensor) -> None:
        if share.counted > 0:
            sums[0] += summary[0] * share.counted
            sums[1:] += summary[1:3]
        if self.log is not None:
            self.log.add(summary, share.counted, whole)

    def _end_epoch(self, epoch: int, step: int, sums: Tensor, seconds: float | None) -> None:
        loss, robust, wrong = (self.group.add_up_(sums.clone()) / len(self.data)).tolist()
        self._check(loss, epoch)
        figures = {"lr": lr_at(self.config, epoch), "loss": loss, "robust_error": robust, "error": wrong}
        size, spent = trained_eps(self.config, epoch), None if seconds is None else round(seconds, 3)
        line = EpochLine("epoch", self.stage, epoch, step, size, **figures, seconds=spent, examples=len(self.data))
        self.group.by_first(lambda: self.run.record(line))
        self._log("epoch", step, figures if size is None else {"eps": size} | figures)

    def _check(self, loss: float, epoch: int) -> None:
        """Ends a training whose losses of an epoch add up to infinity or NaN: the step that had it has spoilt the weights."""
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"stage {self.stage}, epoch {epoch}: the loss is {loss}; bounds overflow where eps or weights are too large. Try a "
                f"smaller lr, clip_gradients, or a slower eps schedule (RobustCrossEntropy.why_not_finite says for a batch what "
                f"overflows)"
            )

    def _log(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        if self.log is not None:
            self.log.end_epoch(kind, step, figures)

    def _close_log(self) -> None:
        if self.log is not None:
            self.log.events.close()

    def _save(self, optimiser: torch.optim.Optimizer, position: Position, sums: Tensor) -> None:
        whole = self.group.add_up_(sums.clone())
        self._check(whole[0].item(), position.epoch)  # whoever resumes shall not go on from weights that are spoilt
        if self.log is not None:
            self.log.write()  # first, so that no step is missing from a run that is killed after this checkpoint

        def save() -> None:
            extra = Extra(tuple(value.hex() for value in whole.double().tolist()), self.run.metrics_size())
            average = None if self.average is None else self.average.values
            checkpoint.save(self.run.checkpoints, self.model, optimiser, position, extra, average)

        self.group.by_first(save)

    def _resume(self, optimiser: torch.optim.Optimizer, device: torch.device) -> tuple[Position, Tensor]:
        path, damaged = self.group.by_first(lambda: checkpoint.newest(self.run.checkpoints))
        for fault in damaged:
            self.watch.say(f"damaged checkpoint passed over: {fault}")
        if damaged and path is None:
            self.watch.say("no checkpoint is left to go on from: this stage begins again")
        if path is not None and path.name.startswith(f"stage-{self.stage:02d}-"):
            position, extra = checkpoint.restore(path, self.model, optimiser)
            if self.average is not None:
                self.average.load(checkpoint.read_average(path))
            self.group.by_first(lambda: self.run.cut_metrics(extra.metrics))
            sums = torch.tensor([float.fromhex(v) for v in extra.sums], device=device)
            return position, sums if self.group.first else torch.zeros_like(sums)
        self.group.by_first(lambda: self.run.forget_stage(self.stage))
        return Position(self.stage), torch.zeros(3, device=device)


def _seed(config: TrainConfig, *what: object) -> int:
    text = ":".join(map(str, (config.seed, *what)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
