"""A convolution over a patch of a few positions is one matrix, or one for each line of positions: both transpose it."""

from __future__ import annotations

import math

import pytest
import torch

from autodual.dual.base import AffineDual
from autodual.dual.conv import FEW_POSITIONS, MANY_ROWS, DualConv

# dims, positions of the result, kernel, stride, dilation, padding, left over, lines of positions that are taken apart
CASES = [
    (2, (4, 4), 4, 2, 1, 0, 0, True),
    (2, (4, 4), 3, 1, 1, 0, 0, True),
    (2, (4, 2), 2, 3, 1, 0, 2, True),
    (2, (5, 3), 2, 2, 2, 0, 1, True),
    (1, (9,), 3, 2, 1, 0, 0, True),
    (3, (4, 2, 2), 2, 2, 1, 0, 0, True),
    (2, (2, 2), 3, 1, 1, 0, 0, False),
    (2, (4, 4), 3, 1, 1, 1, 0, False),
    (2, (1, 8), 3, 2, 1, 0, 0, False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rows", [7, MANY_ROWS])
@pytest.mark.parametrize("inside", [False, True], ids=["channels outside", "channels inside"])
@torch.no_grad()
def test_the_transpose_is_that_of_autodiff(case: tuple, rows: int, inside: bool) -> None:
    dims, space, kernel, stride, dilation, padding, left_over, taken_apart = case
    assert math.prod(space) <= FEW_POSITIONS
    torch.manual_seed(0)
    weight = torch.randn(5, 2, *[kernel] * dims, dtype=torch.float64)
    layer = DualConv(weight, None, *((n,) * dims for n in (stride, padding, dilation)), 1)
    read = [(n - 1) * stride - 2 * padding + (kernel - 1) * dilation + 1 + left_over for n in space]
    coefficients = torch.randn(rows, 5, *space, dtype=torch.float64)
    if inside:
        coefficients = coefficients.movedim(1, -1).contiguous().movedim(-1, 1)
    (found,), (expected,) = (
        layer.transpose(coefficients, ((2, *read),)),
        AffineDual.transpose(layer, coefficients, ((2, *read),)),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    lines = {key[1] for key in layer.matrices}
    assert lines == {1 if taken_apart and rows >= MANY_ROWS else space[0]}
