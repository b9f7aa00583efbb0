"""Every recipe trains the digits, on a network with batch normalisation, and goes on where it was stopped; bounds pay off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import autodual as ad
from autodual._files import load_tensors
from autodual.data import load
from autodual.digits import digits_network
from autodual.evaluation.processes import StoppedError, Watch
from autodual.models import initialise_for_intervals
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.recipes import RECIPES, options
from autodual.training.fitting import train
from autodual.training.loop import Loop
from torchrun import ALONE, TOGETHER, call

TINY: dict[str, Any] = {
    "dataset": "digits", "model": "cnn5:2", "eps": 0.02, "epochs": 2, "batch": 30, "limit_train": 90, "limit_test": 4,
    "evaluate_every": 0, "skip_curve": True, "device": "cpu",
}  # fmt: skip


def _config(name: str, **changes: Any) -> TrainConfig:
    return TrainConfig.from_mapping({**options(name), **TINY, **({"k": 4} if name == "paper" else {}), **changes})


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_and_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path, name: str) -> None:
    config, steps = _config(name), []
    whole = train(config, tmp_path / "whole", watch=Watch(step=steps.append))
    losses = [step.summary[0].item() for step in steps]
    assert len(losses) == 6
    assert all(loss < 100 for loss in losses)
    assert whole["trained"]["eps"] == pytest.approx(0.02 * config.train_eps_factor)
    taken: list[object] = []
    with pytest.raises(StoppedError):
        train(config, tmp_path / "run", watch=Watch(step=taken.append, stop=lambda: len(taken) == 4))
    train(config, tmp_path / "run", resume=True)
    one, other = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "projected", "k": 4, "mix_with": "adversarial", "robust_weight": 0.3, "attack_steps": 2, "regularise": 0.5},
        {"engine": "dual", "box_part": 0.3, "attack_steps": 2, "mix": "scores", "robust_weight": 0.5, "limit_train": 60},
        {"engine": "crown-ibp", "crown_weight_start": 1.0, "crown_weight": 0.0, "regularise": 0.3, "mix_with": "adversarial"},
        {"engine": "none", "adversarial": True, "attack_steps": 3, "attack_restarts": 2, "attack_eps_factor": 2.0},
        {"engine": "ibp", "norm": "l2", "clip": None, "eps": 0.1, "mix_with": "adversarial", "attack_steps": 2, "robust_weight": 0.5},
        {"engine": "ibp", "optimiser": "radam", "initialisation": "intervals", "average": "swa", "crop": 1, "crop_fill": "edge"},
        {"engine": "ibp", "optimiser": "adamw", "normalise": True, "per_channel": True, "attack_half": True, "box_part": 0.5,
         "attack_steps": 1, "cascade": 2},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)  # fmt: skip
def test_choices_go_together(tmp_path: Path, changes: dict[str, Any]) -> None:
    values = {**TINY, "clip": (0.0, 1.0), "limit_train": 60, **changes}
    steps: list[Any] = []
    train(TrainConfig(**values), tmp_path / "run", watch=Watch(step=steps.append))
    assert all(step.summary.isfinite().all() for step in steps)


def test_bounds_in_training_pay_off(tmp_path: Path) -> None:
    """Certified accuracy on the digits at 0.1, in a few seconds: intervals, and intervals with an adversarial loss, against none."""
    data, test, ball = load("digits", "train"), load("digits", "test").take(100), ad.LinfBall(0.1, clip=(0.0, 1.0))
    common = {
        "eps": 0.1,
        "clip": (0.0, 1.0),
        "epochs": 10,
        "batch": 50,
        "lr": 0.003,
        "evaluate_every": 0,
        "device": "cpu",
    }
    ways: dict[str, dict[str, Any]] = {
        "none": {"engine": "none"},
        "ibp": options("ibp"),
        "mtl-ibp": {**options("mtl-ibp"), "robust_weight": 0.5, "attack_steps": 2},
    }
    certified = {}
    for name, values in ways.items():
        config = TrainConfig.from_mapping({**values, **common})
        torch.manual_seed(0)
        model = digits_network()
        if config.initialisation == "intervals":
            initialise_for_intervals(model)
        Loop(config, Run(tmp_path / name), 0, model, data).fit()
        found = ad.certify(model, test.scaled(), test.labels, ball, ad.Dual())
        certified[name] = found.certified.float().mean().item()
    assert certified["ibp"] > certified["none"] + 0.3
    assert certified["mtl-ibp"] > certified["none"] + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("average", ["ema", "swa"])
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path, average: str) -> None:
    """Without random starts and batch statistics, which are each process's own."""
    flags = ["--recipe", "ibp", "--dataset", "digits", "--model", "digits", "--eps", "0.03", "--epochs", "2", "--limit-train", "60",
             "--limit-test", "8", "--batch", "20", "--optimiser", "sgd", "--lr", "0.05", "--regularise", "0", "--l1", "1e-4",
             "--average", average, "--average-epochs", "2", "--robust-weight-start", "0.2", "--evaluate-every", "0",
             "--device", "cpu"]  # fmt: skip
    for command, name in ((ALONE, "alone"), (TOGETHER, "together")):
        done = call(*command, "train", *flags, "--out", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    one, two = (load_tensors(tmp_path / name / "model.safetensors") for name in ("alone", "together"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_processes_train_with_attacks_and_batch_statistics(tmp_path: Path) -> None:
    flags = ["--recipe", "mtl-ibp", "--dataset", "digits", "--model", "cnn5:2", "--eps", "0.02", "--epochs", "2", "--limit-train",
             "90", "--limit-test", "8", "--batch", "30", "--average", "ema", "--precise-statistics", "--device", "cpu"]  # fmt: skip
    done = call(*TOGETHER, "train", *flags, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert ad.load_run(tmp_path / "run") is not None
