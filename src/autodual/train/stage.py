"""Training one network on some data: a whole run, or one stage of a cascade."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from autodual.train.checkpoint import load_model, save_model
from autodual.train.config import TrainConfig
from autodual.train.data import ImageData
from autodual.train.evaluate import Tell, judge
from autodual.train.group import ALONE, Group
from autodual.train.loop import Loop, Observer
from autodual.train.run import Run
from autodual.train.setup import make_ball


@dataclass
class Watch:
    """What the caller wants to know while it runs, and how it stops it."""

    step: Observer = lambda progress: None
    tell: Tell = lambda what, done, of: None
    say: Callable[[str], None] = lambda line: None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Parts:
    """The data of a run on its device, and how a fresh network for it is made."""

    train: ImageData
    held_out: ImageData | None
    test: ImageData
    build: Callable[[int], nn.Module] = field(repr=False)
    group: Group = ALONE


def fresh_model(config: TrainConfig, parts: Parts, stage: int) -> nn.Module:
    """Untrained weights that depend on nothing but the seed and the stage."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1_000_003 * stage)
        return parts.build(stage).to(parts.train.images.device)


def train_stage(
    config: TrainConfig,
    run: Run,
    stage: int,
    model: nn.Module,
    data: ImageData,
    held_out: ImageData | None,
    watch: Watch,
    group: Group = ALONE,
) -> None:
    """Train one network; with held-out data, its best checkpoint counts."""
    judge_on = held_out if held_out is not None else data
    judge_on = judge_on.take(config.evaluate_examples)
    best = run.folder / "stages" / f"best-{stage}.safetensors"

    def validate(network: nn.Module, epoch: int) -> None:
        found = judge(network, judge_on, make_ball(config), tell=watch.tell, what="validating")
        split = "validation" if held_out is not None else "train"
        better = (found.robust_error, found.error) <= _best_so_far(run, stage)  # of equals, the later one
        run.record(
            kind="validation", stage=stage, epoch=epoch, split=split, engine="Dual()", examples=len(judge_on), eps=config.eps,
            error=found.error, robust_error=found.robust_error,
        )  # fmt: skip
        if held_out is not None and better:
            save_model(best, network)

    Loop(config, run, stage, model, data, validate, watch.step, watch.stop, watch.say, group).fit()
    if held_out is not None and best.exists():
        load_model(best, model)


def _best_so_far(run: Run, stage: int) -> tuple[float, float]:
    """Robust error and error of the best validation of this stage."""
    if not run.metrics_file.exists():
        return (math.inf, math.inf)
    lines = [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]
    found = [(e["robust_error"], e["error"]) for e in lines if e["kind"] == "validation" and e["stage"] == stage]
    return min(found, default=(math.inf, math.inf))
