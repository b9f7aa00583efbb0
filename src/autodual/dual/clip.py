"""Functions that are flat, then straight, then flat: hardtanh, ReLU6, hardsigmoid, clamp. [SPAD app. B.4]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.dual.base import Band, ElementwiseDual, Lines
from autodual.dual.parameters import number, parameter
from autodual.dual.registry import register
from autodual.graph import Call, Operand
from autodual.interval import Interval

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
        smallest, largest = self._extremes(slope, z)
        return Band(slope, (largest + smallest) / 2, (largest - smallest) / 2)

    def lines(self, z: Interval) -> Lines:
        """On each side the line that is closest at the middle of the interval: flat, or from a kink or an end to the far end."""
        low, high = _like(z.lower, self.low), _like(z.upper, self.high)
        below, above = (low - z.lower).clamp(min=0), (z.upper - high).clamp(min=0)
        straight = torch.minimum(z.upper, high) - torch.maximum(z.lower, low)
        straight = straight.clamp(min=0)
        lower, upper = self.gain * _ratio(straight, straight + above), self.gain * _ratio(straight, straight + below)
        flat = torch.zeros_like(straight)
        lower = torch.where(below >= straight + above, flat, lower)
        upper = torch.where(above >= straight + below, flat, upper)
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

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
    m: Any = call.module
    low = parameter(call, 1, "min_val", -1.0) if m is None else m.min_val
    high = parameter(call, 2, "max_val", 1.0) if m is None else m.max_val
    return _clip(call, float(low), float(high))


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
