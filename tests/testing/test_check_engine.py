"""check_engine accepts the shipped engines and finds what is wrong with others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines import Minimum, Preactivations, ProbableProof, Proof
from autodual.spec import Spec
from autodual.testing import check_engine

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REGION = ad.LinfBall(0.2).around(X)


def _model(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype).eval()


@pytest.mark.parametrize("ball", [ad.LinfBall(0.2), ad.L2Ball(0.3), ad.L1Ball(0.5)], ids=repr)
@pytest.mark.parametrize(
    "engine", [ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual(), ad.Dual(intersect=True), ad.Crown(ad.IBP())], ids=repr
)
def test_accepts_the_shipped_engines(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    check_engine(engine, _model(), ball.around(X))


@pytest.mark.parametrize("ball", [ad.LinfBall(0.2), ad.L2Ball(0.3), ad.L1Ball(0.5)], ids=repr)
@pytest.mark.parametrize("intermediate", [False, True])
def test_accepts_bounds_with_a_stated_probability(ball: ad.Perturbation, intermediate: bool) -> None:
    probable = ad.HighProbability(k=12)
    check_engine(ad.Crown(intermediate=probable) if intermediate else probable, _model(), ball.around(X))


@dataclass(frozen=True, repr=False)
class Boasting(ad.HighProbability):
    """Says something else of its proofs than of its bounds, or has other minima."""

    certain: bool = False
    said: float = 0.01
    raised: float = 0.0

    def minimum(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Minimum:
        return Minimum(super().minimum(network, region, spec).lower + self.raised)

    def prove(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Proof | ProbableProof:
        found = super().prove(network, region, spec)
        assert isinstance(found, ProbableProof)
        if self.certain:
            return Proof(found.lower, found.slack, found.run_error)
        return replace(found, confidence=replace(found.confidence, delta=self.said))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"certain": True}, "prove has confidence None, but bounds\\(\\) has .*delta=0.01"),
        ({"said": 0.5}, "prove has confidence .*delta=0.5.*, but bounds\\(\\) has .*delta=0.01"),
        ({"raised": 50.0}, "minimum: the lower bound is above a value"),
    ],
    ids=str,
)
def test_finds_a_probability_that_is_not_kept(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_engine(Boasting(k=12, **options), _model(), REGION)  # type: ignore[arg-type]


def test_works_in_float32_and_on_a_captured_network() -> None:
    model = _model(torch.float32)
    check_engine(ad.Dual(), ad.capture(model, X.float()), ad.LinfBall(0.2).around(X.float()))


@dataclass(frozen=True)
class Altered(ad.BoundEngine):
    """Dual(), with one answer changed."""

    output: float = 0.0
    layers: float = 0.0
    rows: float = 0.0
    proofs: float = 0.0
    estimate: bool = False

    def preactivations(self, network: DualNetwork, region: ad.InputSet) -> Preactivations:
        return ad.Dual().preactivations(network, region)

    def bounds(self, network: DualNetwork, region: ad.InputSet) -> ad.Bounds:
        found = ad.Dual().bounds(network, region)
        layers = {name: _shrunk(interval, self.layers) for name, interval in found.layers.items()}
        kind = ad.EstimatedBounds if self.estimate else ad.SoundBounds
        return kind(_shrunk(found.output, self.output), layers)

    def minimum(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Minimum:
        return Minimum(ad.Dual().minimum(network, region, spec).lower + self.rows)

    def prove(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Proof:
        proof = ad.Dual().prove(network, region, spec)
        assert isinstance(proof, Proof)
        return replace(proof, lower=proof.lower + self.proofs)


def _shrunk(interval: ad.Interval, part: float) -> ad.Interval:
    return ad.Interval.around(interval.centre, (1 - part) * interval.radius)


def test_accepts_the_unaltered() -> None:
    check_engine(Altered(), _model(), REGION)


WRONG = {
    "output": (Altered(output=0.5), "output: the lower bound is above a value"),
    "layers": (Altered(layers=0.1), "input of 1: the lower bound is above a value"),
    "rows": (Altered(rows=3.0), "minimum: the lower bound is above a value"),
    "proofs": (Altered(proofs=3.0), "prove: the lower bound is above a value"),
}


@pytest.mark.parametrize(("engine", "message"), WRONG.values(), ids=WRONG.keys())
def test_finds_what_is_wrong(engine: ad.BoundEngine, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_engine(engine, _model(), REGION)


@dataclass(frozen=True)
class Widened(Altered):
    def bounds(self, network: DualNetwork, region: ad.InputSet) -> ad.Bounds:
        found = super().bounds(network, region)
        return type(found)(ad.Interval(found.output.lower - 1e-3, found.output.upper), found.layers)


def test_single_points_must_give_the_output() -> None:
    with pytest.raises(AssertionError, match="the lower bound over single points against the output"):
        check_engine(Widened(), _model(), REGION)


def test_an_estimate_need_not_contain_anything() -> None:
    check_engine(Altered(output=0.5, estimate=True), _model(), REGION)
