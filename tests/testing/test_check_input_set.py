"""check_input_set accepts the shipped sets and finds what is wrong with others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.sets import NormSet
from autodual.sets.input_sets import L1, L2
from autodual.testing import check_input_set

X = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SETS = {
    "linf": ad.LinfBall(0.1).around(X),
    "linf clipped": ad.LinfBall(0.5, clip=(-3, 3)).around(X),
    "linf per example": ad.LinfBall(torch.rand(3)).around(X),
    "linf per feature": ad.LinfBall(torch.rand(2, 4)).around(X),
    "l2": ad.L2Ball(0.3).around(X),
    "l2 per example": ad.L2Ball(torch.rand(3)).around(X),
    "l1": ad.L1Ball(0.7).around(X),
    "box": ad.Box(X - 0.3, X + 0.2),
    "linf of no size": ad.LinfBall(0.0).around(X),
    "l2 of no size": ad.L2Ball(0.0).around(X),
    "l1 of no size": ad.L1Ball(0.0).around(X),
    "float32": ad.L2Ball(0.3).around(X.float()),
}


@pytest.mark.parametrize("input_set", SETS.values(), ids=SETS.keys())
def test_accepts_the_shipped_sets(input_set: ad.InputSet) -> None:
    check_input_set(input_set)


class Segment(ad.InputSet):
    """All points between x - d and x + d: a set of one's own, from the support function alone."""

    def __init__(self, centre: Tensor, direction: Tensor) -> None:
        self.centre, self.direction = centre, direction

    def minimise(self, coefficients: Tensor) -> Tensor:
        along = (coefficients * self.direction).flatten(2).sum(-1)
        return (coefficients * self.centre).flatten(2).sum(-1) - along.abs()

    def __getitem__(self, examples: slice) -> Segment:
        return type(self)(self.centre[examples], self.direction[examples])


class TooLow(Segment):
    def vertex(self, direction: Tensor) -> Tensor:
        return super().vertex(direction) - 0.1 * self.direction


class TooHigh(Segment):
    def minimise(self, coefficients: Tensor) -> Tensor:
        return super().minimise(coefficients) + 0.01

    def vertex(self, direction: Tensor) -> Tensor:
        return Segment(self.centre, self.direction).vertex(direction)


class WrongBox(Segment):
    def box(self) -> ad.Interval:
        return ad.Interval.around(self.centre, 0.9 * self.direction.abs())


class WrongSlice(Segment):
    def __getitem__(self, examples: slice) -> WrongSlice:
        return WrongSlice(self.centre[examples], self.direction.roll(1, 0)[examples])


class WrongProjection(NormSet):
    def project(self, x: Tensor) -> Tensor:
        return self.centre + 0.5 * (super().project(x) - self.centre)


class WrongNorm(NormSet):
    def minimise(self, coefficients: Tensor) -> Tensor:
        return NormSet(self.centre, self.radius, L2).minimise(coefficients)


D = torch.randn_like(X)
WRONG = {
    "vertex not the minimum": (TooLow(X, D), "outside|against the value at `vertex`"),
    "minimum too high": (TooHigh(X, D), "lies outside"),
    "box": (WrongBox(X, D), "box"),
    "slice": (WrongSlice(X, D), r"minimise of \[0:1\] against those examples"),
    "projection": (WrongProjection(X, torch.full((1, 1, 1), 0.3, dtype=X.dtype), L2), "project"),
    "norm": (WrongNorm(X, torch.full((1, 1, 1), 0.3, dtype=X.dtype), L1), "NormSet|WrongNorm"),
}


def test_accepts_a_set_of_ones_own() -> None:
    check_input_set(Segment(X, D))


@pytest.mark.parametrize(("input_set", "message"), WRONG.values(), ids=WRONG.keys())
def test_finds_what_is_wrong(input_set: ad.InputSet, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_input_set(input_set)
