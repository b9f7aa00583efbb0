"""Networks as plain modules that know nothing of bounds: those of Wong, Schmidt, Metzen and Kolter (2018), and two newer ones.

The paper's are small, large, wide(k), deep(k) and resnet [SPAD sec. 4, app. G]; cnn5 and cnn7 have batch normalisation, and are what
certified training is compared on today. All have normalisation as their first layer if it is wanted. For tables, there is mlp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

# What the families share: checked arguments, an optional first layer, one initialisation.

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


def check_factor(family: str, k: int, what: str, name: str = "k") -> None:
    if k < 1:
        raise ValueError(f"{family}: {name} is {k}, but it multiplies the {what} of the network; pass 1 or more.")


def assemble(
    family: str, in_channels: int, mean: Channels, std: Channels, layers: Iterable[nn.Module]
) -> nn.Sequential:
    """Puts the layers in a row, behind a Normalize if mean and std are given."""
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
    """Draws weights from N(0, sqrt(2 / (kernel area * output channels))) and sets biases to zero: He's rule, fan out."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            area = math.prod(module.kernel_size)
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (area * module.out_channels)))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialise_for_intervals(model: nn.Module) -> None:
    """Draws weights from N(0, sigma), sigma = sqrt(2 pi) / fan_in, which keeps the widths of interval bounds from layer to layer.

    All convolutions and linear layers but the last, in the order of `model.modules()`; biases and batch normalisation stay as they
    are. Numbers are drawn on the CPU, from PyTorch's global generator. [Shi et al. 2021, Fast Certified Robust Training, sec. 4.1]
    """
    weighted = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    for module in weighted[:-1]:
        weight = module.weight
        deviation = math.sqrt(2 * math.pi) / weight[0].numel()
        with torch.no_grad():
            weight.copy_(torch.normal(0.0, deviation, weight.shape, dtype=weight.dtype))


# The families without skip connections: small, large, wide(k), deep(k). [SPAD sec. 4, app. G]
#
# In all of them `width` is the width of the square images in pixels, every layer has a bias, and convolutions
# with a 4x4 kernel and stride 2 do the downsampling. `mean` and `std`, if given, become a first layer
# (see Normalize).


def small(
    in_channels: int = 1, width: int = 28, classes: int = 10, *, mean: Channels = None, std: Channels = None
) -> nn.Sequential:
    """Two convolutions and two linear layers; 166,406 parameters on MNIST, 214,918 on CIFAR-10.

    Colour images (three channels) get the initialisation that the paper used on CIFAR-10.
    """
    check_image("small", in_channels, width, classes)
    layers = [
        *_halve(in_channels, 16),
        *_halve(16, 32),
        nn.Flatten(),
        *_hidden(32 * halved_twice(width) ** 2, 100),
        nn.Linear(100, classes),
    ]
    model = assemble("small", in_channels, mean, std, layers)
    if in_channels == 3:
        initialise_convolutions(model)
    return model


def large(
    in_channels: int = 1, width: int = 28, classes: int = 10, *, mean: Channels = None, std: Channels = None
) -> nn.Sequential:
    """Four convolutions and three linear layers; 1,974,762 parameters on MNIST, 2,466,858 on CIFAR-10."""
    check_image("large", in_channels, width, classes)
    layers = [
        *_keep(in_channels, 32),
        *_halve(32, 32),
        *_keep(32, 64),
        *_halve(64, 64),
        nn.Flatten(),
        *_hidden(64 * halved_twice(width) ** 2, 512),
        *_hidden(512, 512),
        nn.Linear(512, classes),
    ]
    return assemble("large", in_channels, mean, std, layers)


def wide(
    k: int, in_channels: int = 1, width: int = 28, classes: int = 10, *, mean: Channels = None, std: Channels = None
) -> nn.Sequential:
    """As deep as small, with 4k and 8k filters and 128k linear units; 1,304k hidden units on MNIST."""
    check_factor("wide", k, "width")
    check_image("wide", in_channels, width, classes)
    layers = [
        *_halve(in_channels, 4 * k),
        *_halve(4 * k, 8 * k),
        nn.Flatten(),
        *_hidden(8 * k * halved_twice(width) ** 2, 128 * k),
        nn.Linear(128 * k, classes),
    ]
    return assemble("wide", in_channels, mean, std, layers)


