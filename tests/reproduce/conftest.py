"""A campaign that takes a second: rows on the embedded digits, named like the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autodual.evaluation.processes import Watch
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.one_row import work_on
from autodual.runs.config import dump_yaml
from autodual.runs.records import plain

TINY = {
    "dataset": "digits", "model": "digits", "eps": 0.03, "clip": [0.0, 1.0], "k": 4, "epochs": 2, "batch": 25, "lr": 0.003,
    "limit_train": 100, "limit_test": 10, "evaluate_every": 0, "evaluate_examples": 6,
}  # fmt: skip
ROW, OTHER, CASCADE = "mnist-small-0.1", "cifar-small-2", "mnist-small-0.1-cascade"


def kept(campaign: Campaign, task: Task) -> dict[str, Any]:
    """The record of a task, as its file holds it."""
    record = campaign.record(task)
    assert record is not None
    mapping: dict[str, Any] = json.loads((campaign.result(task) / "evaluation.json").read_text())
    assert plain(record) == mapping
    assert list(plain(record)) == list(mapping)
    return mapping


def write_configs(folder: Path) -> Path:
    (folder / "best").mkdir(parents=True)
    rows = {
        ROW: TINY,
        OTHER: TINY | {"eps": 0.02},
        CASCADE: TINY | {"cascade": 2, "limit_test": 2},
        f"best/{ROW}": TINY | {"robust_weight": 0.5},
    }
    for name, values in rows.items():
        (folder / f"{name}.yaml").write_text(dump_yaml(values))
    return folder


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """Nothing has run."""
    configs = write_configs(tmp_path / "configs")
    return Campaign(configs, tmp_path / "results", tmp_path / "work", device="cpu")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """One row in both recipes, and its cascade; nobody writes into it."""
    root = tmp_path_factory.mktemp("campaign")
    whole = Campaign(write_configs(root / "configs"), root / "results", root / "work", device="cpu")
    for task in (Task(ROW), Task(ROW, "best"), Task(CASCADE)):
        work_on(whole, task, Watch())
    return whole
