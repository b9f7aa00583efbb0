"""A module is bounded as what it computes, not as what it inherits from."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import build
from small import DOUBLE, batch


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Standardised(nn.Conv2d):
    """Weight standardisation, as it is usually written."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight.abs(), bias)


class ShiftedReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x - 0.1)


class Named(nn.Linear):
    """Only a name and a constructor of its own: still a linear layer."""

    def __init__(self) -> None:
        super().__init__(4, 3)


class PositiveWeight(nn.Linear):
    @property
    def positive(self) -> Tensor:
        return self.weight.abs()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.positive, self.bias)


def _with_own_forward() -> nn.Module:
    layer = nn.Linear(4, 3)

    def forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * 3

    layer.forward = types.MethodType(forward, layer)
    return layer


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Doubled(4, 3), (4,)),
    "convolution": (lambda: Standardised(2, 3, 3, padding=1), (2, 5, 5)),
    "convolution by _conv_forward": (lambda: OwnConvolution(2, 3, 3), (2, 5, 5)),
    "activation": (ShiftedReLU, (4,)),
    "constructor only": (Named, (4,)),
    "property": (lambda: PositiveWeight(4, 3), (4,)),
    "forward of one object": (_with_own_forward, (4,)),
}


@pytest.mark.parametrize(("make", "shape"), CASES.values(), ids=CASES.keys())
def test_subclasses_compute_what_their_forward_says(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = nn.Sequential(make()).to(DOUBLE).eval()
    x = batch(5, *shape) * 2 - 1
    torch.testing.assert_close(build(ad.capture(model, x[:2])).forward(x), model(x))
    region = ad.LinfBall(0.1).around(x)
    output = ad.bounds(model, region).output
    for _ in range(10):
        assert output.contains(model(region.sample()), tolerance=1e-9).all()
