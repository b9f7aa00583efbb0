"""Layers with unusual parameters state their rounding errors truly: float32 against float64, on inputs chosen to hurt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual.dual import build
from autodual.engines import capture
from autodual.testing.layers import check_errors
from small import Net


def _norm(mean: list[float], variance: list[float], cancelling: bool = False) -> nn.Module:
    """Batch normalisation with given statistics; its bias may nearly cancel what the mean becomes."""
    norm = nn.BatchNorm1d(len(mean)).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor(mean))
        norm.running_var.copy_(torch.tensor(variance))
        if cancelling:
            norm.bias.copy_(norm.running_mean * torch.rsqrt(norm.running_var + norm.eps))
    return norm


def _beside(constant: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([x, constant.expand(len(x), 1)], 1)


FLAT: dict[str, Any] = {
    "leaky_relu 1e8": nn.LeakyReLU(1e8),
    "leaky_relu -1e8": nn.LeakyReLU(-1e8),
    "leaky_relu 1/3": nn.LeakyReLU(1 / 3),
    "elu 1000": nn.ELU(1e3),
    "elu -0.5": nn.ELU(-0.5),
    "celu 0.001": nn.CELU(1e-3),
    "celu 1000": nn.CELU(1e3),
    "elu_ with scales": lambda x: F.elu_(x * 1, 0.7, 1.3, 0.6),
    "softplus 1000": nn.Softplus(1e3),
    "softplus 0.01": nn.Softplus(0.01),
    "softplus early": nn.Softplus(0.7, 0.3),
    "softplus early, falling": nn.Softplus(-0.7, 0.3),
    "softplus before zero": nn.Softplus(1.3, -3.0),
    "softplus late": nn.Softplus(1.0, 80.0),
    "hardtanh narrow": nn.Hardtanh(-1e-3, 1e-3),
    "hardtanh without zero": nn.Hardtanh(0.1, 0.7),
    "clamp min": lambda x: x.clamp(min=0.1),
    "clamp between tensors": lambda x: x.clamp(torch.tensor([-1.0, 0.1, 0.2, 0.3]), torch.tensor([1.0, 1.1, 0.7, 0.3])),
    "maximum with a constant": lambda x: torch.maximum(x, torch.tensor(0.1)),
    "batch norm, large means": _norm([310.8, 1e6, -1e4, 1e8], [0.9, 1.0, 1e-3, 4.0]),
    "batch norm, cancelling": _norm([310.8, 1e6, -1e4, 1e8], [0.9, 1.0, 1e-3, 4.0], cancelling=True),
    "batch norm, small variance": _norm([1.0, 2.0, 3.0, 4.0], [1e-30, 0.0, 1e-8, 1e30]),
    "divided by integers": lambda x: x / torch.tensor([199, 7, 3, 1]),
    "divided by small numbers": lambda x: x / torch.tensor([1e-30, 7.1, 3.0, 1.0]),
    "divided by an integer": lambda x: x / torch.tensor(7),
    "plus large integers": lambda x: x + torch.tensor([2**24 + 1, 3, 5, 7]),
    "times large integers": lambda x: x * torch.tensor([2**24 + 1, 3, 5, 7]),
    "times a double": lambda x: x * torch.tensor(0.1, dtype=torch.float64),
    "normalised": lambda x: (x - torch.tensor([0.485, 0.456, 0.406, 0.5])) / torch.tensor([0.229, 0.224, 0.225, 0.3]),
    "beside an integer": _beside(torch.tensor([[1]])),
    "beside a large integer": _beside(torch.tensor([[2**24 + 1]])),
    "beside a number": _beside(torch.tensor([[0.1]])),
    "padded with 0.1": lambda x: F.pad(x, (1, 1), value=0.1),
    "subtracted from 0.1": lambda x: 0.1 - x,
    "a third of another": lambda x: torch.sub(x, x.flip(1), alpha=1 / 3),
}
IMAGES: dict[str, Any] = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"),
    "bilinear, corners aligned": lambda x: F.interpolate(x, size=(13, 17), mode="bilinear", align_corners=True),
    "area": lambda x: F.interpolate(x, size=(3, 5), mode="area"),
    "average pool": nn.AvgPool2d(3, 2, 1),
    "average pool by 7": nn.AvgPool2d(3, divisor_override=7),
    "mean": lambda x: x.mean((2, 3)),
    "convolution": nn.Conv2d(4, 5, 3, padding=1),
    "transposed convolution": nn.ConvTranspose2d(4, 3, 3, 2),
}
CASES = [(name, op, (4,)) for name, op in FLAT.items()] + [(name, op, (4, 9, 10)) for name, op in IMAGES.items()]


@pytest.mark.parametrize(("operation", "shape"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_errors_are_not_understated(operation: Any, shape: tuple[int, ...]) -> None:
    module = operation if isinstance(operation, nn.Module) else Net(lambda m, x: operation(x))
    kinks = (operation.threshold / operation.beta,) if isinstance(operation, nn.Softplus) else ()
    graph = capture(module.eval(), torch.zeros(2, *shape))
    check_errors(type(module).__name__, module, build(graph), build(graph, dtype=torch.float64), kinks, 0)
