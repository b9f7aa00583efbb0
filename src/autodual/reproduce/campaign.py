"""The rows of the paper's tables and of what came after it, what is kept of each, where the campaign keeps its files, and how far
each row has come.

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
from typing import Literal

from autodual._errors import ArgumentError
from autodual._files import read_json
from autodual.runs.config import TrainConfig, option, read_yaml
from autodual.runs.folder import FREE, Run
from autodual.runs.recipes import COMPARED_ROWS
from autodual.runs.recipes import RECIPES as METHODS
from autodual.runs.records import (
    AttackFigures,
    CascadeErrors,
    Failure,
    StageCounts,
    flat,
    optional,
    parse,
    read_if_sound,
)
from autodual.runs.schedule import by_epochs

# What the paper reports: its rows in the order in which they are reproduced. [SPAD sec. 4, app. F and G]
#
# A row's name is that of its config. Figures are in per cent. The paper chose its networks by their error on test data, so its figures
# are optimistic; those of the released weights were measured again by others, and are the fairer comparison.

Errors = tuple[float, float]
"""Robust error and error, in per cent; for a cascade, the first is the stage-certified error."""


@dataclass(frozen=True)
class Row:
    """One network, or one cascade, of the paper's tables."""

    name: str
    table: int
    """By the paper's own numbers: 2 is about l-infinity balls, 3 about width and depth, 4 about l2 balls."""
    data: str
    network: str
    eps: str
    paper: Errors
    released: Errors | None = None
    """The released weights, evaluated again by others."""

    @property
    def is_cascade(self) -> bool:
        return self.name.endswith("-cascade")


