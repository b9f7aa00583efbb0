"""autodual train --recipe: options of a known method, over which a config and flags win."""

from __future__ import annotations

from pathlib import Path

from autodual.runs.config import TrainConfig, read_yaml
from autodual.runs.recipes import options
from cli.conftest import Call

FLAGS = ["--dataset", "digits", "--model", "cnn5:2", "--eps", "0.02", "--epochs", "2", "--batch", "30", "--limit-train", "60",
         "--limit-test", "3", "--evaluate-every", "0", "--device", "cpu"]  # fmt: skip


def test_flags_win_over_a_recipe(call: Call, tmp_path: Path) -> None:
    own = ["--l1", "0", "--lr-milestones", "1/2,3/4", "--attack-steps", "2", "--no-clip-gradients"]
    code, _, complaint = call("train", "--recipe", "mtl-ibp", *FLAGS, *own, "--out", str(tmp_path / "run"))
    assert code == 0, complaint
    expected = {
        **options("mtl-ibp"), "dataset": "digits", "model": "cnn5:2", "eps": 0.02, "epochs": 2, "batch": 30, "limit_train": 60,
        "limit_test": 3, "evaluate_every": 0, "device": "cpu", "l1": 0.0, "lr_milestones": [0.5, 0.75], "attack_steps": 2,
        "clip_gradients": None,
    }  # fmt: skip
    assert TrainConfig.from_mapping(read_yaml(tmp_path / "run" / "config.yaml")) == TrainConfig.from_mapping(expected)


def test_a_config_wins_over_a_recipe_and_names_its_row(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("dataset: cifar10\neps: 2/255\nengine: none\n")
    code, _, complaint = call("train", str(tmp_path / "mine.yaml"), "--recipe", "sabr", "--out", str(tmp_path / "run"))
    assert code != 0
    assert "recipe sabr" in complaint
    assert "is about bounds, and engine is none" in complaint


def test_mistakes_are_one_line(call: Call, tmp_path: Path) -> None:
    code, _, complaint = call("train", "--recipe", "crown", "--out", str(tmp_path / "run"))
    assert code != 0
    assert "unknown recipe 'crown'; did you mean crown-ibp?" in complaint
    code, _, complaint = call("train", "--lr-milestones", "3;4", "--out", str(tmp_path / "run"))
    assert code != 0
    assert "expected numbers with commas between them, such as 120,140" in complaint
    assert not (tmp_path / "run").exists()
