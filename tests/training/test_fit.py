"""ad.fit and what it is given: a record, data and one module; all else is refused with advice that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import autodual as ad
from autodual.digits import digits_network, load_digits
from autodual.training.fitting import train as train_by_name

CONFIG = ad.TrainConfig(k=4, epochs=1, limit_train=40, limit_test=4, evaluate_every=0, skip_curve=True, device="cpu")


def _data() -> ad.ImageData:
    images, labels = load_digits("train")
    return ad.ImageData((images * 255).to(torch.uint8).numpy(), labels.numpy(), tuple("0123456789"), "mine")  # type: ignore[arg-type]


def test_numpy_arrays_can_be_trained_on(tmp_path: Path) -> None:
    train, test = _data().split(0.2, seed=0)
    assert ad.fit(digits_network(), train, test, CONFIG, tmp_path / "run")["examples"] == 4


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"config": {"eps": 0.1}}, r"config must be a TrainConfig, such as ad\.TrainConfig\(.*\), got dict"),
        ({"config": ad.TrainConfig}, "config must be a TrainConfig.* got type"),
        ({"train_data": load_digits("train")}, "one part is ArrayData, the other ImageData"),
        ({"test_data": None}, "test_data must be an ImageData, an ArrayData, or a pair .*, got NoneType"),
    ],
)
def test_other_things_are_refused(tmp_path: Path, spoilt: dict[str, Any], message: str) -> None:
    given = {"train_data": _data(), "test_data": _data(), "config": CONFIG} | spoilt
    with pytest.raises(ad.ArgumentError, match=message):
        ad.fit(digits_network(), folder=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


OWN = """
import torch
from torch import nn
from autodual import load_digits

def data(split):
    return torch.utils.data.TensorDataset(*load_digits(split))

def model(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
"""


def test_the_advice_for_cascades_works(tmp_path: Path) -> None:
    config = CONFIG.with_changes(cascade=2)
    with pytest.raises(
        ad.ArgumentError, match=r"`autodual train --cascade .* or `from autodual\.training\.fitting import train`"
    ):
        ad.fit(digits_network(), _data(), _data(), config, tmp_path / "run")
    (tmp_path / "own.py").write_text(OWN)
    named = config.with_changes(model=f"{tmp_path}/own.py:model", dataset=f"{tmp_path}/own.py:data")
    assert train_by_name(named, tmp_path / "run")["cascade"]["kind"] == "paper"
