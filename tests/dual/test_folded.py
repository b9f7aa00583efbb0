"""A transposed convolution as one product whose taps are folded, which a GPU takes for float64, is that of autodiff."""

from __future__ import annotations

import pytest
import torch

from autodual.dual.base import AffineDual
from autodual.dual.conv import DualConv

# kernel, stride, padding, dilation, size
CASES = [(4, 2, 1, 1, 8), (3, 1, 1, 1, 7), (3, 2, 1, 1, 8), (3, 2, 0, 2, 9), (2, 3, 0, 1, 10), (1, 2, 0, 1, 5)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_transpose_is_that_of_autodiff(case: tuple[int, ...]) -> None:
    kernel, stride, padding, dilation, size = case
    torch.manual_seed(0)
    weight = torch.randn(5, 3, kernel, kernel, dtype=torch.float64)
    layer = DualConv(weight, None, *((n, n) for n in (stride, padding, dilation)), 1)
    shape = layer.linear(torch.zeros(1, 3, size, size, dtype=torch.float64)).shape[1:]
    coefficients = torch.randn(4, *shape, dtype=torch.float64)
    (expected,) = AffineDual.transpose(layer, coefficients, ((3, size, size),))
    torch.testing.assert_close(layer._folded(coefficients, (size, size)), expected, rtol=0, atol=1e-12)
