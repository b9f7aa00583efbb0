"""Points that a set hands out belong to it: farthest points, steps and samples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import autodual as ad
from small import DOUBLE, batch, tilted

Member = Callable[[Tensor, Tensor], Tensor]
"""(x, point) -> [N] bool, from the definition of the set around x."""

SETS: dict[str, tuple[ad.Perturbation, Member]] = {
    "linf": (ad.LinfBall(0.2), lambda x, p: (p - x).abs().amax(1) <= 0.2 + 1e-12),
    "linf, clipped": (
        ad.LinfBall(0.2, clip=(0.0, 1.0)),
        lambda x, p: ((p - x).abs() <= 0.2 + 1e-12).all(1) & ((p >= -1e-12) & (p <= 1 + 1e-12)).all(1),
    ),
    "l2": (ad.L2Ball(0.7), lambda x, p: (p - x).norm(dim=1) <= 0.7 + 1e-12),
    "l1": (ad.L1Ball(0.9), lambda x, p: (p - x).abs().sum(1) <= 0.9 + 1e-12),
    "ellipsoid of a user": (tilted(5, 0.3), lambda x, p: tilted(5, 0.3).around(x).holds(p)),
}
every_set = pytest.mark.parametrize(("ball", "member"), SETS.values(), ids=SETS.keys())


@every_set
def test_samples_are_inside_and_differ(ball: ad.Perturbation, member: Member) -> None:
    x = batch(4, 5)
    points = [ball.around(x).sample() for _ in range(50)]
    assert all(member(x, p).all() for p in points)
    assert len({tuple(p.flatten().tolist()) for p in points}) == 50


@every_set
def test_farthest_points_are_inside_and_no_sample_is_farther(ball: ad.Perturbation, member: Member) -> None:
    x, direction = batch(4, 5), torch.randn(4, 5, dtype=DOUBLE)
    region = ball.around(x)
    vertex = region.vertex(direction)
    assert member(x, vertex).all()
    for _ in range(50):
        assert (((vertex - region.sample()) * direction).sum(1) >= -1e-12).all()


@every_set
def test_steps_are_inside_and_ascend(ball: ad.Perturbation, member: Member) -> None:
    x, direction = batch(4, 5), torch.randn(4, 5, dtype=DOUBLE)
    region = ball.around(x)
    moved = region.step(x, direction, 0.5)
    assert member(x, moved).all()
    assert (((moved - x) * direction).sum(1) > 0).all()


@every_set
def test_a_generator_makes_samples_repeatable(ball: ad.Perturbation, member: Member) -> None:
    region = ball.around(batch(4, 5))
    first, second = (region.sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    state = torch.get_rng_state()
    region.sample(torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"


@every_set
def test_points_have_the_type_of_the_inputs(ball: ad.Perturbation, member: Member) -> None:
    if isinstance(ball, ad.LinfBall | ad.L2Ball | ad.L1Ball):
        region = ball.around(batch(4, 5, dtype=torch.float32))
        for point in (region.sample(), region.vertex(torch.randn(4, 5)), region.box().lower):
            assert point.dtype == torch.float32


def test_a_box_keeps_its_ends() -> None:
    lower, upper = batch(3, 4) - 1, batch(3, 4, seed=1) + 1
    box = ad.Box(lower, upper)
    torch.testing.assert_close(box.lower, lower)
    torch.testing.assert_close(box.upper, upper)
    assert len(box) == 3
