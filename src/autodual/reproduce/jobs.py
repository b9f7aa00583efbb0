"""Rows at work: one from its config to its record, and several in turn or side by side. Stopped anywhere, each goes on from there."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from autodual._errors import ArgumentError, AutodualError
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
from autodual.reproduce.campaign import (
    CERTIFICATES,
    EVALUATION,
    WEIGHTS,
    Campaign,
    NetworkFigures,
    Phase,
    Recipe,
    RowFigures,
    RowRecord,
    Task,
    TrainingRecord,
    WeightsRecord,
)
from autodual.reproduce.evaluation import (
    ON_REQUEST,
    ROW_ENGINES,
    Arrays,
    Before,
    Notes,
    Spent,
    evaluate_cascade,
    evaluate_network,
)
from autodual.runs.checkpoint import encode_half, load_model, save_model
from autodual.runs.config import TrainConfig, dump_yaml
from autodual.runs.folder import METRICS_LIMIT, Run
from autodual.runs.lines import Say
from autodual.runs.records import Environment, EpochLine, plain, read
from autodual.runs.schedule import by_epochs
from autodual.training.fitting import run_named, trained_network
from autodual.training.loop import StoppedError
from autodual.training.setup import make_ball
from autodual.training.stages import Parts, fresh_model, train_cascade, trained_at

# One row: trained, rounded, evaluated, kept.

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

    def reached(self, record: RowRecord | None) -> bool:
        """Whether a record has all of it."""
        figures = None if record is None else record.figures
        if not isinstance(figures, NetworkFigures) or self.engines is None:
            return record is not None and record.complete
        return set(figures.engines) >= set(self.engines)


def work_on(campaign: Campaign, task: Task, watch: Watch, extent: Extent | None = None) -> RowRecord | None:
    """Trains and evaluates a task, or what is left of it. Returns its record; None if it is trained and not evaluated yet.

    StoppedError if `watch` asks to stop before.
    """
    extent = extent or Extent()
    before = campaign.record(task)
    if before is not None and before.complete:
        changed = campaign.changed_since(task)
        if changed is not None:
            raise ArgumentError(changed)
    if extent.reached(before):
        return before
    run = campaign.run(task)
    if campaign.has_only_results(task):
        _check_kept_weights(campaign, task)
        _restore(campaign.result(task), run)
    if not extent.evaluate and run.model_file.exists():
        return before
    run_named(campaign.config(task), run.folder, run.begun(), watch, partial(_work, campaign, task, extent))
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


def _work(
    campaign: Campaign, task: Task, extent: Extent, config: TrainConfig, run: Run, parts: Parts, watch: Watch
) -> None:
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
    return Before(figures, _read_arrays(file, record, figures))


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


# Several rows: one after the other in this process, or side by side, each in a process of its own.

LEAST_SECONDS = 5.0
"""Seconds that must be left for another process to be worth its start."""
POLL_SECONDS = 0.1
STOPPED = (0, *(code for number in (signal.SIGTERM, signal.SIGINT) for code in (128 + number, -number)))
"""Exit codes of a process that was asked to stop, or whose time was up; below zero where it had not even begun to listen."""


@dataclass(frozen=True)
class Deadline:
    """When to stop: at the time limit, if there is one, or when the caller asks."""

    deadline: float | None = None
    asked: Callable[[], bool] = lambda: False

    @classmethod
    def within(cls, minutes: float | None, asked: Callable[[], bool], until: float | None = None) -> Deadline:
        """until: on the clock of the machine, by which processes that start at different times end at the same."""
        seconds = [60 * minutes] if minutes is not None else []
        seconds += [until - time.time()] if until is not None else []
        return cls(time.monotonic() + min(seconds) if seconds else None, asked)

    def left(self) -> float:
        """Seconds that are left."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def stop(self) -> bool:
        return self.asked() or self.left() <= 0


@dataclass
class JobsOutcome:
    """What became of the tasks of one call."""

    failed: dict[Task, str]
    left: list[Task]
    """Not finished: time was up, or the caller asked to stop."""


def run_in_turn(
    campaign: Campaign, tasks: Sequence[Task], clock: Deadline, watch: Callable[[], Watch], say: Say, extent: Extent | None = None
) -> JobsOutcome:  # fmt: skip
    """One task after the other. One that fails does not keep the others from running."""
    outcome, extent = JobsOutcome({}, []), extent or Extent()
    for number, task in enumerate(tasks):
        if clock.stop():
            outcome.left = list(tasks[number:])
            break
        done_before = extent.reached(campaign.record(task))
        try:
            record = work_on(campaign, task, watch(), extent)
        except StoppedError:
            say(f"{task}: stopped {campaign.progress(task)}; the same command goes on from there")
            outcome.left = list(tasks[number:])
            break
        except AutodualError as error:
            outcome.failed[task] = str(error)
            say(f"{task}: failed: {error}")
        else:
            say(f"{task}: {'done already' if done_before else campaign.progress(task)}: {_figures(record)}")
    return outcome


