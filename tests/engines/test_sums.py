"""gamma_n allows for what rounding does to a sum of n terms in its worst order, and not for much more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autodual.engines.rounding import of_sum


@pytest.mark.parametrize("terms", [2, 17, 1000, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_bounds_a_sum_that_loses_all_it_can(dtype: torch.dtype, terms: int) -> None:
    """One, and then halves of its last digit, one after the other: each of them is rounded away."""
    half = torch.finfo(dtype).eps / 2
    numbers = torch.full((terms,), half, dtype=dtype)
    numbers[0] = 1
    lost = (terms - 1) * half
    assert np.add.accumulate(numbers.numpy())[-1] == 1
    assert lost <= of_sum(terms, dtype) * (1 + lost) <= 2.5 * lost


def test_a_sum_of_more_terms_than_there_are_digits_has_no_bound() -> None:
    assert of_sum(2**24, torch.float32) == torch.inf
