"""Handwritten digits that ship with the package: real images for examples and tests, no download."""

from importlib.resources import files
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

TRAIN_SIZE = 1437  # of 1,797: four fifths; the other 360 are the test split


def load_digits(
    split: Literal["train", "test", "all"] = "all", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Load the handwritten digits that ship with the package.

    The split is the same on every machine: 1,437 images to train on and 360 to test on, drawn without regard to who wrote them.

    Args:
        split: Which part; "all" keeps the order of the source, which is named in assets/README.md.
        dtype: Floating-point type of the images.

    Returns:
        Images [N, 1, 8, 8] in [0, 1], and labels [N] in 0..9.

    Raises:
        ValueError: There is no such part, or the dtype is no floating-point type.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> images.shape, labels[:3].tolist()
        (torch.Size([360, 1, 8, 8]), [7, 9, 4])
    """
    if not dtype.is_floating_point:
        raise ValueError(f"load_digits: dtype is {dtype}, but images are scaled to [0, 1]; pass a floating-point type.")
    asset = files("autodual").joinpath("assets/digits.npz")
    with asset.open("rb") as file, np.load(file, allow_pickle=False) as data:
        chosen = _indices(split, len(data["labels"]))
        images = torch.from_numpy(data["images"][chosen])
        labels = torch.from_numpy(data["labels"][chosen])
    return images.unsqueeze(1).to(dtype) / 16, labels.long()


def _indices(split: str, count: int) -> np.ndarray:
    # RandomState, because numpy promises never to change its stream; that of a Generator may change.
    shuffled = np.random.RandomState(0).permutation(count)
    match split:
        case "train":
            return shuffled[:TRAIN_SIZE]
        case "test":
            return shuffled[TRAIN_SIZE:]
        case "all":
            return np.arange(count)
    raise ValueError(f"load_digits: split is {split!r}, but the parts are train, test and all; pass one of these.")


def digits_network() -> nn.Sequential:
    """An untrained convolutional network for 8x8 digits: 15,690 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )


def load_digits_network() -> nn.Sequential:
    """Load the network that ships with the package: trained to be certifiable at l-infinity 0.1 (examples/train_digits.py).

    Returns:
        A convolutional network for 8x8 digits in evaluation mode, with 15,690 parameters.

    Examples:
        >>> import autodual as ad
        >>> model = ad.load_digits_network()
        >>> images, labels = ad.load_digits("test")
        >>> int((model(images).argmax(1) == labels).sum())
        351
    """
    model = digits_network()
    with (
        files("autodual").joinpath("assets/digits_robust.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as weights,
    ):
        model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
    return model.eval()
