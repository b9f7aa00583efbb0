"""`minimise` is the smallest value of a linear function over the set: no point does better, and one point reaches it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import autodual as ad
from small import DOUBLE, batch, corners, tilted

FEATURES, COUNT, ROWS = 5, 3, 8

SETS: dict[str, Callable[[Tensor], ad.InputSet]] = {
    "linf": lambda x: ad.LinfBall(0.2).around(x),
    "linf, clipped": lambda x: ad.LinfBall(0.2, clip=(0.0, 1.0)).around(x),
    "linf, per example": lambda x: ad.LinfBall(torch.tensor([0.1, 0.2, 0.0], dtype=DOUBLE)).around(x),
    "linf, per feature": lambda x: ad.LinfBall(torch.linspace(0, 1, FEATURES, dtype=DOUBLE)).around(x),
    "l2": lambda x: ad.L2Ball(0.7).around(x),
    "l2, per example": lambda x: ad.L2Ball(torch.tensor([0.1, 0.2, 0.0], dtype=DOUBLE)).around(x),
    "l1": lambda x: ad.L1Ball(0.9).around(x),
    "l1, per example": lambda x: ad.L1Ball(torch.tensor([0.1, 0.2, 0.0], dtype=DOUBLE)).around(x),
    "box": lambda x: ad.Box(x - x.flip(1), x + 0.5),
    "ellipsoid of a user": lambda x: tilted(FEATURES, 0.3).around(x),
}
every_set = pytest.mark.parametrize("make", SETS.values(), ids=SETS.keys())


def _rows(shape: tuple[int, ...] = (FEATURES,)) -> Tensor:
    return torch.randn(ROWS, COUNT, *shape, dtype=DOUBLE)


@every_set
def test_no_sampled_point_is_below(make: Callable[[Tensor], ad.InputSet]) -> None:
    region, rows = make(batch(COUNT, FEATURES)), _rows()
    lowest = region.minimise(rows)
    assert lowest.shape == (ROWS, COUNT)
    for _ in range(200):
        assert ((rows * region.sample()).sum(-1) >= lowest - 1e-12).all()


@every_set
def test_the_farthest_point_reaches_it(make: Callable[[Tensor], ad.InputSet]) -> None:
    region, rows = make(batch(COUNT, FEATURES)), _rows()
    for row, lowest in zip(rows, region.minimise(rows), strict=True):
        torch.testing.assert_close((row * region.vertex(-row)).sum(-1), lowest)


@every_set
def test_rows_may_be_shared_by_all_examples(make: Callable[[Tensor], ad.InputSet]) -> None:
    region, rows = make(batch(COUNT, FEATURES)), _rows()[:, :1]
    torch.testing.assert_close(region.minimise(rows), region.minimise(rows.expand(-1, COUNT, -1)))


@every_set
def test_the_box_is_the_smallest(make: Callable[[Tensor], ad.InputSet]) -> None:
    region = make(batch(COUNT, FEATURES))
    basis = torch.eye(FEATURES, dtype=DOUBLE).unsqueeze(1)
    torch.testing.assert_close(region.box().lower, region.minimise(basis).T)
    torch.testing.assert_close(region.box().upper, -region.minimise(-basis).T)


@every_set
def test_some_examples_of_a_set_are_the_set_of_some_examples(make: Callable[[Tensor], ad.InputSet]) -> None:
    region, rows = make(batch(COUNT, FEATURES)), _rows()
    for part in (slice(0, 1), slice(1, 3), slice(0, 3)):
        assert len(region[part]) == len(range(COUNT)[part])
        torch.testing.assert_close(region[part].minimise(rows[:, part]), region.minimise(rows)[:, part])


@every_set
def test_gradients_lead_to_the_farthest_point(make: Callable[[Tensor], ad.InputSet]) -> None:
    """The gradient of the minimum in the coefficients is the point that attains it."""
    region, rows = make(batch(COUNT, FEATURES)), _rows().requires_grad_()
    (gradient,) = torch.autograd.grad(region.minimise(rows).sum(), rows)
    torch.testing.assert_close(gradient[0], region.vertex(-rows[0].detach()))


def test_boxes_against_all_corners() -> None:
    lower = torch.randn(COUNT, FEATURES, dtype=DOUBLE)
    box, rows = ad.Box(lower, lower + torch.rand(COUNT, FEATURES, dtype=DOUBLE)), _rows()
    values = torch.einsum("rnf,cnf->rcn", rows, corners(box.lower, box.upper))
    torch.testing.assert_close(box.minimise(rows), values.amin(1))


def test_l1_balls_against_all_corners() -> None:
    x, rows = batch(COUNT, FEATURES), _rows()
    spikes = torch.cat([torch.eye(FEATURES, dtype=DOUBLE), -torch.eye(FEATURES, dtype=DOUBLE)]) * 0.9
    values = torch.einsum("rnf,cnf->rcn", rows, x + spikes.unsqueeze(1))
    torch.testing.assert_close(ad.L1Ball(0.9).around(x).minimise(rows), values.amin(1))


def test_l2_balls_against_many_directions() -> None:
    x = batch(COUNT, 2)
    angles = torch.linspace(0, 2 * torch.pi, 20_000, dtype=DOUBLE)
    circle = 0.7 * torch.stack([angles.cos(), angles.sin()], dim=1)
    rows = _rows((2,))
    values = torch.einsum("rnf,cnf->rcn", rows, x + circle.unsqueeze(1))
    torch.testing.assert_close(ad.L2Ball(0.7).around(x).minimise(rows), values.amin(1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.1), ad.L1Ball(0.1)], ids=lambda b: type(b).__name__)
def test_images_are_sums_over_all_pixels(ball: ad.Perturbation) -> None:
    x, rows = batch(COUNT, 2, 3, 3), _rows((2, 3, 3))
    flat = ball.around(x.flatten(1)).minimise(rows.flatten(2))
    torch.testing.assert_close(ball.around(x).minimise(rows), flat)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.0), ad.L2Ball(0.0), ad.L1Ball(0.0)], ids=lambda b: type(b).__name__)
def test_a_ball_without_radius_is_a_point_with_finite_gradients(ball: ad.Perturbation) -> None:
    x, rows = batch(COUNT, FEATURES), torch.zeros(ROWS, COUNT, FEATURES, dtype=DOUBLE, requires_grad=True)
    lowest = ball.around(x).minimise(rows)
    torch.testing.assert_close(lowest, (rows * x).sum(-1))
    (gradient,) = torch.autograd.grad(lowest.sum(), rows)
    assert gradient.isfinite().all()
