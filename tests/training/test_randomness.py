"""Modules that draw random numbers in training are trained the same way by the same seed, stopped or not, whatever the caller drew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.digits import load_digits
from autodual.evaluation.processes import StoppedError, Watch
from autodual.runs.config import TrainConfig

CONFIG = TrainConfig(
    engine="none",
    eps=0.05,
    epochs=2,
    batch=25,
    limit_train=100,
    limit_test=4,
    evaluate_every=0,
    skip_curve=True,
    device="cpu",
)


def weights(folder: Path, config: TrainConfig = CONFIG, drawn: int = 0) -> list[Tensor]:
    """Of a model with dropout, trained after the caller has seeded and drawn what it likes; stopped, if not done in one go."""
    images, labels = load_digits("train")
    data = ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "mine")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
    torch.manual_seed(drawn)
    expected = torch.rand(3)
    torch.manual_seed(drawn)
    seen: list[int] = []
    try:
        ad.fit(
            model,
            data,
            data,
            config,
            folder,
            watch=Watch(step=lambda p: seen.append(1), stop=lambda: len(seen) == drawn),
        )
    except StoppedError:
        torch.manual_seed(drawn + 1)
        ad.fit(model, data, data, config, folder, resume=True)
        torch.manual_seed(drawn)
    assert torch.equal(torch.rand(3), expected)
    return [p.detach().clone() for p in model.parameters()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    return weights(tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.parametrize("drawn", [3, 5, 100])
def test_dropout_depends_on_the_seed_alone(tmp_path: Path, expected: list[Tensor], drawn: int) -> None:
    """Also where the run was stopped after so many steps."""
    found = weights(tmp_path / "run", drawn=drawn)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_another_seed_drops_others(tmp_path: Path, expected: list[Tensor]) -> None:
    assert not torch.equal(weights(tmp_path / "run", CONFIG.with_changes(seed=1))[0], expected[0])
