"""One row from its config to its record: trained, rounded, evaluated, kept. Stopped anywhere, it goes on from there."""

from __future__ import annotations

import hashlib
import shutil
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from autodual._errors import ArgumentError
from autodual._files import encode_tensors, load_tensors, read_content, write_bytes, write_json, write_text
from autodual.evaluation.processes import Watch
from autodual.reproduce.campaign import CERTIFICATES, EVALUATION, WEIGHTS, Campaign, Task
from autodual.reproduce.evaluation import (
    NEEDED,
    ROW_ENGINES,
    Arrays,
    Before,
    Notes,
    Report,
    Spent,
    evaluate_cascade,
    evaluate_network,
    write_arrays,
)  # fmt: skip
from autodual.reproduce.records import Figures, NetworkFigures, RowRecord, Training, Weights
from autodual.runs.checkpoint import encode_half, load_model, save_model
from autodual.runs.config import TrainConfig, by_epochs, dump_yaml
from autodual.runs.folder import METRICS_LIMIT, Run
from autodual.runs.records import Environment, EpochLine, plain, read
from autodual.training.fitting import run_named, trained_network
from autodual.training.setup import make_ball
from autodual.training.stages import Parts, fresh_model, train_cascade, trained_at

KEPT_BYTES = 2**20
"""Weights of the paper's recipe stay in `results/` up to this size; those of our own recipe always do."""


OF_NO_CONSEQUENCE = (
    "cascade", "cascade_kind", "data_folder", "device", "tensorboard", "limit_test", "evaluate_every", "evaluate_examples",
)  # fmt: skip
"""Options that the first stage of a cascade does not depend on, where no data is held out."""


@dataclass(frozen=True)
class Extent:
    """How much of a task is wanted now."""

    engines: Collection[str] = tuple(ROW_ENGINES)
    """The exact bound is always among them."""
    evaluate: bool = True
    side_by_side: int = 1
    """Tasks that run at the same time, for the record."""

    def __post_init__(self) -> None:
        for name in self.engines:
            if name not in ROW_ENGINES:
                raise ArgumentError(f"engines must be some of {', '.join(ROW_ENGINES)}, got {name!r}")
        in_order = tuple(name for name in ROW_ENGINES if name == NEEDED or name in self.engines)
        object.__setattr__(self, "engines", in_order)

    def reached(self, record: RowRecord | None) -> bool:
        """Whether a record has all of it."""
        figures = None if record is None else record.figures
        by_engines = isinstance(figures, NetworkFigures) and set(figures.engines) >= set(self.engines)
        return record is not None and (record.complete or by_engines)


def work_on(campaign: Campaign, task: Task, watch: Watch, extent: Extent | None = None) -> RowRecord | None:
    """Trains and evaluates a task, or what is left of it. Returns its record; None if it is trained and not evaluated yet.

    StoppedError if `watch` asks to stop before.
    """
    extent = extent or Extent()
    before = campaign.record(task)
    if extent.reached(before):
        return before
    run = campaign.run(task)
    if campaign.has_only_results(task):
        _restore(campaign.result(task), run)
    if not extent.evaluate and run.model_file.exists():
        return before
    run_named(campaign.config(task), run.folder, run.begun(), watch, partial(_work, campaign, task, extent))
    return campaign.record(task)


def _restore(result: Path, run: Run) -> None:
    """A run folder from the results, as far as an evaluation needs it; the weights last, which say that all is there."""
    for file in (run.config_file, run.environment_file, run.metrics_file):
        write_bytes(file, read_content(result / file.name, METRICS_LIMIT))
    tensors = load_tensors(result / WEIGHTS)
    write_bytes(
        run.model_file, encode_tensors({name: t.float() if t.is_floating_point() else t for name, t in tensors.items()})
    )


def _work(
    campaign: Campaign, task: Task, extent: Extent, config: TrainConfig, run: Run, parts: Parts, watch: Watch
) -> None:
    if not watch.group.alone:
        raise ArgumentError("reproduce runs in one process per row; use --jobs instead of torchrun")
    notes = Notes.of(run, extent.side_by_side)
    with notes.timed("training"):
        if config.cascade == 1:
            models = [trained_network(config, run, parts, watch)]
        else:
            _take_first_stage(campaign, task, config, run, parts, watch)
            models = train_cascade(config, run, parts, watch)
            save_model(run.model_file, models[0])  # says that all stages are trained
    keep = _keeper(campaign, task, config, run, models, notes)
    if extent.evaluate and config.cascade == 1:
        before = _known_before(campaign, task, models[0])
        evaluate_network(config, run, models[0], parts.test, notes, watch, keep, extent.engines, before)
    elif extent.evaluate:
        evaluate_cascade(config, run, models, parts, notes, watch, keep)


