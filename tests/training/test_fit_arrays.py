"""ad.fit with data that are no images: rows of a table, pairs of arrays, inputs of any shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import autodual as ad
from autodual.runs.folder import Run

DRAWN = np.random.RandomState(0)
ROWS = DRAWN.normal(size=(120, 3)) * [1.0, 100.0, 5.0]
LABELS = (ROWS[:, 0] + ROWS[:, 1] / 100 > 0).astype(int)
CONFIG = {"k": 4, "epochs": 6, "lr": 0.02, "evaluate_every": 0, "device": "cpu", "batch": 20, "skip_curve": True}


def network(*shape: int) -> nn.Module:
    torch.manual_seed(0)
    size = int(np.prod(shape))
    standard = ad.models.Standardize(torch.zeros(3), torch.tensor([1.0, 100.0, 5.0]))
    first = [standard] if shape == (3,) else []
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(size, 8), nn.ReLU(), nn.Linear(8, 2))


def test_rows_with_names_and_their_own_eps(tmp_path: Path) -> None:
    data = ad.ArrayData(ROWS, LABELS, ("low", "high"), "rows", ("a", "b", "c"))
    train, test = data.split(0.25, seed=1)
    config = ad.TrainConfig(eps={"a": 0.05, "b": 5.0}, **{**CONFIG, "skip_curve": False})  # type: ignore[arg-type]
    model = network(3)
    found = ad.fit(model, train, test, config, tmp_path / "run")
    assert found["robust_error"] < 0.5
    assert (found["eps"], found["norm"], found["classes"]) == (1.0, "linf", ["low", "high"])
    again = ad.load_run(tmp_path / "run", network(3))
    assert isinstance(again.ball, ad.LinfBall)
    assert again.ball.scale is not None
    assert again.ball.scale.tolist() == [0.05, 5.0, 0.0]
    judged = ad.certify_data(again.model, test, again.ball)
    assert judged.certified.tolist() == found["certified"]
    assert Run(tmp_path / "run").config().feature_eps == "[0.05, 5.0, 0.0]"
    wider = ad.certify_data(again.model, test, ad.LinfBall(torch.tensor([[0.05, 5.0, 0.0]])))
    assert wider.certified.tolist() == found["certified"]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_pairs_of_arrays(kind: type, tmp_path: Path) -> None:
    train, test = ((kind(ROWS[part]), kind(LABELS[part])) for part in (slice(80), slice(80, 120)))
    found = ad.fit(network(3), train, test, ad.TrainConfig(eps="0.05,5,0", **CONFIG), tmp_path / "run")  # type: ignore[arg-type]
    assert found["examples"] == 40


def test_inputs_of_another_shape(tmp_path: Path) -> None:
    x = DRAWN.normal(size=(60, 2, 3, 4, 2)) * 10
    y = (x.mean((1, 2, 3, 4)) > 0).astype(int)
    config = ad.TrainConfig(eps={"*": 0.1}, **CONFIG)  # type: ignore[arg-type]
    found = ad.fit(network(2, 3, 4, 2), (x[:40], y[:40]), (x[40:], y[40:]), config, tmp_path / "run")
    assert found["examples"] == 20
    eps = np.zeros((2, 3, 4, 2))
    eps[0] = 0.2
    np.savez(tmp_path / "eps.npz", eps=eps)
    config = ad.TrainConfig(eps=str(tmp_path / "eps.npz"), **CONFIG)  # type: ignore[arg-type]
    ad.fit(network(2, 3, 4, 2), (x[:40], y[:40]), (x[40:], y[40:]), config, tmp_path / "other")
    ball = ad.load_run(tmp_path / "other", network(2, 3, 4, 2)).ball
    assert isinstance(ball, ad.LinfBall)
    assert ball.scale is not None
    assert torch.equal(ball.scale, torch.from_numpy(eps))


def test_what_does_not_fit(tmp_path: Path) -> None:
    pair = (ROWS, LABELS)
    images = ad.ImageData(torch.zeros(4, 1, 2, 2), torch.arange(4) % 2, ("a", "b"), "images")
    config = ad.TrainConfig(eps={"*": 0.1}, **CONFIG)  # type: ignore[arg-type]
    for train, test, options, message in (
        (pair, images, config, "one part is ArrayData, the other ImageData"),
        (pair, (ROWS[:, :2], LABELS), config, r"examples to train on are \[3\], those to test on \[2\]"),
        (3, pair, config, "train_data must be an ImageData, an ArrayData, or a pair"),
        ((ROWS, LABELS, LABELS), pair, config, "train_data must be"),
        ((ROWS * np.nan, LABELS), pair, config, "example 0 has nan as feature 0"),
        (pair, pair, ad.TrainConfig(crop=1), "crop and flip are for images"),
        (pair, pair, ad.TrainConfig(eps="a=1"), r"eps: is given by the names of columns \(a\), but the data has none"),  # type: ignore[arg-type]
        (pair, pair, ad.TrainConfig(eps="1,2"), r"is given for \[2\] features"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ad.ArgumentError, match=message):
            ad.fit(network(3), train, test, options, tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
