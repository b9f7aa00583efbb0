"""The families have the published sizes, indices and initialisation, and refuse what they cannot build."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autodual import models


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_hidden(model: nn.Module, channels: int, width: int) -> int:
    """Outputs of every ReLU for one image, seen by hooks."""
    counts: list[int] = []

    def count(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts.append(output[0].numel())

    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(count)
    assert model(torch.zeros(1, channels, width, width)).shape == (1, 10)
    return sum(counts)


PUBLISHED = [
    # model, channels, width, parameters, hidden units
    pytest.param(lambda: models.small(), 1, 28, 166_406, 4_804, id="small-mnist"),
    pytest.param(lambda: models.small(3, 32), 3, 32, 214_918, 6_244, id="small-cifar"),
    pytest.param(lambda: models.large(), 1, 28, 1_974_762, 48_064, id="large-mnist"),
    pytest.param(lambda: models.large(3, 32), 3, 32, 2_466_858, 62_464, id="large-cifar"),
    pytest.param(lambda: models.resnet(), 3, 32, 4_214_850, 107_496, id="resnet-cifar"),
    pytest.param(lambda: models.resnet(1, 28), 1, 28, 3_254_562, 82_536, id="resnet-mnist"),
]


@pytest.mark.parametrize(("build", "channels", "width", "parameters", "hidden"), PUBLISHED)
def test_sizes_are_the_published_ones(
    build: Callable[[], nn.Module], channels: int, width: int, parameters: int, hidden: int
) -> None:
    model = build()
    assert count_parameters(model) == parameters
    assert count_hidden(model, channels, width) == hidden


@pytest.mark.parametrize("k", [1, 2, 4])
def test_wide_has_1304_hidden_units_for_each_k(k: int) -> None:
    assert count_hidden(models.wide(k), 1, 28) == 1_304 * k


@pytest.mark.parametrize("k", [1, 2, 3])
def test_deep_has_k_convolutions_in_each_group(k: int) -> None:
    model = models.deep(k)
    convolutions = [m for m in model if isinstance(m, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [8] * k + [16] * k
    assert [c.stride[0] for c in convolutions] == ([1] * (k - 1) + [2]) * 2
    # Before halving a group works at full size: 8 filters on 28x28, 16 on 14x14.
    kept = (k - 1) * (8 * 28**2 + 16 * 14**2)
    assert count_hidden(model, 1, 28) == kept + 8 * 14**2 + 16 * 7**2 + 100


def test_small_has_the_indices_of_the_published_weights() -> None:
    kinds = [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    model = models.small()
    assert [type(layer) for layer in model] == kinds
    assert list(model.state_dict()) == [f"{i}.{name}" for i in (0, 2, 5, 7) for name in ("weight", "bias")]


FAMILIES = [
    pytest.param(models.small, id="small"),
    pytest.param(models.large, id="large"),
    pytest.param(models.resnet, id="resnet"),
    pytest.param(lambda *a, **kw: models.wide(2, *a, **kw), id="wide"),
    pytest.param(lambda *a, **kw: models.deep(2, *a, **kw), id="deep"),
]
Family = Callable[..., nn.Sequential]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", [4, 8, 11])
def test_any_image_of_four_pixels_or_more_fits(family: Family, width: int) -> None:
    assert family(2, width, 5)(torch.zeros(3, 2, width, width)).shape == (3, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_normalisation_comes_first_and_equals_normalising_by_hand(family: Family) -> None:
    mean, std = (0.485, 0.456, 0.406), 0.225
    model = family(3, 8, 4, mean=mean, std=std).double()
    assert isinstance(model[0], models.Normalize)
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    normalised = (images - model[0].mean) / model[0].std
    torch.testing.assert_close(model(images), model[1:](normalised))
    torch.testing.assert_close(model[0].mean.flatten(), torch.tensor(mean, dtype=torch.float64), atol=1e-7, rtol=0)


@pytest.mark.parametrize("build", [lambda: models.small(3, 32), models.resnet], ids=["small-cifar", "resnet"])
def test_cifar_convolutions_are_scaled_by_their_fan_out(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    for layer in build().modules():
        if isinstance(layer, nn.Conv2d):
            std = math.sqrt(2 / (math.prod(layer.kernel_size) * layer.out_channels))
            # The sample deviation of n normal draws is within 4 standard errors, each std / sqrt(2n).
            assert abs(layer.weight.std().item() - std) < 4 * std / math.sqrt(2 * layer.weight.numel())
            assert layer.bias is not None
            assert not layer.bias.any()


def test_other_networks_keep_the_initialisation_of_pytorch() -> None:
    torch.manual_seed(0)
    first = models.small()[0]
    torch.manual_seed(0)
    expected = nn.Conv2d(1, 16, 4, stride=2, padding=1)
    assert torch.equal(first.weight, expected.weight)
    assert torch.equal(first.bias, expected.bias)


REFUSED = [
    pytest.param({"in_channels": 0}, "in_channels is 0", id="channels"),
    pytest.param({"width": 3}, "width is 3", id="width"),
    pytest.param({"classes": 1}, "classes is 1", id="classes"),
    pytest.param({"mean": 0.5}, "std is not given", id="mean-only"),
    pytest.param({"std": 0.5}, "mean is not given", id="std-only"),
    pytest.param({"mean": (0.5,) * 4, "std": 1.0}, "for 4 channels", id="wrong-channels"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_bad_images_are_refused(family: Family, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        family(**arguments)


@pytest.mark.parametrize("family", [models.wide, models.deep], ids=["wide", "deep"])
def test_k_below_one_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match="k is 0"):
        family(0)


def test_mlp_for_tables() -> None:
    model = models.mlp([64, 32], 5, 3)
    assert [type(layer).__name__ for layer in model] == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert [layer.out_features for layer in model if isinstance(layer, nn.Linear)] == [64, 32, 3]
    assert model(torch.zeros(2, 5)).shape == (2, 3)
    assert models.mlp([4], 12, 2)(torch.zeros(2, 3, 4)).shape == (2, 2)
    for widths, features, classes in (([], 5, 3), ([0], 5, 3), ([4], 0, 3), ([4], 5, 1)):
        with pytest.raises(ValueError, match=r"^mlp: "):
            models.mlp(widths, features, classes)


def test_standardize_keeps_eps_in_the_units_of_the_data() -> None:
    first = models.Standardize(torch.tensor([1.0, 200.0]), torch.tensor([2.0, 50.0]))
    torch.testing.assert_close(first(torch.tensor([[3.0, 100.0]])), torch.tensor([[1.0, -2.0]]))
    for mean, std in (
        (torch.zeros(2), torch.zeros(2)),
        (torch.zeros(2), torch.ones(3)),
        (torch.tensor([torch.nan]), torch.ones(1)),
    ):
        with pytest.raises(ValueError, match=r"^Standardize: "):
            models.Standardize(mean, std)
