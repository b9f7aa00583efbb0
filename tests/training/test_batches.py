"""How an epoch is cut: every example once, and none alone, which has no batch statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autodual as ad
from autodual._files import load_tensors
from autodual.data import ImageData, load
from autodual.evaluation.processes import StoppedError, Watch
from autodual.training.loop import batches_in, cut

CONFIG = ad.TrainConfig(k=4, epochs=2, batch=25, limit_test=4, evaluate_every=0, skip_curve=True, device="cpu")


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def _data(examples: int) -> ImageData:
    return load("digits", "train").take(examples)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("examples", range(1, 23))
def test_every_example_once_and_none_alone(examples: int, size: int) -> None:
    order = torch.randperm(examples)
    batches = [cut(order, number, size) for number in range(batches_in(examples, size))]
    assert torch.equal(torch.cat(batches), order)
    assert all(len(batch) == size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= size + (size > 1)
    assert len(batches[-1]) > 1 or 1 in (examples, size)


@pytest.mark.parametrize("engine", ["projected", "dual", "none"])
def test_batch_normalisation_and_one_example_too_many(tmp_path: Path, engine: str) -> None:
    config, data, steps = CONFIG.with_changes(engine=engine), _data(51), []
    ad.fit(_network(), data, data, config, tmp_path / "run", watch=Watch(step=steps.append))
    assert [(at.batch, at.batches, at.examples) for at in steps] == [(1, 2, 25), (2, 2, 26)] * 2


@pytest.mark.parametrize("engine", ["dual", "none"])
def test_a_run_that_is_stopped_before_its_last_batch(tmp_path: Path, engine: str) -> None:
    config, data, steps = CONFIG.with_changes(engine=engine), _data(51), []
    ad.fit(_network(), data, data, config, tmp_path / "whole")
    watch = Watch(step=steps.append, stop=lambda: len(steps) == 3)
    with pytest.raises(StoppedError):
        ad.fit(_network(), data, data, config, tmp_path / "run", watch=watch)
    ad.fit(_network(), data, data, config, tmp_path / "run", resume=True)
    one, other = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(("examples", "batch"), [(30, 1), (1, 25)])
def test_one_image_at_a_time_is_refused_before_anything_is_trained(tmp_path: Path, examples: int, batch: int) -> None:
    data, model = _data(examples), _network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ad.ArgumentError, match=r"batch: .* one image at a time .*use a larger batch") as raised:
        ad.fit(model, data, data, CONFIG.with_changes(batch=batch), tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not (tmp_path / "run" / "checkpoints").exists()
    ad.fit(model, _data(30), data, CONFIG.with_changes(epochs=1), tmp_path / "run")


def test_one_image_at_a_time_is_fine_where_nothing_needs_more(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))
    ad.fit(model, _data(3), _data(3), CONFIG.with_changes(batch=1, epochs=1), tmp_path / "run")
