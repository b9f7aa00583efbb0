"""Training one network on some data: a whole run, or one stage of a cascade."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from autodual._errors import ArgumentError
from autodual.certificates.certificate import collapse
from autodual.data import ImageData
from autodual.engines import Dual
from autodual.evaluation.judge import judge
from autodual.evaluation.ledger import Ledger
from autodual.evaluation.processes import ALONE, Group, Tell, batch_size, silent
from autodual.runs.checkpoint import load_model, round_to_half_, save_model
from autodual.runs.config import TrainConfig, trained_eps
from autodual.runs.folder import Run
from autodual.runs.records import TrainedAt, TrainedLine, ValidationLine
from autodual.training.loop import Loop, Observer, StoppedError
from autodual.training.setup import make_ball

LOOKED_AT = 2000
"""Examples that tell whether a network has collapsed, at most."""
ADVICE = "Try more epochs, a larger eps_part, a smaller eps or lr, or a smaller robust_weight"


@dataclass(frozen=True)
class Watch:
    """What the caller wants to know while it runs, and how it stops it."""

    step: Observer = lambda progress: None
    draw: Tell = silent
    """How far an evaluation is."""
    say: Callable[[str], None] = lambda line: None
    stop: Callable[[], bool] = lambda: False
    group: Group = ALONE

    def within(self, group: Group) -> Watch:
        """The watch of one of several processes: only the first one reports, and they stop together."""
        return replace(self, group=group) if group.first else Watch(stop=self.stop, group=group)

    def ledger(self, path: Path, renewed: Sequence[str] = (), step: int | None = None) -> Ledger:
        """A file of lines whose progress is seen here."""
        return Ledger(path, self.tell, self.group, self.say, renewed=renewed, step=step)

    def tell(self, what: str, done: int, of: int) -> None:
        """Draw how far an evaluation is, and end it if one process was asked to. All processes call this at the same points."""
        if any(self.group.any(self.stop())):
            raise StoppedError("stopped as asked; go on with --resume")
        self.draw(what, done, of)


@dataclass(frozen=True)
class Parts:
    """The data of a run on its device, and how a fresh network for the part that is trained on is made."""

    train: ImageData
    held_out: ImageData | None
    test: ImageData
    build: Callable[[ImageData], nn.Module] = field(repr=False)

    def fitting(self, config: TrainConfig) -> ImageData:
        """Images on which combinations of stages are fitted: held-out ones, where there are some."""
        return (self.train if self.held_out is None else self.held_out).take(config.evaluate_examples)


def fresh_model(config: TrainConfig, parts: Parts, stage: int) -> nn.Module:
    """Untrained weights that depend on nothing but the seed and the stage."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1_000_003 * stage)
        return parts.build(parts.train).to(parts.train.images.device)


def train_stage(
    config: TrainConfig,
    run: Run,
    stage: int,
    model: nn.Module,
    data: ImageData,
    held_out: ImageData | None,
    watch: Watch,
) -> None:
    """Train one network; with held-out data, its best checkpoint counts."""
    judge_on = held_out if held_out is not None else data
    judge_on = judge_on.take(config.evaluate_examples)
    group = watch.group
    best = run.folder / "stages" / f"best-{stage}.safetensors"

    def validate(network: nn.Module, epoch: int) -> dict[str, float]:
        found = judge(network, judge_on, make_ball(config), tell=watch.tell, what="validating", group=group)
        figures = {
            "error": found.error,
            "robust_error": found.robust_error,
            "robust_error_as_run": found.robust_error_as_run,
        }
        collapsed = found.collapse(judge_on.classes)

        def keep() -> None:
            better = (found.robust_error, found.error) <= _best_so_far(run, stage)  # of equals, the later one
            split: Literal["validation", "train"] = "validation" if held_out is not None else "train"
            where = (stage, epoch, split, repr(Dual()), len(judge_on), config.eps)
            errors = (found.error, found.robust_error, found.robust_error_as_run)
            run.record(ValidationLine("validation", *where, *errors, collapsed))
            if held_out is not None and better:
                save_model(best, network)

        group.by_first(keep)
        return figures

    Loop(config, run, stage, model, data, validate, watch.step, watch.stop, watch.say, group).fit()
    if held_out is not None and group.by_first(best.exists):
        load_model(best, model)
    if config.half_weights:
        round_to_half_(model)

    def note() -> str | None:
        collapsed = collapse_of(model, data)
        at = trained_at(config, run, stage)
        run.record(TrainedLine("trained", stage, at.epoch, at.eps, collapsed))
        return collapsed

    collapsed = group.by_first(note)
    if collapsed is not None:
        watch.say(f"stage {stage} has {collapsed}. {ADVICE}")


def collapse_of(model: nn.Module, data: ImageData) -> str | None:
    """Whether a network that was trained on these images has given up; looks at some of them, drawn from all over."""
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    some = data.select(drawn.to(data.images.device))
    parts = [slice(first, first + batch_size(some)) for first in range(0, len(some), batch_size(some))]
    with torch.no_grad():
        predicted = torch.cat([model(some.scaled(part)).argmax(1) for part in parts])
    return collapse(predicted.tolist(), some.labels.tolist(), classes=some.classes)


def trained_at(config: TrainConfig, run: Run, stage: int) -> TrainedAt:
    """The epoch whose weights count, which is the last or the best one."""
    validations = _validations(run, stage) if config.validation > 0 else []
    best = min(validations, key=lambda one: (one.robust_error, one.error, -one.epoch), default=None)
    epoch = config.epochs - 1 if best is None else best.epoch
    return TrainedAt(epoch, trained_eps(config, epoch))


def _best_so_far(run: Run, stage: int) -> tuple[float, float]:
    """Robust error and error of the best validation of this stage."""
    return min(((one.robust_error, one.error) for one in _validations(run, stage)), default=(math.inf, math.inf))


def _validations(run: Run, stage: int) -> list[ValidationLine]:
    """Every validation of this stage on held-out data."""
    lines = run.metrics()
    if None in lines:
        raise ArgumentError(
            f"{run.metrics_file}: line {lines.index(None) + 1} is damaged, so the best checkpoint is not known; put the line right, "
            f"or train anew in another folder"
        )
    found = (line for line in lines if isinstance(line, ValidationLine))
    return [line for line in found if line.stage == stage and line.split == "validation"]