ROWS: tuple[Row, ...] = (
    Row("mnist-small-0.1", 2, "MNIST", "small", "0.1", (4.99, 1.37), (5.06, 1.21)),
    Row("mnist-small-exact-0.1", 2, "MNIST", "small, exact", "0.1", (4.48, 1.26), (4.46, 1.04)),
    Row("cifar-small-2", 2, "CIFAR-10", "small", "2/255", (52.75, 38.91), (53.57, 39.14)),
    Row("cifar-small-8", 2, "CIFAR-10", "small", "8/255", (79.25, 72.24), (79.42, 72.40)),
    Row("cifar-large-2", 2, "CIFAR-10", "large", "2/255", (46.59, 31.28), (47.35, 32.30)),
    Row("mnist-large-0.1", 2, "MNIST", "large", "0.1", (3.67, 1.08), (4.45, 1.19)),
    Row("cifar-resnet-2", 2, "CIFAR-10", "resnet", "2/255", (46.11, 31.72), (48.46, 33.67)),
    Row("mnist-small-0.3", 2, "MNIST", "small", "0.3", (43.10, 14.87)),
    Row("cifar-resnet-8", 2, "CIFAR-10", "resnet", "8/255", (78.22, 71.33)),
    Row("cifar-large-8", 2, "CIFAR-10", "large", "8/255", (83.43, 80.56)),
    Row("mnist-large-0.3", 2, "MNIST", "large", "0.3", (45.66, 12.61)),
    Row("mnist-small-l2", 4, "MNIST", "small", "1.58", (56.32, 13.11)),
    Row("mnist-small-exact-l2", 4, "MNIST", "small, exact", "1.58", (56.48, 11.86)),
    Row("cifar-small-l2", 4, "CIFAR-10", "small", "36/255", (53.73, 44.72)),
    Row("mnist-large-l2", 4, "MNIST", "large", "1.58", (55.47, 11.88)),
    Row("cifar-large-l2", 4, "CIFAR-10", "large", "36/255", (49.40, 40.24)),
    Row("cifar-resnet-l2", 4, "CIFAR-10", "resnet", "36/255", (48.04, 38.80)),
    Row("mnist-wide1-0.1", 3, "MNIST", "wide(1)", "0.1", (6.51, 2.27)),
    Row("mnist-wide2-0.1", 3, "MNIST", "wide(2)", "0.1", (5.46, 1.55)),
    Row("mnist-wide4-0.1", 3, "MNIST", "wide(4)", "0.1", (4.94, 1.33)),
    Row("mnist-wide8-0.1", 3, "MNIST", "wide(8)", "0.1", (4.79, 1.32)),
    Row("mnist-wide16-0.1", 3, "MNIST", "wide(16)", "0.1", (5.27, 1.36)),
    Row("mnist-deep1-0.1", 3, "MNIST", "deep(1)", "0.1", (5.28, 1.78)),
    Row("mnist-deep2-0.1", 3, "MNIST", "deep(2)", "0.1", (4.37, 1.28)),
    Row("mnist-deep3-0.1", 3, "MNIST", "deep(3)", "0.1", (4.20, 1.15)),
    Row("mnist-small-0.1-cascade", 2, "MNIST", "small", "0.1", (3.13, 3.13)),
    Row("cifar-small-2-cascade", 2, "CIFAR-10", "small", "2/255", (39.35, 39.35)),
    Row("cifar-small-8-cascade", 2, "CIFAR-10", "small", "8/255", (71.71, 71.71)),
    Row("mnist-small-0.3-cascade", 2, "MNIST", "small", "0.3", (33.64, 33.64)),
    Row("mnist-small-l2-cascade", 4, "MNIST", "small", "1.58", (25.34, 20.93)),
    Row("mnist-small-exact-l2-cascade", 4, "MNIST", "small, exact", "1.58", (24.42, 19.57)),
    Row("cifar-small-l2-cascade", 4, "CIFAR-10", "small", "36/255", (50.13, 48.64)),
    Row("cifar-large-2-cascade", 2, "CIFAR-10", "large", "2/255", (38.84, 36.08)),
    Row("mnist-large-0.1-cascade", 2, "MNIST", "large", "0.1", (3.42, 3.18)),
    Row("cifar-resnet-2-cascade", 2, "CIFAR-10", "resnet", "2/255", (36.41, 35.93)),
    Row("cifar-resnet-8-cascade", 2, "CIFAR-10", "resnet", "8/255", (70.95, 70.77)),
    Row("cifar-large-8-cascade", 2, "CIFAR-10", "large", "8/255", (79.24, 79.14)),
    Row("mnist-large-0.3-cascade", 2, "MNIST", "large", "0.3", (41.62, 35.24)),
    Row("mnist-large-l2-cascade", 4, "MNIST", "large", "1.58", (26.16, 24.97)),
    Row("cifar-large-l2-cascade", 4, "CIFAR-10", "large", "36/255", (41.36, 41.16)),
    Row("cifar-resnet-l2-cascade", 4, "CIFAR-10", "resnet", "36/255", (41.44, 41.28)),
)
BY_NAME = {row.name: row for row in ROWS}

BEST = (
    "mnist-small-0.1",
    "mnist-small-0.3",
    "mnist-large-0.1",
    "cifar-small-2",
    "cifar-large-2",
    "cifar-resnet-2",
    "cifar-small-8",
    "cifar-small-l2",
)
"""Rows that are also trained as well as we can, from `configs/best/`."""

MODERN_FIRST = (
    "mnist-0.3-ibp",
    "cifar-2-mtl-ibp",
    "mnist-0.1-ibp",
    "cifar-8-mtl-ibp",
    "cifar-2-crown-ibp",
    "cifar-2-sabr",
)
_known = {
    f"{problem}-{name}": (problem, name)
    for problem in COMPARED_ROWS
    for name, method in METHODS.items()
    if name != "paper" and problem in method.rows
}
MODERN = {name: _known[name] for name in dict.fromkeys((*MODERN_FIRST, *_known))}
"""Rows of later methods, from `configs/modern/`, in the order in which they are trained: data with eps, and the method."""

