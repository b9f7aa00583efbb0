"""The median of k sizes for every unit: one read of the samples. Twin: `autodual.bounds.median`.

Few values are put in order by comparisons, which are listed beforehand: every value has a register of its own. More are not moved at
all: as integers, the bits of non-negative floats are in the order of the floats, so the middle is found bit by bit, from the
highest: a bit is set if, with it, no more values lie below than may.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
THREADS = 32 * WARPS

Comparisons = tuple[tuple[int, int], ...]
"""Places (a, b), a < b: the smaller value goes to a, the larger to b."""


@triton.jit
def _exchange(rows, a: tl.constexpr, b: tl.constexpr):  # type: ignore[no-untyped-def]
    low = tl.minimum(rows[a], rows[b], propagate_nan=tl.PropagateNan.ALL)
    high = tl.maximum(rows[a], rows[b], propagate_nan=tl.PropagateNan.ALL)
    return rows[:a] + (low,) + rows[a + 1 : b] + (high,) + rows[b + 1 :]  # noqa: RUF005


@triton.jit(do_not_specialize=["units"])
def _by_comparing(samples, result, units, comparisons: tl.constexpr, k: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = column < units
    wide = units.to(tl.int64)
    rows = ()
    for row in tl.static_range(k):
        rows = rows + (tl.abs(tl.load(samples + row * wide + column, mask=inside, other=0.0)),)  # type: ignore[assignment]  # noqa: RUF005
    for step in tl.static_range(len(comparisons)):
        rows = _exchange(rows, comparisons[step][0], comparisons[step][1])
    tl.store(result + column, rows[(k - 1) // 2], mask=inside)


@triton.jit(do_not_specialize=["units"])
def _bit_by_bit(samples, result, units, k: tl.constexpr, padded: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    rows = tl.arange(0, padded)
    inside = (rows < k)[:, None] & (columns < units)[None, :]
    values = tl.load(samples + rows.to(tl.int64)[:, None] * units + columns[None, :], mask=inside, other=float("inf"))
    bits = tl.abs(values).to(tl.int32, bitcast=True)
    middle = tl.zeros([block], dtype=tl.int32)
    for step in range(31):
        candidate = middle | (1 << (30 - step))
        below = tl.sum((bits < candidate[None, :]).to(tl.int32), 0)
        middle = tl.where(below <= (k - 1) // 2, candidate, middle)
    broken = tl.max(bits, 0) > 0x7F800000  # beyond infinity: not a number
    found = tl.where(broken, float("nan"), middle.to(tl.float32, bitcast=True))
    tl.store(result + columns, found, mask=columns < units)


@triton.jit(do_not_specialize=["units"])
def _spread(samples, middle, gradient, result, units, block: tl.constexpr):  # type: ignore[no-untyped-def]
    unit = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < units
    place = tl.program_id(1).to(tl.int64) * units + unit
    value = tl.load(samples + place, mask=inside, other=0.0)
    hit = tl.abs(value) == tl.load(middle + unit, mask=inside, other=-1.0)
    sign = tl.where(value > 0, 1.0, tl.where(value < 0, -1.0, 0.0))
    given = tl.load(gradient + unit, mask=inside & hit, other=0.0)
    tl.store(result + place, tl.where(hit, sign * given, 0.0), mask=inside)


def median_of_sizes(samples: Tensor, comparisons: Comparisons | None) -> Tensor:
    """[k, *shape] -> [*shape], without gradients; `samples` must be contiguous. Bit by bit without a list of comparisons."""
    k, units = samples.shape[0], samples[0].numel()
    result = torch.empty_like(samples[0])
    if comparisons is not None:
        _by_comparing[(triton.cdiv(units, THREADS),)](samples, result, units, comparisons, k, THREADS, num_warps=WARPS)
        return result
    padded = triton.next_power_of_2(k)
    block = 64 if padded <= 64 else 32
    _bit_by_bit[(triton.cdiv(units, block),)](samples, result, units, k, padded, block)
    return result


def gradient_of_median(samples: Tensor, middle: Tensor, gradient: Tensor) -> Tensor:
    """The gradient on the samples [k, *shape]: that of the middle, with its sign, where a sample is the middle."""
    result = torch.empty_like(samples)
    units, block = samples[0].numel(), 1024
    _spread[(triton.cdiv(units, block), len(samples))](
        samples, middle.contiguous(), gradient.contiguous(), result, units, block
    )
    return result
