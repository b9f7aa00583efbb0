"""Where the campaign keeps its files, and how far each row has come.

configs/ROW.yaml             the paper's settings; configs/best/ROW.yaml ours
WORK/RECIPE/ROW/seed-N/      run folder: checkpoints, lines of certificates; large, and only needed until the row is done
RESULTS/RECIPE/ROW/          what is kept of seed 0; of other seeds in RESULTS/RECIPE/ROW/seed-N/
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal

from autodual._errors import ArgumentError
from autodual.reproduce.records import NetworkFigures, RowRecord
from autodual.reproduce.rows import BY_NAME, ROWS, named_together
from autodual.runs.config import TrainConfig, read_yaml
from autodual.runs.folder import Run
from autodual.runs.records import Failure, read_if_sound

Recipe = Literal["paper", "best"]
RECIPES: tuple[Recipe, ...] = ("paper", "best")
EVALUATION = "evaluation.json"
CERTIFICATES = "certificates.npz"
WEIGHTS = "model.safetensors"
PART_BYTES = 15 * 2**20
"""Largest size of one file of a pack; what a transfer takes may be 16 MiB."""


@dataclass(frozen=True)
class Task:
    """One training: a row, the recipe it follows, and the seed."""

    row: str
    recipe: Recipe = "paper"
    seed: int = 0

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.seed > 0 else ""
        return f"{self.row} ({self.recipe}{seed})" if self.recipe != "paper" or seed else self.row


class Phase(IntEnum):
    """How far a row has come."""

    NOT_RUN = 0
    TRAINING = 1
    EVALUATING = 2
    DONE = 3


@dataclass(frozen=True, order=True)
class RowProgress:
    """A state of a row. Of two states of one attempt, the larger one has come farther."""

    step: Phase
    stages: int = 0
    """Stages of a cascade that are trained, and times that what is left open was sorted out, counted together."""
    steps: int = 0
    """Steps of the stage that is being trained."""
    lines: int = 0
    """Certificates that are found, in all files together."""
    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Campaign:
    """The three folders, and what a run needs to know about this machine."""

    configs: Path = Path("configs")
    results: Path = Path("results")
    work: Path = Path("runs/reproduce")
    data_folder: str | None = None
    device: str = "auto"

    def config_file(self, task: Task) -> Path:
        folder = self.configs / "best" if task.recipe == "best" else self.configs
        return folder / f"{task.row}.yaml"

    def config(self, task: Task) -> TrainConfig:
        """The config of the row's file, with the seed of the task. Weights are rounded to float16 before they are certified; exact
        evaluations during training, which take minutes, happen only where one of them chooses the epoch that counts."""
        file = self.config_file(task)
        if not file.is_file():
            raise ArgumentError(self._missing(task, file))
        config = TrainConfig.from_mapping(read_yaml(file), str(file))
        every = config.evaluate_every if config.validation > 0 else 0
        seed = config.seed + task.seed
        return config.with_changes(
            seed=seed, half_weights=True, evaluate_every=every, data_folder=self.data_folder, device=self.device
        )

    def _missing(self, task: Task, file: Path) -> str:
        if not self.configs.is_dir():
            return f"{self.configs}: no such folder; go to the source tree, or name its configs with --configs"
        known = sorted(path.stem for path in file.parent.glob("*.yaml"))
        near = difflib.get_close_matches(task.row, [*known, "table1", "table2", "table3", "table4", "all"], 1)
        if task.recipe == "best" and task.row in BY_NAME:
            return f"{task.row}: has no recipe of ours ({file} does not exist); there are {', '.join(known) or 'none'}"
        hint = f"did you mean {near[0]}?" if near else "`autodual reproduce list` shows all"
        return f"{task.row}: no such row ({file} does not exist); {hint}"

    def run(self, task: Task) -> Run:
        return Run(self.work / task.recipe / task.row / f"seed-{task.seed}")

    def log(self, task: Task) -> Path:
        """What a process of its own says while it works on the task."""
        return self.work / task.recipe / task.row / f"seed-{task.seed}.log"

    def result(self, task: Task) -> Path:
        folder = self.results / task.recipe / task.row
        return folder if task.seed == 0 else folder / f"seed-{task.seed}"

    def record(self, task: Task) -> RowRecord | None:
        """The evaluation of a task, perhaps still without some engines; None where there is none."""
        file = self.result(task) / EVALUATION
        return RowRecord.read(file) if file.exists() else None

    def progress(self, task: Task) -> RowProgress:
        record = self.record(task)
        if record is not None and record.complete:
            return RowProgress(Phase.DONE, text="done")
        figures = None if record is None else record.figures
        run, by = (
            self.run(task),
            ", ".join(figures.engines if isinstance(figures, NetworkFigures) else ()) or "no engine yet",
        )
        if self.has_only_results(task):
            return RowProgress(Phase.EVALUATING, text=f"trained; evaluated by {by}")
        if not run.begun():
            return RowProgress(Phase.NOT_RUN, text="not run")
        lines = sum(map(_count_lines, sorted(run.folder.glob("*certificates*.jsonl"))))
        lines += sum(map(_count_lines, [*run.folder.glob("attack*.jsonl"), *(run.folder / "stages").glob("*.jsonl")]))
        if run.model_file.exists():
            text = _with_failure(run, f"trained; evaluated by {by}; {lines} lines")
            return RowProgress(Phase.EVALUATING, lines=lines, text=text)
        stages, steps, text = _trained_so_far(run)
        return RowProgress(Phase.TRAINING, stages, steps, lines, _with_failure(run, text))

    def has_only_results(self, task: Task) -> bool:
        """Whether the run folder is gone, but the results have the network and its record."""
        result = self.result(task)
        return not self.run(task).begun() and (result / EVALUATION).exists() and (result / WEIGHTS).exists()

    def tasks(self) -> list[Task]:
        """All tasks of which something exists, in work or results; and all published rows in the paper's recipe."""
        found = {Task(row.name) for row in ROWS}
        for root in (self.work, self.results):
            for recipe in RECIPES:
                for row in (root / recipe).glob("*"):
                    seeds = [_seed_of(place) for place in row.glob("seed-*") if place.is_dir()]
                    found |= {Task(row.name, recipe, seed) for seed in seeds if seed is not None}
                    found |= {Task(row.name, recipe)} if row.is_dir() else set()
        return in_order(found)


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """Sorts tasks as the campaign goes: rows in the order of `ROWS`, others behind them by name; more seeds after all first ones."""
    places = {row.name: number for number, row in enumerate(ROWS)}
    return sorted(
        set(tasks), key=lambda task: (task.seed, task.recipe != "paper", places.get(task.row, len(ROWS)), task.row)
    )


