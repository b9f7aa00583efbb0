"""The scale of k samples for very many units at once: their median, and Newton steps from it towards the most likely scale.

Selecting the middle of k numbers takes a fixed list of comparisons, whatever the numbers are: a sorting network without the
comparisons that the middle does not depend on. Each comparison is a minimum and a maximum of whole rows, so units are treated
side by side, and static. On one CPU thread it is about 10 times faster than `Tensor.median` for k = 10, 4 times for 50, twice for
100, and hardly faster for 300: the list grows faster than k.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._errors import ArgumentError
from autodual._tensor import has_channels_inside, in_memory_order

CHUNK = 1 << 16
"""Units that are treated together on a CPU; more would leave the cache."""
CACHED = 1 << 17
"""Samples whose gradients a CPU computes together, so that they stay in its cache."""
LARGEST_NETWORK = 300
"""Beyond so many values, a network has too many comparisons."""
SOLVED = 6
"""Newton steps after which the likelihood's equation counts as solved, so that its gradient is the gradient of the value."""

Comparison = tuple[int, int, bool, bool]
"""(a, b, whether the smaller of both is needed at a, whether the larger is needed at b)."""


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
    """The gradient flows through the sample in the middle alone, found again by its value; plainly if it is to have one itself."""

    @staticmethod
    def forward(samples: Tensor) -> Tensor:
        flat = _flat(samples)
        if len(samples) <= kernels.LARGEST_K and kernels.usable("median", samples):
            program = kernels.programs("median")
            return _shaped(program.median_of_sizes(flat, _comparisons_for_program(len(samples))), samples)
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
            return _shaped(kernels.programs("median").gradient_of_median(_flat(samples), *units), samples)
        return samples.sgn().mul_(samples.abs() == middle).mul_(gradients[0])


