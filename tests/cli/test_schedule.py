"""What a person is told about the perturbation that is trained against, and whose word counts: flags win over the config file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autodual.cli.options import checked
from autodual.runs.config import read_yaml
from autodual.runs.schedule import check_ramp, in_epochs

Call = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


def test_the_eps_that_was_reached_is_shown(call: Call, small: list[str], tmp_path: Path) -> None:
    code, said, told = call("train", *small, "--out", str(tmp_path / "run"))
    assert code == 0, told
    assert "; weights of epoch 2 of 2, trained against eps 0.05\n" in said
    assert re.search("epoch 2/2 .* eps 0.05 ", told)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["eps"] for line in metrics if line["kind"] == "epoch"] == [0.01, 0.05]
    assert {key: metrics[-1][key] for key in ("kind", "epoch", "eps")} == {"kind": "trained", "epoch": 1, "eps": 0.05}


def test_standard_training_claims_no_eps(call: Call, small: list[str], tmp_path: Path) -> None:
    code, said, told = call("train", *small, "--engine", "none", "--out", str(tmp_path / "run"))
    assert code == 0, told
    assert "; weights of epoch 2 of 2, trained without perturbations\n" in said
    assert " eps 0.05 " not in told
    assert '"eps": null' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_ramp_that_does_not_finish_is_refused_with_advice(call: Call, small: list[str], tmp_path: Path) -> None:
    code, _, told = call("train", *small, "--eps-epochs", "20", "--out", str(tmp_path / "run"))
    assert code == 2
    assert told.startswith("error: eps_epochs is 20, but training ends after 2, at eps 0.0121")
    assert "--no-eps-epochs" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_can_be_trained_for_fewer_epochs(config: Path) -> None:
    for epochs in (1, 3, 10):
        check_ramp(checked(read_yaml(config), {"epochs": epochs}, str(config)))


def test_flags_win_over_the_config() -> None:
    before = {"epochs": 40, "eps_epochs": 20}
    assert in_epochs(checked(before, {}, "file"), "eps_part") == 20
    assert in_epochs(checked(before, {"eps_part": 0.25}, "file"), "eps_part") == 10
    assert in_epochs(checked({"epochs": 40, "eps_part": 0.25}, {"eps_epochs": 7}, "file"), "eps_part") == 7
    assert in_epochs(checked(before, {"eps_part": 0.25, "eps_epochs": None}, "file"), "eps_part") == 10


def test_a_part_and_epochs_at_once_are_refused(call: Call, small: list[str], tmp_path: Path) -> None:
    code, _, told = call("train", *small, "--eps-part", "0.5", "--eps-epochs", "1", "--out", str(tmp_path / "run"))
    assert (code, told) == (2, "error: --eps-part and --eps-epochs exclude each other\n")
