"""Averaged weights and statistics that are taken again: by their formulas, and as a run keeps them, resumed or not."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual._files import load_tensors
from autodual.data import ImageData, load
from autodual.evaluation.processes import StoppedError, Watch
from autodual.training import loop
from autodual.training.loop import Loop
from autodual.training.step import Average, take_statistics, unchanged

CONFIG = ad.TrainConfig(
    engine="ibp", eps=0.03, clip=(0.0, 1.0), epochs=4, batch=25, limit_test=4, evaluate_every=0, device="cpu", lr=0.01,
    skip_curve=True,
)  # fmt: skip


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def _data(examples: int) -> ImageData:
    return load("digits", "train").take(examples)


def _moved(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator))


def test_a_moving_average_forgets_the_first_weights() -> None:
    model = _network().double()
    average = Average(CONFIG.with_changes(average="ema", average_decay=0.9), model)
    expected = {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}
    for step in range(120):
        _moved(model, step)
        average.before_step(step)
        average.after_step()
        average.end_epoch(step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in expected.items():
            value.mul_(decay).add_(model.state_dict()[name], alpha=1 - decay)
    average.apply()
    assert {"1.weight", "2.running_mean", "2.running_var"} <= expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-7)  # the pace is float32


def test_a_mean_of_epochs_is_the_mean_of_the_last_ones() -> None:
    model = _network().double()
    average = Average(CONFIG.with_changes(average="swa", epochs=6, average_epochs=3), model)
    kept = []
    for epoch in range(6):
        _moved(model, epoch)
        average.before_step(epoch)
        average.after_step()
        average.end_epoch(epoch)
        assert average.begun(epoch) == (epoch >= 3)
        kept.append(model.state_dict()["1.weight"].clone())
    average.apply()
    torch.testing.assert_close(model[1].weight.detach(), torch.stack(kept[3:]).mean(0), rtol=1e-6, atol=1e-7)


def test_statistics_taken_again_are_means_over_whole_batches() -> None:
    model, data = _network(), _data(110)
    _moved(model, 3)
    model.train()
    model[3].eval()
    before = copy.deepcopy(model)
    take_statistics(model, data, 25)
    inside = [before[1](data.scaled(slice(first, first + 25)).flatten(1)) for first in range(0, 100, 25)]
    torch.testing.assert_close(model[2].running_mean, torch.stack([x.mean(0) for x in inside]).mean(0))
    torch.testing.assert_close(model[2].running_var, torch.stack([x.var(0) for x in inside]).mean(0))
    assert [m.training for m in model] == [True, True, True, False, True]
    assert model[2].momentum == 0.1
    assert torch.equal(model[1].weight, before[1].weight)
    take_statistics(model, data.take(7), 25)
    torch.testing.assert_close(model[2].running_mean, before[1](data.scaled(slice(0, 7)).flatten(1)).mean(0))


def test_networks_without_statistics_are_left_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    take_statistics(model, _data(30), 10)
    with unchanged(model):
        _moved(model, 1)
    assert not torch.equal(model[1].weight, torch.rand(10, 64, generator=torch.Generator().manual_seed(1)))


class Recorded(Loop):
    """A loop that keeps the weights of the model as it trains."""

    states: list[dict[str, Tensor]]

    def _end_epoch(self, *arguments: object) -> None:
        super()._end_epoch(*arguments)  # type: ignore[arg-type]
        Recorded.states.append({name: value.clone() for name, value in self.model.state_dict().items()})


def test_a_run_keeps_the_mean_of_its_last_epochs_with_statistics_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded.states = []
    monkeypatch.setattr("autodual.training.stages.Loop", Recorded)
    model, data = _network(), _data(100)
    config = CONFIG.with_changes(average="swa", average_epochs=2, precise_statistics=True, evaluate_every=2)
    ad.fit(model, data, data.take(4), config, tmp_path / "run")
    states = Recorded.states
    assert len(states) == 4
    for name in ("1.weight", "2.weight", "4.bias"):
        torch.testing.assert_close(model.state_dict()[name], (states[2][name] + states[3][name]) / 2)
    inside = [model[1](data.scaled(slice(first, first + 25)).flatten(1)) for first in range(0, 100, 25)]
    torch.testing.assert_close(model[2].running_mean, torch.stack([x.mean(0) for x in inside]).mean(0).detach())
    kept = load_tensors(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_validations_do_not_disturb_the_training(tmp_path: Path) -> None:
    """What is judged is averaged; training goes on with its own weights and statistics."""
    data = _data(100)
    for name, every in (("often", 1), ("never", 0)):
        config = CONFIG.with_changes(average="ema", precise_statistics=True, evaluate_every=every, evaluate_examples=20)
        ad.fit(_network(), data, data.take(4), config, tmp_path / name)
    one, other = (load_tensors(tmp_path / name / "model.safetensors") for name in ("often", "never"))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("stopped_after", [6, 15])
@pytest.mark.parametrize("average", ["ema", "swa"])
def test_a_run_that_was_stopped_keeps_its_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str, stopped_after: int
) -> None:
    config = CONFIG.with_changes(average=average, average_decay=0.9, average_epochs=2, precise_statistics=True)
    data, steps = _data(100), []
    ad.fit(_network(), data, data.take(4), config, tmp_path / "whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
    watch = Watch(step=steps.append, stop=lambda: len(steps) == stopped_after)
    with pytest.raises(StoppedError):
        ad.fit(_network(), data, data.take(4), config, tmp_path / "run", watch=watch)
    ad.fit(_network(), data, data.take(4), config, tmp_path / "run", resume=True)
    one, other = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    plain = CONFIG.with_changes(average="none", precise_statistics=True)
    ad.fit(_network(), data, data.take(4), plain, tmp_path / "plain")
    assert not torch.equal(one["1.weight"], load_tensors(tmp_path / "plain" / "model.safetensors")["1.weight"])


def test_a_damaged_average_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    config = CONFIG.with_changes(average="ema")
    data, steps = _data(100), []
    watch = Watch(step=steps.append, stop=lambda: len(steps) == 6)
    with pytest.raises(StoppedError):
        ad.fit(_network(), data, data.take(4), config, tmp_path / "run", watch=watch)
    (newest,) = (tmp_path / "run" / "checkpoints").glob("*-step-000000006")
    (newest / "average.safetensors").write_bytes(b"nothing")
    said: list[str] = []
    ad.fit(_network(), data, data.take(4), config, tmp_path / "run", resume=True, watch=Watch(say=said.append))
    assert any("average.safetensors is damaged" in line for line in said)
