"""No node is farther from its centre than the rounding analysis has it: an error in a coefficient is multiplied by just that. And no
centre is larger than it has it: rounding a sum of centres is an error in proportion to those."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import Band, OnDemand
from autodual.dual.network import Evaluation
from autodual.engines.prepare import dual_network
from autodual.engines.rounding import Rounding
from autodual.spec import margins
from soundness.graphs import build, drawn_recipe, region

ENGINES = (
    ad.Dual(), ad.Dual(intersect=True), ad.Dual(intermediate=ad.IBP()), ad.Dual(intermediate=ad.Crown()), ad.ForwardDual(),
    ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True),
)  # fmt: skip
TOLERANCE = 1e-9

Seen = dict[int, list[tuple[Rounding, Tensor]]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """By activation: who has counted its errors, and its centre."""
    found: Seen = {}
    enter = Rounding.enter_band

    def notice(self: Rounding, index: int, interval: ad.Interval, band: Band, centre: Tensor) -> None:
        enter(self, index, interval, band, centre)
        layer = self.network.activation(index)
        found.setdefault(index, []).append((self, layer.along(band.slope, centre) + band.centre))

    monkeypatch.setattr(Rounding, "enter_band", notice)
    return found


def _farther(model: nn.Module, inputs: ad.InputSet, points: Tensor, engine: ad.BoundEngine, seen: Seen) -> float:
    """The most that an activation's value, at these points [S, N, ...], is farther from its centre than its `moves`, or that value
    or centre are larger than its `size`."""
    network = dual_network(model, inputs.centre)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    with torch.no_grad():
        engine.prove(network, inputs, margins(labels, network.nodes[network.output].shape[0], inputs.centre.dtype))
    worst = -float("inf")
    for x in points:
        values = OnDemand(network, Evaluation(x))
        for index, entries in seen.items():
            for rounding, centre in entries:
                value, known = values.at(index), rounding.at(index)
                larger = torch.maximum(value.abs(), centre.abs()) - known.size
                beyond = torch.maximum((value - centre).abs() - known.moves, larger)
                worst = max(worst, float(beyond.detach().max()))
    assert seen, "no activation was counted"
    return worst


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("kind", ["linf", "box", "l2"])
def test_drawn_networks(engine: ad.BoundEngine, kind: str, seen: Seen) -> None:
    for seed in range(12):
        seen.clear()
        recipe = drawn_recipe(3000 + seed)
        inputs = region(kind, recipe.shape, 2, seed)
        points = torch.stack([inputs.sample(torch.Generator().manual_seed(n)) for n in range(20)])
        assert _farther(build(recipe).double(), inputs, points, engine, seen) <= TOLERANCE, recipe


@pytest.mark.parametrize("engine", [ad.Dual(intersect=True), ad.Dual(intermediate=ad.IBP())], ids=repr)
def test_a_centre_far_outside_its_interval(engine: ad.BoundEngine, seen: Seen) -> None:
    """Two units that take from one another, forty times: the middle of an interval that is cut is not where the centre has gone."""
    layers: list[nn.Module] = []
    for number in range(40):
        linear = nn.Linear(2, 2).double()
        with torch.no_grad():
            linear.weight.copy_(torch.tensor([[1.0, -0.9], [-0.9, 1.0]]))
            linear.bias.fill_(0.05 * (-1) ** number)
        layers += [linear, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(2, 2).double())
    inputs = ad.LinfBall(1.0).around(torch.zeros(1, 2, dtype=torch.float64))
    corners = torch.tensor([[[a, b]] for a in (-1.0, 0.3, 1.0) for b in (-1.0, 0.0, 1.0)], dtype=torch.float64)
    assert _farther(model, inputs, corners, engine, seen) <= TOLERANCE


class _SeenFromACorner(ad.InputSet):
    """The box [lower, lower + 1], whose `centre` is its lower corner: any point of a set will do."""

    def __init__(self, lower: Tensor) -> None:
        self.centre = lower

    def minimise(self, coefficients: Tensor) -> Tensor:
        return (coefficients * self.centre + coefficients.clamp(max=0)).flatten(2).sum(-1)

    def __getitem__(self, examples: slice) -> _SeenFromACorner:
        return _SeenFromACorner(self.centre[examples])


def test_a_set_that_is_not_around_its_centre() -> None:
    inputs = _SeenFromACorner(torch.full((1, 3), -0.5, dtype=torch.float64))
    known = Rounding(dual_network(nn.Linear(3, 2).double(), inputs.centre), inputs).at(0)
    assert (known.moves >= 1 - TOLERANCE).all()
    corner_and_minimum = 2 * 0.5 * known.size.numel() * torch.finfo(torch.float64).eps / 2
    assert (known.since >= corner_and_minimum).all()


def test_units_that_only_rounding_keeps_dead(seen: Seen) -> None:
    """Where a computed upper bound is zero or less, a ReLU has a band of nothing; its true value may be positive all the same."""
    surprised = 0
    for seed in range(20):
        seen.clear()
        torch.manual_seed(seed)
        linear = nn.Linear(64, 8)
        with torch.no_grad():
            linear.bias.copy_(-linear.weight.abs().sum(1))
        model = nn.Sequential(linear, nn.ReLU(), nn.Linear(8, 2))
        inputs = ad.LinfBall(1.0).around(torch.zeros(1, 64))
        labels = torch.zeros(1, dtype=torch.int64)
        with torch.no_grad():
            ad.Dual().prove(dual_network(model, inputs.centre), inputs, margins(labels, 2, torch.float32))
            weight, bias = linear.weight.double(), linear.bias.double()
            largest = (weight.abs().sum(1) + bias).clamp(min=0)
        ((index, entries),) = seen.items()
        for rounding, centre in entries:
            surprised += int(((largest > 0) & (rounding.intervals[index].upper[0] <= 0)).sum())
            assert ((largest - centre[0].double()).abs() <= rounding.at(index).moves[0]).all()
    assert surprised > 0
