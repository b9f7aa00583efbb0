"""Sound bounds hold as they are printed: every value that the exact function takes on the set lies inside, to the last digit."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.engines.prepare import dual_network

ENGINES = (
    ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual(), ad.Dual(intersect=True), ad.Crown(intermediate=ad.IBP()),
    ad.Crown(lower="zero"), ad.BestOf(ad.IBP(), ad.Dual(), ad.Crown()), ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True),
    ad.AlphaCrown(steps=2),
)  # fmt: skip
BALLS = (
    ad.LinfBall(0.0),
    ad.LinfBall(0.1),
    ad.LinfBall(0.1, clip=(0.0, 1.0)),
    ad.L2Ball(0.1),
    ad.L1Ball(0.1),
    ad.LinfBall(1e-7),
)
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=repr)
every_ball = pytest.mark.parametrize("ball", BALLS, ids=repr)


def _model(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    model = nn.Sequential(*layers).to(dtype).eval()
    with torch.no_grad():
        model[2].bias += 100  # large and cancelling, so that float32 loses digits
        model[4].bias -= 100 * model[4].weight.sum(1)
    return model


def _exact(model: nn.Sequential, x: Tensor) -> list[list[Fraction]]:
    """What every linear layer computes for one input, without any rounding."""
    values, found = [Fraction(v) for v in x.tolist()], list[list[Fraction]]()
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight = [[Fraction(w) for w in row] for row in layer.weight.tolist()]
            bias = [Fraction(b) for b in layer.bias.tolist()]
            values = [
                sum((w * v for w, v in zip(r, values, strict=True)), b) for r, b in zip(weight, bias, strict=True)
            ]
            found.append(values)
        else:
            values = [max(v, Fraction(0)) for v in values]
    return found


@every_engine
@every_ball
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bounds_contain_exact_values(engine: ad.BoundEngine, ball: ad.Perturbation, dtype: torch.dtype) -> None:
    model = _model(dtype)
    x = torch.rand(2, 5, dtype=dtype, generator=torch.Generator().manual_seed(1))
    region = ball.around(x)
    found = ad.bounds(model, region, engine)
    intervals = [*found.layers.values(), found.output]
    assert all(i.lower.dtype == dtype for i in intervals)
    directions = torch.randn(3, 2, 5, dtype=dtype, generator=torch.Generator().manual_seed(2))
    points = [x, *(region.project(x + 0.99 * (region.vertex(d) - x)) for d in directions)]
    for point in points:
        for n in range(len(x)):
            for interval, values in zip(intervals, _exact(model, point[n].detach()), strict=True):
                ends = zip(interval.lower[n].tolist(), interval.upper[n].tolist(), values, strict=True)
                assert all(Fraction(low) <= value <= Fraction(high) for low, high, value in ends)


@every_engine
def test_float32_is_rounded_outwards_by_little(engine: ad.BoundEngine) -> None:
    model, x = _model(torch.float32), torch.rand(2, 5)
    region, exact = ad.LinfBall(2**-3).around(x), copy.deepcopy(model).double()
    single, double = ad.bounds(model, region, engine), ad.bounds(exact, ad.LinfBall(2**-3).around(x.double()), engine)
    for found, truth in zip(
        (*single.layers.values(), single.output), (*double.layers.values(), double.output), strict=True
    ):
        assert (found.width.double() <= 1.011 * truth.width).all()
        assert (found.lower.double() <= truth.lower + 1e-9).all()
        assert (found.upper.double() >= truth.upper - 1e-9).all()


@every_engine
def test_gradients_are_those_of_the_bounds_without_rounding(engine: ad.BoundEngine) -> None:
    model, x = _model(torch.float32), torch.rand(2, 5)
    gradients = []
    for call in (
        lambda: ad.bounds(model, ad.LinfBall(0.1).around(x), engine),
        lambda: engine.bounds(dual_network(model, x), ad.LinfBall(0.1).around(x)),
    ):
        found = call()
        total = (found.output.upper - 2 * found.output.lower).sum() + next(iter(found.layers.values())).width.sum()
        gradients.append(torch.autograd.grad(total, list(model.parameters())))
    for outward, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(outward, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_box_contains_its_ends(dtype: torch.dtype) -> None:
    """Centre and radius are rounded so that no point between the ends is lost."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10 ** (12 * torch.rand(2, 4000, dtype=torch.float64, generator=generator) - 8)
    ends = (sizes * torch.randn(2, 4000, dtype=torch.float64, generator=generator)).to(dtype).sort(0).values
    box = ad.Box(ends[:1], ends[1:])
    assert torch.equal(box.lower, ends[:1])
    assert torch.equal(box.upper, ends[1:])
    for centre, radius, low, high in zip(box.centre[0].tolist(), box.radius[0].tolist(), *ends.tolist(), strict=True):
        assert Fraction(centre) - Fraction(radius) <= Fraction(low)
        assert Fraction(centre) + Fraction(radius) >= Fraction(high)
    assert torch.equal(box.project(ends[:1]), ends[:1])
    assert torch.equal(box.vertex(torch.ones_like(ends[:1])), ends[1:])


