"""Exact radii before the first activation: taken where they are cheap, and nowhere else."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autodual as ad
from autodual.engines.prepare import dual_network
from autodual.engines.projected import exact_first_sources
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
            assert exact_first_sources(network, ball.around(x), k) == exact_first_sources(
                network, ball.around(x[:1]), k
            )


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


@pytest.mark.parametrize(
    "ball", [ad.LinfBall(0.1), ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.L2Ball(0.3), ad.L1Ball(0.4)], ids=repr
)
@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
def test_narrow_layers_are_exact_where_that_is_asked_for(ball: ad.Perturbation, merged: bool) -> None:
    """Exact bounds of a layer after an exact one are those of Dual(); a wider layer stays an estimate."""
    x = batch(3, 6)
    network, region = dual_network(mlp(6, 40, 20, 30, 20, 3), x), ball.around(x)
    exact = ad.Dual().preactivations(network, region).intervals
    engine = ad.Projected(9, merged, exact_narrow=40)
    found = engine.preactivations(network, region).intervals
    for index in network.activations:
        torch.testing.assert_close(found[index].lower, exact[index].lower)
    part = ad.Projected(9, merged, exact_narrow=20).preactivations(network, region).intervals
    second, third = network.activations[1:3]
    torch.testing.assert_close(part[second].lower, exact[second].lower)
    assert not torch.allclose(part[third].lower, exact[third].lower)


@pytest.mark.parametrize("bad", [-1, 2.5, True, None])
def test_exact_narrow_is_a_number_of_units(bad: object) -> None:
    with pytest.raises(ad.ArgumentError, match="exact_narrow must be a number of units"):
        ad.Projected(9, exact_narrow=bad)  # type: ignore[arg-type]
