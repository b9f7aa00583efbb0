"""The rows of the paper: all of them, in order, and each config says what the paper did."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autodual.reproduce.campaign import Campaign, Task, chosen_tasks
from autodual.reproduce.rows import BEST, BY_NAME, ROWS, SEEDED, SIZES, Row
from autodual.runs.config import TrainConfig, read_yaml
from autodual.runs.schedule import in_epochs

CONFIGS = Path(__file__).parents[2] / "configs"

MNIST = {"dataset": "mnist", "normalise": False, "optimiser": "adam", "lr": 1e-3, "weight_decay": 0.0, "clip_gradients": None,
         "eps_start": 0.01, "crop": 0, "flip": False}  # fmt: skip
CIFAR = {"dataset": "cifar10", "normalise": True, "optimiser": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4,
         "eps_start": 0.000225, "crop": 4, "flip": True}  # fmt: skip
ALL = {"batch": 50, "epochs": 60, "k": 50, "robust_weight": 1.0, "per_term": False, "estimator": "quiet-gradient", "validation": 0.0,
       "adversarial": False, "limit_train": None, "limit_test": None, "cascade_kind": "paper", "seed": 0}  # fmt: skip
SIZE_OF_EPS = {"0.1": 0.1, "0.3": 0.3, "2/255": 2 / 255, "8/255": 8 / 255, "1.58": 1.58, "36/255": 36 / 255}


def _settings(row: Row) -> dict[str, Any]:
    """As the reference has them. [REFERENCE: Training, Data]"""
    mnist = row.data == "MNIST"
    norm = "l2" if row.table == 4 else "linf"
    network = row.network.removesuffix(", exact")
    return ALL | (MNIST if mnist else CIFAR) | {
        "clip_gradients": 1.0 if not mnist and not row.is_cascade else None,
        "norm": norm, "eps": pytest.approx(SIZE_OF_EPS[row.eps], rel=1e-12),
        "clip": (0.0, 1.0) if mnist and norm == "linf" else None,
        "engine": "dual" if row.network.endswith("exact") else "projected",
        "model": re.sub(r"\((\d+)\)", r":\1", network), "cascade": 6 if row.is_cascade else 1,
    }  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_config_of_a_row_has_the_papers_settings(row: Row) -> None:
    file = CONFIGS / f"{row.name}.yaml"
    config = TrainConfig.from_mapping(read_yaml(file))
    wanted = _settings(row)
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert [in_epochs(config, part) for part in ("eps_part", "lr_part", "lr_halve_part")] == [20, 30, 10]
    assert "{:.2f}/{:.2f}".format(*row.paper) in file.read_text().splitlines()[0]


def test_there_is_a_row_for_every_config_and_no_other() -> None:
    assert len(ROWS) == len(BY_NAME) == 41
    assert sum(row.is_cascade for row in ROWS) == 16
    assert {row.name for row in ROWS} == {path.stem for path in CONFIGS.glob("*.yaml")} - {"digits"}


@pytest.mark.parametrize("name", BEST)
def test_our_recipe_has_the_architecture_and_eps_of_the_row(name: str) -> None:
    ours, paper = (
        TrainConfig.from_mapping(read_yaml(folder / f"{name}.yaml")) for folder in (CONFIGS / "best", CONFIGS)
    )
    for option in ("dataset", "model", "normalise", "norm", "eps", "clip", "cascade"):
        assert getattr(ours, option) == getattr(paper, option), option


def test_every_recipe_of_ours_is_of_a_row_that_was_named() -> None:
    assert {path.stem for path in (CONFIGS / "best").glob("*.yaml")} == set(BEST)
    assert SEEDED == ("mnist-small-0.1", "mnist-small-exact-0.1", "cifar-small-2", "cifar-small-8")


@pytest.mark.parametrize(("table", "rows"), [("table1", 5), ("table2", 21), ("table3", 8), ("table4", 12), ("all", 41)])
def test_a_table_is_its_rows(table: str, rows: int) -> None:
    tasks = chosen_tasks([table], "paper", [0], Campaign(CONFIGS))
    assert len({task.row for task in tasks}) == len(tasks) == rows


def test_tables_in_our_recipe_are_the_rows_that_have_one() -> None:
    tasks = chosen_tasks(["table2", "mnist-small-0.1"], "best", [0], Campaign(CONFIGS))
    assert {task.row for task in tasks} == set(BEST) - {"cifar-small-l2"}


def test_more_seeds_come_after_all_first_ones() -> None:
    tasks = chosen_tasks(["mnist-small-0.1", "cifar-small-2"], "paper", range(2), Campaign(CONFIGS))
    assert tasks == [
        Task("mnist-small-0.1"),
        Task("cifar-small-2"),
        Task("mnist-small-0.1", seed=1),
        Task("cifar-small-2", seed=1),
    ]


def test_sizes_name_rows_of_their_network() -> None:
    for size in SIZES:
        if size.row is not None:
            assert (BY_NAME[size.row].data, BY_NAME[size.row].network) == (size.data, size.network)
