"""An attack never breaks what is proved, also where a margin is thinner than a unit in the last place of the inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad

BALLS: dict[str, Callable[[float], ad.Perturbation]] = {
    "linf": ad.LinfBall,
    "linf, clipped": lambda eps: ad.LinfBall(eps, clip=(0.0, 1.0)),
    "l2": ad.L2Ball,
    "l1": ad.L1Ball,
}
SEEDS = (14, 18, 26, 54, 66, 110, 124, 126, 182, 188, 242, 248, 256, 276, 280, 296)
"""Of the first 300, those at which points of an attack that were rounded to nearest lay outside a ball and broke a proof."""


def scored(weight: list[float]) -> nn.Linear:
    """Class 0 has weight'x + bias as its score, class 1 has none."""
    model = nn.Linear(len(weight), 2).eval()
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0] = torch.tensor(weight)
        model.bias.zero_()
    return model


def at_the_edge(seed: int, make: Callable[[float], ad.Perturbation]) -> tuple[nn.Linear, Tensor, ad.Perturbation]:
    """The score is as near to zero as a bias can bring it, at the lowest point of the ball, as float32 rounds that."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 1 if seed % 2 else 3, generator=generator) * 0.5 + 0.25
    ball = make(float(torch.rand(1, generator=generator, dtype=torch.float64)) * 0.1 + 0.01)
    model = scored([1.0, 0.5, 0.5][: x.shape[1]])
    lowest = ball.around(x).vertex(-model.weight[:1].detach())
    with torch.no_grad():
        model.bias[0] = -(lowest.double() * model.weight[0].double()).sum().float()
    return model, x, ball


@pytest.mark.parametrize("name", BALLS)
def test_what_is_proved_is_not_broken_in_the_same_arithmetic(name: str) -> None:
    label, proved = torch.tensor([0]), 0
    for seed in SEEDS:
        model, x, ball = at_the_edge(seed, BALLS[name])
        certificate, attack = ad.certify(model, x, label, ball), ad.attack(model, x, label, ball, steps=6)
        proved += bool(certificate.certified)
        assert not (certificate.certified & attack.success).any(), seed
        assert not (certificate.certified_as_run & attack.success_as_run).any(), seed
    assert proved > 3  # else the margins are not at the edge


def test_what_float64_cannot_tell_is_no_counterexample() -> None:
    """(1e16 + x) - 1e16 is positive; float64 computes zero, a tie, and says how far it may be off."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)).double().eval()
    with torch.no_grad():
        for layer, weight, bias in zip(model, ([[1.0]], [[1.0], [0.0]]), ([1e16], [-1e16, 0.0]), strict=True):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    x = torch.tensor([[0.5]], dtype=torch.float64)
    assert model(x).tolist() == [[0.0, 0.0]]
    found = ad.attack(model, x, torch.tensor([0]), ad.LinfBall(0.25), steps=3)
    assert found.success_as_run.item()
    assert not found.success.item()
