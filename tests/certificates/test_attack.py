"""Attacks stay inside the set, report what the model says there, and find what there is to find."""

import pytest
import torch
from torch import nn

import autodual as ad
from small import DOUBLE, Net, batch, mlp, tilted

X = batch(12, 6)
BALLS: dict[str, ad.Perturbation] = {
    "linf": ad.LinfBall(0.2),
    "linf, clipped": ad.LinfBall(0.2, clip=(0.0, 1.0)),
    "linf, per example": ad.LinfBall(torch.linspace(0, 0.4, 12, dtype=DOUBLE)),
    "linf, per feature": ad.LinfBall(torch.linspace(0, 0.4, 6, dtype=DOUBLE)),
    "l2": ad.L2Ball(0.5),
    "l1": ad.L1Ball(0.8),
    "of a user": tilted(6, 0.3),
}
every_ball = pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS.keys())


def _inside(ball: ad.Perturbation, x: torch.Tensor) -> bool:
    """No linear function is smaller at x than over the set."""
    region = ball.around(X)
    rows = torch.randn(500, *X.shape, dtype=DOUBLE)
    rows[0], rows[1] = x - region.centre, region.centre - x
    return bool(((rows * x).flatten(2).sum(-1) >= region.minimise(rows) - 1e-9).all())


@every_ball
def test_examples_are_inside_and_margins_are_the_models(ball: ad.Perturbation) -> None:
    model = mlp(6, 10, 8, 3)
    labels = torch.arange(12) % 3
    found = ad.attack(model, X, labels, ball, steps=10, restarts=3)
    assert found.examples.shape == X.shape
    assert _inside(ball, found.examples)
    scores = model(found.examples)
    others = scores.scatter(1, labels.unsqueeze(1), -torch.inf).amax(1)
    torch.testing.assert_close(found.margins, scores.gather(1, labels.unsqueeze(1)).squeeze(1) - others)
    assert torch.equal(found.success, scores.argmax(1) != labels)
    assert not found.examples.requires_grad
    assert not found.margins.requires_grad


@every_ball
def test_a_linear_model_is_attacked_exactly(ball: ad.Perturbation) -> None:
    """With two classes the margin is linear, and its minimum over the set is known."""
    model, labels = mlp(6, 2), torch.arange(12) % 2
    weight, bias = model[0].weight.detach(), model[0].bias.detach()
    sign = (1 - 2 * labels).to(DOUBLE).unsqueeze(1)
    rows, shift = sign * (weight[0] - weight[1]), (sign * (bias[0] - bias[1])).squeeze(1)
    worst = ball.around(X).minimise(rows.unsqueeze(0)).squeeze(0) + shift
    found = ad.attack(model, X, labels, ball, steps=100)
    torch.testing.assert_close(found.margins, worst, atol=2e-3, rtol=0)
    assert torch.equal(found.success[worst.abs() > 2e-3], (worst < 0)[worst.abs() > 2e-3])
    assert ad.certify(model, X, labels, ball).certified.equal(worst > 1e-12), "and the certificate is exact, too"


def test_a_known_adversarial_example_is_found() -> None:
    """max(x1, x2) - 0.5 is above zero only in a corner of the square."""
    model = Net(lambda m, x: torch.stack([0.5 - x[:, 0] - x[:, 1], x[:, 0] + x[:, 1] - 0.5], dim=1))
    x, labels = torch.tensor([[0.2, 0.2]], dtype=DOUBLE), torch.tensor([0])
    assert not ad.attack(model, x, labels, ad.LinfBall(0.04)).success.any()
    found = ad.attack(model, x, labels, ad.LinfBall(0.06))
    assert found.success.all()
    torch.testing.assert_close(found.examples, torch.tensor([[0.26, 0.26]], dtype=DOUBLE))


