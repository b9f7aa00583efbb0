"""What an activation does to a stream, with a backward pass that keeps no random numbers. [DESIGN section 2: V <- D V + r * Cauchy]"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._tensor import Shape, stacked

CACHED = 1 << 18
"""Values that are treated together on a CPU, so that they stay in its cache."""


@dataclass(frozen=True)
class Angles:
    """Cauchy numbers [k, N or 1, *shape] as tan(angles + turns): angles [k, N or 1, *shape], turns [N, *shape] if there are any."""

    angles: Tensor
    turns: Tensor | None = None

    def numbers(self) -> Tensor:
        return self.some(slice(None))

    def some(self, part: slice) -> Tensor:
        """The numbers of some of the k projections."""
        return self.angles[part].tan() if self.turns is None else (self.angles[part] + self.turns).tan_()

    @classmethod
    def of(cls, numbers: Tensor) -> Angles:
        """Angles of given Cauchy numbers [k, N or 1, *shape]."""
        return cls(numbers.atan())

    def fits(self, shape: Shape, examples: int) -> bool:
        turned = self.turns is None or tuple(self.turns.shape) == (examples, *shape)
        return tuple(self.angles.shape[2:]) == shape and self.angles.shape[1] in (1, examples) and turned


def can_be_half(angles: Tensor) -> bool:
    """Whether streams with these angles may be bfloat16: with kernels, which compute in float32 all the same."""
    return angles.dtype == torch.float32 and angles.shape[1] == 1 and kernels.usable("stream", angles)


def fresh_stream(radius: Tensor, draws: Angles, dtype: torch.dtype | None = None) -> Tensor:
    """radius * Cauchy: radius [N, *shape] -> [k, N, *shape]."""
    if torch.compiler.is_compiling():
        return radius * draws.numbers()
    return _PassOn.apply(None, None, radius, draws.angles, draws.turns, radius.dtype if dtype is None else dtype)


def pass_on(stream: Tensor, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """slope * V: a stream [k, N or 1, *shape] through an activation that adds nothing to it."""
    return stream.to(dtype) * slope.to(dtype)


def pass_and_add(
    stream: Tensor, slope: Tensor, radius: Tensor, draws: Angles, dtype: torch.dtype | None = None
) -> Tensor:
    """slope * V + radius * Cauchy."""
    if torch.compiler.is_compiling():  # which chooses itself what to keep and what to compute again
        return stream * slope + radius * draws.numbers()
    return _PassOn.apply(stream, slope, radius, draws.angles, draws.turns, stream.dtype if dtype is None else dtype)


class _PassOn(torch.autograd.Function):
    """The random numbers are made again from their angles when gradients need them: half the memory, at the price of a tan.

    Where a gradient is to be differentiated again, it is computed plainly.
    """

    @staticmethod
    def forward(
        stream: Tensor | None,
        slope: Tensor | None,
        radius: Tensor,
        angles: Tensor,
        turns: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        if kernels.usable("stream", radius, angles) and angles.shape[1] == 1:
            return kernels.programs("stream").forward(stream, slope, radius, angles, turns, dtype)
        draws = Angles(angles, turns)
        result = stacked(radius, len(angles))
        for part in _parts(result):
            numbers = torch.mul(draws.some(part), radius, out=result[part])
            if stream is not None and slope is not None:
                numbers.addcmul_(stream[part], slope)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        stream, slope, radius, angles, turns = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_gradients_plainly(gradients[0], stream, slope, Angles(angles, turns)), None, None, None
        if kernels.usable("stream", radius, angles, gradients[0]) and angles.shape[1] == 1:
            found = kernels.programs("stream").backward(gradients[0], stream, slope, radius, angles, turns)
            return *found, None, None, None
        gradient, draws = gradients[0], Angles(angles, turns)
        on_radius = torch.zeros_like(radius)
        on_slope = None if slope is None else torch.zeros_like(radius)
        on_stream = None if stream is None else torch.empty_like(stream)
        for part in _parts(gradient):
            given = gradient[part]
            on_radius += (given * draws.some(part)).sum(0)
            if stream is None or slope is None or on_stream is None or on_slope is None:
                continue
            on_slope += (given * stream[part]).sum(0)
            if stream.shape[1] == given.shape[1]:
                torch.mul(given, slope, out=on_stream[part])
            else:
                on_stream[part] = (given * slope).sum(1, keepdim=True)
        return on_stream, on_slope, on_radius, None, None, None


def _gradients_plainly(
    gradient: Tensor, stream: Tensor | None, slope: Tensor | None, draws: Angles
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Gradients on the stream, the slope and the radius, which can be differentiated again."""
    on_radius = (gradient * draws.numbers()).sum(0)
    if stream is None or slope is None:
        return None, None, on_radius
    on_stream = gradient * slope
    if stream.shape[1] != gradient.shape[1]:
        on_stream = on_stream.sum(1, keepdim=True)
    return on_stream, (gradient * stream).sum(0), on_radius


def _parts(stream: Tensor) -> Iterator[slice]:
    """Slices of the k projections that fit into the cache; all of them where there is no such cache."""
    k = stream.shape[0]
    size = k if stream.device.type != "cpu" else max(1, CACHED * k // max(1, stream.numel()))
    return (slice(start, start + size) for start in range(0, k, size))
