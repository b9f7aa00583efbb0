"""An elementwise interval: the value that every engine passes around."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError


@dataclass(frozen=True)
class Interval:
    """All values between `lower` and `upper`, elementwise."""

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape:
            raise ArgumentError(
                f"lower and upper must have one shape, got {tuple(self.lower.shape)} and {tuple(self.upper.shape)}"
            )

    @classmethod
    def around(cls, centre: Tensor, radius: Tensor) -> Interval:
        return cls(centre - radius, centre + radius)

    @property
    def centre(self) -> Tensor:
        apart = self.lower / 2 + self.upper / 2
        if torch.is_grad_enabled():  # a training step: less work, and the same but for denormal numbers
            return apart
        middle = (self.lower + self.upper) / 2
        return torch.where(middle.isinf(), apart, middle)  # only the sum may have overflowed

    @property
    def radius(self) -> Tensor:
        return (self.upper - self.lower) / 2

    @property
    def width(self) -> Tensor:
        return self.upper - self.lower

    @property
    def largest(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def widened(self, below: Tensor, above: Tensor) -> Interval:
        """The interval moved outwards by `below` and `above`."""
        return Interval(self.lower - below, self.upper + above)

    def intersect(self, other: Interval) -> Interval:
        """The intersection. Where rounding makes both miss each other, this interval is kept as it is."""
        lower, upper = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        crossed = lower > upper
        return Interval(torch.where(crossed, self.lower, lower), torch.where(crossed, self.upper, upper))

    def contains(self, value: Tensor, tolerance: float = 0.0) -> Tensor:
        """Whether each value lies in its interval; NaN lies in none."""
        return (value >= self.lower - tolerance) & (value <= self.upper + tolerance)

    def finite(self) -> Tensor:
        return self.lower.isfinite() & self.upper.isfinite()

    def detach(self) -> Interval:
        return Interval(self.lower.detach(), self.upper.detach())
