"""Error bounds of sums are those of the theory, gamma_n = n u / (1 - n u), and hardly more. [Higham, ch. 3]"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines.prepare import dual_network
from autodual.engines.rounding import SAFETY, Rounding, gamma_of_sum, underflow_of_sum

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("terms", [1, 2, 16, 1000, 10**6])
def test_a_sum_of_so_many_terms(terms: int, dtype: torch.dtype) -> None:
    part = terms * Fraction(torch.finfo(dtype).eps) / 2
    gamma = part / (1 - part)
    assert gamma <= Fraction(gamma_of_sum(terms, dtype)) <= Fraction(6, 5) * gamma


def test_sums_that_are_too_long_have_no_bound() -> None:
    """Errors are added up as well, which rounds them by n u: where the tenth that they are enlarged by is less, nothing is known."""
    assert gamma_of_sum(2**24, torch.float32) == math.inf
    assert gamma_of_sum(1_600_000, torch.float32) == math.inf
    longest = 1_500_000
    assert gamma_of_sum(longest, torch.float32) < math.inf
    assert SAFETY * (1 - longest * torch.finfo(torch.float32).eps / 2) >= 1


def test_a_chain_of_sums_that_is_too_long_has_no_bound() -> None:
    """No sum is too long by itself, but what is pushed through all of them is rounded in each."""
    wide = 800_000
    model = nn.Sequential(nn.Linear(wide, 1), nn.Linear(1, wide), nn.Linear(wide, 1))
    inputs = ad.LinfBall(0.1).around(torch.zeros(1, wide))
    known = Rounding(dual_network(model, inputs.centre), inputs)
    assert [bool(known.at(index).local.isfinite().all()) for index in (1, 2, 3)] == [True, True, False]


def test_coefficients_underflow_where_their_readers_are_pulled_back() -> None:
    """A coefficient on the input is a sum over all units of the layer that reads it, however few the features of the input are."""
    inputs = ad.LinfBall(1.0).around(torch.zeros(1, 4))
    known = Rounding(dual_network(nn.Linear(4, 5000), inputs.centre), inputs)
    assert known.at(0) is not None
    assert float(known.lost) >= 5000 * 4 * torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_product_may_underflow(dtype: torch.dtype) -> None:
    assert underflow_of_sum(1000, dtype) >= 1000 * torch.finfo(dtype).tiny
