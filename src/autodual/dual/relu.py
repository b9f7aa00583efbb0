"""ReLU and its relatives: two straight pieces that meet at zero. [SPAD Cor. 2]"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual import kernels
from autodual.dual.base import Band, ElementwiseDual, Lines, Relaxation
from autodual.dual.parameters import number, parameter
from autodual.dual.registry import register
from autodual.graph import Call
from autodual.interval import Interval


@register(nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_)
class DualReLU(ElementwiseDual):
    """max(z, 0), with the common slope u / (u - l) of an unstable unit. [SPAD Cor. 2; DESIGN table of section 2]"""

    exact = True

    def value(self, z: Tensor) -> Tensor:
        return z.relu()

    def image(self, z: Interval) -> Interval:
        return Interval(z.lower.relu(), z.upper.relu())

    def largest_value(self, z: Interval) -> Tensor:
        return z.upper.relu()

    def band(self, z: Interval) -> Band:
        if kernels.usable("chord", z.lower, z.upper):
            slope, half = _ChordOnGpu.apply(z.lower, z.upper)
        else:
            slope, half = _slope_and_half(z)
        return Band(slope, half, half)

    def relax(self, centre: Tensor, radius: Tensor) -> Relaxation:
        if radius.shape[1:] != centre.shape[1:] or not kernels.usable("chord", centre, radius):
            return super().relax(centre, radius)
        lower, upper, slope, half, middle = _RelaxOnGpu.apply(centre, radius)
        return Relaxation(Interval(lower, upper), Band(slope, half, half), middle)

    def lines(self, z: Interval) -> Lines:
        slope, negative = _chord(z)
        lower_slope = (z.upper + z.lower > 0).to(slope)
        return Lines(lower_slope, torch.zeros_like(slope), slope, -slope * negative)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        return torch.zeros_like(size)

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        return _two_slopes(z, by, slope, 0.0, 1.0)


@dataclass(frozen=True)
class DualKink(ElementwiseDual):
    """left * z below zero and right * z above: left * z + (right - left) * relu(z)."""

    left: Tensor | float
    right: float = 1.0

    def value(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, z * self.right, z * self.left)

    def image(self, z: Interval) -> Interval:
        ends = self.value(z.lower), self.value(z.upper)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        inside = (z.lower < 0) & (z.upper > 0)
        return Interval(torch.where(inside, low.clamp(max=0), low), torch.where(inside, high.clamp(min=0), high))

    def band(self, z: Interval) -> Band:
        slope = self._between(z, DualReLU().band(z).slope)
        smallest, largest = self._extremes(slope, z)
        return Band(slope, (largest + smallest) / 2, (largest - smallest) / 2)

    def lines(self, z: Interval) -> Lines:
        relu = DualReLU().lines(z)
        rising = self.right - self.left >= 0 if isinstance(self.left, Tensor) else torch.tensor(self.right >= self.left)
        rising = rising.to(z.lower.device)
        lower = self._between(z, torch.where(rising, relu.lower_slope, relu.upper_slope))
        upper = self._between(z, torch.where(rising, relu.upper_slope, relu.lower_slope))
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def _between(self, z: Interval, part: Tensor) -> Tensor:
        """left + (right - left) * part for a unit that may have either sign, and exactly left or right for one that may not."""
        mixed = self.left + (self.right - self.left) * part
        return torch.where(z.lower >= 0, self.right, torch.where(z.upper <= 0, self.left + 0 * mixed, mixed))

    def _extremes(self, slope: Tensor, z: Interval) -> tuple[Tensor, Tensor]:
        """Smallest and largest f(z) - slope * z: at an end or at zero, whatever rounding did to the slope."""
        first, last = (self.value(end) - slope * end for end in (z.lower, z.upper))
        kink = torch.where((z.lower < 0) & (z.upper > 0), torch.zeros_like(first), first)
        smallest, largest = torch.minimum(first, last), torch.maximum(first, last)
        return torch.minimum(smallest, kink), torch.maximum(largest, kink)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        return grain * size  # one product

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        return _two_slopes(z, by, slope, self.left, self.right)


def _two_slopes(z: Interval, by: Tensor, slope: Tensor, left: Tensor | float, right: float) -> Tensor:
    """by * the largest |f' - slope|, for f' = left below zero and f' = right above."""
    reaches_left, reaches_right = z.lower.clamp(max=0).sign(), z.upper.relu().sign()  # -1 and 1, or 0
    return by * torch.maximum(((slope - left) * reaches_left).abs(), ((slope - right) * reaches_right).abs())


@register(nn.LeakyReLU, F.leaky_relu, F.leaky_relu_)
def _leaky_relu(call: Call) -> DualKink:
    slope = call.module.negative_slope if call.module is not None else parameter(call, 1, "negative_slope", 0.01)
    return DualKink(number(call, slope, "negative_slope"))


@register(nn.PReLU, F.prelu, torch.prelu)
def _prelu(call: Call) -> DualKink:
    weight: Any = call.module.weight if call.module is not None else parameter(call, 1, "weight")
    return DualKink(weight.reshape(-1, *[1] * (len(call.shape) - 1)))


@register(torch.abs, torch.Tensor.abs, torch.absolute, operator.abs, abs)
def _absolute(call: Call) -> DualKink:
    return DualKink(-1.0)


def _chord(z: Interval) -> tuple[Tensor, Tensor]:
    """u / (u - l) for an unstable unit, exactly 1 or 0 for a stable one, NaN for NaN or if u - l overflows; and min(l, 0)."""
    positive, negative = z.upper.clamp(min=0), z.lower.clamp(max=0)
    width = positive - negative
    slope = positive / (width + (1 - width.sign()))  # a width of zero counts as one; comparisons would cost more
    return torch.add(slope, width, alpha=0.0), negative  # 0 * inf is NaN, since u / inf would pass for a dead unit


def _slope_and_half(z: Interval) -> tuple[Tensor, Tensor]:
    slope, negative = _chord(z)
    return slope, slope * negative * -0.5


class _ChordOnGpu(torch.autograd.Function):
    """The same in one pass, forward and backward; plainly where a gradient is to be differentiated again."""

    @staticmethod
    def forward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        from autodual.kernels import chord

        return chord.forward(lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            return torch.func.vjp(lambda *ends: _slope_and_half(Interval(*ends)), *ctx.saved_tensors)[1](gradients)
        from autodual.kernels import chord

        return chord.backward(*ctx.saved_tensors, *gradients)


def _relaxed(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
    interval = Interval.around(centre, radius)
    slope, half = _slope_and_half(interval)
    return interval.lower, interval.upper, slope, half, slope * centre + half


class _RelaxOnGpu(torch.autograd.Function):
    """`_relaxed` in one pass, forward and backward; radius [N or 1, *shape]."""

    @staticmethod
    def forward(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
        from autodual.kernels import chord

        return chord.forward_around(centre, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, ...]:
        centre, radius = ctx.saved_tensors
        given = [torch.zeros_like(centre) if g is None else g for g in gradients]
        if torch.is_grad_enabled():
            return torch.func.vjp(_relaxed, centre, radius)[1](tuple(given))
        from autodual.kernels import chord

        on_centre, on_radius = chord.backward_around(centre, radius, *given[2:])
        if gradients[0] is not None or gradients[1] is not None:
            on_centre, on_radius = on_centre + given[0] + given[1], on_radius + given[1] - given[0]
        return on_centre, on_radius if len(radius) == len(centre) else on_radius.sum(0, keepdim=True)
