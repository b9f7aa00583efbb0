"""What float32 does to a margin stays below the certificate's slack."""

import copy

import pytest
import torch
from torch import nn

import autodual as ad
from soundness.graphs import build, drawn_recipe

BALLS = (ad.LinfBall(2**-4), ad.LinfBall(2**-2, clip=(-1, 1)), ad.L2Ball(2**-2), ad.L1Ball(2**-1), ad.LinfBall(2**-10))
"""Sizes that float32 holds exactly, so that both precisions bound the same set."""
ENGINES = (
    ad.Dual(), ad.ForwardDual(), ad.Crown(), ad.Dual(intersect=True), ad.IBP(), ad.Crown(intermediate=ad.IBP()),
    ad.Dual(intermediate=ad.IBP()),
)  # fmt: skip


def _worst_ratio(model: nn.Module, x: torch.Tensor, ball: ad.Perturbation, engine: ad.BoundEngine) -> float:
    """Largest |margin in float32 - margin in float64| / slack."""
    single = copy.deepcopy(model).float()
    double = copy.deepcopy(single).double()
    labels = torch.arange(len(x)) % 3
    low = ad.certify(single, x, labels, ball, engine)
    high = ad.certify(double, x.double(), labels, ball, engine)
    others = high.margins.isfinite()
    return ((low.margins.double() - high.margins).abs()[others] / low.slack.double()[others]).max().item()


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_margins_differ_by_less_than_the_slack(engine: ad.BoundEngine) -> None:
    for seed in range(1000, 1040):
        recipe = drawn_recipe(seed)
        x = 2 * torch.rand(4, *recipe.shape, generator=torch.Generator().manual_seed(seed)) - 1
        ratio = _worst_ratio(build(recipe), x, BALLS[seed % len(BALLS)], engine)
        assert ratio < 1, f"{recipe}: the margin moved by {ratio:.2f} times the slack"


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_large_terms_that_cancel(engine: ad.BoundEngine) -> None:
    """Pairs of equal units whose large outgoing weights cancel: the output is small, what it is summed from is not."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        model[0].weight[3:], model[0].bias[3:] = model[0].weight[:3], model[0].bias[:3]
        large = 1e4 * torch.randn(6, 3)
        model[2].weight[:, :3] += large
        model[2].weight[:, 3:] -= large
    ratio = _worst_ratio(model, torch.randn(8, 4), ad.LinfBall(2**-20), engine)
    assert ratio < 1, f"the margin moved by {ratio:.2f} times the slack"
