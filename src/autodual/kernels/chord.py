"""The band of a ReLU in one pass, forward and backward. Twin: `autodual.dual.relu`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


@triton.jit(do_not_specialize=["count"])
def _forward(lower, upper, slope, half, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    high, low = tl.load(upper + place, mask=inside), tl.load(lower + place, mask=inside)
    positive, negative = tl.where(high < 0, 0.0, high), tl.where(low > 0, 0.0, low)
    width = positive - negative
    steep = tl.div_rn(positive, tl.where(width == 0, 1.0, width))
    tl.store(slope + place, steep, mask=inside)
    tl.store(half + place, steep * negative * -0.5, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _backward(lower, upper, given_slope, given_half, on_lower, on_upper, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    high, low = tl.load(upper + place, mask=inside), tl.load(lower + place, mask=inside)
    positive, negative = tl.where(high < 0, 0.0, high), tl.where(low > 0, 0.0, low)
    width = positive - negative
    flat = width == 0
    inverse = 1 / tl.where(flat, 1.0, width)
    steep = positive * inverse
    by_half = tl.load(given_half + place, mask=inside) * -0.5
    by_slope = tl.load(given_slope + place, mask=inside) + by_half * negative
    on_positive = by_slope * tl.where(flat, 1.0, -negative * inverse * inverse)
    on_negative = by_slope * tl.where(flat, 0.0, steep * inverse) + by_half * steep
    tl.store(on_upper + place, tl.where(high < 0, 0.0, on_positive), mask=inside)
    tl.store(on_lower + place, tl.where(low > 0, 0.0, on_negative), mask=inside)


def forward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and half of the height of the chord, both in the layout of `lower`."""
    slope, half = torch.empty_like(lower), torch.empty_like(lower)
    lower, upper = _laid_out_as(slope, lower, upper)
    _forward[(triton.cdiv(lower.numel(), BLOCK),)](lower, upper, slope, half, lower.numel(), BLOCK)
    return slope, half


def backward(lower: Tensor, upper: Tensor, on_slope: Tensor, on_half: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients on the ends."""
    on_lower, on_upper = torch.empty_like(lower), torch.empty_like(lower)
    lower, upper, on_slope, on_half = _laid_out_as(on_lower, lower, upper, on_slope, on_half)
    _backward[(triton.cdiv(lower.numel(), BLOCK),)](
        lower, upper, on_slope, on_half, on_lower, on_upper, lower.numel(), BLOCK
    )
    return on_lower, on_upper


def _laid_out_as(like: Tensor, *tensors: Tensor) -> list[Tensor]:
    """All with the strides of `like`, which has no gaps: what is next to each other in one is so in all."""
    return [t if t.stride() == like.stride() else torch.empty_like(like).copy_(t) for t in tensors]
