"""A set of the user's own, given by its support function alone, works everywhere but where its dual norm is estimated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, ENGINES, Unknown, batch, bounds_of, convnet, mlp, tilted

BALL = tilted(6, 0.15)
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


@every_engine
def test_bounds_hold_at_every_layer(engine: ad.BoundEngine) -> None:
    model, region = mlp(6, 8, 7, 3), BALL.around(batch(3, 6))
    found = ad.bounds(model, region, engine)
    assert isinstance(found, ad.SoundBounds)
    for i in range(200):
        point = region.vertex(torch.randn(3, 6, dtype=DOUBLE)) if i % 2 else region.sample()
        assert found.layers["1"].contains(model[0](point), tolerance=1e-9).all()
        assert found.layers["3"].contains(model[:3](point), tolerance=1e-9).all()
        assert found.output.contains(model(point), tolerance=1e-9).all()


def test_bounds_on_a_linear_model_are_exact() -> None:
    model, region = mlp(6, 3), BALL.around(batch(3, 6))
    rows = model[0].weight.unsqueeze(1)
    for engine in (ad.Dual(), ad.Crown(), ad.ForwardDual()):
        output = ad.bounds(model, region, engine).output
        torch.testing.assert_close(output.lower, region.minimise(rows).T + model[0].bias)
        torch.testing.assert_close(output.upper, -region.minimise(-rows).T + model[0].bias)


def test_the_ellipsoid_is_not_treated_as_its_box() -> None:
    model, region = mlp(6, 3), BALL.around(batch(3, 6))
    box = region.box()
    tight, loose = ad.bounds(model, region).output, ad.bounds(model, ad.Box(box.lower, box.upper)).output
    assert (tight.width < loose.width).all()


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.2), ad.L1Ball(0.3)], ids=lambda b: type(b).__name__)
@every_engine
def test_a_known_set_in_disguise_gives_the_same_numbers(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    model, region = convnet(), ball.around(batch(2, 1, 6, 6))
    for known, unknown in zip(bounds_of(model, region, engine), bounds_of(model, Unknown(region), engine), strict=True):
        torch.testing.assert_close(known, unknown)


@every_engine
def test_certificates_hold_under_attack(engine: ad.BoundEngine) -> None:
    model, x = mlp(6, 8, 7, 3), batch(20, 6)
    labels = model(x).argmax(1)
    certificate = ad.certify(model, x, labels, BALL, engine)
    found = ad.attack(model, x, labels, BALL, restarts=3)
    assert BALL.around(x).holds(found.examples).all()
    assert not (certificate.certified & found.success).any()
    assert "Tilted" in certificate.perturbation


def test_some_examples_are_certified_and_others_are_attacked() -> None:
    model, x = mlp(6, 8, 7, 3), batch(20, 6)
    labels = model(x).argmax(1)
    assert ad.certify(model, x, labels, BALL).certified.any()
    assert ad.attack(model, x, labels, BALL, restarts=3).success.any()


def test_certified_radii_are_found() -> None:
    model, x = mlp(6, 8, 7, 3), batch(6, 6)
    labels = model(x).argmax(1)
    radii = ad.certified_radius(model, x, labels, tilted(6, 0.5), tol=0.01)
    assert (radii > 0).any()
    again = ad.certify(model, x, labels, tilted(6, 0.5).with_eps(radii))
    assert again.certified[radii > 0].all()


def test_the_robust_loss_trains_with_it() -> None:
    model, x = mlp(6, 8, 3), batch(6, 6)
    loss = ad.RobustCrossEntropy(model, BALL)(x, model(x).argmax(1))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_examples_are_cut_into_parts() -> None:
    model, region = mlp(6, 8, 7, 3), BALL.around(batch(5, 6))
    for a, b in zip(bounds_of(model, region), bounds_of(model, region, ad.Dual(max_bytes=4_000)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("engine", [ad.Projected(5), ad.HighProbability(k=50)], ids=repr)
def test_engines_that_estimate_the_dual_norm_refuse_a_set_without_one(engine: ad.BoundEngine) -> None:
    model, x = mlp(4, 40, 30, 3), batch(2, 4)
    with pytest.raises(ad.ArgumentError, match=r"works on norm balls and boxes.* Ellipsoid has none"):
        ad.bounds(model, tilted(4, 0.1).around(x), engine)


class Listed(ad.Perturbation):
    """A radius for every example of one batch, by its place there; a part of the batch would get those of others."""

    def __init__(self, radii: Tensor) -> None:
        self.eps, self.radii = 0.0, radii

    def around(self, x: Tensor) -> ad.Box:
        radius = self.radii[: len(x)].to(x)
        return ad.Box(x - radius, x + radius)

    def with_eps(self, eps: float | Tensor) -> Listed:
        return Listed(self.radii if isinstance(eps, float) else self.radii[: len(eps)] * eps)


def listed() -> tuple[nn.Linear, Tensor, Listed]:
    """Examples 1, 4 and 5 have large sets, where the margin reaches zero; label 0 is right at every x."""
    model = nn.Linear(2, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    radii = torch.full((9, 1), 0.1)
    radii[[1, 4, 5]] = 0.5
    return model, torch.tensor([[1.0, 0.0]]).repeat(9, 1), Listed(radii)


RIGHT = torch.zeros(9, dtype=torch.int64)


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP()], ids=repr)
def test_what_is_looked_at_twice_keeps_its_own_set(engine: ad.BoundEngine) -> None:
    """Margins near zero send some examples to float64."""
    model, x, ball = listed()
    certificate = ad.certify(model, x, RIGHT, ball, engine)
    assert certificate.certified.tolist() == [True, False, True, True, False, False, True, True, True]
    torch.testing.assert_close(certificate.margins[:, 1], (1 - 2 * ball.radii).squeeze(1))


def test_a_radius_is_searched_for_in_the_own_set() -> None:
    model, x, ball = listed()
    ball.eps = 2.0
    radii = ad.certified_radius(model, x, RIGHT, ball, tol=1e-3)
    torch.testing.assert_close(radii, (0.5 / ball.radii).squeeze(1).clamp(max=2.0), rtol=0, atol=2e-3)
    assert (radii * ball.radii.squeeze(1) < 0.5).all()


def test_stages_that_see_parts_of_a_batch_refuse_such_sets() -> None:
    model, x, ball = listed()
    for cascade in (ad.SumEnsemble([model, model], ball), ad.RoutedCascade([model, model], [0.1], ball)):
        for call in (lambda c: c.certify(x, RIGHT), lambda c: c.predict(x), lambda c: c.attack(x, RIGHT)):
            with pytest.raises(ad.ArgumentError, match="another set at another place of the batch"):
                call(cascade)


def test_inference_mode_is_refused_with_a_reason() -> None:
    model, x = mlp(6, 8, 3), batch(2, 6)
    with torch.inference_mode(), pytest.raises(ad.ArgumentError, match=r"use torch.no_grad\(\) instead"):
        ad.certify(model, x, torch.tensor([0, 1]), BALL)
    with torch.inference_mode():
        made = x + 0.0
    with pytest.raises(ad.ArgumentError, match="not made in inference mode"):
        ad.certify(model, made, torch.tensor([0, 1]), BALL)