def _figures(record: RowRecord | None) -> str:
    return "not evaluated yet" if record is None else str(record.figures)


def run_side_by_side(
    campaign: Campaign, tasks: Sequence[Task], clock: Deadline, jobs: int, say: Say, extent: Extent | None = None
) -> JobsOutcome:
    """At most `jobs` processes at once, each with one task and what is left of the time; each writes to a log of its own.

    Asked to stop, all of them are asked, too, and waited for: each leaves a checkpoint.
    """
    outcome, waiting, extent, told = JobsOutcome({}, []), list(tasks), extent or Extent(), False
    running: dict[Task, subprocess.Popen[bytes]] = {}
    with shared_gpu(campaign.device, say) as variables:
        try:
            while waiting or running:
                while waiting and len(running) < jobs and not clock.asked() and clock.left() > LEAST_SECONDS:
                    task = waiting.pop(0)
                    if extent.reached(campaign.record(task)):
                        changed = campaign.changed_since(task)
                        if changed is not None:
                            outcome.failed[task] = changed
                        say(f"{task}: {'done already' if changed is None else f'failed: {changed}'}")
                        continue
                    running[task] = _start(campaign, task, clock, jobs, extent, variables)
                    say(f"{task}: begun; see {campaign.log(task)}")
                if not running:
                    break
                time.sleep(POLL_SECONDS)
                if clock.asked() and not told:
                    told = True
                    _end(running)
                for task in [task for task, process in running.items() if process.poll() is not None]:
                    _note_end(campaign, task, running.pop(task).returncode, extent, outcome, say)
        finally:
            _end(running)
            for process in running.values():
                process.wait()
    outcome.left += waiting
    return outcome


def _start(
    campaign: Campaign, task: Task, clock: Deadline, jobs: int, extent: Extent, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    given = {
        "recipe": task.recipe, "seed": task.seed, "side-by-side": jobs, "device": campaign.device, "work": campaign.work,
        "results": campaign.results, "configs": campaign.configs, "data-folder": campaign.data_folder,
        "until": None if clock.deadline is None else f"{time.time() + clock.left():.3f}",
    }  # fmt: skip
    options = [text for name, value in given.items() if value is not None for text in (f"--{name}", str(value))]
    options += [text for name in extent.engines or () for text in ("--engine", name)]
    options += [] if extent.evaluate else ["--no-evaluation"]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, **variables}
    log = campaign.log(task)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        command = [sys.executable, "-m", "autodual", "reproduce", "run", task.row, *options]
        return subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)


def _end(running: dict[Task, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)


def _note_end(campaign: Campaign, task: Task, code: int, extent: Extent, outcome: JobsOutcome, say: Say) -> None:
    record, progress = campaign.record(task), campaign.progress(task)
    trained = progress.step >= Phase.EVALUATING and not extent.evaluate
    if extent.reached(record) or (code == 0 and trained):
        say(f"{task}: {progress}: {_figures(record)}")
    elif code in STOPPED:
        outcome.left.append(task)
        say(f"{task}: stopped {progress}; the same command goes on from there")
    else:
        last = campaign.log(task).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        outcome.failed[task] = last[0] if last else f"exit code {code}"
        say(f"{task}: failed (exit code {code}): {outcome.failed[task]}")


# One GPU for several processes at once, by NVIDIA's Multi-Process Service (MPS).
#
# Without it a GPU serves processes in turns, and small networks, which leave most of it idle, are no faster side by side than one
# after the other. Measured on an H200 with `configs/mnist-small-0.1.yaml`: 1.42 s an epoch alone; 5.86 s in each of four processes in
# turns, 2.93 s with MPS; 4.78 s in each of eight.

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps")
"""Where a daemon of the whole machine listens."""
SECONDS = 20
"""Seconds that the daemon has to start, and to end."""


@contextmanager
def shared_gpu(device: str, say: Say) -> Iterator[dict[str, str]]:
    """Environment variables for processes that are to use the GPU at the same time. Empty where MPS is not there or runs already."""
    control = shutil.which(CONTROL)
    if control is None or device == "cpu" or PIPES in os.environ or USUAL.exists() or not torch.cuda.is_available():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="autodual-mps-", ignore_cleanup_errors=True) as folder:
        variables = {PIPES: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if not _told([control, "-d"], variables):
            say("the GPU is used in turns: MPS could not be started")
            yield {}
            return
        try:
            yield variables
        finally:
            _told([control], variables, b"quit\n")


def _told(command: list[str], variables: dict[str, str], text: bytes = b"") -> bool:
    """Whether the command succeeded. Its output goes nowhere: the daemon would keep a pipe open."""
    quiet, environment = subprocess.DEVNULL, {**os.environ, **variables}
    try:
        subprocess.run(command, input=text, stdout=quiet, stderr=quiet, env=environment, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
