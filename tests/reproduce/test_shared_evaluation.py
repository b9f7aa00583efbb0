"""Under torchrun, processes share the evaluation of a row; its record is that of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autodual._errors import ArgumentError
from autodual.evaluation.processes import Group, Watch
from autodual.reproduce.campaign import Campaign, Task
from autodual.reproduce.one_row import Extent, work_on
from torchrun import ALONE, TOGETHER, call

from .conftest import CASCADE, ROW


def _run(campaign: Campaign, *how: str) -> str:
    """What evaluating the row by a command says."""
    places = {"configs": campaign.configs, "results": campaign.results, "work": campaign.work}
    options = [text for name, path in places.items() for text in (f"--{name}", str(path))]
    done = call(*how, "reproduce", "run", ROW, *options, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes_find_what_one_does(campaign: Campaign, tmp_path: Path) -> None:
    assert work_on(campaign, Task(ROW), Watch(), Extent(evaluate=False)) is None
    found: dict[str, dict[str, Any]] = {}
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, how in (("alone", ALONE), ("together", TOGETHER)):
        own = replace(campaign, results=tmp_path / name)
        said = _run(own, *how)
        assert said.count(ROW) == 1  # only one process speaks
        found[name] = json.loads((own.result(Task(ROW)) / "evaluation.json").read_text())
        arrays[name] = dict(np.load(own.result(Task(ROW)) / "certificates.npz"))
        for left in (*own.run(Task(ROW)).folder.glob("certificates-*"), *own.run(Task(ROW)).folder.glob("attack*")):
            left.unlink()
    assert found["together"]["complete"]
    for record in found.values():  # all but what was spent
        del record["training"]
        for engine in record["engines"].values():
            del engine["seconds"]
    assert found["together"] == found["alone"]
    for name, column in arrays["alone"].items():
        np.testing.assert_array_equal(arrays["together"][name], column)


@pytest.mark.parametrize(
    ("row", "extent"), [(ROW, Extent()), (CASCADE, Extent())], ids=["not trained yet", "a cascade"]
)
def test_nothing_else_is_shared(campaign: Campaign, monkeypatch: pytest.MonkeyPatch, row: str, extent: Extent) -> None:
    monkeypatch.setattr(Group, "alone", False)
    monkeypatch.setattr(Group, "by_first", lambda self, act: act())
    with pytest.raises(
        ArgumentError, match="may share the evaluation of a single network that is trained, and nothing"
    ):
        work_on(campaign, Task(row), Watch(), extent)
