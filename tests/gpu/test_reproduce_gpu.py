"""The campaign on a GPU: rows and cascades are trained, stopped, packed, gone on with and evaluated there."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autodual.evaluation.processes import Watch
from autodual.reproduce.campaign import Campaign, Phase, Task
from autodual.reproduce.one_row import work_on
from autodual.reproduce.pack import unit_of, unpack, write_pack
from autodual.runs.config import dump_yaml
from autodual.runs.records import plain
from autodual.training.loop import StoppedError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TINY = {
    "dataset": "digits", "model": "digits", "eps": 0.03, "clip": [0.0, 1.0], "k": 4, "epochs": 2, "batch": 25, "lr": 0.003,
    "limit_train": 100, "limit_test": 20, "evaluate_every": 0, "evaluate_examples": 20,
}  # fmt: skip


@pytest.mark.parametrize("stages", [1, 2])
def test_a_row_from_its_config_to_its_record(tmp_path: Path, stages: int) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "row.yaml").write_text(dump_yaml(TINY | {"cascade": stages}))
    here = Campaign(tmp_path / "configs", tmp_path / "results", tmp_path / "work", device="cuda")
    there = replace(here, results=tmp_path / "there/results", work=tmp_path / "there/work")
    asked = itertools.count()
    with pytest.raises(StoppedError):
        work_on(here, Task("row"), Watch(stop=lambda: next(asked) >= 5))
    unit = unit_of(here, Task("row"))
    assert unit is not None
    unpack(there, write_pack(tmp_path / "pack.tar", [unit]))
    found = work_on(there, Task("row"), Watch())
    assert found is not None
    assert found.complete
    record = plain(found)
    assert there.progress(Task("row")).step == Phase.DONE
    assert record["training"]["device"] == torch.cuda.get_device_name()
    if stages == 1:
        assert record["pgd_error_exact"] <= record["robust_error_best"] + 1e-9 <= record["robust_error"] + 2e-9
        assert record["engines"]["dual"]["device"] == torch.cuda.get_device_name()
    else:
        assert record["attacked_error"] <= record["sound_certified_error"] + 1e-9
