"""Engines agree where they must, compose, and hold for every input of the set."""

import pytest
import torch
from torch import nn

import autodual as ad
from small import DOUBLE, ENGINES, batch, bounds_of, convnet, corners, mlp

every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
BALLS = [
    pytest.param(ad.LinfBall(0.15), id="linf"),
    pytest.param(ad.LinfBall(0.15, clip=(0.0, 1.0)), id="linf, clipped"),
    pytest.param(ad.L2Ball(0.4), id="l2"),
    pytest.param(ad.L1Ball(0.6), id="l1"),
]


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.second(torch.tanh(self.first(x)))
        return self.head(torch.maximum(x, x.flip(1)))


MODELS = {"mlp": lambda: mlp(6, 8, 7, 3), "skip": lambda: Skip().to(DOUBLE).eval()}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@every_engine
@every_model
@pytest.mark.parametrize("ball", BALLS)
def test_bounds_hold(make: object, ball: ad.Perturbation, engine: ad.BoundEngine) -> None:
    model, region = make(), ball.around(batch(3, 6))
    found = ad.bounds(model, region, engine)
    assert isinstance(found, ad.SoundBounds)
    for i in range(60):
        point = region.vertex(torch.randn(3, 6, dtype=DOUBLE)) if i % 2 else region.sample()
        assert found.output.contains(model(point), tolerance=1e-9).all()


@every_engine
def test_bounds_hold_at_every_corner(engine: ad.BoundEngine) -> None:
    model, region = mlp(6, 8, 7, 3), ad.LinfBall(0.3).around(batch(2, 6))
    found = ad.bounds(model, region, engine)
    for corner in corners(region.lower, region.upper):
        assert found.layers["3"].contains(model[:3](corner), tolerance=1e-9).all()
        assert found.output.contains(model(corner), tolerance=1e-9).all()


@every_engine
@pytest.mark.parametrize("ball", BALLS)
def test_the_first_layer_is_exact(ball: ad.Perturbation, engine: ad.BoundEngine) -> None:
    """But interval arithmetic knows only the box around the set."""
    model, region = mlp(6, 8, 7, 3), ball.around(batch(3, 6))
    first = ad.bounds(model, region, engine).layers["1"]
    rows = model[0].weight.unsqueeze(1)
    if isinstance(engine, ad.IBP) or getattr(engine, "intermediate", None) == ad.IBP():
        box = region.box()
        region = ad.Box(box.lower, box.upper)
    torch.testing.assert_close(first.lower, region.minimise(rows).T + model[0].bias)
    torch.testing.assert_close(first.upper, -region.minimise(-rows).T + model[0].bias)


@pytest.mark.parametrize("ball", BALLS)
@every_model
def test_forward_and_backward_passes_agree(make: object, ball: ad.Perturbation) -> None:
    model, region = make(), ball.around(batch(3, 6))
    for a, b in zip(bounds_of(model, region, ad.Dual()), bounds_of(model, region, ad.ForwardDual()), strict=True):
        torch.testing.assert_close(a, b)


@every_engine
def test_a_point_has_the_models_own_values(engine: ad.BoundEngine) -> None:
    model, x = convnet(), batch(2, 1, 6, 6)
    found = ad.bounds(model, ad.LinfBall(0.0).around(x), engine)
    torch.testing.assert_close(found.output.lower, model(x))
    torch.testing.assert_close(found.output.upper, model(x))


@pytest.mark.parametrize("kind", [ad.Dual, ad.Crown])
@pytest.mark.parametrize("inner", ENGINES.values(), ids=ENGINES.keys())
def test_intermediate_bounds_are_those_of_the_inner_engine(kind: type[ad.Dual], inner: ad.BoundEngine) -> None:
    model, region = mlp(6, 8, 7, 3), ad.LinfBall(0.15).around(batch(3, 6))
    ours, theirs = ad.bounds(model, region, kind(intermediate=inner)), ad.bounds(model, region, inner)
    for name, interval in theirs.layers.items():
        assert torch.equal(ours.layers[name].lower, interval.lower)
        assert torch.equal(ours.layers[name].upper, interval.upper)


def test_an_engine_inside_itself_is_that_engine() -> None:
    model, region = mlp(6, 8, 7, 3), ad.LinfBall(0.15).around(batch(3, 6))
    for engine in (ad.Dual(), ad.Crown()):
        nested = type(engine)(intermediate=engine)
        for a, b in zip(bounds_of(model, region, engine), bounds_of(model, region, nested), strict=True):
            torch.testing.assert_close(a, b)


@every_engine
def test_examples_are_bounded_as_if_alone(engine: ad.BoundEngine) -> None:
    model, x = convnet(), batch(4, 1, 6, 6)
    together = bounds_of(model, ad.L2Ball(0.3).around(x), engine)
    for i in range(4):
        alone = bounds_of(model, ad.L2Ball(0.3).around(x[i : i + 1]), engine)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[i : i + 1], b)


@every_engine
def test_nothing_is_remembered_between_calls(engine: ad.BoundEngine) -> None:
    network = ad.capture(convnet(), batch(1, 1, 6, 6))
    small, large = (ad.LinfBall(eps).around(batch(2, 1, 6, 6)) for eps in (0.01, 0.2))
    first = bounds_of(network, large, engine)
    bounds_of(network, small, engine)
    for a, b in zip(first, bounds_of(network, large, engine), strict=True):
        assert torch.equal(a, b)


@every_engine
def test_a_network_without_activations_is_bounded_exactly(engine: ad.BoundEngine) -> None:
    model, region = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).to(DOUBLE), ad.LinfBall(0.1).around(batch(2, 6))
    found = ad.bounds(model, region, engine)
    assert found.layers == {}
    rows = model[1].weight.unsqueeze(1)
    torch.testing.assert_close(found.output.lower, region.minimise(rows).T + model[1].bias)


@every_engine
def test_the_input_itself_may_be_the_output(engine: ad.BoundEngine) -> None:
    region = ad.LinfBall(0.1).around(batch(2, 6))
    found = ad.bounds(nn.Identity(), region, engine)
    torch.testing.assert_close(found.output.lower, region.lower)
    torch.testing.assert_close(found.output.upper, region.upper)


@every_engine
def test_an_activation_may_be_first_or_last(engine: ad.BoundEngine) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(6, 4), nn.Sigmoid()).to(DOUBLE)
    region = ad.LinfBall(0.2).around(batch(2, 6) - 0.5)
    found = ad.bounds(model, region, engine)
    assert list(found.layers) == ["0", "2"]
    for _ in range(50):
        assert found.output.contains(model(region.sample()), tolerance=1e-9).all()
