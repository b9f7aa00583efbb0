"""Activations on intervals near the largest numbers: what is finite holds; NaN and infinities certify nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import ElementwiseDual
from autodual.engines.prepare import dual_network
from autodual.interval import Interval
from soundness.graphs import ACTIVATIONS

FUNCTIONS: dict[str, Callable[[], nn.Module]] = ACTIVATIONS | {
    "elu negative": lambda: nn.ELU(-0.5),
    "softplus negative": lambda: nn.Softplus(-1.0, 1.0),
    "softplus steep": lambda: nn.Softplus(50.0, 20.0),
}
LARGEST = torch.finfo(torch.float32).max
SIZES = (1e4, 1e7, 1e8, 1e12, 1e20, 1e30, 1e38, LARGEST)
ENDS = [
    (a, b)
    for s in SIZES
    for a, b in ((-s, s), (-s, 1.0), (-1.0, s), (-s, -1.0), (0.5, s), (s / 2, s), (-s, -s / 2), (-s, s / 7))
]


def points(low: Tensor, high: Tensor) -> Tensor:
    """[P, K] in float64: from end to end, evenly and near every power of ten."""
    even = torch.lerp(low.double(), high.double(), torch.linspace(0, 1, 401).double().unsqueeze(1))
    sizes = torch.logspace(-3, 38, 600, dtype=torch.float64)
    sizes = torch.cat([-sizes, torch.zeros(1, dtype=torch.float64), sizes]).unsqueeze(1).expand(-1, len(low))
    return torch.cat([even, sizes]).clamp(low.double(), high.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_finite_bound_is_wrong(name: str, dtype: torch.dtype) -> None:
    layer = dual_network(FUNCTIONS[name]().eval().to(dtype), torch.zeros(1, 1, dtype=dtype)).nodes[-1].layer
    exact = dual_network(FUNCTIONS[name]().eval().double(), torch.zeros(1, 1).double()).nodes[-1].layer
    assert isinstance(layer, ElementwiseDual)
    assert isinstance(exact, ElementwiseDual)
    low, high = torch.tensor(ENDS, dtype=dtype).T.contiguous()
    z = points(low, high)
    with torch.no_grad():
        interval = Interval(low.unsqueeze(1), high.unsqueeze(1))
        values = exact.value(z.unsqueeze(-1)).squeeze(-1)
        image, band, lines = layer.image(interval), layer.band(interval), layer.lines(interval)
        zero = torch.zeros_like(image.lower)
        found = {
            "image": (zero, image.lower, zero, image.upper),
            "band": (band.slope, band.centre - band.radius, band.slope, band.centre + band.radius),
            "lines": (lines.lower_slope, lines.lower_offset, lines.upper_slope, lines.upper_offset),
        }
    for kind, tensors in found.items():
        lower_slope, lower, upper_slope, upper = (t.double().squeeze(1) for t in tensors)
        grain = 16 * torch.finfo(dtype).eps
        room = grain * (
            1 + values.abs() + (lower_slope * z).abs() + lower.abs() + (upper_slope * z).abs() + upper.abs()
        )
        wrong = (values - lower_slope * z < lower - room) & lower.isfinite()
        wrong |= (values - upper_slope * z > upper + room) & upper.isfinite()
        wrong |= (lower == torch.inf) | (upper == -torch.inf)
        where = [ENDS[i] for i in wrong.any(0).nonzero().flatten().tolist()]
        assert not where, f"{kind} on {where[:4]}"


def test_nothing_is_certified_where_widths_overflow() -> None:
    """relu(z) on [-3e38, 3e38]: u - l is infinite in float32, and u / inf = 0 would pass for a dead unit."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[0.0], [1e-30]]))
        model[2].bias.copy_(torch.tensor([1.0, 0.0]))
    assert model(torch.tensor([[1.5e38]])).argmax() == 1
    for engine in (ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()):
        found = ad.certify(model, torch.zeros(1, 1), torch.tensor([0]), ad.LinfBall(1.5e38), engine)
        assert not found.certified.item(), repr(engine)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid], ids=lambda kind: kind.__name__)
def test_saturated_units_are_not_taken_for_constants(activation: type[nn.Module]) -> None:
    """On [-1e8, 1e8] in float32 the smallest band of tanh is nearly flat: its slope must not round its radius away."""
    model = nn.Sequential(nn.Linear(1, 1), activation(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[0.0], [1.0]]))
        model[2].bias.copy_(torch.tensor([0.8, 0.0]))
    assert model(torch.tensor([[10.0]])).argmax() == 1
    for engine in (ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()):
        found = ad.certify(model, torch.zeros(1, 1), torch.tensor([0]), ad.LinfBall(1e8), engine)
        assert not found.certified.item(), repr(engine)
