"""One row, from its config to its record: trained, rounded, evaluated, kept. Stopped anywhere, it goes on from there."""

from __future__ import annotations

import hashlib
import math
import shutil
import statistics
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from autodual._errors import ArgumentError
from autodual._files import (
    digest,
    encode_tensors,
    in_one_line,
    load_tensors,
    read_content,
    write_bytes,
    write_json,
    write_text,
)
from autodual.evaluation.evaluate import write_arrays
from autodual.evaluation.processes import Watch
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.evaluation import (
    ON_REQUEST,
    ROW_ENGINES,
    Arrays,
    EarlierFindings,
    Notes,
    Spent,
    evaluate_cascade,
    evaluate_network,
)
from autodual.reproduce.rows import Recipe
from autodual.runs.checkpoint import encode_half, load_model, save_model
from autodual.runs.config import TrainConfig, dump_yaml
from autodual.runs.folder import METRICS_LIMIT, Run
from autodual.runs.records import Environment, EpochLine, plain, read
from autodual.runs.row_records import (
    CERTIFICATES,
    EVALUATION,
    WEIGHTS,
    NetworkFigures,
    RowFigures,
    RowRecord,
    TrainingRecord,
    WeightsRecord,
)
from autodual.runs.schedule import by_epochs
from autodual.training.fitting import run_named, trained_network
from autodual.training.setup import make_ball
from autodual.training.stages import Parts, fresh_model, train_cascade, trained_at

KEPT_BYTES: dict[Recipe, float] = {"paper": 2**20, "best": math.inf, "modern": 10 * 2**20}
"""Weights stay in `results/` up to this size; all results together have 40 MiB."""
OF_NO_CONSEQUENCE = (
    "cascade", "cascade_kind", "data_folder", "device", "tensorboard", "limit_test", "evaluate_every", "evaluate_examples",
    "skip_curve", "evaluate_engine",
)  # fmt: skip
"""Options that the first stage of a cascade does not depend on, where no data is held out."""


@dataclass(frozen=True)
class Extent:
    """How much of a task is wanted now."""

    engines: Collection[str] | None = None
    """Beside the row's own, which always runs first; all that the row needs when None."""
    evaluate: bool = True
    side_by_side: int = 1
    """Tasks that run at the same time, for the record."""

    def __post_init__(self) -> None:
        known = (*ROW_ENGINES, *ON_REQUEST)
        for name in self.engines or ():
            if name not in known:
                raise ArgumentError(f"engines must be some of {', '.join(known)}, got {name!r}")

    def satisfied_by(self, record: RowRecord | None) -> bool:
        """Whether a record has all that is wanted."""
        figures = None if record is None else record.figures
        if not isinstance(figures, NetworkFigures) or self.engines is None:
            return record is not None and record.complete
        return set(figures.engines) >= set(self.engines)


def work_on(campaign: Campaign, task: Task, watch: Watch, extent: Extent | None = None) -> RowRecord | None:
    """Trains and evaluates a task, or what is left of it. Returns its record; None if it is trained and not evaluated yet.

    StoppedError if `watch` asks to stop before.
    """
    extent = extent or Extent()
    record = campaign.record(task)
    if record is not None and record.complete:
        changed = campaign.changed_since(task)
        if changed is not None:
            raise ArgumentError(changed)
    if extent.satisfied_by(record):
        return record
    run = campaign.run(task)
    if campaign.has_only_results(task):
        _check_kept_weights(campaign, task)
        _restore(campaign.result(task), run)
    if not extent.evaluate and run.model_file.exists():
        return record
    what_is_left = partial(_train_and_evaluate, campaign, task, extent)
    run_named(campaign.config(task), run.folder, run.begun(), watch, what_is_left)
    return campaign.record(task)


def _check_kept_weights(campaign: Campaign, task: Task) -> None:
    """Refuses weights in the results that are not those of the record beside them."""
    record, file = campaign.record(task), campaign.result(task) / WEIGHTS
    if record is not None and digest(file) not in record.weights.sha256:
        raise ArgumentError(
            f"{file}: are not the weights that {EVALUATION} beside them is about; put those back, or remove the folder, and run "
            f"the row again"
        )


def _restore(result: Path, run: Run) -> None:
    """A run folder from the results, as far as an evaluation needs it; the weights last, which say that all is there."""
    for file in (run.config_file, run.environment_file, run.metrics_file):
        write_bytes(file, read_content(result / file.name, METRICS_LIMIT))
    tensors = load_tensors(result / WEIGHTS)
    whole = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    write_bytes(run.model_file, encode_tensors(whole))


