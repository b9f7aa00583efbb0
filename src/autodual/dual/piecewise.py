"""Activations of straight pieces: ReLU and its relatives, and everything that clips. [SPAD Cor. 2]"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.dual.base import (
    Band,
    ElementwiseDual,
    FreeSlopes,
    Lines,
    Relaxation,
    factor,
    number,
    parameter,
    register,
    weights,
)
from autodual.graph import Call, Operand
from autodual.interval import Interval
from autodual.kernels.chord import chord, relaxed_relu, relu_band

# ReLU and its relatives: two straight pieces that meet at zero. [SPAD Cor. 2]


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
        slope, half = relu_band(z.lower, z.upper)
        return Band(slope, half, half)

    def straight(self, z: Interval) -> Tensor:
        return (z.lower >= 0) | (z.upper <= 0)

    def relax(self, centre: Tensor, radius: Tensor) -> Relaxation:
        relaxed = relaxed_relu(centre, radius)
        if relaxed is None:
            return super().relax(centre, radius)
        lower, upper, slope, half, middle = relaxed
        return Relaxation(Interval(lower, upper), Band(slope, half, half), middle)

    def lines(self, z: Interval) -> Lines:
        slope, negative = chord(z.lower, z.upper)
        lower_slope = (z.upper + z.lower > 0).to(slope)
        return Lines(lower_slope, torch.zeros_like(slope), slope, -slope * negative)

    def free_slopes(self, z: Interval) -> FreeSlopes:
        """Below an unstable unit, every line through zero with a slope between 0 and 1; above it, the chord."""
        slope, negative = chord(z.lower, z.upper)
        positive = z.upper > 0
        below = Interval((positive & (z.lower >= 0)).to(slope), positive.to(slope))
        return FreeSlopes(below, Interval(slope, slope), -slope * negative)

    def lines_with(self, z: Interval, lower: Tensor, upper: Tensor) -> Lines:
        slope, negative = chord(z.lower, z.upper)
        return Lines(lower, torch.zeros_like(slope), slope, -slope * negative)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        return torch.zeros_like(size)

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        return _two_slopes(z, by, slope, 0.0, 1.0)

    def swing(self, z: Interval, by: Tensor) -> Tensor:
        return by * z.upper.relu().sign()


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
        return Band.between(slope, *self._extremes(slope, z))

    def straight(self, z: Interval) -> Tensor:
        return (z.lower >= 0) | (z.upper <= 0)

    def lines(self, z: Interval) -> Lines:
        relu = DualReLU().lines(z)
        rising = self._rising(z)
        lower = self._between(z, torch.where(rising, relu.lower_slope, relu.upper_slope))
        upper = self._between(z, torch.where(rising, relu.upper_slope, relu.lower_slope))
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def free_slopes(self, z: Interval) -> FreeSlopes:
        """On the side that the kink points to, every line through zero between both pieces; on the other side, the chord."""
        part, rising = DualReLU().lines(z).upper_slope, self._rising(z)
        left, right = torch.zeros_like(part), torch.ones_like(part)
        below = [self._between(z, torch.where(rising, end, part)) for end in (left, right)]
        above = [self._between(z, torch.where(rising, part, end)) for end in (left, right)]
        return _free(self, z, *(Interval(torch.minimum(*ends), torch.maximum(*ends)) for ends in (below, above)))

    def lines_with(self, z: Interval, lower: Tensor, upper: Tensor) -> Lines:
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def _rising(self, z: Interval) -> Tensor:
        """Whether the slope grows at zero, so that the function is convex."""
        rising = self.right - self.left >= 0 if isinstance(self.left, Tensor) else torch.tensor(self.right >= self.left)
        return rising.to(z.lower.device)

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


def _free(layer: ElementwiseDual, z: Interval, lower: Interval, upper: Interval) -> FreeSlopes:
    """Slopes with the offset that a line may have which touches the function: |f(z) - slope * z| <= |f| + |slope| |z|."""
    steepest = torch.maximum(lower.largest, upper.largest)
    return FreeSlopes(lower, upper, layer.largest_value(z) + steepest * z.largest)


def _two_slopes(z: Interval, by: Tensor, slope: Tensor, left: Tensor | float, right: float) -> Tensor:
    """by * the largest |f' - slope|, for f' = left below zero and f' = right above."""
    reaches_left, reaches_right = z.lower.clamp(max=0).sign(), z.upper.relu().sign()  # -1 and 1, or 0
    return by * torch.maximum(((slope - left) * reaches_left).abs(), ((slope - right) * reaches_right).abs())


