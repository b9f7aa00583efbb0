"""One row from its config to its record: trained, rounded, evaluated, kept. Stopped anywhere, it goes on from there."""

from __future__ import annotations

import hashlib
import shutil
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from autodual._errors import ArgumentError
from autodual._files import (
    encode_tensors,
    load_tensors,
    parse_json,
    read_content,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from autodual.reproduce.campaign import CERTIFICATES, EVALUATION, WEIGHTS, Campaign, Task
from autodual.reproduce.evaluation import (
    ENGINES,
    NEEDED,
    Arrays,
    Before,
    Found,
    Notes,
    evaluate_cascade,
    evaluate_network,
    write_arrays,
)
from autodual.runs.checkpoint import encode_half, load_half_model, save_model
from autodual.runs.config import TrainConfig, by_epochs
from autodual.runs.folder import METRICS_LIMIT, Run, dump_yaml
from autodual.training.cascade import train_cascade
from autodual.training.fitting import run_named, trained_network
from autodual.training.setup import make_ball
from autodual.training.stage import Parts, Watch, fresh_model, trained_at

KEPT_BYTES = 2**20
"""Weights of the paper's recipe stay in `results/` up to this size; those of our own recipe always do."""


OF_NO_CONSEQUENCE = (
    "cascade", "cascade_kind", "data_folder", "device", "tensorboard", "limit_test", "evaluate_every", "evaluate_examples",
)  # fmt: skip
"""Options that the first stage of a cascade does not depend on, where no data is held out."""


@dataclass(frozen=True)
class Extent:
    """How much of a task is wanted now."""

    engines: Collection[str] = tuple(ENGINES)
    """The exact bound is always among them."""
    evaluate: bool = True
    side_by_side: int = 1
    """Tasks that run at the same time, for the record."""

    def __post_init__(self) -> None:
        for name in self.engines:
            if name not in ENGINES:
                raise ArgumentError(f"engines must be some of {', '.join(ENGINES)}, got {name!r}")
        in_order = tuple(name for name in ENGINES if name == NEEDED or name in self.engines)
        object.__setattr__(self, "engines", in_order)

    def reached(self, record: dict[str, Any] | None) -> bool:
        """Whether a record has all of it."""
        if record is None:
            return False
        return bool(record["complete"]) or (not record["cascade"] and set(record["engines"]) >= set(self.engines))


def work_on(campaign: Campaign, task: Task, watch: Watch, extent: Extent | None = None) -> dict[str, Any] | None:
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
    for name in ("config.yaml", "environment.json", "metrics.jsonl"):
        write_bytes(run.folder / name, read_content(result / name, METRICS_LIMIT))
    tensors = load_tensors(result / WEIGHTS)
    write_bytes(
        run.model_file, encode_tensors({name: t.float() if t.is_floating_point() else t for name, t in tensors.items()})
    )


def _work(
    campaign: Campaign, task: Task, extent: Extent, config: TrainConfig, run: Run, parts: Parts, watch: Watch
) -> dict[str, Any]:
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
    return {}


def _known_before(campaign: Campaign, task: Task, model: nn.Module) -> Before:
    """What the results have about this very network, found in earlier calls, perhaps on another machine."""
    record, file = campaign.record(task), campaign.result(task) / CERTIFICATES
    if record is None or not file.exists():
        return Before()
    if record["weights"]["sha256"] != [hashlib.sha256(encode_half(model)).hexdigest()]:
        return Before()
    with np.load(file) as arrays:
        return Before(record, {name: arrays[name] for name in arrays.files})


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
        load_half_model(source.model_file, model)
        save_model(run.stage_file(0), model)
        shutil.copyfile(source.metrics_file, run.metrics_file)
        watch.say(f"stage 0: is the network of {single}, which is trained already")
        return


def _keeper(
    campaign: Campaign, task: Task, config: TrainConfig, run: Run, models: list[nn.Module], notes: Notes
) -> Callable[[Found, Arrays, bool], None]:
    """Writes what is known so far to `results/`; the record last, so that one that is there is about files that are there."""
    folder = campaign.result(task)

    def keep(found: Found, arrays: Arrays, complete: bool) -> None:
        values = config.with_changes(data_folder=None, device="auto").to_mapping()
        write_text(folder / "config.yaml", dump_yaml(values))
        for name in ("environment.json", "metrics.jsonl"):
            write_text(folder / name, (run.folder / name).read_text(encoding="utf-8"))
        weights = _keep_weights(folder, task, config, run, models)
        write_arrays(folder / CERTIFICATES, arrays)
        ball = make_ball(config)
        record: dict[str, Any] = {
            "row": task.row, "recipe": task.recipe, "seed": config.seed, "complete": complete, "split": "test",
            "examples": len(arrays["labels"]), "perturbation": repr(ball), "norm": config.norm, "eps": config.eps,
            "dtype": "float32", "cascade": config.cascade > 1, **found, "weights": weights, "training": _training(config, run, notes),
        }  # fmt: skip
        write_json(folder / EVALUATION, record)

    return keep


def _keep_weights(folder: Path, task: Task, config: TrainConfig, run: Run, models: list[nn.Module]) -> dict[str, Any]:
    """Which weights were certified: by the digests of their files, and in a file where there is room for it."""
    files = [encode_half(model) for model in models]
    size = sum(map(len, files))
    kept = config.cascade == 1 and (task.recipe == "best" or size <= KEPT_BYTES)
    if kept:
        write_bytes(folder / WEIGHTS, files[0])
    held_out = f"best validation on {config.validation:.0%} of the training images"
    return {
        "chosen": "last epoch" if config.validation == 0 else held_out, **trained_at(config, run, 0), "rounded_to": "float16",
        "kept": kept, "bytes": size, "sha256": [hashlib.sha256(file).hexdigest() for file in files],
    }  # fmt: skip


def _training(config: TrainConfig, run: Run, notes: Notes) -> dict[str, Any]:
    """Speed and place. Seconds of an epoch: the median of whole ones after the first, in which kernels are compiled."""
    epochs = [line for line in map(_parsed, run.metrics_file.read_bytes().splitlines()) if line.get("kind") == "epoch"]
    first = [line["seconds"] for line in epochs if line["stage"] == 0 and line["seconds"] is not None]
    environment = read_json(run.folder / "environment.json")
    names = ("autodual", "torch", "python", "device", "started")
    return {
        "epochs": config.epochs, "stages": 1 + max((line["stage"] for line in epochs), default=0),
        "seconds_per_epoch": round(statistics.median(first[1:] or first), 3) if first else None,
        "side_by_side": notes.side_by_side, "seconds": notes.seconds, **{name: environment.get(name) for name in names},
    }  # fmt: skip


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def show(record: dict[str, Any] | None) -> str:
    """The figures of a record in a line."""
    if record is None:
        return "not evaluated yet"
    if record["cascade"]:
        best = record.get("best_sound", {}).get("sound_certified_error")
        parts = [
            f"stage-certified error {record['stage_certified_error']:.2%}",
            f"attacked {record['attacked_error']:.2%}" if "attacked_error" in record else "",
            f"soundly certified {record['sound_certified_error']:.2%}",
            f"best sound combination {best:.2%}" if best is not None else "",
            f"error {record['error']:.2%}",
        ]
    else:
        best = record.get("robust_error_best")
        parts = [
            f"robust error {record['robust_error']:.2%} (as run {record['robust_error_as_run']:.2%})",
            f"best of the engines {best:.2%}" if best is not None else "",
            f"PGD error {record['pgd_error']:.2%}",
            f"error {record['error']:.2%}",
        ]
    return ", ".join(part for part in parts if part)
