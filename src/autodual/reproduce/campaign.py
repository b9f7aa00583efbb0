"""Where the campaign keeps the files of its rows, and how far each row has come.

configs/ROW.yaml             the paper's settings; configs/best/ROW.yaml ours; configs/modern/ROW.yaml later methods
WORK/RECIPE/ROW/seed-N/      run folder: checkpoints, lines of certificates; large, and only needed until the row is done
RESULTS/RECIPE/ROW/          what is kept of seed 0; of other seeds in RESULTS/RECIPE/ROW/seed-N/
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from autodual._errors import ArgumentError
from autodual._files import read_json
from autodual.reproduce.rows import BY_NAME, MODERN, RECIPES, ROWS, Recipe, rows_of_group
from autodual.runs.config import TrainConfig, option, read_yaml
from autodual.runs.folder import FREE, Run
from autodual.runs.records import Failure, parse, read_if_sound
from autodual.runs.row_records import EVALUATION, WEIGHTS, NetworkFigures, RowRecord
from autodual.runs.schedule import by_epochs

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

    def measured(self) -> tuple[int, ...]:
        """Numbers that grow as an attempt comes farther."""
        return int(self.step), self.stages, self.steps, self.lines


@dataclass(frozen=True)
class Campaign:
    """The three folders, and what a run needs to know about this machine."""

    configs: Path = option(Path("configs"), "folder with a YAML file for each row")
    results: Path = option(Path("results"), "folder for what is kept of finished rows")
    work: Path = option(Path("runs/reproduce"), "folder for checkpoints and runs, which are large")
    data_folder: str | None = option(None, "where data sets lie; $AUTODUAL_DATA when not given")
    device: str = option("auto", "auto, cpu, cuda ...")

    def config_file(self, task: Task) -> Path:
        folder = self.configs if task.recipe == "paper" else self.configs / task.recipe
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
        if task.row in MODERN and task.recipe != "modern":
            return f"{task.row}: is a row of later methods; ask for it by --recipe modern"
        if task.recipe != "paper" and task.row in BY_NAME:
            return f"{task.row}: has no config of recipe {task.recipe} ({file} does not exist); there are {', '.join(known) or 'none'}"
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
        try:
            record = parse(RowRecord, read_json(file)) if file.exists() else None
        except ArgumentError:
            raise
        except ValueError:
            raise ArgumentError(
                f"{file}: is no evaluation of `autodual reproduce`, or damaged; remove it, and run the row again"
            ) from None
        if record is not None and (record.row, record.recipe) != (task.row, task.recipe):
            raise ArgumentError(
                f"{file}: is about {record.row[:100]!r} ({record.recipe[:100]!r}), so it was copied here; remove it, and run the "
                f"row again"
            )
        return record

    def changed_since(self, task: Task) -> str | None:
        """A sentence about a config that is another one now than that by which the results were made; None if it is the same, or if
        nothing tells."""
        file = Run(self.result(task)).config_file
        if not file.exists() or not self.config_file(task).exists():
            return None
        before, now = by_epochs(Run(self.result(task)).config()), by_epochs(self.config(task))
        for name in (name for name in now if name not in FREE and before[name] != now[name]):
            return (
                f"{self.result(task)}: was made by another config: {name} was {before[name]!r}, now {now[name]!r}; put that back, or "
                f"remove the row's folders in the results and in the work folder, to train it anew"
            )
        return None

    def progress(self, task: Task) -> RowProgress:
        record = self.record(task)
        if record is not None and record.complete:
            return RowProgress(Phase.DONE, text="done")
        run, figures = self.run(task), None if record is None else record.figures
        by = ", ".join(figures.engines if isinstance(figures, NetworkFigures) else ()) or "no engine yet"
        if self.has_only_results(task):
            return RowProgress(Phase.EVALUATING, text=f"trained; evaluated by {by}")
        if not run.begun():
            return RowProgress(Phase.NOT_RUN, text="not run")
        patterns = ("*certificates*.jsonl", "attack*.jsonl", "stages/*.jsonl")
        files = (file for pattern in patterns for file in run.folder.glob(pattern))
        lines, failed = sum(file.read_bytes().count(b"\n") for file in files), ""
        if run.failure_file.exists():
            why = read_if_sound(Failure, run.failure_file)
            failed = f"; failed: {'for an unknown reason' if why is None else why.error}"
        if run.model_file.exists():
            text = f"trained; evaluated by {by}; {lines} lines{failed}"
            return RowProgress(Phase.EVALUATING, lines=lines, text=text)
        stages, steps, text = _trained_so_far(run)
        return RowProgress(Phase.TRAINING, stages, steps, lines, f"{text}{failed}")

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
                    seeds = [place.name.removeprefix("seed-") for place in row.glob("seed-*") if place.is_dir()]
                    found |= {Task(row.name, recipe, int(seed)) for seed in seeds if seed.isdecimal()}
                    found |= {Task(row.name, recipe)} if row.is_dir() else set()
        return in_order(found)


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """Sorts tasks as the campaign goes: by recipe, rows in the order of `ROWS` and of `MODERN`, others behind them by name; more seeds
    after all first ones."""
    places = {name: number for number, name in enumerate((*BY_NAME, *MODERN))}
    return sorted(
        set(tasks),
        key=lambda task: (task.seed, RECIPES.index(task.recipe), places.get(task.row, len(places)), task.row),
    )


def chosen_tasks(names: Iterable[str], recipe: Recipe, seeds: Iterable[int], campaign: Campaign) -> list[Task]:
    """The tasks that a command names, each once. In our recipe, a table stands for those of its rows that have one; of later methods,
    `all` stands for all of their rows."""
    rows: dict[str, None] = {}
    for name in names:
        group = rows_of_group(name)
        if group is not None and recipe == "modern":
            if name != "all":
                raise ArgumentError(f"{name}: the paper's tables have no rows of later methods; name rows, or all")
            group = tuple(MODERN)
        for row in (name,) if group is None else group:
            if group is None or recipe == "paper" or campaign.config_file(Task(row, recipe)).is_file():
                rows[row] = None
    return [Task(row, recipe, seed) for seed in seeds for row in rows]


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
