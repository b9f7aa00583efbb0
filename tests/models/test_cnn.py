"""cnn5 and cnn7 have the published sizes; the initialisation for intervals is its formula, and keeps interval bounds small."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import autodual as ad
from autodual import ArgumentError, models
from autodual.training.setup import make_model


@pytest.mark.parametrize(
    ("family", "channels", "width", "filters", "parameters"),
    [
        (models.cnn5, 3, 32, 64, 4_400_074),
        (models.cnn5, 1, 28, 64, 3_415_882),
        (models.cnn5, 3, 32, 16, 1_068_154),
        (models.cnn7, 3, 32, 64, 17_192_650),
        (models.cnn7, 1, 28, 64, 13_259_338),
        (models.cnn7, 3, 32, 32, 8_498_282),
        (models.cnn7, 3, 32, 128, 35_189_642),
    ],
)
def test_sizes_are_the_published_ones(family, channels: int, width: int, filters: int, parameters: int) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        model = family(channels, width, filters=filters)
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert model.eval()(torch.zeros(1, channels, width, width)).shape == (1, 10)


@pytest.mark.parametrize("family", [models.cnn5, models.cnn7])
def test_batch_normalisation_follows_every_layer_but_the_last(family) -> None:  # type: ignore[no-untyped-def]
    layers = [m for m in family(1, 8, 4, filters=2, mean=0.5, std=0.2) if not isinstance(m, nn.Flatten)]
    assert isinstance(layers[0], models.Normalize)
    assert isinstance(layers[-1], nn.Linear)
    body = layers[1:-1]
    assert len(body) % 3 == 0
    for weighted, norm, relu in zip(body[::3], body[1::3], body[2::3], strict=True):
        assert isinstance(weighted, nn.Conv2d | nn.Linear)
        assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        assert isinstance(relu, nn.ReLU)


@pytest.mark.parametrize("width", [5, 7, 8, 9])
@pytest.mark.parametrize("family", [models.cnn5, models.cnn7])
def test_images_of_any_width_fit(family, width: int) -> None:  # type: ignore[no-untyped-def]
    assert family(1, width, 3, filters=2).eval()(torch.zeros(2, 1, width, width)).shape == (2, 3)


def test_names() -> None:
    assert make_model("cnn5:3", (1, 8, 8), 10)[0].out_channels == 3
    assert make_model("cnn7:3", (1, 8, 8), 10, ((0.5,), (0.2,)))[1].out_channels == 3
    assert make_model("cnn5", (3, 8, 8), 10)[0].out_channels == 64
    with pytest.raises(ArgumentError, match=r"unknown model 'cnn9'; did you mean cnn"):
        make_model("cnn9", (1, 8, 8), 10)
    with pytest.raises(ValueError, match="filters is 0"):
        models.cnn7(filters=0)


def test_weights_for_intervals_have_their_deviation_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    model = models.cnn5(3, 16, filters=32)
    before = copy.deepcopy(model)
    models.initialise_for_intervals(model)
    weighted = [(m, b) for m, b in zip(model, before, strict=True) if isinstance(m, nn.Conv2d | nn.Linear)]
    for module, _ in weighted[:-1]:
        fan_in = module.weight[0].numel()
        assert module.weight.std().item() == pytest.approx(math.sqrt(2 * math.pi) / fan_in, rel=0.1)
        assert abs(module.weight.mean().item()) < math.sqrt(2 * math.pi) / fan_in / 10
    assert torch.equal(weighted[-1][0].weight, weighted[-1][1].weight)
    kept = [name for name, value in model.state_dict().items() if torch.equal(value, before.state_dict()[name])]
    assert set(model.state_dict()) - set(kept) == {f"{i}.weight" for i in (0, 3, 6, 10)}
    torch.manual_seed(5)
    models.initialise_for_intervals(model)
    torch.manual_seed(5)
    models.initialise_for_intervals(before)
    assert torch.equal(model[0].weight, before[0].weight)


def test_interval_bounds_keep_their_width() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(200, 200), nn.ReLU())), nn.Linear(200, 3))
    box = ad.LinfBall(0.01).around(torch.rand(4, 200))

    def growth() -> float:
        layers = list(ad.bounds(model.eval(), box, ad.IBP()).layers.values())
        return (layers[-1].width.mean() / layers[0].width.mean()).item()

    usual = growth()
    models.initialise_for_intervals(model)
    assert 0.2 < growth() < 5 < 1000 < usual
