"""Where finite differences and the gradient disagree: the smallest band of an activation has kinks in the interval's ends.

The slope of the smallest band joins two points of the curve. Which two changes where two pairs are equally good: the radius is
continuous there, and its derivative jumps. For ELU(2) on [l, u] with l < 0 < u, such a place is where the chord from l to 0 is as
steep as the tangent that ends at u.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import autodual as ad

RADIUS = 0.5


def beyond_the_kink(bias: float) -> bool:
    """Whether the tangent that ends at u decides, for the interval bias +- RADIUS."""
    low, high = bias - RADIUS, bias + RADIUS
    chord = 2 * math.expm1(low) / low
    touching = math.log(chord / 2)
    return 2 * math.expm1(touching) - chord * touching > high - chord * high


def kink() -> float:
    low, high = -0.45, -0.05
    assert beyond_the_kink(low) != beyond_the_kink(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond_the_kink(middle) == beyond_the_kink(low) else (low, middle)
    return low


def loss_at(bias: Tensor) -> Tensor:
    """The robust loss of Linear - BatchNorm1d - ELU(2) - Linear as a function of the batch norm's bias."""
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0), nn.ELU(2.0), nn.Linear(1, 2)).double().eval()
    with torch.no_grad():
        model[0].weight.fill_(1)
        model[0].bias.fill_(0)
        model[3].weight.copy_(torch.tensor([[1.0], [-0.5]]))
        model[3].bias.zero_()
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(RADIUS), ad.Dual())
    arguments = (torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0]))
    return torch.func.functional_call(loss, {"model.1.bias": bias}, arguments)


def gradient(bias: float) -> float:
    at = torch.tensor([bias], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(loss_at(at), at)[0].item()


@torch.no_grad()
def difference(bias: float, step: float) -> float:
    ends = (loss_at(torch.tensor([bias + by], dtype=torch.float64)).item() for by in (step, -step))
    return (next(ends) - next(ends)) / (2 * step)


def test_the_gradient_is_right_on_both_sides_of_a_kink_and_jumps_there() -> None:
    place, step = kink(), 1e-4
    left, right = gradient(place - step), gradient(place + step)
    assert math.isclose(left, difference(place - step, step / 100), rel_tol=1e-6)
    assert math.isclose(right, difference(place + step, step / 100), rel_tol=1e-6)
    assert abs(left - right) > 1e-3 * abs(left), "no kink where the derivation says there is one"


def test_a_difference_across_the_kink_lies_between_the_two_gradients() -> None:
    place, step = kink(), 1e-4
    inside = place + step / 3
    across, found = difference(inside, step), gradient(inside)
    low, high = sorted((gradient(place - step), gradient(place + step)))
    assert low < across < high
    assert abs(across - found) > 1e-4 * abs(found), "this is the disagreement"
    assert math.isclose(difference(inside, step / 100), found, rel_tol=1e-6), "a smaller step does not meet the kink"


def test_the_loss_is_continuous_at_the_kink() -> None:
    place = kink()
    with torch.no_grad():
        left, right = (loss_at(torch.tensor([place + by], dtype=torch.float64)).item() for by in (-1e-9, 1e-9))
    assert abs(left - right) < 1e-8
