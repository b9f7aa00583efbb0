"""A network evaluated at points is as near to the exact function as the error beside it says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.dual import build
from autodual.engines.ibp import evaluate_with_error

ACTIVATIONS = (
    nn.ReLU(), nn.LeakyReLU(0.1), nn.Hardtanh(), nn.Hardswish(), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.ELU(), nn.GELU(),
    nn.SiLU(),
)  # fmt: skip


class _Sum(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(48, 48), nn.Linear(48, 48), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.first(x), self.second(x)  # both before either is read
        return self.activation(x + self.second(self.activation(first)) + self.activation(second))


def _model(activation: nn.Module, size: float) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, 2), nn.BatchNorm2d(3), activation, nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(27, 48), activation,
        _Sum(activation), activation, nn.Linear(48, 5),
    ).eval()  # fmt: skip
    with torch.no_grad():
        model[1].running_mean.fill_(size)
        model[1].bias.fill_(0.3)
        model[0].bias.fill_(size)
    return model


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("size", [0.0, 100.0])
@torch.no_grad()
def test_the_error_is_not_understated_nor_useless(activation: nn.Module, size: float) -> None:
    torch.manual_seed(0)
    model = _model(activation, size)
    x = torch.cat([scale * torch.randn(24, 1, 9, 9) for scale in (0.0, 1e-30, 1e-3, 1.0, 30.0)])
    graph = ad.capture(model, x)
    found, error = evaluate_with_error(build(graph), x)
    exact, tiny = evaluate_with_error(build(graph, dtype=torch.float64), x.double())
    for computed in (found, model(x), torch.cat([model(part) for part in x.split(7)])):
        assert ((computed - exact).abs() <= error + tiny).all()
    assert ((copy.deepcopy(model).double()(x.double()) - exact).abs() <= 2 * tiny).all()
    assert (error <= (0.01 if size == 0 else 0.1) * (1 + exact.abs().amax())).all()
    assert (tiny <= 1e-7 * error).all()
