"""Cases small enough to be worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

import autodual as ad

EXACT = (ad.Dual(), ad.Crown(), ad.ForwardDual(), ad.Dual(intersect=True))


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", EXACT, ids=repr)
@pytest.mark.parametrize(
    ("ball", "dual_norm"), [(ad.LinfBall(0.3), 1), (ad.L2Ball(0.3), 2), (ad.L1Ball(0.3), torch.inf)]
)
def test_an_affine_layer_moves_by_the_dual_norm_of_its_rows(
    engine: ad.BoundEngine, ball: ad.Perturbation, dual_norm: float
) -> None:
    model = nn.Linear(5, 4).double().eval()
    x = torch.randn(3, 5, dtype=torch.float64)
    with torch.no_grad():
        found = ad.bounds(model, ball.around(x), engine).output
        reach = 0.3 * torch.linalg.vector_norm(model.weight, ord=dual_norm, dim=1)
        _close(found.lower, model(x) - reach)
        _close(found.upper, model(x) + reach)


@pytest.mark.parametrize("engine", [*EXACT, ad.IBP()], ids=repr)
def test_affine_layers_in_a_row_are_one(engine: ad.BoundEngine) -> None:
    """Their product is bounded, not one after the other; intervals can only do the latter."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double().eval()
    x = torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        found = ad.bounds(model, ad.LinfBall(0.2).around(x), engine).output
        product = (model[1].weight @ model[0].weight).abs()
        apart = model[1].weight.abs() @ model[0].weight.abs()
        reach = 0.2 * (apart if isinstance(engine, ad.IBP) else product).sum(1)
        _close(found.lower, model(x) - reach)


def _hand_made() -> nn.Module:
    """z = (x1 + x2, x1 - x2) -> relu -> y = (a + b, a - 2 b), around x = (1/2, 1/2) with eps = 1/2."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        model[2].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -2.0]]))
    return model


def test_one_hidden_layer_by_hand() -> None:
    """z1 in [0, 2] is stable; z2 in [-1, 1] is not: relu(z2) in z2 / 2 + 1/4 +- 1/4.

    y1 in (x1 + x2) + (x1 - x2) / 2 + 1/4 +- 1/4 = 3/2 x1 + x2 / 2 + 1/4 +- 1/4: centre 5/4, radius (3/2 + 1/2) / 2 + 1/4 = 5/4.
    y2 in (x1 + x2) - (x1 - x2) - 1/2 +- 1/2 = 2 x2 - 1/2 +- 1/2: centre 1/2, radius 1 + 1/2 = 3/2.
    """
    region = ad.LinfBall(0.5).around(torch.full((1, 2), 0.5, dtype=torch.float64))
    with torch.no_grad():
        for engine in (ad.Dual(), ad.ForwardDual()):
            found = ad.bounds(_hand_made(), region, engine)
            _close(found.output.lower, torch.tensor([[0.0, -1.0]], dtype=torch.float64))
            _close(found.output.upper, torch.tensor([[2.5, 2.0]], dtype=torch.float64))
        (layer,) = found.layers.values()
        _close(layer.lower, torch.tensor([[0.0, -1.0]], dtype=torch.float64))
        _close(layer.upper, torch.tensor([[2.0, 1.0]], dtype=torch.float64))


def test_one_hidden_layer_by_hand_with_two_lines() -> None:
    """z2 has l + u = 0, so its lower line is flat: 0 <= relu(z2) <= z2 / 2 + 1/2.

    y1 >= z1 >= 0 and <= 3/2 x1 + x2 / 2 + 1/2 <= 5/2. y2 >= 2 x2 - 1 >= -1 and <= z1 <= 2.
    """
    region = ad.LinfBall(0.5).around(torch.full((1, 2), 0.5, dtype=torch.float64))
    with torch.no_grad():
        found = ad.bounds(_hand_made(), region, ad.Crown()).output
    _close(found.lower, torch.tensor([[0.0, -1.0]], dtype=torch.float64))
    _close(found.upper, torch.tensor([[2.5, 2.0]], dtype=torch.float64))


def test_a_clipped_ball_is_a_box() -> None:
    model = nn.Linear(3, 2).double().eval()
    x = torch.tensor([[0.05, 0.5, 0.9]], dtype=torch.float64)
    with torch.no_grad():
        clipped = ad.bounds(model, ad.LinfBall(0.2, clip=(0, 1)).around(x)).output
        ends = torch.tensor([[[0.0, 0.3, 0.7]], [[0.25, 0.7, 1.0]]], dtype=torch.float64)
        boxed = ad.bounds(model, ad.Box(*ends)).output
    _close(clipped.lower, boxed.lower)
    _close(clipped.upper, boxed.upper)
