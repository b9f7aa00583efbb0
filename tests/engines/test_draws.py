"""Random numbers of a step: their memory, in one piece or apart, and what they refuse to be used for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines.prepare import dual_network
from autodual.engines.streams import Draws, _apart, _in_one_piece, draw
from autodual.kernels.stream import Angles

SHAPES = {2: (4, 5, 5), 5: (7,)}


def _tensors(draws: Draws) -> list[torch.Tensor]:
    parts = [*draws.fresh.values(), *([draws.first] if isinstance(draws.first, Angles) else [])]
    return [t for part in parts for t in (part.angles, part.turns) if t is not None]


@pytest.mark.parametrize("cauchy", [True, False])
def test_one_piece_has_the_same_parts(cauchy: bool) -> None:
    like = torch.rand(3, 1, 6, 6)
    pooled, apart = (make(SHAPES, like, 10, cauchy) for make in (_in_one_piece, _apart))
    assert pooled.fresh.keys() == apart.fresh.keys()
    assert [t.shape for t in _tensors(pooled)] == [t.shape for t in _tensors(apart)]
    assert pooled.pool is not None
    assert sum(t.numel() for t in _tensors(pooled)) == len(pooled.pool)
    for part in _tensors(pooled):
        part.fill_(-1.0)
    assert bool((pooled.pool == -1).all())
    pooled.renew_(torch.Generator().manual_seed(0))
    assert all(bool(((t >= 0) & (t < math.pi + 1e-6)).all()) for t in _tensors(pooled))


def test_one_piece_gives_bounds_as_good() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)).double().eval()
    x = torch.rand(4, 6, dtype=torch.float64)
    network, region = dual_network(model, x), ad.LinfBall(0.1).around(x)
    shapes = {network.activations[0]: network.nodes[network.activations[0]].shape}
    draws = _in_one_piece(shapes, x, 20_000, True).renew_(torch.Generator().manual_seed(0))
    found = ad.Projected(20_000, draws=draws).preactivations(network, region).intervals
    exact = ad.Dual().preactivations(network, region).intervals
    for index in network.activations:
        assert found[index].width.mean().item() == pytest.approx(exact[index].width.mean().item(), rel=0.03)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.1), ad.L1Ball(0.1)], ids=repr)
def test_numbers_for_another_kind_of_ball_are_refused(ball: ad.Perturbation) -> None:
    model = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3)).eval()
    x = torch.rand(4, 6)
    network = dual_network(model, x)
    draws = draw(network, ball.around(x), 5)
    ad.Projected(5, exact_first=False, draws=draws).preactivations(network, ball.around(x))
    for other in (ad.LinfBall(0.1), ad.L2Ball(0.1), ad.L1Ball(0.1)):
        if type(other) is not type(ball):
            with pytest.raises(ad.ArgumentError, match="draws were made for another"):
                ad.Projected(5, draws=draws).preactivations(network, other.around(x))


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.1), ad.L1Ball(0.1)], ids=repr)
def test_another_number_of_projections_is_refused(ball: ad.Perturbation) -> None:
    model = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 9), nn.ReLU(), nn.Linear(9, 3)).eval()
    x = torch.rand(4, 6)
    network, region = dual_network(model, x), ball.around(x)
    five, six = (draw(network, region, k) for k in (5, 6))
    with pytest.raises(ad.ArgumentError, match="draws hold 5 projections, but the engine has k = 6"):
        ad.Projected(6, draws=five).preactivations(network, region)
    with pytest.raises(ad.ArgumentError, match="draws hold 6 projections, but the engine has k = 5"):
        ad.Projected(5, draws=Draws(six.fresh, five.first)).preactivations(network, region)


def test_a_generator_on_another_device_of_the_same_kind_is_refused() -> None:
    class Elsewhere(torch.Generator):
        device = torch.device("cpu", 1)

    x = torch.rand(4, 6)
    network = dual_network(nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3)).eval(), x)
    with pytest.raises(ad.ArgumentError, match="generator is on cpu:1, but the input is on cpu"):
        draw(network, ad.LinfBall(0.1).around(x), 5, Elsewhere())
