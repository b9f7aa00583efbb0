"""The families without skip connections: small, large, wide(k), deep(k). [SPAD sec. 4, app. G]

In all of them `width` is the width of the square images in pixels, every layer has a bias, and convolutions
with a 4x4 kernel and stride 2 do the downsampling. `mean` and `std`, if given, become a first layer
(see Normalize).
"""

from torch import nn

from autodual.models._build import Channels, assemble, check_factor, check_image, halved_twice, initialise_convolutions


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