def test_inputs_that_are_wrong_already_count_as_success() -> None:
    model = mlp(6, 8, 3)
    labels = (model(X).argmax(1) + 1) % 3
    assert ad.attack(model, X, labels, ad.LinfBall(0.0), steps=0).success.all()


def test_nothing_moves_without_room() -> None:
    model = mlp(6, 8, 3)
    labels = model(X).argmax(1)
    found = ad.attack(model, X, labels, ad.LinfBall(0.0), restarts=2)
    assert torch.equal(found.examples, X)
    assert not found.success.any()


def test_zero_steps_evaluate_the_starts_only() -> None:
    model, labels = mlp(6, 8, 3), torch.arange(12) % 3
    assert torch.equal(ad.attack(model, X, labels, ad.LinfBall(0.2), steps=0).examples, X)


@every_ball
def test_more_work_never_finds_less(ball: ad.Perturbation) -> None:
    model, labels = mlp(6, 10, 8, 3), torch.arange(12) % 3
    margins = [
        ad.attack(model, X, labels, ball, steps=10, restarts=r, generator=torch.Generator().manual_seed(0)).margins
        for r in (1, 2, 6)
    ]
    assert (margins[0] >= margins[1]).all()
    assert (margins[1] >= margins[2]).all()


def test_restarts_escape_where_there_is_no_gradient() -> None:
    """At x the model is flat; only a random start sees the hill that hides the other label."""
    model = Net(lambda m, x: torch.stack([torch.ones(len(x), dtype=x.dtype), 10 * torch.relu(x[:, 0] - 0.1)], dim=1))
    x, labels = torch.zeros(4, 2, dtype=DOUBLE), torch.zeros(4, dtype=torch.long)
    ball = ad.LinfBall(1.0)
    assert not ad.attack(model, x, labels, ball).success.any()
    generator = torch.Generator().manual_seed(0)
    assert ad.attack(model, x, labels, ball, restarts=20, generator=generator).success.all()


def test_a_generator_makes_attacks_repeatable() -> None:
    model, labels = mlp(6, 10, 8, 3), torch.arange(12) % 3
    torch.manual_seed(1)
    first = ad.attack(model, X, labels, ad.L1Ball(0.8), restarts=3, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = ad.attack(model, X, labels, ad.L1Ball(0.8), restarts=3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(first.examples, second.examples)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_it_works_with_and_without_gradients_around(grad: bool) -> None:
    model, labels = mlp(6, 10, 8, 3), torch.arange(12) % 3
    with torch.set_grad_enabled(grad):
        found = ad.attack(model, X, labels, ad.LinfBall(0.2), steps=5)
    assert (found.margins < ad.attack(model, X, labels, ad.LinfBall(0.2), steps=0).margins).any()
    assert all(p.grad is None for p in model.parameters())


def test_it_works_in_inference_mode() -> None:
    model, labels = mlp(6, 10, 8, 3), torch.arange(12) % 3
    plain = ad.attack(model, X, labels, ad.LinfBall(0.2), steps=5)
    with torch.inference_mode():
        inside = ad.attack(model, X.clone(), labels, ad.LinfBall(0.2), steps=5)
    assert torch.equal(plain.examples, inside.examples)


def test_a_captured_network_is_attacked_as_its_model() -> None:
    model, labels = mlp(6, 10, 8, 3), torch.arange(12) % 3
    network = ad.capture(model, X)
    assert torch.equal(
        ad.attack(network, X, labels, ad.LinfBall(0.2)).examples, ad.attack(model, X, labels, ad.LinfBall(0.2)).examples
    )


def test_models_that_cannot_be_bounded_can_be_attacked() -> None:
    model = nn.Sequential(mlp(6, 8, 3), nn.Softmax(1)).eval()
    labels = model(X).argmax(1)
    with pytest.warns(UserWarning, match="could not be confirmed in real numbers.*softmax"):
        found = ad.attack(model, X, labels, ad.LinfBall(2.0))
    assert found.success_as_run.any()
    assert not found.success.any()
