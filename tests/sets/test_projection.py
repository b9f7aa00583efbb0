"""`project` gives the nearest point of the set; l1 is checked against an algorithm of another kind."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import autodual as ad
from small import DOUBLE, batch

BALLS: dict[str, Callable[[Tensor], ad.InputSet]] = {
    "linf": lambda x: ad.LinfBall(0.2).around(x),
    "linf, clipped": lambda x: ad.LinfBall(0.2, clip=(0.0, 1.0)).around(x),
    "l2": lambda x: ad.L2Ball(0.5).around(x),
    "l1": lambda x: ad.L1Ball(0.5).around(x),
    "l1, per example": lambda x: ad.L1Ball(torch.linspace(0, 2, len(x), dtype=DOUBLE)).around(x),
    "l2, per example": lambda x: ad.L2Ball(torch.linspace(0, 2, len(x), dtype=DOUBLE)).around(x),
    "box": lambda x: ad.Box(x - 0.1, x + 0.7),
}
every_ball = pytest.mark.parametrize("make", BALLS.values(), ids=BALLS.keys())


def _into_l1_by_bisection(shift: Tensor, radius: float) -> Tensor:
    """Shrink all entries by the same amount, found by halving an interval."""
    if shift.abs().sum() <= radius:
        return shift
    low, high = 0.0, float(shift.abs().max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (shift.abs() - middle).clamp(min=0).sum() > radius else (low, middle)
    return shift.sign() * (shift.abs() - high).clamp(min=0)


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.5, 3.0, 100.0])
@pytest.mark.parametrize("features", [1, 2, 7, 50])
def test_l1_agrees_with_bisection(radius: float, features: int) -> None:
    x, centre = torch.randn(6, features, dtype=DOUBLE), torch.randn(6, features, dtype=DOUBLE)
    x[0] = centre[0]
    x[1] = centre[1] + 1.0  # all equal: every order of sorting must do
    expected = centre + torch.stack([_into_l1_by_bisection(s, radius) for s in x - centre])
    torch.testing.assert_close(ad.L1Ball(radius).around(centre).project(x), expected)


@every_ball
def test_the_nearest_point_is_found(make: Callable[[Tensor], ad.InputSet]) -> None:
    """p is nearest to x exactly when no point of a convex set lies farther than p in the direction x - p."""
    centre = batch(4, 6)
    region, x = make(centre), centre + torch.randn(4, 6, dtype=DOUBLE)
    p = region.project(x)
    beyond = -region.minimise((p - x).unsqueeze(0)).squeeze(0)
    torch.testing.assert_close(((x - p) * p).sum(1), beyond)


@every_ball
def test_points_of_the_set_stay_where_they_are(make: Callable[[Tensor], ad.InputSet]) -> None:
    region = make(batch(4, 6))
    for _ in range(20):
        inside = region.sample()
        torch.testing.assert_close(region.project(inside), inside)


@every_ball
def test_images_are_projected_like_vectors(make: Callable[[Tensor], ad.InputSet]) -> None:
    centre = batch(4, 1, 2, 3)
    x = centre + torch.randn(4, 1, 2, 3, dtype=DOUBLE)
    flat = make(centre.flatten(1)).project(x.flatten(1))
    torch.testing.assert_close(make(centre).project(x), flat.reshape(x.shape))


@every_ball
@pytest.mark.parametrize("size", [0.0, 0.3, 1.0, 10.0])
def test_steps_stay_inside(make: Callable[[Tensor], ad.InputSet], size: float) -> None:
    region = make(batch(4, 6))
    moved = region.step(region.sample(), torch.randn(4, 6, dtype=DOUBLE), size)
    torch.testing.assert_close(region.project(moved), moved)


@every_ball
def test_a_step_without_direction_is_finite(make: Callable[[Tensor], ad.InputSet]) -> None:
    region = make(batch(4, 6))
    assert region.step(region.centre, torch.zeros(4, 6, dtype=DOUBLE), 0.5).isfinite().all()
