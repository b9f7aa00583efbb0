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


@pytest.mark.parametrize("inside", [False, True], ids=["channels first", "channels inside"])
@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_a_transpose_in_pieces_is_that_of_all_at_once(step: int, inside: bool) -> None:
    torch.manual_seed(0)
    layer = DualConv(torch.randn(5, 3, 4, 4), None, (2, 2), (1, 1), (1, 1), 1)
    coefficients = torch.randn(7, 5, 4, 4)
    if inside:
        coefficients = coefficients.contiguous(memory_format=torch.channels_last)
    expected = layer._by_library(coefficients, (8, 8))
    found = layer._in_pieces(coefficients, (8, 8), step)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
