"""The common slope of a ReLU is exactly 0 or 1 for a stable unit, however small its interval, and NaN where it cannot be told."""

from __future__ import annotations

import math

import pytest
import torch

import autodual as ad
from autodual.dual.piecewise import DualReLU

DTYPES = (torch.float32, torch.float64)


def _slopes(lower: float, upper: float, dtype: torch.dtype) -> set[float]:
    """Of the band and of the upper line, for one unit and for many: a CPU treats the last ones of many differently."""
    found = set()
    for count in (1, 37):
        z = ad.Interval(*(torch.full((1, count), end, dtype=dtype) for end in (lower, upper)))
        found |= {*DualReLU().band(z).slope.flatten().tolist(), *DualReLU().lines(z).upper_slope.flatten().tolist()}
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stable_units(dtype: torch.dtype) -> None:
    smallest, largest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, torch.finfo(dtype).max
    for size in (smallest, 3 * smallest, torch.finfo(dtype).tiny, 1.0, largest):
        assert _slopes(0.0, size, dtype) == {1.0}
        assert _slopes(size, size, dtype) == {1.0}
        assert _slopes(-size, 0.0, dtype) == {0.0}
        assert _slopes(-size, -size, dtype) == {0.0}
        if size <= largest / 4:
            assert _slopes(-size, size, dtype) == {0.5}
    assert _slopes(0.0, 0.0, dtype) == {0.0}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "ends", [(-math.inf, 1.0), (-1.0, math.inf), (-math.inf, math.inf), (math.nan, 1.0), (-1.0, math.nan)]
)
def test_what_cannot_be_told(dtype: torch.dtype, ends: tuple[float, float]) -> None:
    assert all(math.isnan(slope) for slope in _slopes(*ends, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_width_that_overflows(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    assert all(math.isnan(slope) for slope in _slopes(-largest, largest, dtype))
