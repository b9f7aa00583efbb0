"""The forward pass over generators and the backward pass over rows give the same bounds. [SPAD Alg. "Autodual" and Thm 1]"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from soundness.graphs import SETS, Recipe, build, recipes, region
from soundness.properties import forward_equals_backward, network_of


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(recipes(), st.sampled_from(SETS), st.integers(0, 1000))
def test_on_random_graphs(recipe: Recipe, kind: str, seed: int) -> None:
    sets = region(kind, recipe.shape, 3, seed)
    forward_equals_backward(network_of(build(recipe), sets), sets)


class Block(nn.Module):
    """A residual block whose two branches read windows of different sizes."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.long = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1)
        )
        self.short = nn.Conv2d(channels, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.long(x) + self.short(x)


class Dead(nn.Module):
    """Half of the channels are dead everywhere; what they are summed with has a channel for each, or one for all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.many, self.others = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(1, channels, 3, padding=1)
        self.last = nn.Conv2d(6, 2, 3)
        self.many.bias.data[::2] = -50

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.many(x) + self.others(x)))


WINDOWS = {
    "one side much shorter than the kernel": ((1, 2, 20), [nn.Conv2d(1, 2, (5, 1), padding=(2, 0))]),
    "one side of one pixel": ((1, 1, 12), [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, (1, 3))]),
    "padding wider than the image": ((1, 3, 9), [nn.Conv2d(1, 2, 3, padding=3), nn.ReLU(), nn.Conv2d(2, 1, 2)]),
    "stride beyond the kernel": ((1, 9, 10), [nn.Conv2d(1, 2, 2, stride=3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 2)]),
    "dilated after strided": (
        (1, 11, 9),
        [nn.Conv2d(1, 2, 3, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 2, dilation=2, padding=1)],
    ),
    "dead channels": ((1, 6, 7), [Dead(6)]),
    "dead channels, one sum for all": ((1, 6, 7), [Dead(1)]),
    "residual": ((2, 8, 9), [Block(2, 1), nn.Tanh(), Block(2, 2)]),
    "average pools": (
        (1, 9, 7),
        [nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)],
    ),
    "max pool": ((1, 8, 6), [nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(2, 2, 2)]),
    "normalised": ((1, 8, 8), [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 3)]),
    "groups": ((2, 8, 6), [nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 3, groups=2)]),
    "circular": ((1, 8, 6), [nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.Conv2d(2, 2, 3)]),
    "one dimension": ((2, 20), [nn.Conv1d(2, 3, 3, 2, 1), nn.ReLU(), nn.Conv1d(3, 2, 3, padding=1)]),
    "three dimensions": ((1, 4, 5, 6), [nn.Conv3d(1, 2, 2, padding=1), nn.ReLU(), nn.Conv3d(2, 1, 2, stride=2)]),
    "upsampled": (
        (1, 5, 5),
        [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3)],
    ),
}


@pytest.mark.parametrize("kind", ["linf", "linf per feature", "l2", "l1"])
@pytest.mark.parametrize(("shape", "parts"), WINDOWS.values(), ids=WINDOWS.keys())
def test_on_windows_of_every_kind(shape: tuple[int, ...], parts: list[nn.Module], kind: str) -> None:
    """Shapes that tell apart the ways to share rows between units: cells, patches, pruned channels, plain rows."""
    trunk = nn.Sequential(*parts, nn.ReLU(), nn.Flatten())
    features = trunk.eval()(torch.zeros(1, *shape, dtype=next(trunk.parameters()).dtype)).shape[1]
    model = nn.Sequential(trunk, nn.Linear(features, 3)).double().eval()
    sets = region(kind, shape, 2, seed=5, largest=0.4)
    forward_equals_backward(network_of(model, sets), sets)
