"""What float32 does to a margin stays below the certificate's slack, also where all roundings go the same way."""

import copy

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines.prepare import dual_network
from soundness.graphs import build, drawn_recipe

BALLS = (ad.LinfBall(2**-4), ad.LinfBall(2**-2, clip=(-1, 1)), ad.L2Ball(2**-2), ad.L1Ball(2**-1), ad.LinfBall(2**-10))
"""Sizes that float32 holds exactly, so that both precisions bound the same set."""
ENGINES = (
    ad.Dual(), ad.ForwardDual(), ad.Crown(), ad.Dual(intersect=True), ad.IBP(), ad.Crown(intermediate=ad.IBP()),
    ad.Dual(intermediate=ad.IBP()), ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True),
)  # fmt: skip
"""Engines whose bounds depend continuously on intervals. Those of Crown(lower="one") jump where a unit's upper end passes zero: each
precision's own bounds hold, but they are farther apart than rounding moves them."""

PROBABLE = (ad.HighProbability(), ad.HighProbability(1e-6, k=500, m=2, merged=False))
"""Whose margins in float64 are others, with other random numbers."""


def _worst_ratio(model: nn.Module, x: torch.Tensor, ball: ad.Perturbation, engine: ad.BoundEngine) -> float:
    """Largest |margin in float32 - margin in float64| / slack; one that float64 was asked for is rounded down by a unit."""
    single = copy.deepcopy(model).float()
    double = copy.deepcopy(single).double()
    labels = torch.arange(len(x)) % 3
    low = ad.certify(single, x, labels, ball, engine)
    high = ad.certify(double, x.double(), labels, ball, engine)
    others = high.margins.isfinite()
    above = (low.margins.double() - high.margins)[others]
    below = -above - 4e-7 * high.margins[others].abs()
    if engine == ad.Dual(intersect=True):  # which prefers the better of two proofs, slack included
        below = above
    if (
        engine == ad.ForwardDual()
    ):  # whose intervals are wider in float32, by their errors, so its margins may be smaller
        below = above
    return (torch.maximum(above, below) / low.slack.double()[others]).max().item()


def in_turn(first: int, count: int, step: int = 4) -> pytest.MarkDecorator:
    """Every engine with every fourth network, another fourth for each in turn; slow: with all of them."""
    few = [pytest.param(e, range(first + n % step, first + count, step), id=repr(e)) for n, e in enumerate(ENGINES)]
    every = [pytest.param(e, range(first, first + count), id=f"{e!r}, all", marks=pytest.mark.slow) for e in ENGINES]
    return pytest.mark.parametrize(("engine", "seeds"), few + every)


