"""ad.load_run: from a run folder back to Python."""

from __future__ import annotations

import json
import shutil
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.data import load
from autodual.digits import digits_network, load_digits
from autodual.models import Normalize
from autodual.training.fitting import train

RESULTS = Path(__file__).parents[2] / "results"
CONFIG = ad.TrainConfig(
    model="digits", eps=0.05, clip=(0.0, 1.0), k=4, epochs=1, limit_train=60, limit_test=12, evaluate_every=0, batch=25, device="cpu",
    skip_curve=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "run"
    train(CONFIG, place)
    return place


def test_it_certifies_what_the_run_certified(folder: Path) -> None:
    state, (images, labels) = torch.get_rng_state(), (t[:12] for t in load_digits("test"))
    run = ad.load_run(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert (run.ball, run.config, run.cascade) == (ad.LinfBall(0.05, clip=(0.0, 1.0)), CONFIG, None)
    assert not any(module.training for module in run.model.modules())
    found = ad.certify(run.model, images, labels, run.ball)
    assert found.certified.tolist() == json.loads((folder / "evaluation.json").read_text())["certified"]
    with pytest.raises(FrozenInstanceError):
        run.model = nn.Identity()  # type: ignore[misc]


@pytest.mark.parametrize("name", ["mnist-small-0.1", "cifar-small-2"])
def test_the_published_runs_need_no_data(name: str) -> None:
    run = ad.load_run(str(RESULTS / name))
    shape = (3, 32, 32) if run.config.normalise else (1, 28, 28)
    assert run.model(torch.rand(2, *shape)).shape == (2, 10)
    first = [m for m in run.model.modules() if isinstance(m, Normalize)]
    assert [m.mean.flatten().tolist() for m in first] == (
        [pytest.approx([0.485, 0.456, 0.406])] if run.config.normalise else []
    )


def test_statistics_come_with_the_weights(tmp_path: Path) -> None:
    train(CONFIG.with_changes(normalise=True), tmp_path / "run")
    first = next(m for m in ad.load_run(tmp_path / "run").model.modules() if isinstance(m, Normalize))
    assert first.mean.item() == pytest.approx(load("digits", "train").take(60).scaled().mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["paper", "routed", "sum"])
def test_a_cascade_comes_whole(tmp_path: Path, kind: str) -> None:
    train(CONFIG.with_changes(cascade=2, cascade_kind=kind), tmp_path / "run")
    run = ad.load_run(tmp_path / "run")
    images, labels = (t[:12] for t in load_digits("test"))
    assert run.cascade is not None
    assert run.cascade.ball == run.ball
    assert torch.equal(run.cascade.models[0](images), run.model(images))
    assert len(run.cascade.certify(images, labels).sound) == 12
    shutil.rmtree(tmp_path / "run" / "cascade")
    with pytest.raises(ad.ArgumentError, match="its cascade is not finished; go on with `autodual train --resume"):
        ad.load_run(tmp_path / "run")


def test_a_run_of_fit_needs_its_module(tmp_path: Path) -> None:
    data, trained, own = load("digits", "train").take(40), digits_network(), digits_network()
    before = {key: value.clone() for key, value in own.state_dict().items()}
    ad.fit(trained, data, data.take(4), CONFIG, tmp_path / "run")
    with pytest.raises(ad.ArgumentError, match=r"was begun by ad\.fit.*pass one like it: ad\.load_run\(folder, model="):
        ad.load_run(tmp_path / "run")
    run = ad.load_run(tmp_path / "run", model=own)
    assert torch.equal(run.model(data.scaled()), trained(data.scaled()))
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())


def test_bad_calls(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ad.ArgumentError, match="is no run folder"):
        ad.load_run(tmp_path)
    with pytest.raises(ad.ArgumentError, match=r"model must be a torch\.nn\.Module, got str"):
        ad.load_run(folder, model="digits")  # type: ignore[arg-type]
    with pytest.raises(ad.ArgumentError, match="for another network"):
        ad.load_run(folder, model=nn.Linear(3, 2))
    with pytest.raises(ad.ArgumentError, match="none that PyTorch can use here"):
        ad.load_run(folder, device="meta")
    shutil.copy(folder / "config.yaml", tmp_path)
    with pytest.raises(ad.ArgumentError, match="has no trained model yet"):
        ad.load_run(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ad.ArgumentError, match="not a readable safetensors file"):
        ad.load_run(tmp_path)
