"""What `within` computes is an allowed input, to the last digit: exact arithmetic says so."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import autodual as ad

Norm = Callable[[list[Fraction]], Fraction]
BALLS: dict[str, tuple[Callable[[Any], ad.Perturbation], Norm, int]] = {
    "linf": (ad.LinfBall, lambda shift: max(map(abs, shift)), 1),
    "linf, clipped": (lambda eps: ad.LinfBall(eps, clip=(0.1, 0.7)), lambda shift: max(map(abs, shift)), 1),
    "l2": (ad.L2Ball, lambda shift: sum((s * s for s in shift), Fraction(0)), 2),
    "l1": (ad.L1Ball, lambda shift: sum(map(abs, shift), Fraction(0)), 1),
}
SIZES = {"usual": 0.1, "of no short fraction": 0.05639131994075477, "of few units in the last place": 3e-7, "zero": 0.0}
SIZES |= {"smaller than any number of float32": 1e-50, "as large as x": 0.7}


def points(ball: ad.Perturbation, x: Tensor) -> list[Tensor]:
    """Steps from x and from random points, small and large, and the random points themselves."""
    generator = torch.Generator().manual_seed(1)
    region, found = ball.within(x), [x]
    for size in (0.02, 0.5, 1.0, 3.0):
        direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        sample = region.sample(generator)
        found += [sample, region.step(x, direction, size), region.step(sample, direction, size)]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BALLS)
def test_points_are_allowed_inputs(name: str, size: str, dtype: torch.dtype) -> None:
    make, norm, power = BALLS[name]
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) * 0.6 + 0.1
    x[0], x[1] = 0.7, 0.1
    ball = make(SIZES[size])
    most = Fraction(SIZES[size]) ** power
    low, high = Fraction(0.1), Fraction(0.7)
    for found in points(ball, x):
        for point, centre in zip(found.tolist(), x.tolist(), strict=True):
            own = [Fraction(v) for v in centre]
            assert norm([Fraction(p) - c for p, c in zip(point, own, strict=True)]) <= most
            if isinstance(ball, ad.LinfBall) and ball.clip is not None:
                assert all(min(low, c) <= Fraction(p) <= max(high, c) for p, c in zip(point, own, strict=True))


@pytest.mark.parametrize("name", BALLS)
def test_it_is_hardly_smaller(name: str) -> None:
    """The attack loses nothing but the last digit."""
    make, _, _ = BALLS[name]
    x = torch.rand(4, 50, generator=torch.Generator().manual_seed(0)) * 0.6 + 0.1
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    inner, outer = (region.step(x, direction, 5.0) for region in (make(0.1).within(x), make(0.1).around(x)))
    torch.testing.assert_close(inner, outer, rtol=1e-6, atol=1e-7)


def test_every_example_has_its_own_size() -> None:
    x, eps = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0.0, 0.1, 0.3])
    for ball in (ad.LinfBall(eps[:, None]), ad.L2Ball(eps), ad.L1Ball(eps)):
        moved = (ball.within(x).step(x, torch.ones_like(x), 9.0) - x).double()
        norm = (
            moved.abs().amax(1)
            if isinstance(ball, ad.LinfBall)
            else moved.norm(2 if isinstance(ball, ad.L2Ball) else 1, dim=1)
        )
        assert (norm <= eps.double()).all()
        assert (norm >= eps.double() - 1e-6).all()


def test_data_may_end_where_float32_rounds_the_clip() -> None:
    """0.3 in float32 is more than 0.3: such data are in range, also when float64 looks at them."""
    ball, x = ad.LinfBall(0.1, clip=(0.1, 0.3)), torch.tensor([[0.3, 0.1]])
    assert x[0, 0].item() > 0.3
    region = ball.around(x.double())
    assert ((region.lower <= x.double()) & (x.double() <= region.upper)).all()
    with pytest.raises(ad.ArgumentError, match="lies outside clip"):
        ball.around(torch.nextafter(x, torch.ones_like(x)).double())


@pytest.mark.parametrize("kind", [ad.LinfBall, ad.L2Ball, ad.L1Ball])
def test_an_heir_with_another_set_is_searched_there(kind: Any) -> None:
    """A subclass that says something else about `around` says it about attacks, too."""

    class First(kind):  # type: ignore[misc]
        def around(self, x: Tensor) -> ad.Box:
            room = torch.zeros_like(x)
            room[:, 0] = self.eps
            return ad.Box(x - room, x + room)

    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    moved = First(0.1).within(x).step(x, torch.ones_like(x), 9.0)
    assert torch.equal(moved[:, 1:], x[:, 1:])
    assert (moved[:, 0] > x[:, 0] + 0.09).all()