SEEDED = tuple(row.name for row in ROWS[:4])
"""Rows that are trained with three seeds, to tell a difference from noise."""
SEEDS = 3


@dataclass(frozen=True)
class PaperSize:
    """A line of the paper's table 1. The row, if there is one, is trained for its robust error and tells our time, too."""

    data: str
    network: str
    hidden: int
    parameters: int
    seconds: int
    """Per epoch."""
    row: str | None


SIZES = (
    PaperSize("MNIST", "small", 4804, 166406, 74, "mnist-small-0.1"),
    PaperSize("CIFAR-10", "small", 6244, 214918, 48, "cifar-small-2"),
    PaperSize("MNIST", "large", 28064, 1974762, 667, "mnist-large-0.1"),
    PaperSize("CIFAR-10", "large", 62464, 2466858, 466, "cifar-large-2"),
    PaperSize("MNIST", "resnet", 82536, 3254562, 2174, None),
    PaperSize("CIFAR-10", "resnet", 107496, 4214850, 1685, "cifar-resnet-2"),
)


def named_together(name: str) -> tuple[str, ...] | None:
    """The rows of `table1` to `table4`, or of `all`, in the order of the campaign; None for any other name."""
    tables = {f"table{number}": {row.name for row in ROWS if row.table == number} for number in (2, 3, 4)}
    tables |= {"table1": {size.row for size in SIZES if size.row is not None}, "all": set(BY_NAME)}
    if name.startswith("table") and name not in tables:
        raise ArgumentError(f"{name}: the paper has the tables table1, table2, table3 and table4")
    return tuple(row.name for row in ROWS if row.name in tables[name]) if name in tables else None


# What is kept of a row in `results/`: evaluation.json as frozen dataclasses, whose fields stand in the order of the file.


def _same(one: float, other: float) -> bool:
    """Equal but for the last digits."""
    return abs(one - other) < 1e-9


@dataclass(frozen=True, kw_only=True)
class EngineFigures:
    """What one engine certifies; only `engine` and `not_run` where it was too large for the machine."""

    images: int | None = optional()
    certified: int | None = optional()
    certified_as_run: int | None = optional()
    robust_error: float | None = optional()
    """None where only some of the images were tried."""
    robust_error_as_run: float | None = optional()
    engine: str
    seconds: float | None = optional()
    device: str | None = optional()
    not_run: str | None = optional()

    def __post_init__(self) -> None:
        pairs = ((self.certified, self.robust_error), (self.certified_as_run, self.robust_error_as_run))
        for certified, error in pairs:
            if (
                self.images
                and certified is not None
                and error is not None
                and not _same(1 - certified / self.images, error)
            ):
                raise ValueError("has an error that its counts do not give")


@dataclass(frozen=True, kw_only=True)
class NetworkFigures:
    """What a single network is worth. An image is certified by the best if one of the engines certifies it."""

    pgd_error: float
    pgd_error_exact: float
    pgd_steps: int
    engines: dict[str, EngineFigures]
    error: float
    collapsed: str | None
    robust_error: float
    robust_error_as_run: float
    certified_best: int | None = optional()
    certified_best_as_run: int | None = optional()
    robust_error_best: float | None = optional()
    robust_error_best_as_run: float | None = optional()

    def __post_init__(self) -> None:
        errors = (self.error, self.pgd_error, self.pgd_error_exact, self.robust_error, self.robust_error_as_run)
        best = (self.robust_error_best, self.robust_error_best_as_run)
        if not all(each is None or 0 <= each <= 1 for each in (*errors, *best)):
            raise ValueError("has an error that is no part of 1")
        whole = [each.robust_error for each in self.engines.values() if each.robust_error is not None]
        if whole and not any(_same(each, self.robust_error) for each in whole):
            raise ValueError("has a robust error that no engine found")
        proved = [each for each in (self.robust_error, self.robust_error_best) if each is not None]
        if min(proved) < self.pgd_error_exact - 1e-9:
            raise ValueError("has fewer errors that are left open than those that the attack found")

    @property
    def least_robust_errors(self) -> tuple[float, float]:
        """Robust error, and that as run: of the best of the engines, or of the row's own while others are still to come."""
        if self.robust_error_best is None or self.robust_error_best_as_run is None:
            return self.robust_error, self.robust_error_as_run
        return self.robust_error_best, self.robust_error_best_as_run

    def __str__(self) -> str:
        """The figures in a line."""
        best = "" if self.robust_error_best is None else f", best of the engines {self.robust_error_best:.2%}"
        return (
            f"robust error {self.robust_error:.2%} (as run {self.robust_error_as_run:.2%}){best}, PGD error {self.pgd_error:.2%}, "
            f"error {self.error:.2%}"
        )