@register(nn.LeakyReLU, F.leaky_relu, F.leaky_relu_)
def _leaky_relu(call: Call) -> DualKink:
    return DualKink(factor(call, parameter(call, 1, "negative_slope", 0.01), "negative_slope"))


@register(nn.PReLU, F.prelu, torch.prelu)
def _prelu(call: Call) -> DualKink:
    return DualKink(weights(call, 1, "weight").reshape(-1, *[1] * (len(call.shape) - 1)))


@register(torch.abs, torch.Tensor.abs, torch.absolute, operator.abs, abs)
def _absolute(call: Call) -> DualKink:
    return DualKink(-1.0)


# Functions that are flat, then straight, then flat: hardtanh, ReLU6, hardsigmoid, clamp. [SPAD app. B.4]

End: TypeAlias = Tensor | float
"""A number, or a tensor that broadcasts to one example; minus or plus infinity where there is no end."""


@dataclass(frozen=True)
class DualClip(ElementwiseDual):
    """gain * clip(z, low, high) + shift, with low <= high and gain > 0. Ends that are tensors stay live, with their gradients."""

    low: End
    high: End
    gain: float = 1.0
    shift: float = 0.0

    def value(self, z: Tensor) -> Tensor:
        return self.gain * self._clipped(z) + self.shift

    def image(self, z: Interval) -> Interval:
        return Interval(self.value(z.lower), self.value(z.upper))

    def band(self, z: Interval) -> Band:
        """The chord, or across both kinks the line from the far end to the other kink: the smallest radius."""
        slope = self._chord(z)
        if _exists(self.low) and _exists(self.high):
            low, high = _like(z.lower, self.low), _like(z.upper, self.high)
            both = (z.lower < low) & (z.upper > high)
            width = torch.maximum(torch.maximum(z.upper - low, high - z.lower), high - low)
            slope = torch.where(both, self.gain * _ratio(high - low, width), slope)
        return Band.between(slope, *self._extremes(slope, z))

    def straight(self, z: Interval) -> Tensor:
        low, high = _like(z.lower, self.low), _like(z.upper, self.high)
        return (z.upper <= low) | (z.lower >= high) | ((z.lower >= low) & (z.upper <= high))

    def lines(self, z: Interval) -> Lines:
        """On each side the line that is closest at the middle of the interval: flat, or from a kink or an end to the far end."""
        below, straight, above = self._pieces(z)
        lower, upper = self.gain * _ratio(straight, straight + above), self.gain * _ratio(straight, straight + below)
        flat = torch.zeros_like(straight)
        lower = torch.where(below >= straight + above, flat, lower)
        upper = torch.where(above >= straight + below, flat, upper)
        return self.lines_with(z, lower, upper)

    def free_slopes(self, z: Interval) -> FreeSlopes:
        """Below, every line through the lower kink that does not cut the far end, from flat on; above, through the upper kink.

        Where that kink lies outside of the interval, the function is concave (below) or convex (above) on it: only the chord is left.
        """
        below, straight, above = self._pieces(z)
        lower, upper = self.gain * _ratio(straight, straight + above), self.gain * _ratio(straight, straight + below)
        flattest = torch.where(below > 0, 0.0, lower), torch.where(above > 0, 0.0, upper)
        return _free(self, z, Interval(flattest[0], lower), Interval(flattest[1], upper))

    def lines_with(self, z: Interval, lower: Tensor, upper: Tensor) -> Lines:
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def _pieces(self, z: Interval) -> tuple[Tensor, Tensor, Tensor]:
        """How much of the interval lies below the first kink, between both, and above the second one."""
        low, high = _like(z.lower, self.low), _like(z.upper, self.high)
        straight = torch.minimum(z.upper, high) - torch.maximum(z.lower, low)
        return (low - z.lower).clamp(min=0), straight.clamp(min=0), (z.upper - high).clamp(min=0)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        """Roundings of what is clipped, also of an end that another dtype holds only nearly."""
        clipped = torch.maximum(self._clipped(z.lower).abs(), self._clipped(z.upper).abs())
        return grain * (self.gain * clipped + abs(self.shift))

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        flat = torch.where((z.lower < self.low) | (z.upper > self.high), slope.abs(), 0.0)
        straight = torch.where((z.upper > self.low) & (z.lower < self.high), (slope - self.gain).abs(), 0.0)
        return by * torch.maximum(flat, straight)

    def _clipped(self, z: Tensor) -> Tensor:
        if isinstance(self.low, Tensor) or isinstance(self.high, Tensor):
            return z.clamp(_like(z, self.low), _like(z, self.high))
        return z.clamp(self.low, self.high)

    def _chord(self, z: Interval) -> Tensor:
        return self.gain * _ratio(self._clipped(z.upper) - self._clipped(z.lower), z.upper - z.lower)

    def _extremes(self, slope: Tensor, z: Interval) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of f(z) - slope * z: at an end or at a kink."""
        corners = [z.lower, z.upper]
        corners += [
            torch.minimum(torch.maximum(_like(z.lower, kink), z.lower), z.upper)
            for kink in (self.low, self.high)
            if _exists(kink)
        ]
        errors = [self.value(c) - slope * c for c in corners]
        return reduce(torch.minimum, errors), reduce(torch.maximum, errors)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and zero with a harmless gradient for an interval of no width."""
    return part / torch.where(whole == 0, torch.ones_like(whole), whole)


