"""The median of k sizes for every unit: one read of the samples. Twin: `autodual.bounds.median`.

As integers, the bits of non-negative floats are in the order of the floats. So the middle is found bit by bit, from the highest:
a bit is set if, with it, no more values lie below than may.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64


@triton.jit
def _select(samples, result, units, k: tl.constexpr, padded: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    rows = tl.arange(0, padded)
    inside = (rows < k)[:, None] & (columns < units)[None, :]
    values = tl.load(samples + rows.to(tl.int64)[:, None] * units + columns[None, :], mask=inside, other=float("inf"))
    bits = tl.abs(values).to(tl.int32, bitcast=True)
    middle = tl.zeros([block], dtype=tl.int32)
    for step in tl.static_range(31):
        candidate = middle | (1 << (30 - step))
        below = tl.sum((bits < candidate[None, :]).to(tl.int32), 0)
        middle = tl.where(below <= (k - 1) // 2, candidate, middle)
    broken = tl.max(bits, 0) > 0x7F800000  # beyond infinity: not a number
    found = tl.where(broken, float("nan"), middle.to(tl.float32, bitcast=True))
    tl.store(result + columns, found, mask=columns < units)


@triton.jit
def _spread(samples, middle, gradient, result, units, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    value = tl.load(samples + place, mask=inside, other=0.0)
    unit = place % units
    hit = tl.abs(value) == tl.load(middle + unit, mask=inside, other=-1.0)
    sign = tl.where(value > 0, 1.0, tl.where(value < 0, -1.0, 0.0))
    given = tl.load(gradient + unit, mask=inside & hit, other=0.0)
    tl.store(result + place, tl.where(hit, sign * given, 0.0), mask=inside)


def median_of_sizes(samples: Tensor) -> Tensor:
    """[k, *shape] -> [*shape], without gradients; `samples` must be contiguous."""
    k, units = samples.shape[0], samples[0].numel()
    result = torch.empty_like(samples[0])
    block = BLOCK if k <= 64 else BLOCK // 2
    _select[(triton.cdiv(units, block),)](samples, result, units, k, triton.next_power_of_2(k), block)
    return result


def gradient_of_median(samples: Tensor, middle: Tensor, gradient: Tensor) -> Tensor:
    """The gradient on the samples [k, *shape]: that of the middle, with its sign, where a sample is the middle."""
    result = torch.empty_like(samples)
    count, block = samples.numel(), 1024
    _spread[(triton.cdiv(count, block),)](
        samples, middle.contiguous(), gradient.contiguous(), result, samples[0].numel(), count, block
    )
    return result
