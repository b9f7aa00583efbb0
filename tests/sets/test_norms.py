"""Norms are what they say: dual, farthest and nearest points by their definitions, and no other number passes for one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.sets import NormSet, norm_of
from autodual.sets.input_sets import BY_DUAL_ORDER, L1, L2, LINF, Norm
from small import DOUBLE, mlp

every_norm = pytest.mark.parametrize("norm", [LINF, L2, L1], ids=["linf", "l2", "l1"])


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(len(shape)))


@every_norm
def test_the_dual_norm_at_once_and_in_parts(norm: Norm) -> None:
    values = _random(3, 4, 5)
    expected = torch.linalg.vector_norm(values, ord=norm.dual_order, dim=(1, 2))
    torch.testing.assert_close(norm.dual(values, [1, 2]), expected)
    torch.testing.assert_close(norm.finish(norm.gather(norm.gather(norm.measure(values), 1), 1)), expected)


@every_norm
def test_the_farthest_point_attains_the_dual_norm(norm: Norm) -> None:
    direction = _random(6, 7)
    point = norm.farthest(direction)
    assert bool((torch.linalg.vector_norm(point, ord=norm.order, dim=1) <= 1 + 1e-12).all())
    torch.testing.assert_close((point * direction).sum(1), norm.dual(direction))


@every_norm
def test_the_nearest_point(norm: Norm) -> None:
    """The projection p of s onto a convex set: (s - p)'q is largest over the set at q = p."""
    shift, radius = 2 * _random(6, 7), torch.full((6, 1), 0.9, dtype=DOUBLE)
    point = norm.nearest(shift, radius)
    assert bool((torch.linalg.vector_norm(point, ord=norm.order, dim=1) <= 0.9 + 1e-12).all())
    torch.testing.assert_close(((shift - point) * point).sum(1), 0.9 * norm.dual(shift - point))
    torch.testing.assert_close(norm.nearest(point, radius), point)


def test_a_box_is_a_norm_set_of_the_largest_change() -> None:
    centre, radius, rows = _random(3, 4), torch.full((1, 1), 0.2, dtype=DOUBLE), _random(5, 1, 4)
    box, ball = ad.LinfBall(0.2).around(centre), NormSet(centre, radius, LINF)
    torch.testing.assert_close(ball.minimise(rows), box.minimise(rows))
    torch.testing.assert_close(ball.vertex(rows[0].expand(3, 4)), box.vertex(rows[0].expand(3, 4)))
    torch.testing.assert_close(ball.project(centre + 1), box.project(centre + 1))


class Declared(ad.InputSet):
    """A set of the user's own that states its dual norm as a number."""

    def __init__(self, inner: ad.InputSet, dual_norm: float | None) -> None:
        self.inner, self.centre, self.radius, self.dual_norm = inner, inner.centre, inner.radius, dual_norm

    def minimise(self, coefficients: Tensor) -> Tensor:
        return self.inner.minimise(coefficients)

    def __getitem__(self, examples: slice) -> Declared:
        return Declared(self.inner[examples], self.dual_norm)


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.L2Ball(0.2), ad.L1Ball(0.3)], ids=repr)
def test_a_number_declares_the_norm(ball: ad.Perturbation) -> None:
    region = ball.around(_random(2, 5))
    declared = Declared(region, region.dual_norm)
    assert norm_of(declared) is norm_of(region) is BY_DUAL_ORDER[region.dual_norm or math.nan]
    assert norm_of(Declared(region, None)) is None
    model = mlp(5, 6, 3)
    found, expected = ad.bounds(model, declared), ad.bounds(model, region)
    assert torch.equal(found.output.lower, expected.output.lower)


@pytest.mark.parametrize("number", [0, 3.0, math.nan])
def test_another_number_is_refused(number: float) -> None:
    region = Declared(ad.L2Ball(0.2).around(_random(2, 5)), number)
    with pytest.raises(ad.ArgumentError, match=r"Declared: dual_norm must be 1, 2 or inf"):
        ad.bounds(mlp(5, 6, 3), region)
