"""The scale of k samples for very many units at once: their median, and Newton steps from it towards the most likely scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._errors import ArgumentError
from autodual._tensor import has_channels_inside, in_memory_order
from autodual.kernels.selection import middle_in_place, middle_in_plain_operations, selection_network

if TYPE_CHECKING:
    import triton
    import triton.language as tl

CHUNK = 1 << 16
"""Units that are treated together on a CPU; more would leave the cache."""
CACHED = 1 << 17
"""Samples whose gradients a CPU computes together, so that they stay in its cache."""
MOST_COMPARED = 64
"""Up to so many values, a GPU selects their median by comparing them."""
SOLVED = 6
"""Newton steps after which the likelihood's equation counts as solved, so that its gradient is the gradient of the value."""


# The median of the absolute values.


def median_of_sizes(samples: Tensor) -> Tensor:
    """[k, *shape] -> [*shape]: the median of the absolute values, the lower of the two middle ones for even k."""
    if not torch.compiler.is_compiling():
        return _MedianOfSizes.apply(samples)
    sizes = samples.abs()  # plain operations, which a compiler fuses; the mean of equal samples where there are ties
    with torch.no_grad():
        hit = sizes == middle_in_plain_operations(samples)
    return torch.where(hit, sizes, 0.0).sum(0) / hit.sum(0)


class _MedianOfSizes(torch.autograd.Function):
    """The median, whose gradient flows through the sample in the middle alone, which is found again by its value."""

    @staticmethod
    def forward(samples: Tensor) -> Tensor:
        flat = _flat(samples)
        if len(samples) <= kernels.LARGEST_K and kernels.usable("median", samples):
            return _shaped(launch_scale(flat), samples)
        return _shaped(torch.cat([middle_in_place(part.abs()) for part in _chunks(flat)]), samples)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        samples, middle = ctx.saved_tensors
        if torch.is_grad_enabled():
            return samples.sgn() * (samples.abs() == middle) * gradients[0]
        if kernels.usable("median", samples, middle, gradients[0]):
            units = (_flat_like(t, samples) for t in (middle, gradients[0]))
            return _shaped(launch_gradient_of_median(_flat(samples), *units), samples)
        return samples.sgn().mul_(samples.abs() == middle).mul_(gradients[0])


# Newton steps from the median, and a gradient that uses every sample.


def newton_scale(samples: Tensor, steps: int, power: int) -> Tensor:
    """[k, *shape] -> [*shape]: Newton steps towards the maximum-likelihood scale; the gradient weighs samples by u / (1 + u^2)^power.

    NaN where a sample is NaN, infinite where one is infinite. Where the median is zero or below the smallest normal number, it is
    returned as it is, and has no gradient.
    """
    if not torch.compiler.is_compiling():
        return _NewtonScale.apply(samples, steps, power)
    with torch.no_grad():  # plain operations, which a compiler fuses
        weights, total = _weights(samples, _value(samples, steps), steps, power)
        weights = weights / total
    return (weights * samples).sum(0)  # the scale is homogeneous: the sum of the samples times their gradients


def correction(k: int, steps: int) -> float:
    """The factor that makes up for bias: the most likely scale is too large by k / (k - 1) on average. The median is left alone."""
    return 1 - 1 / k if steps > 0 and k > 1 else 1.0