@pytest.mark.parametrize("eps", [0.1, 1e-46, 1 / 3, 16777217e-9])
def test_eps_is_never_rounded_down(eps: float) -> None:
    for ball in (ad.LinfBall(eps), ad.L2Ball(eps), ad.L1Ball(eps)):
        assert ball.around(torch.zeros(1, 2)).radius.double().min().item() >= eps
        tensor = type(ball)(torch.tensor(eps, dtype=torch.float64))
        assert tensor.around(torch.zeros(1, 2)).radius.double().min().item() >= eps


CLIPS = {"to images": (0.0, 1.0), "to ends that float32 rounds": (0.1993, 0.2007)}


@every_engine
@pytest.mark.parametrize("name", CLIPS)
def test_a_clipped_ball_is_not_cut_by_rounding(engine: ad.BoundEngine, name: str) -> None:
    """The ends x - eps and x + eps are no float32 numbers; bounds that come from float64 must hold there, too."""
    generator = torch.Generator().manual_seed(0)
    x = 0.2 + 5e-4 * torch.rand(60, 1, generator=generator)
    eps = 1e-3 * torch.rand(60, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(1, 1).eval()
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(-0.2)  # so that the output is near zero, and has digits to spare
    found = ad.bounds(model, ad.LinfBall(eps, clip=CLIPS[name]).around(x), engine).output
    low, high, bias = (Fraction(number) for number in (*CLIPS[name], model.bias.item()))
    ends = zip(found.lower.flatten().tolist(), found.upper.flatten().tolist(), strict=True)
    for (lower, upper), middle, reach in zip(ends, x.flatten().tolist(), eps.flatten().tolist(), strict=True):
        assert Fraction(lower) <= max(Fraction(middle) - Fraction(reach), low) + bias
        assert Fraction(upper) >= min(Fraction(middle) + Fraction(reach), high) + bias


OVERFLOWS = {
    "squares": (ad.L2Ball(1.0), 1e200),
    "sums": (ad.LinfBall(1.0), 1.3e308),
    "differences": (ad.L1Ball(1.0), 1.5e308),
}


@every_engine
@pytest.mark.parametrize("name", OVERFLOWS)
def test_what_overflows_is_unknown_and_not_undefined(engine: ad.BoundEngine, name: str) -> None:
    ball, size = OVERFLOWS[name]
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[size, size / 2], [-size, -size / 2]], dtype=torch.float64))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
    x = torch.tensor([[1e-3, -1e-3]], dtype=torch.float64)
    found = ad.bounds(model, ball.around(x), engine)
    for bounds, values in zip((found.layers["1"], found.output), _exact(model, x[0]), strict=True):
        assert not (bounds.lower.isnan() | bounds.upper.isnan()).any()
        for lower, upper, value in zip(bounds.lower[0].tolist(), bounds.upper[0].tolist(), values, strict=True):
            assert lower <= value <= upper


PROBABLE = (
    ad.HighProbability(delta=1e-9, k=40),
    ad.HighProbability(delta=1e-9, k=40, exact_first=False),
    ad.Crown(intermediate=ad.HighProbability(delta=1e-9, k=40)),
)


@pytest.mark.parametrize("engine", PROBABLE, ids=repr)
@pytest.mark.parametrize("ball", [ad.LinfBall(0.0), ad.LinfBall(1e-7), ad.L2Ball(1e-7), ad.L1Ball(0.0)], ids=repr)
def test_probable_bounds_have_room_for_rounding(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    """Rounding happens for certain, and not with probability delta."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 25), nn.ReLU(), nn.Linear(25, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        model[4].bias += 50
    x = torch.rand(3, 30)
    found = ad.bounds(model, ball.around(x), engine)
    assert isinstance(found, ad.ProbableBounds)
    for bounds, values in zip((*found.layers.values(), found.output), _exact(model, x[1]), strict=True):
        for lower, upper, value in zip(bounds.lower[1].tolist(), bounds.upper[1].tolist(), values, strict=True):
            assert Fraction(lower) <= value <= Fraction(upper)
