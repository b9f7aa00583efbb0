"""High-probability bounds have room for what finite numbers do: to angles, to products, to sums, to what is tried twice."""

import math

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines import high_probability
from autodual.engines.high_probability import (
    ROUNDING,
    ConfidenceRadius,
    geometric_enlargement,
    log_tail_per_estimate,
    never_zero,
)
from autodual.engines.prepare import dual_network
from autodual.engines.streams import CAUCHY, COLUMNS, Draws, StreamPass, draw
from autodual.kernels.stream import Angles
from small import batch, mlp


def _narrow() -> nn.Module:
    """Every unit of the second layer reads one generator."""
    return nn.Sequential(nn.ReLU(), nn.Linear(30, 2)).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_cauchy_number_is_zero(dtype: torch.dtype) -> None:
    turned, alone = (
        Angles(torch.zeros(3, 1, 5, dtype=dtype), torch.zeros(2, 5, dtype=dtype)),
        Angles(torch.zeros(3, 1, 5)),
    )
    draws = never_zero(Draws({1: turned}, alone))
    for part in (draws.fresh[1], draws.first):
        assert isinstance(part, Angles)
        assert bool((part.numbers() != 0).all())
        assert part.numbers().abs().max() < torch.finfo(part.angles.dtype).eps
    gauss = torch.zeros(3, 1, 5)
    assert never_zero(Draws({}, gauss)).first is gauss
    assert bool((gauss == 0).all())


def test_an_angle_of_zero_does_not_make_a_radius_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 draws an angle of exactly zero once in 2^24 numbers; the logarithm of its number would weigh like ten others."""

    def with_a_zero(*given: object) -> Draws:
        draws = draw(*given)  # type: ignore[arg-type]
        assert isinstance(draws.first, Angles)
        draws.first.angles[0] = 0
        return draws

    x = torch.rand(1, 30)
    network, region = dual_network(_narrow(), x), ad.LinfBall(2.0).around(x)
    engine = ad.HighProbability(k=12, exact_first=False)
    usual = engine.preactivations(network, region).intervals[1].radius
    monkeypatch.setattr(high_probability, "draw", with_a_zero)
    found = engine.preactivations(network, region).intervals[1].radius
    smallest = math.pi * torch.finfo(torch.float32).eps / 4
    assert bool((found / usual > (smallest / 1e3) ** (1 / 12)).all())


def test_a_sample_that_underflows_does_not_make_a_radius_vanish() -> None:
    samples = torch.ones(50, 1, 3)
    samples[0] = 0
    reading = ConfidenceRadius(50, 1, 1.0, 1.0)
    assert bool((reading.finish(CAUCHY, reading.add(CAUCHY, None, samples)) > 0.1).all())


def test_estimates_are_enlarged_by_a_little_more_than_the_tail_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All Cauchy numbers 1 and all weights positive: the estimate is the exact radius, enlarged."""

    def ones(*given: object) -> Draws:
        draws = draw(*given)  # type: ignore[arg-type]
        assert isinstance(draws.first, Angles)
        draws.first.angles.fill_(math.pi / 4)
        return draws

    monkeypatch.setattr(high_probability, "draw", ones)
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        model[0].weight.uniform_(0.5, 1.0)
    x, engine = torch.rand(1, 64), ad.HighProbability(k=20, exact_first=False)
    network, region = dual_network(model, x), ad.LinfBall(0.25).around(x)
    basis = engine.confidence(network, region)
    factor = geometric_enlargement(20, log_tail_per_estimate(basis.delta, basis.estimates, basis.m))
    exact = model[0].weight.double().sum(1) * 0.25
    more = engine.preactivations(network, region).intervals[2].radius[0].double() / (exact * factor) - 1
    eps = torch.finfo(torch.float32).eps
    assert bool((more > ROUNDING * eps / 2).all())
    assert bool((more < ROUNDING * eps * 2).all())


def test_a_promise_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look in float64 would have other random numbers, and double delta."""
    model, x = mlp(6, 40, 40, 3, dtype=torch.float32), batch(4, 6, dtype=torch.float32)
    labels, engine = model(x).argmax(1), ad.HighProbability(k=12)
    margins = ad.certify(model, x, labels, ad.LinfBall(0.01), engine).margins
    tried: list[torch.dtype] = []
    prove = ad.HighProbability.prove

    def noting(self: ad.HighProbability, network: object, region: ad.InputSet, spec: object) -> object:
        tried.append(region.centre.dtype)
        return prove(self, network, region, spec)  # type: ignore[arg-type]

    monkeypatch.setattr(ad.HighProbability, "prove", noting)
    nearest = margins.amin(1)[0].item()
    with torch.no_grad():
        last = model[-1]
        assert isinstance(last, nn.Linear)
        last.bias[labels[0]] -= nearest  # a margin of zero, as far as float32 can tell
    ad.certify(model, x, labels, ad.LinfBall(0.01), engine)
    assert tried == [torch.float32]


@pytest.mark.parametrize("m", [1, 4])
def test_columns_are_carried_once(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = batch(2, 6)
    network, region = dual_network(mlp(6, 40, 40, 3), x), ad.L1Ball(0.3).around(x)
    carried = []
    start = StreamPass.input

    def noting(self: StreamPass) -> object:
        found = start(self)
        carried.append(COLUMNS in found)
        return found

    monkeypatch.setattr(StreamPass, "input", noting)
    monkeypatch.setattr(high_probability, "VALUES_AT_ONCE", 1)
    engine = ad.HighProbability(k=4, m=m, exact_first=False, delta=0.9)
    engine.preactivations(network, region)
    layers = len(network.activations)
    assert len(carried) == layers * m * 4
    assert sum(carried) == layers
