"""LinfBall(eps, scale=...): each feature moves by at most eps times its scale, in real numbers, and none with scale 0 moves."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

import autodual as ad

SCALE = torch.tensor([0.0, 0.1, 3.0, 1e5, 7e-8], dtype=torch.float64)
X = torch.tensor([[1.0, -2.0, 0.3, 12345.678, 1e-6], [0.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1.0, 0.1, 1 / 3, 1e-30])
def test_proofs_are_about_no_less_and_attacks_about_no_more(eps: float, dtype: torch.dtype) -> None:
    """Against exact rational arithmetic."""
    x = X.to(dtype)
    ball = ad.LinfBall(eps, scale=SCALE)
    outer, inner = ball.around(x), ball.within(x)
    assert isinstance(outer, ad.Box)
    assert isinstance(inner, ad.Box)
    for i in range(2):
        for j in range(5):
            exact, at = Fraction(eps) * Fraction(SCALE[j].item()), Fraction(x[i, j].item())
            reach = Fraction(outer.radius.expand_as(x)[i, j].item())
            assert reach >= exact
            assert reach <= exact * (1 + Fraction(1, 2**20)) + Fraction(1, 2**120)
            assert (
                at - exact
                <= Fraction(inner.lower[i, j].item())
                <= at
                <= Fraction(inner.upper[i, j].item())
                <= at + exact
            )
    assert bool((inner.upper[:, 0] == x[:, 0]).all())
    assert bool((outer.radius[..., 0] == 0).all())


def test_clipped_and_per_example() -> None:
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.1], dtype=torch.float64)
    eps = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    box = ad.LinfBall(eps, clip=(0.0, 1.0), scale=scale).around(x)
    reach = eps[:, None] * scale
    torch.testing.assert_close(box.lower, (x - reach).clamp(min=0))
    torch.testing.assert_close(box.upper, (x + reach).clamp(max=1))


def test_equal_to_an_eps_per_feature() -> None:
    model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
    scale = torch.linspace(0.0, 2.0, 64, dtype=torch.float64).reshape(1, 8, 8)
    one = ad.certify(model, images[:40], labels[:40], ad.LinfBall(0.05, scale=scale))
    other = ad.certify(model, images[:40], labels[:40], ad.LinfBall(0.05 * scale))
    assert torch.equal(one.certified, other.certified)
    assert 0 < int(one.certified.sum()) < 40
    torch.testing.assert_close(one.margins, other.margins, rtol=1e-4, atol=1e-4)
    assert str(one).split(" certified ")[1].startswith("at l-infinity 0 to 0.1 by")


def test_a_radius_is_searched_for() -> None:
    model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
    scale = torch.linspace(0.0, 2.0, 64).reshape(1, 8, 8)
    radii = ad.certified_radius(model, images[:8], labels[:8], ad.LinfBall(0.2, scale=scale), tol=0.01)
    assert bool((radii > 0).any())
    for radius, x, label in zip(radii.tolist(), images[:8], labels[:8], strict=True):
        if radius > 0:
            assert bool(ad.certify(model, x[None], label[None], ad.LinfBall(radius, scale=scale)).certified)


def test_attacks_stay_inside() -> None:
    model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
    scale = torch.zeros(1, 8, 8)
    scale[:, 2:4] = 1.0
    found = ad.attack(model, images[:20], labels[:20], ad.LinfBall(0.5, clip=(0.0, 1.0), scale=scale))
    moved = (found.examples - images[:20]).abs()
    assert bool((moved[:, :, [0, 1, 4, 5, 6, 7]] == 0).all())
    assert 0.4 < float(moved.max()) <= 0.5


def test_two_scales_are_two_questions() -> None:
    model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
    one, other = torch.ones(64), torch.ones(64)
    other[3] = 0.5
    other[5] = 1.0
    other[7], one[7] = 0.5, 0.5
    told = {
        ad.certify(model, images[:1], labels[:1], ad.LinfBall(0.01, scale=s.reshape(1, 8, 8))).perturbation
        for s in (one, other)
    }
    assert len(told) == 2


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(1.0), "one number is eps"),
        (1.0, "scale must be a tensor"),
        (torch.tensor([1, 2]), "scale must be a floating-point tensor"),
        (torch.tensor([1.0, -1.0]), "scale must be finite and not negative"),
        (torch.tensor([1.0, torch.nan]), "scale must be finite and not negative"),
    ],
)
def test_bad_scales(scale: Tensor, message: str) -> None:
    with pytest.raises(ad.ArgumentError, match=message):
        ad.LinfBall(0.1, scale=scale)


def test_a_scale_for_other_inputs() -> None:
    with pytest.raises(
        ad.ArgumentError, match=r"scale of shape \(5,\) does not fit x of shape \(2, 3\): give one per feature \[3\]"
    ):
        ad.LinfBall(0.1, scale=torch.ones(5)).around(torch.zeros(2, 3))
