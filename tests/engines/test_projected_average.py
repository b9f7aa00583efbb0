"""Projections are right on average: their mean and spread are what theory says, for every layer, and k makes them exact."""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import Band, DualNetwork, walk
from autodual.engines.backward.bands import PulledRadii
from autodual.engines.effort import Budget
from autodual.engines.prepare import dual_network
from autodual.engines.results import Preactivations
from autodual.engines.streams import StreamPass, draw, read
from autodual.sets import norm_of
from autodual.sets.input_sets import L2
from generators import radii_from_streams

BALLS = [ad.LinfBall(0.05), ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.L2Ball(0.4)]
NAMES = [pytest.param("branches", marks=pytest.mark.slow), "trained"]
"""Whose estimates are drawn many times over; the branches are exact in `test_streams_hold_the_generators`."""


class Branches(nn.Module):
    """Skip connections, a concatenation, a shared layer, batch norm, and activations of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.shared = nn.Conv2d(6, 6, 3, padding=1)
        self.last = nn.Linear(12 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first((x - 0.5) / 0.3)))
        x = torch.tanh(self.shared(x) + x)
        y = nn.functional.leaky_relu(self.shared(x), 0.1)
        return self.last(nn.functional.avg_pool2d(torch.cat([x, y], 1), 2).flatten(1))


def _trained() -> nn.Module:
    """A convolutional network after some steps on its own random task, so that its weights are not random any more."""
    model = nn.Sequential(
        nn.Conv2d(2, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)
    )
    x, labels = torch.rand(64, 2, 6, 6), torch.randint(4, (64,))
    loss, optimiser = ad.RobustCrossEntropy(model, ad.LinfBall(0.02)), torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(20):
        optimiser.zero_grad()
        loss(x, labels).backward()
        optimiser.step()
    return model


@cache
def _example(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = {"branches": Branches, "trained": _trained}[name]().double().eval()
    return model, torch.rand(2, 2, 6, 6, dtype=torch.float64)


@dataclass(frozen=True)
class Frozen:
    """A network whose dual layers are those of the exact bound, so that nothing but the projection is random."""

    network: DualNetwork
    region: ad.InputSet
    bands: dict[int, Band]

    @classmethod
    def of(cls, name: str, ball: ad.Perturbation) -> "Frozen":
        model, x = _example(name)
        network, region = dual_network(model, x), ball.around(x)
        found: Preactivations = ad.Dual().preactivations(network, region)
        return cls(network, region, {i: network.activation(i).band(v) for i, v in found.intervals.items()})

    def sources(self) -> list[int]:
        return list(dict.fromkeys(self.network.nodes[i].inputs[0] for i in self.network.activations))

    def exact(self, source: int) -> Tensor:
        return PulledRadii(self.network, self.region, self.bands, Budget.unlimited()).of_units(source)[0]

    def terms(self, source: int) -> list[Tensor]:
        """The exact share of the input, then of every activation that comes before."""
        silent = {i: Band(b.slope, b.centre, torch.zeros_like(b.radius)) for i, b in self.bands.items()}
        before = [i for i in self.network.activations if i in self.network.ancestors(source)]
        point = ad.LinfBall(0.0).around(self.region.centre)
        settings = [(self.region, silent)] + [(point, silent | {i: self.bands[i]}) for i in before]
        return [PulledRadii(self.network, r, b, Budget.unlimited()).of_units(source)[0] for r, b in settings]

    def estimates(self, source: int, k: int, merged: bool, estimator: ad.Estimator, seeds: range) -> Tensor:
        before = [i for i in self.network.activations if i in self.network.ancestors(source)]

        def one(seed: int) -> Tensor:
            draws = draw(self.network, self.region, k, torch.Generator().manual_seed(seed), before)
            return read(
                walk(self.network, StreamPass(self.network, self.region, draws, merged, self.bands), source), estimator
            )

        shape = (len(self.region), *self.network.nodes[source].shape)
        with torch.no_grad():
            return torch.stack([one(seed).expand(shape) for seed in seeds])


def expected_spread(frozen: Frozen, source: int, k: int, merged: bool, constant: float) -> Tensor:
    terms, gaussian = frozen.terms(source), norm_of(frozen.region) is L2
    cauchy = terms[1:] if gaussian else terms
    if merged:
        cauchy = [sum(cauchy[1:], cauchy[0])] if cauchy else []
    variance = sum((c.square() for c in cauchy), torch.zeros_like(terms[0])) * constant**2 / k
    return (variance + terms[0].square() / (2 * k) if gaussian else variance).sqrt()


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", [*BALLS, ad.L1Ball(0.5)], ids=repr)
@pytest.mark.parametrize("name", ["branches", "trained"])
def test_streams_hold_the_generators(name: str, ball: ad.Perturbation, merged: bool) -> None:
    """Exactly, with numbers that single them out one by one; what follows is about numbers that are drawn."""
    frozen = Frozen.of(name, ball)
    for index, (found, exact) in radii_from_streams(frozen.network, frozen.region, merged).items():
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12, msg=frozen.network.nodes[index].name)


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_spread_is_what_theory_says(name: str, ball: ad.Perturbation, merged: bool) -> None:
    frozen, k = Frozen.of(name, ball), 120
    for source in frozen.sources():
        exact = frozen.exact(source)
        found = frozen.estimates(source, k, merged, ad.GeometricMean(), range(160))
        bias = (found.mean(0) / exact - 1).mean().item()
        ratio = (found.std(0) / expected_spread(frozen, source, k, merged, math.pi / 2)).mean().item()
        where = f"{frozen.network.nodes[source].name}: bias {bias:+.4f}, spread {ratio:.3f} of theory"
        assert abs(bias) < 0.02, where
        assert abs(ratio - 1) < 0.1, where


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_many_projections_give_the_exact_widths(name: str, ball: ad.Perturbation, merged: bool) -> None:
    frozen = Frozen.of(name, ball)
    draws = draw(frozen.network, frozen.region, 10_000, torch.Generator().manual_seed(1))
    engine = ad.Projected(10_000, merged, exact_first=False).with_draws(draws)
    with torch.no_grad():
        exact, found = ad.Dual().bounds(frozen.network, frozen.region), engine.bounds(frozen.network, frozen.region)
    assert isinstance(found, ad.EstimatedBounds)
    for layer, interval in [("output", found.output), *found.layers.items()]:
        true = exact.output if layer == "output" else exact.layers[layer]
        ratio = (interval.width.mean() / true.width.mean()).item()
        assert abs(ratio - 1) < 0.05, f"{layer}: mean width {ratio:.4f} of the exact one"


@pytest.mark.parametrize(
    ("estimator", "constant"), [(ad.Median(), math.pi / 2), (ad.MaximumLikelihood(), math.sqrt(2))], ids=repr
)
def test_other_estimators_through_a_network(estimator: ad.Estimator, constant: float) -> None:
    frozen, k = Frozen.of("trained", ad.LinfBall(0.05)), 100
    source = frozen.sources()[-1]
    found = frozen.estimates(source, k, True, estimator, range(250))
    bias = (found.mean(0) / frozen.exact(source) - 1).mean().item()
    ratio = (found.std(0) / expected_spread(frozen, source, k, True, constant)).mean().item()
    assert abs(bias) < 0.03, f"bias {bias:+.4f}"
    assert abs(ratio - 1) < 0.1, f"spread {ratio:.3f} of theory"


@pytest.mark.parametrize(("eps", "expected"), [(0.0, 0.0), (0.01, 0.5)], ids=["activations alone", "with the input"])
def test_examples_of_a_batch_are_not_wrong_together(eps: float, expected: float) -> None:
    """Examples share angles; the turns must make their errors independent, but for the input's share (two thirds at 0.01)."""
    frozen = Frozen.of("trained", ad.LinfBall(0.05))
    bands = {
        i: Band(b.slope[:1].expand_as(b.slope), b.centre, b.radius[:1].expand_as(b.radius))
        for i, b in frozen.bands.items()
    }
    twins = Frozen(frozen.network, ad.LinfBall(eps).around(frozen.region.centre[:1].expand(2, -1, -1, -1)), bands)
    source = frozen.sources()[-1]
    found = twins.estimates(source, 60, True, ad.GeometricMean(), range(600)).flatten(2)
    correlations = torch.stack([torch.corrcoef(unit.T)[0, 1] for unit in found.unbind(2)])
    assert abs(correlations.mean().item() - expected) < 0.1, f"mean correlation {correlations.mean():.3f}"
    assert correlations.max().item() < expected + 0.35, f"largest correlation {correlations.max():.3f}"