class _NewtonScale(torch.autograd.Function):
    """The scale, whose backward pass reads the samples once more."""

    generate_vmap_rule = True

    @staticmethod
    def forward(samples: Tensor, steps: int, power: int) -> Tensor:
        return _value(samples, steps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        samples, ctx.steps, ctx.power = inputs
        ctx.save_for_backward(samples, output)
        ctx.save_for_forward(samples, output)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        samples, scale = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _gradient(samples, scale, given[0], ctx.steps, ctx.power), None, None
        if ctx.power == 2 and ctx.steps >= SOLVED:
            weights, total = _weights(samples, scale, ctx.steps, ctx.power)
            return weights * (given[0] / total), None, None
        return _OnceOnly.apply(samples, scale, given[0], ctx.steps, ctx.power), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        samples, scale = ctx.saved_tensors
        weights, total = _weights(samples, scale, ctx.steps, ctx.power)
        return (weights * tangent).sum(0) / total


class _OnceOnly(torch.autograd.Function):
    """A gradient that refuses to be differentiated: it is not the gradient of the value, so its own would be that of nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(samples: Tensor, scale: Tensor, given: Tensor, steps: int, power: int) -> Tensor:
        return _gradient(samples, scale, given, steps, power)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        raise ArgumentError(
            "estimator: second derivatives were asked for, but the gradient of QuietGradient(), or of MaximumLikelihood() with fewer "
            f"than {SOLVED} steps, is not the gradient of its value; use Projected(k, estimator=MaximumLikelihood()) or Median() for "
            "them"
        )

    jvp = backward


def _in_place() -> bool:
    """Whether memory may be written in place: not under a compiler or a function transform."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def _value(samples: Tensor, steps: int) -> Tensor:
    """The scale after so many Newton steps, by the kernels or in plain code."""
    k = len(samples)
    if not _in_place():
        return _newton(samples, middle_in_plain_operations(samples), samples.abs().amax(0), steps)
    flat = _flat(samples)
    if k <= kernels.LARGEST_K and kernels.usable("median", samples):
        return _shaped(launch_scale(flat, steps, correction(k, steps)), samples)
    parts = []
    for part in _chunks(flat):
        sizes = part.abs()
        largest = sizes.amax(0)
        parts.append(_newton(part, middle_in_place(sizes), largest, steps))
    return _shaped(torch.cat(parts), samples)


def _newton(samples: Tensor, middle: Tensor, largest: Tensor, steps: int) -> Tensor:
    """Newton steps in log s for sum_i 1 - 2 p_i = 0, p = 1 / (1 + u^2), u = v / s. From the median, none is longer than 1.

    Where u^2 overflows, p is zero, as it should be.
    """
    k, tiny = len(samples), torch.finfo(samples.dtype).tiny
    scale = torch.where(middle < tiny, 1.0, middle)
    for _ in range(steps):
        ratio = samples * (1 / scale)
        part = torch.addcmul(ratio.new_ones(()), ratio, ratio).reciprocal()
        total = part.sum(0)
        slope = 4 * (total - (part * part).sum(0))
        scale = scale * ((k - 2 * total) / slope).clamp(-1, 1).exp()
    scale = torch.where(middle < tiny, middle, scale * correction(k, steps))
    return torch.where(largest == math.inf, largest, scale)


def _weights(samples: Tensor, scale: Tensor, steps: int, power: int) -> tuple[Tensor, Tensor]:
    """[k, *shape] and [*shape]: their quotient is the gradient of the scale."""
    limits = torch.finfo(samples.dtype)
    factor, largest = correction(len(samples), steps), limits.max**0.5 / 2
    none = scale < limits.tiny
    ratio = (samples * (factor / torch.where(none, 1.0, scale))).clamp(-largest, largest)
    weights = ratio / (1 + ratio * ratio) ** power
    total = (weights * ratio).sum(0) / factor
    return torch.where(none, 0.0, weights), torch.where(none, 1.0, total)


def _gradient(samples: Tensor, scale: Tensor, given: Tensor, steps: int, power: int) -> Tensor:
    """The gradient on the samples: `given` times the quotient of `_weights`. Samples are read once, gradients written once."""
    if not _in_place():
        weights, total = _weights(samples, scale, steps, power)
        return weights * (given / total)
    k, factor = len(samples), correction(len(samples), steps)
    values, (scales, gradients) = _flat(samples), (_flat_like(t, samples) for t in (scale, given))
    if k <= kernels.LARGEST_K and kernels.usable("median", samples, scale, given):
        found = launch_gradient_of_newton_scale(values, scales, gradients, factor, power)
        return _shaped(found, samples)
    result = torch.empty_like(values)
    width = max(1, CACHED // k) if samples.device.type == "cpu" else max(1, values.shape[1])
    for v, s, g, r in zip(*(t.split(width, -1) for t in (values, scales, gradients, result)), strict=True):
        _write_gradient(v, s, g, r, factor, power)
    return _shaped(result, samples)


def _write_gradient(samples: Tensor, scale: Tensor, given: Tensor, result: Tensor, factor: float, power: int) -> None:
    """Writes the gradient on the samples of some units into `result`. With p = 1 / (1 + u^2), u^2 p is 1 - p."""
    limits = torch.finfo(samples.dtype)
    none, largest = scale < limits.tiny, limits.max**0.5 / 2
    ratio = torch.mul(samples, factor / torch.where(none, 1.0, scale), out=result).clamp_(-largest, largest)
    part = torch.addcmul(ratio.new_ones(()), ratio, ratio).reciprocal_()
    total = len(samples) - part.sum(0) if power == 1 else (part - part * part).sum(0)
    ratio.mul_(part if power == 1 else part.square_()).mul_(torch.where(none, 0.0, given * factor / total))


def _flat(samples: Tensor) -> Tensor:
    """[k, *shape] -> [k, units], in the order in which they lie in memory."""
    return in_memory_order(samples).reshape(len(samples), -1).contiguous()


def _chunks(flat: Tensor) -> tuple[Tensor, ...]:
    """[k, units] in parts of some units, which a CPU keeps in its cache."""
    return flat.split(CHUNK if flat.device.type == "cpu" else max(1, flat.shape[1]), 1)


def _flat_like(units: Tensor, samples: Tensor) -> Tensor:
    """[*shape] -> [units], in the order of `_flat(samples)`."""
    return (units.movedim(1, -1) if has_channels_inside(samples) else units).reshape(-1)


def _shaped(flat: Tensor, samples: Tensor) -> Tensor:
    """[units] or [k, units] in the order of `_flat(samples)` -> [*shape] or [k, *shape]."""
    shape = in_memory_order(samples).shape
    whole = flat.reshape(shape if flat.dim() == 2 else shape[1:])
    return whole.movedim(-1, whole.dim() - 3) if has_channels_inside(samples) else whole


# The Triton programs, and what launches them.
#
# Samples are read once. Few values are put in order by comparisons, which are listed beforehand: every value has a register of its
# own. More are not moved at all: as integers, the bits of non-negative floats are in the order of the floats, so the middle is found
# bit by bit, from the highest: a bit is set if, with it, no more values lie below than may. Newton steps from the median towards the
# maximum-likelihood scale find the values still in registers; in which order they are does not matter.

WARPS = 4
THREADS = 32 * WARPS
TINY = kernels.ProgramConstant(1.1754943508222875e-38)
"""The smallest normal number: a scale below it has no gradient, and stays the median."""
LARGEST = kernels.ProgramConstant(9.0e18)
"""Samples are cut to so many times the scale, beyond which they weigh nothing."""


@kernels.program()
def _exchange(rows, a: tl.constexpr, b: tl.constexpr):  # type: ignore[no-untyped-def]
    low = tl.minimum(rows[a], rows[b], propagate_nan=tl.PropagateNan.ALL)
    high = tl.maximum(rows[a], rows[b], propagate_nan=tl.PropagateNan.ALL)
    return rows[:a] + (low,) + rows[a + 1 : b] + (high,) + rows[b + 1 :]  # noqa: RUF005


@kernels.program(do_not_specialize=["units", "factor"])
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


@kernels.program(do_not_specialize=["units", "factor"])
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


@kernels.program()
def _newton_step(scale, total, squares, k: tl.constexpr):  # type: ignore[no-untyped-def]
    step = (k - 2 * total) / (4 * (total - squares))
    return scale * tl.exp(tl.minimum(tl.maximum(step, -1.0), 1.0))


@kernels.program()
def _finished(middle, scale, largest, factor):  # type: ignore[no-untyped-def]
    scale = tl.where(middle < TINY, middle, scale * factor)
    return tl.where((largest == float("inf")) & (middle == middle), float("inf"), scale)


@kernels.program(do_not_specialize=["units", "factor"])
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


@kernels.program(do_not_specialize=["units", "factor"])
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


@kernels.program()
def _cut(ratio):  # type: ignore[no-untyped-def]
    return tl.where(ratio > LARGEST, LARGEST, tl.where(ratio < -LARGEST, -LARGEST, ratio))


@kernels.program(do_not_specialize=["units"])
def _spread(samples, middle, gradient, result, units, block: tl.constexpr):  # type: ignore[no-untyped-def]
    unit = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < units
    place = tl.program_id(1).to(tl.int64) * units + unit
    value = tl.load(samples + place, mask=inside, other=0.0)
    hit = tl.abs(value) == tl.load(middle + unit, mask=inside, other=-1.0)
    sign = tl.where(value > 0, 1.0, tl.where(value < 0, -1.0, 0.0))
    given = tl.load(gradient + unit, mask=inside & hit, other=0.0)
    tl.store(result + place, tl.where(hit, sign * given, 0.0), mask=inside)


def launch_scale(samples: Tensor, steps: int | None = None, factor: float = 1.0) -> Tensor:
    """[k, *shape] -> [*shape]: the median of the absolute values of contiguous samples.

    With a number of steps: the scale so many Newton steps from the median, times `factor`; infinite where a sample is.
    """
    k, units = samples.shape[0], samples[0].numel()
    result = torch.empty_like(samples[0], dtype=torch.float32)
    steps, loud = steps or 0, steps is not None
    if k <= MOST_COMPARED:
        comparisons = tuple((a, b) for a, b, *_ in selection_network(k))
        _by_comparing[(triton.cdiv(units, THREADS),)](
            samples, result, units, factor, comparisons, k, steps, loud, THREADS, num_warps=WARPS
        )
        return result
    padded = triton.next_power_of_2(k)
    block = 64 if padded <= 64 else 32
    _bit_by_bit[(triton.cdiv(units, block),)](samples, result, units, factor, k, padded, steps, loud, block)
    return result


def launch_gradient_of_newton_scale(
    samples: Tensor, scale: Tensor, gradient: Tensor, factor: float, power: int
) -> Tensor:
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


def launch_gradient_of_median(samples: Tensor, middle: Tensor, gradient: Tensor) -> Tensor:
    """The gradient on the samples [k, *shape]: that of the middle, with its sign, where a sample is the middle."""
    result = torch.empty_like(samples)
    units, block = samples[0].numel(), 1024
    _spread[(triton.cdiv(units, block), len(samples))](
        samples, middle.contiguous(), gradient.contiguous(), result, units, block
    )
    return result


def trial(device: torch.device) -> None:
    """Launches every program on a few numbers, by comparisons and bit by bit."""
    few, many = (torch.ones(k, 2, dtype=torch.float32, device=device) for k in (3, MOST_COMPARED + 1))
    for samples in (few, many):
        middle = launch_scale(samples)
        launch_gradient_of_median(samples, middle, middle)
    for samples in (few, few.bfloat16(), many):
        scale = launch_scale(samples, 1, 0.5)
        launch_gradient_of_newton_scale(samples, scale, scale, 0.5, 1)