def middle_in_plain_operations(samples: Tensor) -> Tensor:
    """The median of the absolute values for a compiler or a function transform: nothing is written in place."""
    sizes = samples.abs()
    if len(sizes) > LARGEST_NETWORK:
        return sizes.median(0).values
    rows = list(sizes.unbind(0))
    for a, b, low, high in selection_network(len(rows)):
        first, second = rows[a], rows[b]
        if low:
            rows[a] = torch.minimum(first, second)
        if high:
            rows[b] = torch.maximum(first, second)
    return rows[(len(rows) - 1) // 2]


def middle_in_place(sizes: Tensor) -> Tensor:
    """The median of sizes [k, units], whose memory is used up: a result goes where one of two values was, or into a spare row."""
    if len(sizes) > LARGEST_NETWORK:
        return sizes.median(0).values
    rows = list(sizes.unbind(0))
    spare = torch.empty_like(rows[0])
    for a, b, low, high in selection_network(len(rows)):
        first, second = rows[a], rows[b]
        if low and high:
            torch.minimum(first, second, out=spare)
            torch.maximum(first, second, out=second)
            rows[a], spare = spare, first
        elif low:
            torch.minimum(first, second, out=first)
        else:
            torch.maximum(first, second, out=second)
    return rows[(len(rows) - 1) // 2]


def _comparisons_for_program(k: int) -> tuple[tuple[int, int], ...] | None:
    """The comparisons of a GPU's registers; None where there are too many values for them."""
    return tuple((a, b) for a, b, *_ in selection_network(k)) if k <= kernels.MOST_COMPARED else None


def selection_network(k: int) -> tuple[Comparison, ...]:
    """Comparisons that leave the lower middle of k values at its place."""
    return _selection_network(k)


# What `torch.compiler.assume_constant_result` does, in every version from 2.6 on: a compiler calls the function instead of tracing it.
# The decorator itself would import the compiler, for a second, wherever this file is imported.
selection_network._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _selection_network(k: int) -> tuple[Comparison, ...]:
    needed = {(k - 1) // 2}
    kept: list[Comparison] = []
    for a, b in reversed(_sorting_network(k)):
        low, high = a in needed, b in needed
        if low or high:
            kept.append((a, b, low, high))
            needed |= {a, b}
    return tuple(reversed(kept))


def _sorting_network(k: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange: comparators that sort any k numbers."""
    pairs: list[tuple[int, int]] = []
    block = 1
    while block < k:
        step = block
        while step >= 1:
            for start in range(step % block, k - step, 2 * step):
                for a in range(start, min(start + step, k - step)):
                    if a // (2 * block) == (a + step) // (2 * block):
                        pairs.append((a, a + step))
            step //= 2
        block *= 2
    return pairs


# Newton steps from the median, and a gradient that uses every sample.


def newton_scale(samples: Tensor, steps: int, power: int) -> Tensor:
    """[k, *shape] -> [*shape]: Newton steps towards the maximum-likelihood scale; the gradient weighs samples by u / (1 + u^2)^power.

    NaN where a sample is NaN, infinite where one is infinite. Where the median is zero or below the smallest normal number, it is
    returned as it is, and has no gradient.
    """
    if torch.compiler.is_compiling():
        return _for_a_compiler(samples, steps, power)
    return _NewtonScale.apply(samples, steps, power)


def correction(k: int, steps: int) -> float:
    """What the value is multiplied by: the most likely scale is too large by k / (k - 1) on average; the median is left alone."""
    return 1 - 1 / k if steps > 0 and k > 1 else 1.0


class _NewtonScale(torch.autograd.Function):
    """Keeps the samples and the scale; the backward pass reads the samples once more."""

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
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        raise _no_second_derivative()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise _no_second_derivative()


def _no_second_derivative() -> ArgumentError:
    return ArgumentError(
        "estimator: second derivatives were asked for, but the gradient of QuietGradient(), or of MaximumLikelihood() with fewer than "
        f"{SOLVED} steps, is not the gradient of its value; use Projected(k, estimator=MaximumLikelihood()) or Median() for them"
    )


def _for_a_compiler(samples: Tensor, steps: int, power: int) -> Tensor:
    """Plain operations, which a compiler fuses. The scale is homogeneous, so it is the sum of the samples times their gradients."""
    with torch.no_grad():
        scale = _value(samples, steps)
        weights, total = _weights(samples, scale, steps, power)
        weights = weights / total
    return (weights * samples).sum(0)


def _in_place() -> bool:
    """Whether memory may be written in place: not under a compiler or a function transform."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def _value(samples: Tensor, steps: int) -> Tensor:
    k = len(samples)
    if not _in_place():
        return _newton(samples, middle_in_plain_operations(samples), samples.abs().amax(0), steps)
    flat = _flat(samples)
    if k <= kernels.LARGEST_K and kernels.usable("median", samples):
        found = kernels.programs("median").newton_scale(flat, _comparisons_for_program(k), steps, correction(k, steps))
        return _shaped(found, samples)
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
    """`given` times the quotient of `_weights`: the samples are read once, the gradients written once."""
    if not _in_place():
        weights, total = _weights(samples, scale, steps, power)
        return weights * (given / total)
    k, factor = len(samples), correction(len(samples), steps)
    values, (scales, gradients) = _flat(samples), (_flat_like(t, samples) for t in (scale, given))
    if k <= kernels.LARGEST_K and kernels.usable("median", samples, scale, given):
        found = kernels.programs("median").gradient_of_newton_scale(values, scales, gradients, factor, power)
        return _shaped(found, samples)
    result = torch.empty_like(values)
    width = max(1, CACHED // k) if samples.device.type == "cpu" else max(1, values.shape[1])
    for v, s, g, r in zip(*(t.split(width, -1) for t in (values, scales, gradients, result)), strict=True):
        _write_gradient(v, s, g, r, factor, power)
    return _shaped(result, samples)


def _write_gradient(samples: Tensor, scale: Tensor, given: Tensor, result: Tensor, factor: float, power: int) -> None:
    """`_weights` for some units, into the memory of the result. With p = 1 / (1 + u^2), u^2 p is 1 - p."""
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
