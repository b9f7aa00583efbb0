"""Normalize shifts and scales each channel, travels with the weights and refuses what has no meaning."""

import pytest
import torch

from autodual.models import Normalize


def test_each_channel_has_its_own_shift_and_scale() -> None:
    images = torch.ones(2, 2, 3, 3)
    result = Normalize([1.0, 0.0], [2.0, 4.0])(images)
    assert torch.equal(result[:, 0], torch.zeros(2, 3, 3))
    assert torch.equal(result[:, 1], torch.full((2, 3, 3), 0.25))


def test_one_number_serves_every_channel() -> None:
    layer = Normalize(0.5, 0.25)
    assert layer.channels is None
    assert torch.equal(layer(torch.ones(1, 7, 2, 2)), torch.full((1, 7, 2, 2), 2.0))


def test_mean_and_std_are_saved_with_the_weights() -> None:
    saved = Normalize([0.1, 0.2], 0.3).state_dict()
    other = Normalize([0.0, 0.0], 1.0)
    other.load_state_dict(saved)
    assert torch.equal(other.mean, saved["mean"])
    assert torch.equal(other.std, saved["std"])


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        pytest.param(0.0, 0.0, "greater than zero", id="zero-std"),
        pytest.param(0.0, (1.0, -1.0), "greater than zero", id="negative-std"),
        pytest.param(0.0, float("nan"), "finite numbers", id="nan-std"),
        pytest.param([], 1.0, "finite numbers", id="empty"),
        pytest.param([[0.0, 0.0]], 1.0, "finite numbers", id="nested"),
        pytest.param((0.0, 0.0), (1.0, 1.0, 1.0), "mean has 2 values and std has 3", id="lengths"),
    ],
)
def test_meaningless_values_are_refused(mean: object, std: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Normalize(mean, std)