def _known_before(campaign: Campaign, task: Task, model: nn.Module) -> Before:
    """What the results have about this very network, found in earlier calls, perhaps on another machine."""
    record, file = campaign.record(task), campaign.result(task) / CERTIFICATES
    figures = None if record is None else record.figures
    if record is None or not isinstance(figures, NetworkFigures) or not file.exists():
        return Before()
    if record.weights.sha256 != (hashlib.sha256(encode_half(model)).hexdigest(),):
        return Before()
    with np.load(file) as arrays:
        return Before(figures, {name: arrays[name] for name in arrays.files})


def _take_first_stage(
    campaign: Campaign, task: Task, config: TrainConfig, run: Run, parts: Parts, watch: Watch
) -> None:
    """The first stage of a cascade is the network of its single row, where that is trained with the same settings: it is taken over,
    with its metrics."""
    single = Task(task.row.removesuffix("-cascade"), task.recipe, task.seed)
    if run.stage_file(0).exists() or run.metrics_file.exists() or single == task or config.validation > 0:
        return
    for place in (campaign.run(single).folder, campaign.result(single)):
        source = Run(place)
        if not source.model_file.exists() or not source.config_file.exists():
            continue
        own, other = by_epochs(config), by_epochs(source.config())
        if any(own[name] != other[name] for name in own if name not in OF_NO_CONSEQUENCE):
            continue
        model = fresh_model(config, parts, 0)
        load_model(source.model_file, model, expect_half=True)
        save_model(run.stage_file(0), model)
        shutil.copyfile(source.metrics_file, run.metrics_file)
        watch.say(f"stage 0: is the network of {single}, which is trained already")
        return


def _keeper(
    campaign: Campaign, task: Task, config: TrainConfig, run: Run, models: list[nn.Module], notes: Notes
) -> Report:
    """Writes what is known so far to `results/`; the record last, so that one that is there is about files that are there."""
    folder = campaign.result(task)

    def keep(figures: Figures, arrays: Arrays, complete: bool) -> None:
        values = config.with_changes(data_folder=None, device="auto").to_mapping()
        write_text(folder / "config.yaml", dump_yaml(values))
        for file in (run.environment_file, run.metrics_file):
            write_text(folder / file.name, file.read_text(encoding="utf-8"))
        weights = _keep_weights(folder, task, config, run, models)
        write_arrays(folder / CERTIFICATES, arrays)
        record = RowRecord(
            row=task.row, recipe=task.recipe, seed=config.seed, complete=complete, split="test", examples=len(arrays["labels"]),
            perturbation=repr(make_ball(config)), norm=config.norm, eps=config.eps, dtype="float32", cascade=config.cascade > 1,
            figures=figures, weights=weights, training=_training(config, run, notes.spent),
        )  # fmt: skip
        write_json(folder / EVALUATION, plain(record))

    return keep


def _keep_weights(folder: Path, task: Task, config: TrainConfig, run: Run, models: list[nn.Module]) -> Weights:
    """Writes the weights that were certified where there is room for them."""
    files = [encode_half(model) for model in models]
    size = sum(map(len, files))
    kept = config.cascade == 1 and (task.recipe == "best" or size <= KEPT_BYTES)
    if kept:
        write_bytes(folder / WEIGHTS, files[0])
    held_out = f"best validation on {config.validation:.0%} of the training images"
    at, digests = trained_at(config, run, 0), tuple(hashlib.sha256(file).hexdigest() for file in files)
    return Weights(
        "last epoch" if config.validation == 0 else held_out, at.epoch, at.eps, "float16", kept, size, digests
    )


def _training(config: TrainConfig, run: Run, spent: Spent) -> Training:
    epochs = [line for line in run.metrics() if isinstance(line, EpochLine)]
    first = [line.seconds for line in epochs if line.stage == 0 and line.seconds is not None]
    seconds = round(statistics.median(first[1:] or first), 3) if first else None
    stages = 1 + max((line.stage for line in epochs), default=0)
    made = read(Environment, run.environment_file)
    place = (made.autodual, made.torch, made.python, made.device, made.started)
    return Training(config.epochs, stages, seconds, spent.side_by_side, spent.seconds, *place)
