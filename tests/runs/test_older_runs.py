"""Runs that were written before `TrainConfig` had all of its fields open, and go on; a field that has got lost is still noticed."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from autodual import ArgumentError
from autodual._files import load_tensors
from autodual.cli.certify import open_named
from autodual.evaluation.processes import Watch
from autodual.runs import folder as run_module
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.training.fitting import train
from autodual.training.loop import StoppedError

RESULTS = Path(__file__).parents[2] / "results"
SHAPES = {"mnist-small-0.1": (1, 28, 28), "cifar-small-2": (3, 32, 32)}
CONFIG = TrainConfig(
    dataset="digits", model="digits", eps=0.05, k=4, epochs=2, limit_train=60, limit_test=5, evaluate_every=0, batch=25, device="cpu"
)  # fmt: skip


def _without(folder: Path, *names: str) -> None:
    """As if these lines had never been in its config."""
    lines = (folder / "config.yaml").read_text().splitlines(keepends=True)
    (folder / "config.yaml").write_text(
        "".join(line for line in lines if not line.startswith(tuple(f"{n}:" for n in names)))
    )


def test_every_folder_of_results_is_tried() -> None:
    assert sorted(SHAPES) == sorted(path.parent.name for path in RESULTS.glob("*/config.yaml"))


@pytest.mark.parametrize("name", SHAPES)
def test_the_published_runs_open(tmp_path: Path, name: str) -> None:
    """With other images in the place of their data, which are not everywhere."""
    run = Path(shutil.copytree(RESULTS / name, tmp_path / "run"))
    assert not Run(run).config().tensorboard
    images = np.random.RandomState(0).randint(0, 256, (20, *SHAPES[name]), np.uint8)
    np.savez(tmp_path / "some.npz", images=images, labels=np.arange(20) % 10, classes=np.array(list("0123456789")))
    target = open_named(run, {"dataset": str(tmp_path / "some.npz"), "device": "cpu"}, 3)
    assert target.model(target.data.scaled()).shape == (3, 10)


def test_an_older_run_goes_on(tmp_path: Path) -> None:
    train(CONFIG, tmp_path / "whole")
    steps: list[object] = []
    with pytest.raises(StoppedError):
        train(CONFIG, tmp_path / "run", watch=Watch(step=steps.append, stop=lambda: len(steps) >= 4))
    _without(tmp_path / "run", *run_module.LATER)
    train(CONFIG, tmp_path / "run", resume=True)
    one, other = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    with pytest.raises(ArgumentError, match=r"another config: eps was 0\.05"):
        train(CONFIG.with_changes(eps=0.06), tmp_path / "run", resume=True)


def test_a_run_whose_schedule_is_in_epochs_goes_on_with_one_in_parts(tmp_path: Path) -> None:
    """As the configs of the repository were, and as they are now; the same training, so the same run."""
    before = CONFIG.with_changes(epochs=6, eps_epochs=2, lr_epochs=3, lr_halve_every=1)
    steps: list[object] = []
    with pytest.raises(StoppedError):
        train(before, tmp_path / "run", watch=Watch(step=steps.append, stop=lambda: len(steps) >= 4))
    first_part = run_module.LATER.index("eps_part")
    _without(tmp_path / "run", *run_module.LATER[first_part:])
    train(CONFIG.with_changes(epochs=6), tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").config() == before


def test_an_older_run_whose_ramp_does_not_finish_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = CONFIG.with_changes(eps_epochs=4)
    steps: list[object] = []
    with monkeypatch.context() as older:
        older.setattr(importlib.import_module("autodual.training.fitting"), "check_ramp", lambda config: None)
        with pytest.raises(StoppedError):
            train(short, tmp_path / "run", watch=Watch(step=steps.append, stop=lambda: len(steps) >= 2))
    record = train(short, tmp_path / "run", resume=True)
    assert record["trained"]["eps"] < short.eps


def test_only_what_came_after_a_run_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "LATER", ("seed", "device", "tensorboard"))
    run = Run(tmp_path)
    for missing, fine in (
        (("tensorboard",), True),
        (("device", "tensorboard"), True),
        (("device",), False),
        (("eps",), False),
    ):
        run.begin(CONFIG, resume=False)
        _without(tmp_path, *missing)
        if fine:
            run.config()
            continue
        with pytest.raises(ArgumentError, match=f"lacks {missing[0]}; put back"):
            run.config()
