"""The wiring of the GPU's kernel for a ReLU's band, with plain code in its place; the kernel itself is tested in tests/gpu."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import autodual.kernels
from autodual.dual.piecewise import DualReLU
from autodual.interval import Interval
from autodual.kernels import chord
from autodual.kernels.chord import _plain_band, _plain_relaxed


def _forward(lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return _plain_band(lower, upper)


def _backward(lower: Tensor, upper: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        ends = lower.detach().requires_grad_(), upper.detach().requires_grad_()
        return torch.autograd.grad(_plain_band(*ends), ends, gradients)


calls: list[str] = []


def _forward_around(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
    calls.append("around")
    with torch.no_grad():
        return _plain_relaxed(centre, radius)


def _backward_around(centre: Tensor, radius: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        given = centre.detach().requires_grad_(), radius.detach().expand_as(centre).clone().requires_grad_()
        return torch.autograd.grad(_plain_relaxed(*given)[2:], given, gradients)


@pytest.fixture(autouse=True)
def _kernel_in_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in (_forward, _backward, _forward_around, _backward_around):
        monkeypatch.setattr(chord, f"launch{launcher.__name__}", launcher)
    monkeypatch.setattr(autodual.kernels, "usable", lambda *tensors: True)


def test_gradients_once_and_twice() -> None:
    torch.manual_seed(0)
    lower = torch.randn(40, dtype=torch.float64)
    ends = lower.requires_grad_(), (lower.detach() + torch.rand_like(lower) + 0.1).requires_grad_()

    def band(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        found = DualReLU().band(Interval(low, high))
        return found.slope, found.radius

    assert torch.autograd.gradcheck(band, ends)
    assert torch.autograd.gradgradcheck(band, ends)


@pytest.mark.parametrize("shared", [False, True], ids=["own radius", "shared radius"])
def test_gradients_around_a_centre_once_and_twice(shared: bool) -> None:
    torch.manual_seed(0)
    centre = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    radius = (torch.rand(1 if shared else 3, 12, dtype=torch.float64) + 0.1).requires_grad_()

    def relaxed(*given: Tensor) -> tuple[Tensor, ...]:
        found = DualReLU().relax(*given)
        return found.interval.lower, found.interval.upper, found.band.slope, found.band.radius, found.middle

    calls.clear()
    assert torch.autograd.gradcheck(relaxed, (centre, radius))
    assert calls
    assert torch.autograd.gradgradcheck(relaxed, (centre, radius))
    assert torch.autograd.gradcheck(lambda *given: relaxed(*given)[2::2], (centre, radius))