@dataclass(frozen=True)
class Choice:
    """The sound combination of a cascade's stages that is best on images which are not tested on."""

    chosen: str
    thresholds: tuple[float | None, ...]
    """None stands for infinity, which JSON does not know."""
    error_on_fitting: dict[str, float]


@dataclass(frozen=True)
class BestSound(Choice):
    """What the chosen combination reaches on the test images."""

    error: float
    sound_certified_error: float
    sound_certified_error_as_run: float
    chosen_on: str


@dataclass(frozen=True, kw_only=True)
class CascadeFigures:
    """What a cascade is worth; see `CascadeSummary`."""

    kind: str
    stages: tuple[StageCounts, ...]
    errors: CascadeErrors = flat()
    no_wrong_certificate: float
    collapsed: str | None
    cascade_engine: str
    best_sound: BestSound | None = optional()
    attack: AttackFigures | None = flat(optional=True)

    @property
    def error(self) -> float:
        return self.errors.error

    def __str__(self) -> str:
        """The figures in a line."""
        attacked = "" if self.attack is None else f", attacked {self.attack.attacked_error:.2%}"
        sound = self.best_sound
        best = "" if sound is None else f", best sound combination {sound.sound_certified_error:.2%}"
        return (
            f"stage-certified error {self.errors.stage_certified_error:.2%}{attacked}, soundly certified "
            f"{self.errors.sound_certified_error:.2%}{best}, error {self.error:.2%}"
        )


RowFigures = NetworkFigures | CascadeFigures


@dataclass(frozen=True)
class WeightsRecord:
    """Which weights were certified: by the digests of their files, and in a file where there is room for it."""

    chosen: str
    epoch: int
    eps: float | None
    rounded_to: str
    kept: bool
    bytes: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class TrainingRecord:
    """Speed and place of a training."""

    epochs: int
    stages: int
    seconds_per_epoch: float | None
    """The median of whole epochs after the first, in which kernels are compiled."""
    side_by_side: int
    seconds: dict[str, float]
    autodual: str
    torch: str
    python: str
    device: str
    started: str


@dataclass(frozen=True, kw_only=True)
class RowRecord:
    """The evaluation of a row, perhaps still without some engines."""

    row: str
    recipe: str
    seed: int
    complete: bool
    split: str
    examples: int
    perturbation: str
    norm: str
    eps: float
    dtype: str
    cascade: bool
    figures: RowFigures = flat()
    weights: WeightsRecord
    training: TrainingRecord


# Where files lie, and how far each row has come.

Recipe = Literal["paper", "best", "modern"]
RECIPES: tuple[Recipe, ...] = ("paper", "best", "modern")
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
        together = named_together(name)
        if together is not None and recipe == "modern":
            if name != "all":
                raise ArgumentError(f"{name}: the paper's tables have no rows of later methods; name rows, or all")
            together = tuple(MODERN)
        for row in (name,) if together is None else together:
            if together is None or recipe == "paper" or campaign.config_file(Task(row, recipe)).is_file():
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
