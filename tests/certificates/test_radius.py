"""A certified radius is certified, as large as the tolerance allows, and never larger than the ball."""

import pytest
import torch

import autodual as ad
from small import DOUBLE, ENGINES, batch, convnet, mlp

every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
BALLS = [
    pytest.param(ad.LinfBall(0.4), id="linf"),
    pytest.param(ad.LinfBall(0.4, clip=(0.0, 1.0)), id="linf, clipped"),
    pytest.param(ad.L2Ball(0.8), id="l2"),
    pytest.param(ad.L1Ball(1.5), id="l1"),
]


@pytest.mark.parametrize("ball", BALLS)
@every_engine
def test_every_radius_is_certified(engine: ad.BoundEngine, ball: ad.Perturbation) -> None:
    model, x = mlp(6, 10, 8, 3), batch(8, 6)
    labels = model(x).argmax(1)
    labels[0] = (labels[0] + 1) % 3
    radii = ad.certified_radius(model, x, labels, ball, engine, tol=0.01)
    assert radii.shape == (8,)
    assert radii.dtype == DOUBLE
    assert (radii >= 0).all()
    assert (radii <= ball.eps).all()
    assert radii[0] == 0, "the clean input is wrong"
    assert (radii[1:] > 0).any()
    again = ad.certify(model, x, labels, ball.with_eps(radii), engine)
    assert again.certified[radii > 0].all()


def test_images_work_as_well() -> None:
    model, x = convnet(), batch(4, 1, 6, 6)
    labels = model(x).argmax(1)
    radii = ad.certified_radius(model, x, labels, ad.LinfBall(0.3))
    assert (radii > 0).all()
    assert ad.certify(model, x, labels, ad.LinfBall(radii)).certified.all()


@pytest.mark.parametrize("tol", [0.1, 0.02, 0.001])
def test_tolerance_is_kept_against_a_dense_scan(tol: float) -> None:
    """On one hidden layer the certified radii form an interval here, so a scan finds where it ends."""
    model, x = mlp(3, 4, 2), batch(6, 3)
    labels = model(x).argmax(1)
    radii = ad.certified_radius(model, x, labels, ad.LinfBall(0.5), tol=tol)
    scan = torch.linspace(0, 0.5, 2001, dtype=DOUBLE)
    every = ad.LinfBall(scan.repeat_interleave(6).unsqueeze(1))
    proved = ad.certify(model, x.repeat(2001, 1), labels.repeat(2001), every).certified.reshape(2001, 6)
    assert (proved.int().diff(dim=0) <= 0).all(), "the case was chosen so that certification stops once"
    ends = scan[proved.sum(0) - 1]
    assert (radii <= ends + 0.5 / 2000).all()
    assert (radii >= ends - tol).all()


def test_the_largest_radius_is_tried_first() -> None:
    model, x = mlp(3, 4, 2), batch(6, 3)
    labels = model(x).argmax(1)
    assert (ad.certified_radius(model, x, labels, ad.LinfBall(1e-6)) == 1e-6).all()


def test_each_example_may_have_its_own_largest_radius() -> None:
    model, x = mlp(3, 4, 2), batch(4, 3)
    labels, largest = model(x).argmax(1), torch.tensor([0.0, 1e-4, 0.01, 10.0], dtype=DOUBLE)
    radii = ad.certified_radius(model, x, labels, ad.LinfBall(largest))
    assert (radii <= largest).all()
    torch.testing.assert_close(radii[:2], largest[:2])


def test_no_radius_below_tolerance_is_invented() -> None:
    model, x = mlp(3, 4, 2), batch(4, 3)
    wrong = 1 - model(x).argmax(1)
    assert not ad.certified_radius(model, x, wrong, ad.LinfBall(0.5)).any()


def test_examples_do_not_influence_one_another() -> None:
    model, x = mlp(6, 10, 8, 3), batch(5, 6)
    labels = model(x).argmax(1)
    together = ad.certified_radius(model, x, labels, ad.L2Ball(0.8))
    alone = [ad.certified_radius(model, x[i : i + 1], labels[i : i + 1], ad.L2Ball(0.8)) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_no_attack_succeeds_inside() -> None:
    model, x = mlp(6, 10, 8, 3), batch(8, 6)
    labels = model(x).argmax(1)
    radii = ad.certified_radius(model, x, labels, ad.LinfBall(0.4))
    assert not ad.attack(model, x, labels, ad.LinfBall(radii), restarts=3).success[radii > 0].any()


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        pytest.param(torch.full((2, 3), 0.1), "gives every feature its own size", id="per example and feature"),
        pytest.param(torch.full((1, 3), 0.1), "gives every feature its own size", id="per feature"),
        pytest.param(torch.full((3,), 0.1), "gives every feature its own size", id="per feature, flat"),
    ],
)
def test_one_size_per_feature_is_refused(eps: torch.Tensor, message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        ad.certified_radius(mlp(3, 4, 2), batch(2, 3), torch.tensor([0, 1]), ad.LinfBall(eps))


def test_an_ambiguous_size_is_refused() -> None:
    with pytest.raises(ad.ArgumentError, match="per example or one per feature"):
        ad.certified_radius(mlp(3, 4, 2), batch(3, 3), torch.tensor([0, 1, 0]), ad.LinfBall(torch.full((3,), 0.1)))


def test_the_radius_is_zero_where_only_rounding_makes_the_answer_wrong() -> None:
    """Scores 2^25 and 2^25 + x: float32 cannot tell them apart, and answers with the first; float64 proves the second."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0], [1.0]]))
        model[0].bias.fill_(2.0**25)
    x, labels, ball = torch.tensor([[0.75]]), torch.tensor([1]), ad.LinfBall(0.125)
    assert model(x).argmax(1).item() == 0
    assert ad.certified_radius(model, x, labels, ball).item() == 0
    assert ad.certify(model.double(), x.double(), labels, ball).certified.item()
