"""The band of a ReLU: the chord of max(z, 0) over an interval, and half of its height. [SPAD Cor. 2]

slope = u / (u - l),  half = -slope l / 2      for l < 0 < u;  slope 1 or 0, half 0 for a stable unit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autodual import kernels


def relu_band(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Slope, and half of the height, which is both centre and radius of the band."""
    if kernels.usable("chord", lower, upper):
        return _Band.apply(lower, upper)
    return _plain_band(lower, upper)


def relaxed_relu(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...] | None:
    """Both ends of an interval, slope and half height, and the band's middle at the centre; None where kernels cannot be used.

    radius: [N or 1, *shape]
    """
    if radius.shape[1:] != centre.shape[1:] or not kernels.usable("chord", centre, radius):
        return None
    return _RelaxedReLU.apply(centre, radius)


def chord(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """u / (u - l) for an unstable unit, exactly 1 or 0 for a stable one, NaN for NaN or if u - l overflows; and min(l, 0)."""
    positive, negative = upper.clamp(min=0), lower.clamp(max=0)
    width = positive - negative
    slope = positive / (width + (1 - width.sign()))  # a width of zero counts as one; comparisons would cost more
    return torch.add(slope, width, alpha=0.0), negative  # 0 * inf is NaN, since u / inf would pass for a dead unit


def _plain_band(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    slope, negative = chord(lower, upper)
    return slope, slope * negative * -0.5


def _plain_relaxed(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
    lower, upper = centre - radius, centre + radius
    slope, half = _plain_band(lower, upper)
    return lower, upper, slope, half, slope * centre + half


class _Band(torch.autograd.Function):
    """`_plain_band` in one pass, forward and backward; plainly where a gradient is to be differentiated again."""

    @staticmethod
    def forward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.programs("chord").forward(lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            return torch.func.vjp(_plain_band, *ctx.saved_tensors)[1](gradients)
        return kernels.programs("chord").backward(*ctx.saved_tensors, *gradients)


class _RelaxedReLU(torch.autograd.Function):
    """`_plain_relaxed` in one pass, forward and backward."""

    @staticmethod
    def forward(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
        return kernels.programs("chord").forward_around(centre, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, ...]:
        centre, radius = ctx.saved_tensors
        given = [torch.zeros_like(centre) if g is None else g for g in gradients]
        if torch.is_grad_enabled():
            return torch.func.vjp(_plain_relaxed, centre, radius)[1](tuple(given))
        on_centre, on_radius = kernels.programs("chord").backward_around(centre, radius, *given[2:])
        if gradients[0] is not None or gradients[1] is not None:
            on_centre, on_radius = on_centre + given[0] + given[1], on_radius + given[1] - given[0]
        return on_centre, on_radius if len(radius) == len(centre) else on_radius.sum(0, keepdim=True)