def _like(tensor: Tensor, end: End) -> Tensor:
    return end.to(tensor).expand_as(tensor) if isinstance(end, Tensor) else torch.full_like(tensor, end)


def _exists(end: End) -> bool:
    return isinstance(end, Tensor) or abs(end) < torch.inf


@register(nn.Hardtanh, F.hardtanh, F.hardtanh_)
def _hardtanh(call: Call) -> DualClip:
    return _clip(call, float(parameter(call, 1, "min_val", -1.0)), float(parameter(call, 2, "max_val", 1.0)))


@register(nn.ReLU6, F.relu6)
def _relu6(call: Call) -> DualClip:
    m: Any = call.module  # a Hardtanh, whose ends may have been changed
    return DualClip(0.0, 6.0) if m is None else _clip(call, float(m.min_val), float(m.max_val))


@register(nn.Hardsigmoid, F.hardsigmoid)
def _hardsigmoid(call: Call) -> DualClip:
    return DualClip(-3.0, 3.0, 1 / 6, 0.5)


@register(torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip, torch.Tensor.clamp_, torch.clamp_)
def _clamp(call: Call) -> DualClip:
    return _clip(call, call.argument(1, "min", None), call.argument(2, "max", None))


@register(torch.clamp_min, torch.Tensor.clamp_min)
def _clamp_min(call: Call) -> DualClip:
    return _clip(call, call.argument(1, "min"), None)


@register(torch.clamp_max, torch.Tensor.clamp_max)
def _clamp_max(call: Call) -> DualClip:
    return _clip(call, None, call.argument(1, "max"))


def _clip(call: Call, low: Any, high: Any) -> DualClip:
    """Where min > max, PyTorch returns max: so does a clip between min(min, max) and max."""
    low, high = _end(call, low, "min", -torch.inf), _end(call, high, "max", torch.inf)
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return DualClip(min(low, high), high)
    if call.shape != call.operand.shape:
        raise ArgumentError(
            f"{call.path}: the ends of clamp have more entries than what is clamped, so they copy it; expand it to shape "
            f"{call.shape} first"
        )
    if _exists(low) and _exists(high):
        low = torch.minimum(torch.as_tensor(low).to(torch.as_tensor(high)), torch.as_tensor(high))
    return DualClip(low, high)


def _end(call: Call, value: Any, name: str, missing: float) -> End:
    if value is None or (not isinstance(value, Tensor | Operand) and float(value) == missing):
        return missing
    if isinstance(value, Operand):
        raise ArgumentError(
            f"{call.path}: {name} of clamp depends on the network's input; use torch.maximum or torch.minimum instead"
        )
    return call.constant(value, call.operand.shape) if isinstance(value, Tensor) else number(call, value, name)
