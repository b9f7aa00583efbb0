"""Perturbation size and learning rate follow the length of the training, and a training never ends short of what is certified."""

from __future__ import annotations

from pathlib import Path

import pytest

import autodual as ad
from autodual.runs.config import TrainConfig, read_yaml
from autodual.runs.schedule import eps_at, lr_at
from autodual.training.fitting import train

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
PAPER, DIGITS = (60, 20, 30, 10), (30, 12, 20, 5)
"""Epochs, epochs until eps is reached, epochs of constant learning rate, and between halvings: as the configs had them at first."""
TINY = TrainConfig(
    dataset="digits", model="digits", eps=0.05, k=4, epochs=2, limit_train=60, limit_test=5, evaluate_every=0, batch=30, device="cpu",
    skip_curve=True,
)  # fmt: skip


def _sizes(config: TrainConfig) -> list[float]:
    return [eps_at(config, epoch) for epoch in range(config.epochs)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_has_the_schedule_that_it_always_had(path: Path) -> None:
    config = TrainConfig.from_mapping(read_yaml(path))
    epochs, ramp, constant, every = DIGITS if path.stem == "digits" else PAPER
    start, end = config.eps_start, config.eps
    assert config.epochs == epochs
    assert _sizes(config) == [
        end if epoch >= ramp - 1 else start + (end - start) * epoch / (ramp - 1) for epoch in range(epochs)
    ]
    assert [lr_at(config, epoch) for epoch in range(epochs)] == [
        config.lr if epoch < constant else config.lr * 0.5 ** ((epoch - constant) // every + 1)
        for epoch in range(epochs)
    ]


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5, 7, 10, 20, 59, 61, 200])
def test_eps_is_reached_and_the_learning_rate_falls_however_long_it_is(epochs: int) -> None:
    config = TrainConfig(epochs=epochs)
    sizes, rates = _sizes(config), [lr_at(config, epoch) for epoch in range(epochs)]
    assert sizes[-1] == config.eps
    assert sizes == sorted(sizes)
    assert sizes.count(config.eps) >= epochs / 2
    assert epochs == 1 or sizes[0] == config.eps_start
    assert rates[0] == config.lr
    assert rates == sorted(rates, reverse=True)
    assert epochs < 3 or config.lr / 16 <= rates[-1] < config.lr


def test_epochs_win_over_parts() -> None:
    config = TrainConfig(epochs=12, eps_epochs=2, eps_part=1.0, lr_epochs=3, lr_part=1.0, lr_halve_every=0)
    assert _sizes(config)[:3] == [0.01, 0.1, 0.1]
    assert lr_at(config, 11) == config.lr
    assert lr_at(config.with_changes(lr_halve_every=4), 3) == config.lr / 2
    assert lr_at(config.with_changes(lr_halve_every=None, lr_halve_part=0), 11) == config.lr


@pytest.mark.parametrize("name", ["eps_part", "lr_part", "lr_halve_part"])
@pytest.mark.parametrize("value", [-0.1, 1.5, 20])
def test_a_part_is_a_part(name: str, value: float) -> None:
    with pytest.raises(
        ad.ArgumentError, match=f"{name} must be a part of the training, between 0 and 1.*for epochs, use"
    ):
        TrainConfig(**{name: value})


def test_a_ramp_that_does_not_finish_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ad.ArgumentError, match=r"eps_epochs is 20, but training ends after 2, at eps 0\.012.* instead of 0\.05"
    ):
        train(TINY.with_changes(eps_epochs=20), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_standard_training_has_no_ramp_and_says_so(tmp_path: Path) -> None:
    record = train(TINY.with_changes(eps_epochs=20, engine="none"), tmp_path / "run")
    assert record["trained"] == {"epoch": 1, "eps": None}


def test_the_record_says_what_was_trained_against(tmp_path: Path) -> None:
    """The best epoch on held-out data need not be the last."""
    config = TINY.with_changes(epochs=3, eps_part=1.0, validation=0.3, evaluate_every=1, eps=0.3, evaluate_examples=10)
    record = train(config, tmp_path / "run")
    assert record["trained"]["eps"] == eps_at(config, record["trained"]["epoch"])
    assert train(TINY, tmp_path / "last")["trained"] == {"epoch": 1, "eps": 0.05}