def deep(
    k: int, in_channels: int = 1, width: int = 28, classes: int = 10, *, mean: Channels = None, std: Channels = None
) -> nn.Sequential:
    """k convolutions with 8 filters, k with 16, the last of each halving the image; two linear layers."""
    check_factor("deep", k, "depth")
    check_image("deep", in_channels, width, classes)
    layers = [
        *_group(in_channels, 8, k),
        *_group(8, 16, k),
        nn.Flatten(),
        *_hidden(16 * halved_twice(width) ** 2, 100),
        nn.Linear(100, classes),
    ]
    return assemble("deep", in_channels, mean, std, layers)


def _keep(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride=1, padding=1), nn.ReLU()]


def _halve(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]


def _hidden(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU()]


def _group(inputs: int, outputs: int, k: int) -> list[nn.Module]:
    """k - 1 convolutions that keep the image size, then one that halves it."""
    channels = [inputs] + [outputs] * (k - 1)
    keeping = [layer for i in channels[:-1] for layer in _keep(i, outputs)]
    return [*keeping, *_halve(channels[-1], outputs)]


# The residual family, and its block with an explicit skip. [SPAD sec. 4]


class ResidualBlock(nn.Module):
    """relu(second(relu(first(x))) + skip(x)), where the skip is a convolution too.

    With `down` the image is halved: by a 4x4 kernel on the main path and a 2x2 kernel on the skip.
    """

    def __init__(self, inputs: int, outputs: int, *, down: bool = False) -> None:
        super().__init__()
        if down:
            self.first = nn.Conv2d(inputs, outputs, 4, stride=2, padding=1)
            self.skip = nn.Conv2d(inputs, outputs, 2, stride=2, padding=0)
        else:
            self.first = nn.Conv2d(inputs, outputs, 3, stride=1, padding=1)
            self.skip = nn.Conv2d(inputs, outputs, 1, stride=1, padding=0)
        self.inner_relu = nn.ReLU()
        self.second = nn.Conv2d(outputs, outputs, 3, stride=1, padding=1)
        self.outer_relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer_relu(self.second(self.inner_relu(self.first(x))) + self.skip(x))


def resnet(
    in_channels: int = 3, width: int = 32, classes: int = 10, *, mean: Channels = None, std: Channels = None
) -> nn.Sequential:
    """A convolution, four residual blocks and two linear layers; 4,214,850 parameters on CIFAR-10."""
    check_image("resnet", in_channels, width, classes)
    layers = [
        nn.Conv2d(in_channels, 16, 3, stride=1, padding=1),
        nn.ReLU(),
        ResidualBlock(16, 16),
        ResidualBlock(16, 16),
        ResidualBlock(16, 32, down=True),
        ResidualBlock(32, 64, down=True),
        nn.Flatten(),
        nn.Linear(64 * halved_twice(width) ** 2, 1000),
        nn.ReLU(),
        nn.Linear(1000, classes),
    ]
    model = assemble("resnet", in_channels, mean, std, layers)
    initialise_convolutions(model)
    return model


# Five and seven layers with batch normalisation after all but the last. [Shi et al. 2021; Mao et al. 2024]


def cnn5(
    in_channels: int = 3, width: int = 32, classes: int = 10, *, filters: int = 64, mean: Channels = None, std: Channels = None
) -> nn.Sequential:  # fmt: skip
    """Three convolutions and two linear layers with batch normalisation; 4,400,074 parameters on CIFAR-10, 3,415,882 on MNIST.

    filters: channels of the first two convolutions; the third has twice as many.
    """
    check_factor("cnn5", filters, "width", "filters")
    check_image("cnn5", in_channels, width, classes)
    layers = [
        *_normalised(in_channels, filters, 3, 1),
        *_normalised(filters, filters, 4, 2),
        *_normalised(filters, 2 * filters, 4, 2),
        *_normalised_head(2 * filters * halved_twice(width) ** 2, classes),
    ]
    return assemble("cnn5", in_channels, mean, std, layers)


