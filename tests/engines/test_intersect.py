"""Interval bounds beside the backward ones tighten them and stay sound."""

import pytest
import torch

import autodual as ad
from small import DOUBLE, batch, convnet, corners, mlp

KINDS = [pytest.param(ad.Dual, id="dual"), pytest.param(ad.Crown, id="crown")]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_size = pytest.mark.parametrize("eps", [0.01, 0.1, 0.5])


@every_kind
@every_size
def test_never_looser_than_either_at_the_first_activation(kind: type[ad.Dual], eps: float) -> None:
    """Later layers are relaxed differently, and a tighter interval may lead to a looser line."""
    model = convnet()
    for ball in (ad.LinfBall(eps), ad.L2Ball(eps), ad.L1Ball(eps)):
        region = ball.around(batch(3, 1, 6, 6))
        both = ad.bounds(model, region, kind(intersect=True)).layers["1"]
        for engine in (kind(), ad.IBP()):
            one = ad.bounds(model, region, engine).layers["1"]
            assert (both.lower >= one.lower - 1e-12).all()
            assert (both.upper <= one.upper + 1e-12).all()


@every_kind
@every_size
def test_bounds_hold_at_every_corner(kind: type[ad.Dual], eps: float) -> None:
    model, region = mlp(6, 10, 9, 3), ad.LinfBall(eps).around(batch(3, 6))
    found = ad.bounds(model, region, kind(intersect=True))
    for corner in corners(region.lower, region.upper):
        assert found.layers["1"].contains(model[0](corner), tolerance=1e-9).all()
        assert found.layers["3"].contains(model[:3](corner), tolerance=1e-9).all()
        assert found.output.contains(model(corner), tolerance=1e-9).all()


@every_kind
@every_size
def test_margins_hold_at_every_corner(kind: type[ad.Dual], eps: float) -> None:
    model, x, labels = mlp(6, 10, 9, 3), batch(3, 6), torch.tensor([0, 1, 2])
    certificate = ad.certify(model, x, labels, ad.LinfBall(eps), kind(intersect=True))
    others = certificate.margins.isfinite()
    region = ad.LinfBall(eps).around(x)
    for corner in corners(region.lower, region.upper):
        scores = model(corner)
        assert (certificate.margins <= scores.gather(1, labels.unsqueeze(1)) - scores + 1e-9)[others].all()


@every_kind
@every_size
def test_no_unit_is_wider_than_interval_arithmetic_makes_it(kind: type[ad.Dual], eps: float) -> None:
    """The interval bounds are propagated from the tightened ones, so they only improve on those of IBP."""
    model, region = mlp(6, 10, 9, 8, 3), ad.LinfBall(eps).around(batch(3, 6))
    both, plain = ad.bounds(model, region, kind(intersect=True)), ad.bounds(model, region, ad.IBP())
    for name, interval in plain.layers.items():
        assert (both.layers[name].lower >= interval.lower - 1e-12).all()
        assert (both.layers[name].upper <= interval.upper + 1e-12).all()
    assert (both.output.lower >= plain.output.lower - 1e-12).all()
    assert (both.output.upper <= plain.output.upper + 1e-12).all()


@every_kind
def test_margins_are_at_least_those_of_interval_arithmetic(kind: type[ad.Dual]) -> None:
    model, x, labels = mlp(6, 10, 9, 3), batch(8, 6), torch.arange(8) % 3
    both = ad.certify(model, x, labels, ad.LinfBall(0.3), kind(intersect=True)).margins
    plain = ad.certify(model, x, labels, ad.LinfBall(0.3), ad.IBP()).margins
    assert (both >= plain - 1e-12).all()


@every_kind
def test_it_works_for_branches_that_read_one_tensor(kind: type[ad.Dual]) -> None:
    """Two activations on one operand are bounded once; a maximum is two branches that meet."""

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            return self.head(torch.maximum(y.relu() - y.tanh(), y.sigmoid()))

    model, region = Branches().to(DOUBLE), ad.LinfBall(0.3).around(batch(3, 6))
    found = ad.bounds(model, region, kind(intersect=True))
    for corner in corners(region.lower, region.upper):
        assert found.output.contains(model(corner), tolerance=1e-9).all()
