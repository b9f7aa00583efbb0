"""The shipped digits are the documented ones, and their split never changes."""

import hashlib
from importlib.resources import files

import pytest
import torch

from autodual.digits import load_digits


def test_shapes_types_and_range() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    assert labels.shape == (1797,)
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_first_image_is_the_zero_of_the_source() -> None:
    images, labels = load_digits(dtype=torch.float64)
    assert labels[0] == 0
    assert (images[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_split_has_every_image_once() -> None:
    (train, train_labels), (test, test_labels) = load_digits("train"), load_digits("test")
    assert len(train) == len(train_labels) == 1437
    assert len(test) == len(test_labels) == 360

    def rows(images: torch.Tensor, labels: torch.Tensor) -> list[list[float]]:
        return sorted(torch.cat([images.flatten(1), labels[:, None]], dim=1).tolist())

    both = rows(torch.cat([train, test]), torch.cat([train_labels, test_labels]))
    assert both == rows(*load_digits("all"))


def test_split_is_the_same_everywhere() -> None:
    # Positions in the source of the first images of each part, written down once.
    images, _ = load_digits("all")
    for split, first in (("train", [1081, 1707, 927]), ("test", [1442, 455, 584])):
        assert torch.equal(load_digits(split)[0][: len(first)], images[first])


def test_every_label_is_in_both_parts() -> None:
    for split in ("train", "test"):
        assert load_digits(split)[1].unique().tolist() == list(range(10))


def test_shipped_file_has_the_documented_checksum() -> None:
    assets = files("autodual").joinpath("assets")
    digest = hashlib.sha256(assets.joinpath("digits.npz").read_bytes()).hexdigest()
    assert digest in assets.joinpath("README.md").read_text()


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split is 'validation'"):
        load_digits("validation")


def test_integer_images_are_refused() -> None:
    with pytest.raises(ValueError, match="floating-point"):
        load_digits(dtype=torch.int64)