def cnn7(
    in_channels: int = 3, width: int = 32, classes: int = 10, *, filters: int = 64, mean: Channels = None, std: Channels = None
) -> nn.Sequential:  # fmt: skip
    """Five convolutions and two linear layers with batch normalisation; 17,192,650 parameters on CIFAR-10, 13,259,338 on MNIST.

    filters: channels of the first two convolutions; the other three have twice as many.
    """
    check_factor("cnn7", filters, "width", "filters")
    check_image("cnn7", in_channels, width, classes)
    layers = [
        *_normalised(in_channels, filters, 3, 1),
        *_normalised(filters, filters, 3, 1),
        *_normalised(filters, 2 * filters, 3, 2),
        *_normalised(2 * filters, 2 * filters, 3, 1),
        *_normalised(2 * filters, 2 * filters, 3, 1),
        *_normalised_head(2 * filters * ((width + 1) // 2) ** 2, classes),
    ]
    return assemble("cnn7", in_channels, mean, std, layers)


def _normalised(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def _normalised_head(inputs: int, classes: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(inputs, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, classes)]


# For data that are no images.


def mlp(widths: Sequence[int], features: int, classes: int) -> nn.Sequential:
    """Linear layers of these widths with ReLUs between them, for inputs of any shape with so many features in all."""
    if not widths or min(widths) < 1:
        raise ValueError(
            f"mlp: widths are {list(widths)}, but every hidden layer has units; pass one or more, as in mlp:64,64."
        )
    if features < 1 or classes < 2:
        raise ValueError(
            f"mlp: is for {features} features and {classes} classes, but needs at least one feature and two classes."
        )
    sizes = [features, *widths]
    hidden = [layer for pair in pairwise(sizes) for layer in _hidden(*pair)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))


class Standardize(nn.Module):
    """(x - mean) / std, with one value for each feature: tensors of the shape of one example.

    Mean and std are buffers: they move with the network and are saved with its weights. A perturbation stays in the units of x.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        if mean.shape != std.shape or not bool((std > 0).all()) or not bool((mean.isfinite() & std.isfinite()).all()):
            raise ValueError(
                f"Standardize: mean {list(mean.shape)} and std {list(std.shape)} must be finite, of the shape of one example, and std "
                "greater than zero."
            )
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.mean
        return centred / self.std


# Normalisation as the first layer of a network, so that a perturbation is measured in pixels.


class Normalize(nn.Module):
    """(x - mean) / std, with one value for all channels or one for each.

    Mean and std are buffers: they move with the network and are saved with its weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        mean_values, std_values = _per_channel("mean", mean), _per_channel("std", std)
        if not bool((std_values > 0).all()):
            raise ValueError(f"Normalize: std is {std}, but images are divided by it; pass values greater than zero.")
        lengths = {len(mean_values), len(std_values)} - {1}
        if len(lengths) > 1:
            raise ValueError(
                f"Normalize: mean has {len(mean_values)} values and std has {len(std_values)}, but both "
                "describe the same channels; pass one value for all channels or one for each."
            )
        self.register_buffer("mean", mean_values)
        self.register_buffer("std", std_values)

    @property
    def channels(self) -> int | None:
        """How many channels an image must have; None when one value serves any number."""
        widest = max(len(self.mean), len(self.std))
        return None if widest == 1 else widest

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def _per_channel(name: str, values: float | Sequence[float]) -> Tensor:
    """Values as a [channels, 1, 1] tensor, which lines up with [batch, channels, height, width]."""
    tensor = torch.as_tensor(values, dtype=torch.get_default_dtype())
    if tensor.ndim > 1 or tensor.numel() == 0 or not bool(tensor.isfinite().all()):
        raise ValueError(
            f"Normalize: {name} is {values}, but the shift and scale of a channel are finite numbers; "
            "pass one number, or a flat list with one for each channel."
        )
    return tensor.clone().reshape(-1, 1, 1)
