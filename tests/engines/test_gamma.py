"""Error bounds of sums are those of the theory, gamma_n = n u / (1 - n u), and hardly more. [Higham, ch. 3]"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from autodual.engines.rounding import gamma_of_sum, underflow_of_sum

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("terms", [1, 2, 16, 1000, 10**6])
def test_a_sum_of_so_many_terms(terms: int, dtype: torch.dtype) -> None:
    part = terms * Fraction(torch.finfo(dtype).eps) / 2
    gamma = part / (1 - part)
    assert gamma <= Fraction(gamma_of_sum(terms, dtype)) <= Fraction(6, 5) * gamma


def test_sums_that_are_too_long_have_no_bound() -> None:
    assert gamma_of_sum(2**24, torch.float32) == math.inf


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_product_may_underflow(dtype: torch.dtype) -> None:
    assert underflow_of_sum(1000, dtype) >= 1000 * torch.finfo(dtype).tiny