@in_turn(1000, 40)
def test_margins_differ_by_less_than_the_slack(engine: ad.BoundEngine, seeds: range) -> None:
    for seed in seeds:
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


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_rounding_costs_little(engine: ad.BoundEngine) -> None:
    """What is proved in float32 is not much less than in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 3)).eval()
    x, labels, ball = torch.rand(8, 20), torch.arange(8) % 3, ad.LinfBall(2**-6)
    low = ad.certify(model, x, labels, ball, engine)
    high = ad.certify(copy.deepcopy(model).double(), x.double(), labels, ball, engine)
    others = high.margins.isfinite()
    lost = (high.margins - (low.margins - low.slack).double())[others]
    assert 0 < lost.min() < lost.max() < 2e-3
    assert high.slack.max() < 1e-10


@pytest.mark.parametrize("features", [3072, 16384, 150528])
def test_roundings_that_all_go_the_same_way(features: int) -> None:
    """All terms equal, and a margin of just less than zero: every one of these has a counterexample."""
    torch.manual_seed(0)
    for _ in range(20):
        model = nn.Sequential(nn.Linear(features, 2, bias=False)).eval()
        with torch.no_grad():
            model[0].weight[0], model[0].weight[1] = torch.rand(()).item(), 0
        x = torch.full((1, features), torch.rand(()).item())
        ball = ad.LinfBall(x[0, 0].item() * (1 + 2e-6))
        worst = x.double() - ball.eps
        assert copy.deepcopy(model).double()(worst)[0, 0] < 0
        assert not bool(ad.certify(model, x, torch.tensor([0]), ball).certified)


@pytest.mark.parametrize("engine", [*ENGINES, *PROBABLE], ids=repr)
def test_units_that_only_rounding_makes_look_dead(engine: ad.BoundEngine) -> None:
    """A hidden unit that can be a little above zero, by less than float32 can tell, and costs much when it is."""
    torch.manual_seed(0)
    few = isinstance(engine, ad.ForwardDual)  # whose columns of all features take their time
    features, networks = (1024, 20) if few else (16384, 10)  # of few features, fewer sums are rounded below zero
    looked_dead, eps = 0, 2**-6
    for slightly in torch.linspace(0, 2e-6, networks).tolist():
        model = nn.Sequential(nn.Linear(features, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
        x = torch.full((1, features), torch.rand(()).item())
        with torch.no_grad():
            model[0].weight.fill_(torch.rand(()).item())
            highest = (model[0].weight.double() * (x.double() + eps)).sum().item()
            model[0].bias.fill_(-highest * (1 - slightly))
            model[2].weight.copy_(torch.tensor([[-1e6], [0.0]]))
            model[2].bias.copy_(torch.tensor([1e-4 * highest, 0.0]))
            scores = copy.deepcopy(model).double()(x.double() + eps)[0]
        if scores[0] >= scores[1]:
            continue
        found = ad.certify(model, x, torch.tensor([0]), ad.LinfBall(eps), engine)
        assert not bool(found.certified)
        region = ad.LinfBall(eps).around(x)
        with torch.no_grad():
            looked_dead += engine.bounds(dual_network(model, x), region).layers["1"].upper.item() <= 0
        if engine not in PROBABLE:
            assert ad.bounds(model, region, engine).layers["1"].upper.item() > 0
    assert looked_dead > 0


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), *PROBABLE], ids=repr)
def test_later_units_that_only_rounding_makes_look_dead(engine: ad.BoundEngine) -> None:
    """The same behind a wide layer, for an eps that is next to nothing: what is wrong is the centre."""
    torch.manual_seed(0)
    eps, seen = 2.0**-24, 0
    for _ in range(30):
        model = nn.Sequential(nn.Linear(4, 4096), nn.ReLU(), nn.Linear(4096, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
        x = torch.rand(1, 4)
        with torch.no_grad():
            model[0].weight.uniform_(0, 1)
            model[0].bias.fill_(1.0)
            model[2].weight.fill_(torch.rand(()).item() + 0.1)
            model[2].bias.fill_(0.0)
            highest = copy.deepcopy(model[:3]).double()(x.double() + eps).item()
            model[2].bias.fill_(-highest)
            model[4].weight.copy_(torch.tensor([[-1e6], [0.0]]))
            model[4].bias.copy_(torch.tensor([1e-6, 0.0]))
            scores = copy.deepcopy(model).double()(x.double() + eps)[0]
        if scores[0] < scores[1]:
            assert not bool(ad.certify(model, x, torch.tensor([0]), ad.LinfBall(eps), engine).certified)
            seen += 1
    assert seen > 0


@in_turn(2000, 30)
def test_intervals_differ_by_less_than_they_say(engine: ad.BoundEngine, seeds: range) -> None:
    """Every layer's bounds in float32 and in float64; and no error is useless, being far more than what rounding does."""
    for seed in seeds:
        recipe = drawn_recipe(seed)
        x = 2 * torch.rand(4, *recipe.shape, generator=torch.Generator().manual_seed(seed)) - 1
        single, ball = build(recipe).float(), BALLS[seed % len(BALLS)]
        with torch.no_grad():
            low = engine.provable(dual_network(single, x), ball.around(x))
            double = dual_network(copy.deepcopy(single).double(), x.double())
            high = engine.provable(double, ball.around(x.double()))
        for index, exact in high.intervals.items():
            found, outside = low.intervals[index], low.outside[index]
            size = torch.maximum(exact.lower.abs(), exact.upper.abs()) + 1
            assert bool((found.lower.double() - exact.lower <= outside.below.double()).all())
            assert bool((exact.upper - found.upper.double() <= outside.above.double()).all())
            assert outside.farther.max() < 1e-2 * size.max()


@pytest.mark.parametrize("eps", [2**-3, torch.tensor([2**-3, 2**-3, 2**-4, 2**-3])], ids=["one eps", "own eps"])
def test_margins_near_zero_are_looked_at_in_float64(eps: float | torch.Tensor) -> None:
    """Below what float32 can tell from zero, but not below what float64 can."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 40), nn.ReLU(), nn.Linear(40, 2)).eval()
    x, ball = torch.rand(4, 500), ad.LinfBall(eps)
    labels = torch.zeros(4, dtype=torch.int64)
    exact = copy.deepcopy(model).double()
    worst = ad.certify(exact, x.double(), labels, ball).margins[:, 1]
    with torch.no_grad():
        model[2].bias[0] += -worst.sort().values[1].item() + 2e-5
    certificate = ad.certify(model, x, labels, ball)
    truth = ad.certify(copy.deepcopy(model).double(), x.double(), labels, ball)
    assert torch.equal(certificate.certified, truth.certified)
    near = truth.margins[:, 1].abs() < 1e-4
    assert bool(near.any())
    assert bool((certificate.slack[near][:, 1] < 1e-6).all())
    assert bool((certificate.margins[near].double() <= truth.margins[near]).all())


def test_what_cannot_be_looked_at_again_is_not_certified_and_said_so() -> None:
    """An engine whose memory is enough in float32, and not in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 2)).eval()
    x, labels, ball = torch.rand(1, 60).repeat(2, 1), torch.zeros(2, dtype=torch.int64), ad.LinfBall(2**-3)
    worst = ad.certify(copy.deepcopy(model).double(), x.double(), labels, ball).margins[:, 1]
    with torch.no_grad():
        model[2].bias[0] += -worst.min().item() + 1e-6
    assert bool(ad.certify(model, x, labels, ball).certified.all())
    enough = 60 * 60 * 4 + 1  # bytes of one example's columns in float32
    with pytest.warns(UserWarning, match="could not be looked at in float64"):
        found = ad.certify(model, x, labels, ball, ad.ForwardDual(max_bytes=enough))
    assert not bool(found.certified.all())