def chosen_tasks(names: Iterable[str], recipe: Recipe, seeds: Iterable[int], campaign: Campaign) -> list[Task]:
    """The tasks that a command names, each once. In our recipe, a table stands for those of its rows that have one."""
    rows: dict[str, None] = {}
    for name in names:
        together = named_together(name)
        for row in (name,) if together is None else together:
            if together is None or recipe == "paper" or campaign.config_file(Task(row, recipe)).is_file():
                rows[row] = None
    return [Task(row, recipe, seed) for seed in seeds for row in rows]


def _seed_of(place: Path) -> int | None:
    number = place.name.removeprefix("seed-")
    return int(number) if number.isdecimal() else None


def _count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _trained_so_far(run: Run) -> tuple[int, int, str]:
    """Stages as `RowProgress` counts them, steps in the one that is trained, and both in words."""
    from autodual.runs.checkpoint import Position, listed, read_state

    config, place = run.config(), run.folder / "stages"
    finished, sorted_ = len(list(place.glob("[0-9]*.safetensors"))), len(list(place.glob("open-*[0-9].json")))
    kept = listed(run.checkpoints)
    state = read_state(kept[-1]) if kept else None
    at = Position(finished) if state is None or state.position.stage < finished else state.position
    stage = "" if config.cascade == 1 else f"stage {at.stage + 1} of {config.cascade}, "
    return finished + sorted_, at.step, f"at {stage}epoch {at.epoch} of {config.epochs}"


def _with_failure(run: Run, text: str) -> str:
    if not run.failure_file.exists():
        return text
    found = read_if_sound(Failure, run.failure_file)
    return f"{text}; failed: {'for an unknown reason' if found is None else found.error}"
