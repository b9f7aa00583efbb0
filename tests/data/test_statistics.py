"""What images are normalised by: exact, per channel, the papers' where they have some."""

import numpy as np
import pytest
import torch

from autodual.data import ImageData, any_mean_std, load, mean_std
from autodual.data import known as module
from autodual.models import Normalize


def some(dtype: torch.dtype, count: int = 30, scale: int = 255) -> ImageData:
    """Channels of different mean and spread."""
    pixels = np.random.RandomState(0).randint(0, scale + 1, (count, 3, 5, 4)) // np.array([1, 2, 4])[:, None, None]
    images = torch.from_numpy(pixels.astype(np.uint8))
    images = images if dtype == torch.uint8 else images.to(dtype) / scale
    return ImageData(images, torch.arange(count) % 2, ("a", "b"), "mine", scale)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [255, 16])
def test_mean_and_deviation_of_each_channel(dtype: torch.dtype, scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 7)
    data = some(dtype, scale=scale)
    images = data.images.double() / (scale if dtype == torch.uint8 else 1)
    mean, std = mean_std("mine", data)
    np.testing.assert_allclose(mean, images.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, images.std((0, 2, 3), correction=0), rtol=1e-12)


def test_order_and_threads_do_not_matter() -> None:
    data = some(torch.uint8, 500)
    assert mean_std("mine", data) == mean_std("mine", data.select(torch.arange(499, -1, -1)))
    floats, threads = some(torch.float32, 500), torch.get_num_threads()
    alone = mean_std("mine", floats)
    try:
        torch.set_num_threads(threads + 1)
        assert mean_std("mine", floats) == alone
    finally:
        torch.set_num_threads(threads)


def test_normalised_digits() -> None:
    data = load("digits", "train")
    normalised = Normalize(*mean_std("digits", data))(data.scaled())
    assert abs(float(normalised.mean())) < 1e-5
    assert abs(float(normalised.std()) - 1) < 1e-4


def test_the_papers_constants() -> None:
    assert mean_std("cifar10", some(torch.uint8)) == ((0.485, 0.456, 0.406), 0.225)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_constant_channel_is_only_shifted(dtype: torch.dtype) -> None:
    images = some(dtype).images.clone()
    images[:, 1] = 51 if dtype == torch.uint8 else 0.2
    mean, std = mean_std("mine", ImageData(images, torch.zeros(30, dtype=torch.int64), ("a", "b"), "mine"))
    assert mean[1] == pytest.approx(0.2)
    assert isinstance(std, tuple)
    assert std[1] == 1
    assert std[0] < 1


def test_newer_papers_have_a_deviation_for_each_channel() -> None:
    expected = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    assert (
        mean_std("cifar10", some(torch.uint8), per_channel=True)
        == any_mean_std("cifar10", 3, per_channel=True)
        == expected
    )
    assert mean_std("cifar10", some(torch.uint8)) == ((0.485, 0.456, 0.406), 0.225)
    assert mean_std("mine", some(torch.uint8), per_channel=True) == mean_std("mine", some(torch.uint8))