def _train_and_evaluate(
    campaign: Campaign, task: Task, extent: Extent, config: TrainConfig, run: Run, parts: Parts, watch: Watch
) -> None:
    """Brings a task as far as `extent` wants it: what the run folder or the results have already is not done again."""
    group = watch.group
    if not group.alone and (config.cascade > 1 or not extent.evaluate or not group.by_first(run.model_file.exists)):
        raise ArgumentError(
            f"{task}: several processes may share the evaluation of a single network that is trained, and nothing else; train it in "
            f"one process (--no-evaluation), or several rows side by side (--jobs), without torchrun"
        )
    record = group.by_first(lambda: campaign.record(task))
    known = Spent({}, 1) if record is None else Spent(record.training.seconds, record.training.side_by_side)
    notes = Notes.of(run, extent.side_by_side, group, known)
    with notes.timed("training"):
        if config.cascade == 1:
            models = [trained_network(config, run, parts, watch)]
        else:
            _take_first_stage(campaign, task, config, run, parts, watch)
            models = train_cascade(config, run, parts, watch)
            save_model(run.model_file, models[0])  # says that all stages are trained

    def keep(figures: RowFigures, arrays: Arrays, complete: bool) -> None:
        group.by_first(lambda: _keep(campaign, task, config, run, models, notes, figures, arrays, complete))

    if extent.evaluate and config.cascade == 1:
        earlier = _earlier_findings(campaign, task, models[0])
        evaluate_network(config, run, models[0], parts.test, notes, watch, keep, extent.engines, earlier)
    elif extent.evaluate:
        evaluate_cascade(config, run, models, parts, notes, watch, keep)


def _earlier_findings(campaign: Campaign, task: Task, model: nn.Module) -> EarlierFindings:
    """What the results have about this very network, found in earlier calls, perhaps on another machine."""
    record, file = campaign.record(task), campaign.result(task) / CERTIFICATES
    figures = None if record is None else record.figures
    if record is None or not isinstance(figures, NetworkFigures) or not file.exists():
        return EarlierFindings()
    if record.weights.sha256 != (hashlib.sha256(encode_half(model)).hexdigest(),):
        return EarlierFindings()
    return EarlierFindings(figures, _read_arrays(file, record, figures))


def _read_arrays(file: Path, record: RowRecord, figures: NetworkFigures) -> Arrays:
    """What the results have about every image. ArgumentError if it is damaged, or not what the figures count."""
    try:
        with (
            in_one_line(file, "cannot be read"),
            file.open("rb") as stream,
            np.load(stream, allow_pickle=False) as found,
        ):
            arrays = {name: found[name] for name in found.files}
        counts: dict[str, tuple[float | None, int]] = {
            "attacked": (figures.pgd_error_exact, record.examples),
            "attacked_as_run": (figures.pgd_error, record.examples),
        }
        for name, ran in figures.engines.items():
            if ran.not_run is None:
                counts |= {
                    f"{name}_certified": (ran.certified, 1),
                    f"{name}_certified_as_run": (ran.certified_as_run, 1),
                }
        wrong = next((name for name, told in counts.items() if not _counts(arrays[name], *told, record.examples)), None)
        if wrong is not None:
            raise ValueError(f"{wrong} is not what {EVALUATION} counts")
        return arrays
    except ArgumentError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = f"{error} is not in it" if isinstance(error, KeyError) else error
        raise ArgumentError(
            f"{file}: is damaged ({why}); put it back, or remove it, and the row is evaluated anew"
        ) from None


def _counts(column: np.ndarray, told: float | None, of: int, examples: int) -> bool:
    """Whether a column has a verdict for each image, and as many of them are true as was told, in parts of `of`."""
    fits = column.dtype == np.bool_ and column.shape == (examples,)
    return fits and told is not None and abs(int(column.sum()) / of - told) < 1e-9


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
        if place == campaign.result(single):
            _check_kept_weights(campaign, single)
        model = fresh_model(config, parts, 0)
        load_model(source.model_file, model, expect_half=True)
        save_model(run.stage_file(0), model)
        shutil.copyfile(source.metrics_file, run.metrics_file)
        watch.say(f"stage 0: is the network of {single}, which is trained already")
        return


def _keep(
    campaign: Campaign, task: Task, config: TrainConfig, run: Run, models: list[nn.Module], notes: Notes,
    figures: RowFigures, arrays: Arrays, complete: bool,
) -> None:  # fmt: skip
    """Writes what is known so far to `results/`; the record last, so that one that is there is about files that are there."""
    folder = campaign.result(task)
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


def _keep_weights(folder: Path, task: Task, config: TrainConfig, run: Run, models: list[nn.Module]) -> WeightsRecord:
    """Writes the weights that were certified where there is room for them."""
    files = [encode_half(model) for model in models]
    size = sum(map(len, files))
    kept = config.cascade == 1 and size <= KEPT_BYTES[task.recipe]
    if kept:
        write_bytes(folder / WEIGHTS, files[0])
    held_out = f"best validation on {config.validation:.0%} of the training images"
    chosen = "last epoch" if config.validation == 0 else held_out
    at, digests = trained_at(config, run, 0), tuple(hashlib.sha256(file).hexdigest() for file in files)
    return WeightsRecord(chosen, at.epoch, at.eps, "float16", kept, size, digests)


def _training(config: TrainConfig, run: Run, spent: Spent) -> TrainingRecord:
    epochs = [line for line in run.metrics() if isinstance(line, EpochLine)]
    first = [line.seconds for line in epochs if line.stage == 0 and line.seconds is not None]
    seconds = round(statistics.median(first[1:] or first), 3) if first else None
    stages = 1 + max((line.stage for line in epochs), default=0)
    made = read(Environment, run.environment_file)
    place = (made.autodual, made.torch, made.python, made.device, made.started)
    return TrainingRecord(config.epochs, stages, seconds, spent.side_by_side, spent.seconds, *place)
