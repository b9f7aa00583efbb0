"""What a step starts with: clipped balls and the rows of margins. Twins: `autodual.sets.balls` and `autodual.spec`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


@triton.jit(do_not_specialize=["eps", "low", "high", "count"])
def _clipped(x, centre, radius, eps, low, high, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    value = tl.load(x + place, mask=inside, other=0.0)
    lower, upper = value - eps, value + eps
    lower = tl.where(lower < low, low, tl.where(lower > high, high, lower))
    upper = tl.where(upper < low, low, tl.where(upper > high, high, upper))
    tl.store(centre + place, (lower + upper) * 0.5, mask=inside)
    tl.store(radius + place, (upper - lower) * 0.5, mask=inside)


@triton.jit(do_not_specialize=["classes"])
def _margins(labels, rows, classes, block: tl.constexpr):  # type: ignore[no-untyped-def]
    example, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, block)
    label = tl.load(labels + example)
    value = (column == label).to(tl.float32) - (column == row).to(tl.float32)
    value = tl.where((label >= 0) & (label < classes), value, float("nan"))
    tl.store(rows + (row * tl.num_programs(0) + example) * classes + column, value, mask=column < classes)


def clipped(x: Tensor, eps: float, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Centre and radius of what is within eps of x and within [low, high]; NaN stays NaN."""
    centre, radius = torch.empty_like(x), torch.empty_like(x)
    x = x if x.stride() == centre.stride() else torch.empty_like(centre).copy_(x)
    _clipped[(triton.cdiv(x.numel(), BLOCK),)](x, centre, radius, float(eps), float(low), float(high), x.numel(), BLOCK)
    return centre, radius


def margins(labels: Tensor, classes: int) -> Tensor:
    """[classes, N, classes]: row j of example n is e_label - e_j; NaN for a label outside the classes."""
    rows = torch.empty(classes, len(labels), classes, dtype=torch.float32, device=labels.device)
    block = triton.next_power_of_2(classes)
    _margins[(len(labels), classes)](labels.contiguous(), rows, classes, block, num_warps=1 if block <= 128 else 4)
    return rows
