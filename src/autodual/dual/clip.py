"""Functions that are flat, then straight, then flat: hardtanh, ReLU6, hardsigmoid, clamp. [SPAD app. B.4]"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.dual.base import Band, ElementwiseDual, Lines
from autodual.dual.registry import register
from autodual.graph import Call
from autodual.interval import Interval


@dataclass(frozen=True)
class DualClip(ElementwiseDual):
    """gain * clip(z, low, high) + shift, with gain > 0; an end may be infinite."""

    low: float
    high: float
    gain: float = 1.0
    shift: float = 0.0

    def value(self, z: Tensor) -> Tensor:
        return self.gain * z.clamp(self.low, self.high) + self.shift

    def image(self, z: Interval) -> Interval:
        return Interval(self.value(z.lower), self.value(z.upper))

    def band(self, z: Interval) -> Band:
        """The chord, or across both kinks the line from the far end to the other kink: the smallest radius."""
        both = (z.lower < self.low) & (z.upper > self.high)
        width = torch.maximum(z.upper - self.low, self.high - z.lower).clamp(min=self.high - self.low)
        across = self.gain * ((self.high - self.low) / width)
        slope = torch.where(both, across, self._chord(z)) if self._finite else self._chord(z)
        smallest, largest = self._extremes(slope, z)
        return Band(slope, (largest + smallest) / 2, (largest - smallest) / 2)

    def lines(self, z: Interval) -> Lines:
        """On each side the line that is closest at the middle of the interval: flat, or from a kink or an end to the far end."""
        below, above = (self.low - z.lower).clamp(min=0), (z.upper - self.high).clamp(min=0)
        straight = torch.minimum(z.upper, _like(z.upper, self.high)) - torch.maximum(z.lower, _like(z.lower, self.low))
        straight = straight.clamp(min=0)
        lower, upper = self.gain * _ratio(straight, straight + above), self.gain * _ratio(straight, straight + below)
        flat = torch.zeros_like(straight)
        lower = torch.where(below >= straight + above, flat, lower)
        upper = torch.where(above >= straight + below, flat, upper)
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        inside = z.largest.clamp(max=max(abs(self.low), abs(self.high)))
        return grain * (self.gain * inside + abs(self.shift))

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        flat = torch.where((z.lower < self.low) | (z.upper > self.high), slope.abs(), 0.0)
        straight = torch.where((z.upper > self.low) & (z.lower < self.high), (slope - self.gain).abs(), 0.0)
        return by * torch.maximum(flat, straight)

    @property
    def _finite(self) -> bool:
        return self.low > -torch.inf and self.high < torch.inf

    def _chord(self, z: Interval) -> Tensor:
        rise = z.upper.clamp(self.low, self.high) - z.lower.clamp(self.low, self.high)
        return self.gain * _ratio(rise, z.upper - z.lower)

    def _extremes(self, slope: Tensor, z: Interval) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of f(z) - slope * z: at an end or at a kink."""
        corners = [z.lower, z.upper]
        corners += [
            torch.minimum(torch.maximum(_like(z.lower, kink), z.lower), z.upper)
            for kink in (self.low, self.high)
            if abs(kink) < torch.inf
        ]
        errors = [self.value(c) - slope * c for c in corners]
        return reduce(torch.minimum, errors), reduce(torch.maximum, errors)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and zero with a harmless gradient for an interval of no width."""
    return part / torch.where(whole == 0, torch.ones_like(whole), whole)


def _like(tensor: Tensor, value: float) -> Tensor:
    return torch.full_like(tensor, value)


@register(nn.Hardtanh, F.hardtanh, F.hardtanh_)
def _hardtanh(call: Call) -> DualClip:
    m: Any = call.module
    if m is not None:
        return DualClip(float(m.min_val), float(m.max_val))
    return DualClip(float(call.argument(1, "min_val", -1.0)), float(call.argument(2, "max_val", 1.0)))


@register(nn.ReLU6, F.relu6)
def _relu6(call: Call) -> DualClip:
    return DualClip(0.0, 6.0)


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
    if any(isinstance(end, Tensor) and end.numel() != 1 for end in (low, high)):
        raise ArgumentError(
            f"{call.path}: clamp with a tensor of bounds has no dual layer; use torch.maximum and torch.minimum"
        )
    ends = -torch.inf if low is None else float(low), torch.inf if high is None else float(high)
    if not operator.le(*ends):
        raise ArgumentError(f"{call.path}: clamp needs min <= max, got {ends[0]} and {ends[1]}")
    return DualClip(*ends)
