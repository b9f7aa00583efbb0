"""Estimates train networks and certify nothing, however deep they are hidden."""

from dataclasses import dataclass, replace

import pytest
import torch

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines import Minimum, Preactivations, Proof
from autodual.engines.results import EstimatedPreactivations, only_estimates
from autodual.spec import Spec
from small import DOUBLE, batch, mlp

DUAL = ad.Dual()
X, LABELS, BALL = batch(3, 6), torch.tensor([0, 1, 2]), ad.LinfBall(0.05)


@dataclass(frozen=True)
class Guess(ad.BoundEngine):
    """The numbers of `Dual`, admitted to be no proof."""

    inner: ad.BoundEngine = DUAL

    def preactivations(self, network: DualNetwork, region: ad.InputSet) -> Preactivations:
        return EstimatedPreactivations(self.inner.preactivations(network, region).intervals)

    def bounds(self, network: DualNetwork, region: ad.InputSet) -> ad.EstimatedBounds:
        found = self.inner.bounds(network, region)
        return ad.EstimatedBounds(found.output, found.layers)

    def minimum(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Minimum:
        return self.inner.minimum(network, region, spec)

    def prove(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Proof:
        raise only_estimates(self)


HIDDEN = {
    "itself": Guess(),
    "inside dual": ad.Dual(intermediate=Guess()),
    "inside crown": ad.Crown(intermediate=Guess()),
    "beside intervals": ad.Dual(intermediate=Guess(), intersect=True),
    "two levels down": ad.Crown(intermediate=ad.Dual(intermediate=Guess())),
    "in parts": ad.Dual(intermediate=Guess(), max_bytes=4_000),
}
every_place = pytest.mark.parametrize("engine", HIDDEN.values(), ids=HIDDEN.keys())


@every_place
def test_no_certificate(engine: ad.BoundEngine) -> None:
    with pytest.raises(ad.UnsoundError, match="only estimates bounds"):
        ad.certify(mlp(6, 8, 3), X, LABELS, BALL, engine)


@every_place
def test_no_certified_radius(engine: ad.BoundEngine) -> None:
    with pytest.raises(ad.UnsoundError, match="only estimates bounds"):
        ad.certified_radius(mlp(6, 8, 3), X, LABELS, BALL, engine)


@every_place
def test_bounds_have_the_type_of_estimates(engine: ad.BoundEngine) -> None:
    found = ad.bounds(mlp(6, 8, 3), BALL.around(X), engine)
    assert isinstance(found, ad.EstimatedBounds)
    assert not isinstance(found, ad.SoundBounds)


@every_place
def test_a_loss_is_welcome(engine: ad.BoundEngine) -> None:
    model = mlp(6, 8, 3)
    ad.RobustCrossEntropy(model, BALL, engine)(X, LABELS).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_sound_engines_are_welcome() -> None:
    for engine in (ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual(), ad.Dual(intermediate=ad.IBP())):
        assert isinstance(ad.bounds(mlp(6, 8, 3), BALL.around(X), engine), ad.SoundBounds)
        assert ad.certify(mlp(6, 8, 3), X, LABELS, BALL, engine).margins.dtype == DOUBLE


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_engine_that_breaks_certifies_nothing(value: float) -> None:
    @dataclass(frozen=True)
    class Broken(Guess):
        def prove(self, network: DualNetwork, region: ad.InputSet, spec: Spec) -> Proof:
            proof = DUAL.prove(network, region, spec)
            assert isinstance(proof, Proof)
            return replace(proof, lower=torch.full_like(proof.lower, value))

    model = mlp(6, 8, 3)
    labels = model(X).argmax(1)
    assert not ad.certify(model, X, labels, BALL, Broken()).certified.any()
    assert not ad.certified_radius(model, X, labels, BALL, Broken()).any()
