"""Activations of one number per example, which has no dimension of its own."""

import pytest
import torch
from torch import nn

import autodual as ad
from small import DOUBLE, ENGINES, Net, batch

BALLS = [ad.LinfBall(0.3), ad.L2Ball(0.4), ad.L1Ball(0.5)]


def _net() -> nn.Module:
    torch.manual_seed(1)
    return Net(
        lambda m, x: m.c(x) + (m.a(x).relu().sum(1) - 0.5).relu().tanh()[:, None], a=nn.Linear(5, 4), c=nn.Linear(5, 3)
    )


@pytest.mark.parametrize("ball", BALLS, ids=repr)
@pytest.mark.parametrize("engine", [*ENGINES.values(), ad.HighProbability(0.5, k=5)], ids=repr)
def test_bounds_hold(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    model, x = _net(), batch(3, 5)
    region = ball.around(x)
    found = ad.bounds(model, region, engine)
    assert any(
        interval.lower.dim() == 1 and bool((interval.lower * interval.upper < 0).any())
        for interval in found.layers.values()
    )
    generator = torch.Generator().manual_seed(0)
    values = torch.stack([model(region.sample(generator)) for _ in range(200)])
    assert bool((values >= found.output.lower - 1e-12).all())
    assert bool((values <= found.output.upper + 1e-12).all())
    certificate = ad.certify(model, x, torch.zeros(3, dtype=torch.int64), ball, engine)
    margins = values[..., :1] - values
    assert bool(
        (certificate.margins - certificate.slack <= margins.amin(0).where(margins.amax(0) != 0, torch.inf)).all()
    )


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_estimates_come_close(ball: ad.Perturbation, merged: bool) -> None:
    """With k next to the number of generators, above which nothing is estimated."""
    model, x, labels = _net(), batch(3, 5), torch.zeros(3, dtype=torch.int64)
    exact = ad.RobustCrossEntropy(model, ball)(x, labels)
    loss = ad.RobustCrossEntropy(model, ball, ad.Projected(9, merged))
    found = torch.stack([loss(x, labels) for _ in range(50)]).median()
    assert found.dtype == DOUBLE
    assert found.item() == pytest.approx(exact.item(), rel=0.3)
