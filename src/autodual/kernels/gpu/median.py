"""The scale of k samples for every unit: one read of the samples.

Few values are put in order by comparisons, which are listed beforehand: every value has a register of its own. More are not moved at
all: as integers, the bits of non-negative floats are in the order of the floats, so the middle is found bit by bit, from the
highest: a bit is set if, with it, no more values lie below than may. Newton steps from the median towards the maximum-likelihood scale
find the values still in registers; in which order they are does not matter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodual.kernels import MOST_COMPARED

WARPS = 4
THREADS = 32 * WARPS
TINY = tl.constexpr(1.1754943508222875e-38)
"""The smallest normal number: a scale below it has no gradient, and stays the median."""
LARGEST = tl.constexpr(9.0e18)
"""Samples are cut to so many times the scale, beyond which they weigh nothing."""

Comparisons = tuple[tuple[int, int], ...]
"""Places (a, b), a < b: the smaller value goes to a, the larger to b."""


@triton.jit
def _exchange(rows, a: tl.constexpr, b: tl.constexpr):  # type: ignore[no-untyped-def]
    low = tl.minimum(rows[a], rows[b], propagate_nan=tl.PropagateNan.ALL)
    high = tl.maximum(rows[a], rows[b], propagate_nan=tl.PropagateNan.ALL)
    return rows[:a] + (low,) + rows[a + 1 : b] + (high,) + rows[b + 1 :]  # noqa: RUF005


@triton.jit(do_not_specialize=["units", "factor"])
def _by_comparing(  # type: ignore[no-untyped-def]
    samples, result, units, factor, comparisons: tl.constexpr, k: tl.constexpr, steps: tl.constexpr, loud: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = column < units
    wide = units.to(tl.int64)
    rows = ()
    for row in tl.static_range(k):
        size = tl.abs(tl.load(samples + row * wide + column, mask=inside, other=0.0).to(tl.float32))
        rows = rows + (size,)  # type: ignore[assignment]  # noqa: RUF005
    for step in tl.static_range(len(comparisons)):
        rows = _exchange(rows, comparisons[step][0], comparisons[step][1])
    middle = rows[(k - 1) // 2]  # type: ignore[var-annotated]
    scale = tl.where(middle < TINY, 1.0, middle)
    for _ in range(steps):  # not unrolled: six steps of 50 samples would take a minute to compile
        inverse = 1 / scale
        total = tl.zeros([block], dtype=tl.float32)
        squares = tl.zeros([block], dtype=tl.float32)
        for row in tl.static_range(k):
            ratio = rows[row] * inverse
            part = 1 / (1 + ratio * ratio)
            total += part
            squares += part * part
        scale = _newton_step(scale, total, squares, k)
    if loud:
        largest = rows[0]  # type: ignore[misc]
        for row in tl.static_range(1, k):
            largest = tl.maximum(largest, rows[row])
        middle = _finished(middle, scale, largest, factor)
    tl.store(result + column, middle, mask=inside)


@triton.jit(do_not_specialize=["units", "factor"])
def _bit_by_bit(  # type: ignore[no-untyped-def]
    samples, result, units, factor, k: tl.constexpr, padded: tl.constexpr, steps: tl.constexpr, loud: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    columns = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    rows = tl.arange(0, padded)
    valid = (rows < k)[:, None]
    inside = valid & (columns < units)[None, :]
    place = rows.to(tl.int64)[:, None] * units + columns[None, :]
    sizes = tl.abs(tl.load(samples + place, mask=inside, other=float("inf")).to(tl.float32))
    bits = sizes.to(tl.int32, bitcast=True)
    middle_bits = tl.zeros([block], dtype=tl.int32)
    for step in range(31):
        candidate = middle_bits | (1 << (30 - step))
        below = tl.sum((bits < candidate[None, :]).to(tl.int32), 0)
        middle_bits = tl.where(below <= (k - 1) // 2, candidate, middle_bits)
    broken = tl.max(bits, 0) > 0x7F800000  # beyond infinity: not a number
    middle = tl.where(broken, float("nan"), middle_bits.to(tl.float32, bitcast=True))
    scale = tl.where(middle < TINY, 1.0, middle)
    for _ in range(steps):  # not unrolled: six steps of 50 samples would take a minute to compile
        ratio = sizes * (1 / scale)[None, :]
        part = tl.where(valid, 1 / (1 + ratio * ratio), 0.0)
        scale = _newton_step(scale, tl.sum(part, 0), tl.sum(part * part, 0), k)
    if loud:
        middle = _finished(middle, scale, tl.max(tl.where(valid, sizes, 0.0), 0), factor)
    tl.store(result + columns, middle, mask=columns < units)


@triton.jit
def _newton_step(scale, total, squares, k: tl.constexpr):  # type: ignore[no-untyped-def]
    step = (k - 2 * total) / (4 * (total - squares))
    return scale * tl.exp(tl.minimum(tl.maximum(step, -1.0), 1.0))


@triton.jit
def _finished(middle, scale, largest, factor):  # type: ignore[no-untyped-def]
    scale = tl.where(middle < TINY, middle, scale * factor)
    return tl.where((largest == float("inf")) & (middle == middle), float("inf"), scale)


@triton.jit(do_not_specialize=["units", "factor"])
def _gradient_in_registers(  # type: ignore[no-untyped-def]
    samples, scale, gradient, result, units, factor, k: tl.constexpr, power: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = column < units
    wide = units.to(tl.int64)
    found = tl.load(scale + column, mask=inside, other=1.0)
    given = tl.load(gradient + column, mask=inside, other=0.0)
    none = found < TINY
    inverse = factor / tl.where(none, 1.0, found)
    weights = ()
    total = tl.zeros([block], dtype=tl.float32)
    for row in tl.static_range(k):
        ratio = _cut(tl.load(samples + row * wide + column, mask=inside, other=0.0).to(tl.float32) * inverse)
        weight = ratio / (1 + ratio * ratio)
        if power == 2:
            weight = weight / (1 + ratio * ratio)
        total += weight * ratio
        weights = weights + (weight,)  # type: ignore[assignment]  # noqa: RUF005
    share = tl.where(none, 0.0, given * factor / total)
    for row in tl.static_range(k):
        tl.store(result + row * wide + column, weights[row] * share, mask=inside)


@triton.jit(do_not_specialize=["units", "factor"])
def _gradient_in_tiles(  # type: ignore[no-untyped-def]
    samples, scale, gradient, result, units, factor, k: tl.constexpr, padded: tl.constexpr, power: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    columns = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    rows = tl.arange(0, padded)
    inside = (rows < k)[:, None] & (columns < units)[None, :]
    place = rows.to(tl.int64)[:, None] * units + columns[None, :]
    found = tl.load(scale + columns, mask=columns < units, other=1.0)
    given = tl.load(gradient + columns, mask=columns < units, other=0.0)
    none = found < TINY
    inverse = factor / tl.where(none, 1.0, found)
    ratio = _cut(tl.load(samples + place, mask=inside, other=0.0).to(tl.float32) * inverse[None, :])
    weight = ratio / (1 + ratio * ratio)
    if power == 2:
        weight = weight / (1 + ratio * ratio)
    share = tl.where(none, 0.0, given * factor / tl.sum(weight * ratio, 0))
    tl.store(result + place, weight * share[None, :], mask=inside)


@triton.jit
def _cut(ratio):  # type: ignore[no-untyped-def]
    return tl.where(ratio > LARGEST, LARGEST, tl.where(ratio < -LARGEST, -LARGEST, ratio))


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
    return _select(samples, comparisons, 0, 1.0, False)


def newton_scale(samples: Tensor, comparisons: Comparisons | None, steps: int, factor: float) -> Tensor:
    """[k, *shape] -> [*shape]: Newton steps from the median, times `factor`; infinite where a sample is."""
    return _select(samples, comparisons, steps, factor, True)


def _select(samples: Tensor, comparisons: Comparisons | None, steps: int, factor: float, loud: bool) -> Tensor:
    k, units = samples.shape[0], samples[0].numel()
    result = torch.empty_like(samples[0], dtype=torch.float32)
    if comparisons is not None:
        _by_comparing[(triton.cdiv(units, THREADS),)](
            samples, result, units, factor, comparisons, k, steps, loud, THREADS, num_warps=WARPS
        )
        return result
    padded = triton.next_power_of_2(k)
    block = 64 if padded <= 64 else 32
    _bit_by_bit[(triton.cdiv(units, block),)](samples, result, units, factor, k, padded, steps, loud, block)
    return result


def gradient_of_newton_scale(samples: Tensor, scale: Tensor, gradient: Tensor, factor: float, power: int) -> Tensor:
    """The gradient on the samples [k, *shape]; all must be contiguous and in the same order."""
    result = torch.empty_like(samples)
    k, units = samples.shape[0], samples[0].numel()
    given = samples, scale.contiguous(), gradient.contiguous(), result, units, factor, k
    if k <= MOST_COMPARED:
        _gradient_in_registers[(triton.cdiv(units, THREADS),)](*given, power, THREADS, num_warps=WARPS)
    else:
        padded = triton.next_power_of_2(k)
        _gradient_in_tiles[(triton.cdiv(units, 32),)](*given, padded, power, 32)
    return result


def gradient_of_median(samples: Tensor, middle: Tensor, gradient: Tensor) -> Tensor:
    """The gradient on the samples [k, *shape]: that of the middle, with its sign, where a sample is the middle."""
    result = torch.empty_like(samples)
    units, block = samples[0].numel(), 1024
    _spread[(triton.cdiv(units, block), len(samples))](
        samples, middle.contiguous(), gradient.contiguous(), result, units, block
    )
    return result
