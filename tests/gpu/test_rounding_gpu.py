"""What float32 does on a GPU stays far below what certificates allow for, in convolutions for which cuDNN has Winograd, too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual._tensor import full_precision
from autodual.engines.prepare import dual_network
from autodual.spec import margins

pytestmark = pytest.mark.gpu

PART = 0.25
"""Of the error allowed for, the most that may be seen: the rest is for convolutions whose errors follow another law."""


def _networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    wide = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16384, 10)
    )  # fmt: skip
    return {
        "wide": (wide, (3, 16, 16)),
        "large": (ad.models.large(1, 28), (1, 28, 28)),
        "deep": (ad.models.deep(2), (1, 28, 28)),
    }


def _largest_ratio(moved: Tensor, allowed: Tensor) -> float:
    return (moved.double().abs() / allowed.double()).max().item()


@pytest.mark.parametrize("engine", [ad.Dual(), ad.IBP(), ad.Crown(intermediate=ad.IBP())], ids=repr)
@pytest.mark.parametrize("name", ["wide", "large", "deep"])
def test_float32_moves_bounds_by_little_of_what_is_allowed_for(name: str, engine: ad.BoundEngine) -> None:
    model, shape = _networks()[name]
    single = model.cuda().eval()
    double = copy.deepcopy(single).double()
    x, labels = torch.rand(4, *shape, device="cuda"), torch.arange(4, device="cuda")
    ball = ad.LinfBall(2**-6)
    with torch.no_grad(), full_precision():
        low, high = dual_network(single, x), dual_network(double, x.double())
        near, far = ball.around(x), ball.around(x.double())
        found, exact = engine.provable(low, near), engine.provable(high, far)
        proof = engine.prove(low, near, margins(labels, 10, torch.float32))
        truth = engine.prove(high, far, margins(labels, 10, torch.float64))
    ratios = {"margins": _largest_ratio((proof.lower - truth.lower)[proof.slack > 0], proof.slack[proof.slack > 0])}
    for i, interval in exact.intervals.items():
        outside = found.outside[i]
        ratios[f"lower {i}"] = _largest_ratio(found.intervals[i].lower - interval.lower, outside.farther)
        ratios[f"upper {i}"] = _largest_ratio(found.intervals[i].upper - interval.upper, outside.farther)
    print({where: f"{ratio:.3g}" for where, ratio in ratios.items()})
    assert max(ratios.values()) < PART, ratios


@pytest.mark.parametrize(
    ("operation", "one", "other", "number", "expected"),
    [
        (torch.addcmul, 3e38, 1e-38, 10.0, 30.0),  # 10 * 3e38 would be infinite
        (torch.addcmul, 1e-30, 1e-30, 1e38, 0.0),  # 1e38 * 1e-30 * 1e-30 would not vanish
        (torch.addcdiv, 3e38, 1e38, 10.0, 30.0),
        (torch.addcdiv, 1e-30, 1e30, 1e38, 0.0),
    ],
)  # fmt: skip
def test_a_product_of_three_is_multiplied_by_the_number_last_on_a_gpu(
    operation: Callable[..., Tensor], one: float, other: float, number: float, expected: float
) -> None:
    """As the rewrites of both assume, which put the number first on a CPU."""
    zero, left, right = (torch.tensor([value], device="cuda") for value in (0.0, one, other))
    assert operation(zero, left, right, value=number).item() == pytest.approx(expected)
