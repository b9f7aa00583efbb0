"""Several rows at work: one after the other in this process, or side by side, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from autodual._errors import AutodualError
from autodual.evaluation.processes import Watch
from autodual.reproduce.campaign import Campaign, Phase, Task
from autodual.reproduce.one_row import Extent, work_on
from autodual.runs.lines import Say
from autodual.runs.row_records import RowRecord
from autodual.training.loop import StoppedError

SECONDS_WORTH_A_START = 5.0
"""Seconds that must be left for another process to be worth its start."""
POLL_SECONDS = 0.1
STOPPED_CODES = (0, *(code for number in (signal.SIGTERM, signal.SIGINT) for code in (128 + number, -number)))
"""Exit codes of a process that was asked to stop, or whose time was up; below zero where it had not even begun to listen."""


@dataclass(frozen=True)
class Deadline:
    """When to stop: at the time limit, if there is one, or when the caller asks."""

    end: float | None = None
    """By `time.monotonic`; None if there is no limit."""
    asked_to_stop: Callable[[], bool] = lambda: False

    @classmethod
    def within(cls, minutes: float | None, asked_to_stop: Callable[[], bool], until: float | None = None) -> Deadline:
        """until: on the clock of the machine, by which processes that start at different times end at the same."""
        seconds = [60 * minutes] if minutes is not None else []
        seconds += [until - time.time()] if until is not None else []
        return cls(time.monotonic() + min(seconds) if seconds else None, asked_to_stop)

    def seconds_left(self) -> float:
        """Infinitely many if there is no limit."""
        return float("inf") if self.end is None else self.end - time.monotonic()

    def worth_a_start(self) -> bool:
        """Whether another process would have time for some work."""
        return not self.asked_to_stop() and self.seconds_left() > SECONDS_WORTH_A_START

    def is_over(self) -> bool:
        return self.asked_to_stop() or self.seconds_left() <= 0


@dataclass
class JobsOutcome:
    """What became of the tasks of one call."""

    failed: dict[Task, str]
    unfinished: list[Task]
    """Time was up, or the caller asked to stop."""


def run_in_turn(
    campaign: Campaign, tasks: Sequence[Task], deadline: Deadline, watch: Callable[[], Watch], say: Say, extent: Extent | None = None
) -> JobsOutcome:  # fmt: skip
    """One task after the other. One that fails does not keep the others from running."""
    outcome, extent = JobsOutcome({}, []), extent or Extent()
    for number, task in enumerate(tasks):
        if deadline.is_over():
            outcome.unfinished = list(tasks[number:])
            break
        done_before = extent.satisfied_by(campaign.record(task))
        try:
            record = work_on(campaign, task, watch(), extent)
        except StoppedError:
            say(f"{task}: stopped {campaign.progress(task)}; the same command goes on from there")
            outcome.unfinished = list(tasks[number:])
            break
        except AutodualError as error:
            outcome.failed[task] = str(error)
            say(f"{task}: failed: {error}")
        else:
            say(f"{task}: {'done already' if done_before else campaign.progress(task)}: {_figures_in_words(record)}")
    return outcome


def _figures_in_words(record: RowRecord | None) -> str:
    return "not evaluated yet" if record is None else str(record.figures)


def run_side_by_side(
    campaign: Campaign, tasks: Sequence[Task], deadline: Deadline, jobs: int, say: Say, extent: Extent | None = None
) -> JobsOutcome:
    """At most `jobs` processes at once, each with one task and what is left of the time; each writes to a log of its own.

    Asked to stop, all of them are asked, too, and waited for: each leaves a checkpoint.
    """
    outcome, waiting, extent, all_asked = JobsOutcome({}, []), list(tasks), extent or Extent(), False
    running: dict[Task, subprocess.Popen[bytes]] = {}
    with shared_gpu(campaign.device, say) as variables:
        try:
            while waiting or running:
                while waiting and len(running) < jobs and deadline.worth_a_start():
                    task = waiting.pop(0)
                    if extent.satisfied_by(campaign.record(task)):
                        changed = campaign.changed_since(task)
                        if changed is not None:
                            outcome.failed[task] = changed
                        say(f"{task}: {'done already' if changed is None else f'failed: {changed}'}")
                        continue
                    running[task] = _start_process(campaign, task, deadline, jobs, extent, variables)
                    say(f"{task}: begun; see {campaign.log(task)}")
                if not running:
                    break
                time.sleep(POLL_SECONDS)
                if deadline.asked_to_stop() and not all_asked:
                    all_asked = True
                    _ask_to_stop(running)
                for task in [task for task, process in running.items() if process.poll() is not None]:
                    _note_outcome(campaign, task, running.pop(task).returncode, extent, outcome, say)
        finally:
            _ask_to_stop(running)
            for process in running.values():
                process.wait()
    outcome.unfinished += waiting
    return outcome


def _start_process(
    campaign: Campaign, task: Task, deadline: Deadline, jobs: int, extent: Extent, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    given = {
        "recipe": task.recipe, "seed": task.seed, "side-by-side": jobs, "device": campaign.device, "work": campaign.work,
        "results": campaign.results, "configs": campaign.configs, "data-folder": campaign.data_folder,
        "until": None if deadline.end is None else f"{time.time() + deadline.seconds_left():.3f}",
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


def _ask_to_stop(running: dict[Task, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)


def _note_outcome(campaign: Campaign, task: Task, code: int, extent: Extent, outcome: JobsOutcome, say: Say) -> None:
    record, progress = campaign.record(task), campaign.progress(task)
    trained = progress.step >= Phase.EVALUATING and not extent.evaluate
    if extent.satisfied_by(record) or (code == 0 and trained):
        say(f"{task}: {progress}: {_figures_in_words(record)}")
    elif code in STOPPED_CODES:
        outcome.unfinished.append(task)
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

MPS_PROGRAM = "nvidia-cuda-mps-control"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
MPS_USUAL_PIPES = Path("/tmp/nvidia-mps")
"""Where a daemon of the whole machine listens."""
MPS_SECONDS = 20
"""Seconds that the daemon has to start, and to end."""


@contextmanager
def shared_gpu(device: str, say: Say) -> Iterator[dict[str, str]]:
    """Environment variables for processes that are to use the GPU at the same time. Empty where MPS is not there or runs already."""
    control = shutil.which(MPS_PROGRAM)
    if control is None or device == "cpu" or _mps_runs() or not torch.cuda.is_available():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="autodual-mps-", ignore_cleanup_errors=True) as folder:
        variables = {MPS_PIPES: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if not _succeeds([control, "-d"], variables):
            say("the GPU is used in turns: MPS could not be started")
            yield {}
            return
        try:
            yield variables
        finally:
            _succeeds([control], variables, b"quit\n")


def _mps_runs() -> bool:
    """Whether somebody has started MPS already, for this process or for the whole machine."""
    return MPS_PIPES in os.environ or MPS_USUAL_PIPES.exists()


def _succeeds(command: list[str], variables: dict[str, str], text: bytes = b"") -> bool:
    """Whether the command succeeded. Its output goes nowhere: the daemon would keep a pipe open."""
    quiet, environment = subprocess.DEVNULL, {**os.environ, **variables}
    try:
        subprocess.run(
            command, input=text, stdout=quiet, stderr=quiet, env=environment, timeout=MPS_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
