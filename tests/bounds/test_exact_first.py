"""Exact radii before the first activation: taken where they are cheap, and nowhere else."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autodual as ad
from autodual.bounds.first import first_sources
from autodual.bounds.prepare import dual_network
from small import DOUBLE, Net, batch, mlp

BALLS = [ad.LinfBall(0.05), ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.L2Ball(0.3)]


class Largest(TorchDispatchMode):
    """Sees every tensor that is made, and remembers how many values the largest has."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().nbytes() > 0:
            self.values = max(self.values, result.untyped_storage().nbytes() // result.element_size())
        return result


def _two_convolutions(filters: int) -> list[nn.Module]:
    return [nn.Conv2d(1, filters, 3, padding=1), nn.Conv2d(filters, filters, 3, padding=1)]


def _then_pooled(filters: int) -> list[nn.Module]:
    return [nn.Conv2d(1, filters, 3, padding=1), nn.AvgPool2d(2)]


def _two_linear(filters: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(144, 40 * filters), nn.Linear(40 * filters, 40 * filters)]


def _after(layers: list[nn.Module]) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).to(DOUBLE).eval()


@pytest.mark.parametrize("ball", BALLS, ids=repr)
@pytest.mark.parametrize("first", [_two_convolutions, _then_pooled, _two_linear])
def test_no_tensor_is_larger_than_k_times_the_units(first: Any, ball: ad.Perturbation) -> None:
    k, x = 8, batch(1, 1, 12, 12)
    for filters in (2, 16, 48):
        model = _after(first(filters))
        model(x)
        network = dual_network(model, x)
        units = max(math.prod(node.shape) for node in network.nodes)
        weights = max(p.numel() for p in model.parameters())
        with torch.no_grad(), Largest() as largest:
            ad.Projected(k).preactivations(network, ball.around(x))
        assert largest.values <= max(2 * k * units, weights), f"{filters} filters"


def _radii(engine: ad.BoundEngine, network: Any, region: ad.InputSet) -> Tensor:
    return engine.preactivations(network, region).intervals[network.activations[0]].radius


def _few() -> nn.Module:
    return Net(
        lambda m, x: m.c(torch.relu(m.b(m.a(x)) + x[:, :1])), a=nn.Linear(6, 7), b=nn.Linear(7, 20), c=nn.Linear(20, 3)
    )


@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_where_few_features_are_read_it_is_exact_whatever_comes_before(ball: ad.Perturbation) -> None:
    x = batch(2, 6)
    network, region = dual_network(_few(), x), ball.around(x)
    exact = _radii(ad.Dual(), network, region)
    for engine in (ad.Projected(22), ad.HighProbability(k=22)):
        torch.testing.assert_close(_radii(engine, network, region), exact)
    for engine in (ad.Projected(19), ad.HighProbability(k=19)):
        assert not torch.allclose(_radii(engine, network, region), exact)


@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_the_estimates_that_are_counted_are_those_that_are_made(ball: ad.Perturbation) -> None:
    x = batch(2, 6)
    network, region = dual_network(_few(), x), ball.around(x)
    assert ad.HighProbability(k=22).estimates(network, region) == 0
    assert ad.HighProbability(k=19).estimates(network, region) == 20


@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_the_choice_does_not_depend_on_the_batch(ball: ad.Perturbation) -> None:
    for model, shape in ((_few(), (6,)), (mlp(6, 30, 30, 3), (6,)), (_after(_two_convolutions(3)), (1, 12, 12))):
        x = batch(9, *shape)
        model(x)
        for k in (5, 20, 100, 2000):
            network = dual_network(model, x)
            assert first_sources(network, ball.around(x), k) == first_sources(network, ball.around(x[:1]), k)


@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_without_it_the_first_layer_is_estimated_too(ball: ad.Perturbation) -> None:
    x = batch(2, 6)
    network, region = dual_network(mlp(6, 20, 20, 3), x), ball.around(x)
    exact = _radii(ad.Dual(), network, region)
    for kind in (ad.Projected, ad.HighProbability):
        torch.testing.assert_close(_radii(kind(k=30), network, region), exact)
        estimated = _radii(kind(k=30, exact_first=False), network, region)
        assert bool((estimated - exact).abs().gt(1e-6).all())


@pytest.mark.parametrize("ball", [ad.LinfBall(0.05), ad.L2Ball(0.3)], ids=repr)
def test_one_wide_layer_is_exact_since_its_rows_are_its_weights(ball: ad.Perturbation) -> None:
    x = batch(2, 60)
    network, region = dual_network(mlp(60, 30, 20, 3), x), ball.around(x)
    torch.testing.assert_close(_radii(ad.Projected(8), network, region), _radii(ad.Dual(), network, region))
