"""The residual family, and its block with an explicit skip. [SPAD sec. 4]"""

from torch import Tensor, nn

from autodual.models._build import Channels, assemble, check_image, halved_twice, initialise_convolutions


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
