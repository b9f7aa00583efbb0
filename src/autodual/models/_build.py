"""What the five families share: checked arguments, an optional first layer, one initialisation."""

import math
from collections.abc import Iterable, Sequence

from torch import nn

from autodual.models.normalize import Normalize

Channels = float | Sequence[float] | None


def check_image(family: str, in_channels: int, width: int, classes: int) -> None:
    """Refuse images that the family cannot take, and fewer classes than a margin needs."""
    if in_channels < 1:
        raise ValueError(
            f"{family}: in_channels is {in_channels}, but an image has at least one channel; "
            "pass 1 for grey images or 3 for colour."
        )
    if width < 4:
        raise ValueError(
            f"{family}: width is {width}, but the network halves the image twice and no pixel would be left; "
            "pass the width of the (square) images in pixels, 4 or more."
        )
    if classes < 2:
        raise ValueError(
            f"{family}: classes is {classes}, but a classifier chooses between at least two; "
            "pass the number of labels in the data."
        )


def check_factor(family: str, k: int, what: str) -> None:
    if k < 1:
        raise ValueError(f"{family}: k is {k}, but it multiplies the {what} of the network; pass 1 or more.")


def assemble(
    family: str, in_channels: int, mean: Channels, std: Channels, layers: Iterable[nn.Module]
) -> nn.Sequential:
    """The layers in a row, behind a Normalize when mean and std are given."""
    if mean is None and std is None:
        return nn.Sequential(*layers)
    if mean is None or std is None:
        missing = "mean" if mean is None else "std"
        raise ValueError(
            f"{family}: {missing} is not given, but normalisation needs both; pass mean and std, or neither."
        )
    normalize = Normalize(mean, std)
    if normalize.channels not in (None, in_channels):
        raise ValueError(
            f"{family}: mean and std are for {normalize.channels} channels, but images have {in_channels}; "
            "pass one value for all channels or one for each."
        )
    return nn.Sequential(normalize, *layers)


def halved_twice(width: int) -> int:
    """Width of the image after two 4x4 convolutions with stride 2 and padding 1."""
    return width // 2 // 2


def initialise_convolutions(model: nn.Module) -> None:
    """Weights from N(0, sqrt(2 / (kernel area * output channels))), biases zero: He's rule, fan out."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            area = math.prod(module.kernel_size)
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (area * module.out_channels)))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
