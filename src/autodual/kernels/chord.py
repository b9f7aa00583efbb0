"""The band of a ReLU: the chord of max(z, 0) over an interval, and half of its height. [SPAD Cor. 2]

slope = u / (u - l),  half = -slope l / 2      for l < 0 < u;  slope 1 or 0, half 0 for a stable unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autodual import kernels

if TYPE_CHECKING:
    import triton
    import triton.language as tl


def relu_band(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the slope of the band and half of its height, which is both its centre and its radius."""
    if kernels.usable("chord", lower, upper):
        return _Band.apply(lower, upper)
    return _plain_band(lower, upper)


def relaxed_relu(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...] | None:
    """Returns both ends of an interval, slope and half height, and the band's middle at the centre; None where kernels cannot run.

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
        return launch_forward(lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            return torch.func.vjp(_plain_band, *ctx.saved_tensors)[1](gradients)
        return launch_backward(*ctx.saved_tensors, *gradients)


class _RelaxedReLU(torch.autograd.Function):
    """`_plain_relaxed` in one pass, forward and backward."""

    @staticmethod
    def forward(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
        return launch_forward_around(centre, radius)

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
        on_centre, on_radius = launch_backward_around(centre, radius, *given[2:])
        if gradients[0] is not None or gradients[1] is not None:
            on_centre, on_radius = on_centre + given[0] + given[1], on_radius + given[1] - given[0]
        return on_centre, on_radius if len(radius) == len(centre) else on_radius.sum(0, keepdim=True)


# The Triton programs, and what launches them.

BLOCK = 512


@kernels.program()
def _chord(low, high):  # type: ignore[no-untyped-def]
    """Slope and half of the height."""
    positive, negative = tl.where(high < 0, 0.0, high), tl.where(low > 0, 0.0, low)
    width = positive - negative
    width = tl.where(width == float("inf"), float("nan"), width)
    steep = tl.div_rn(positive, tl.where(width == 0, 1.0, width))
    return steep, steep * negative * -0.5


@kernels.program()
def _on_ends(low, high, on_slope, on_half):  # type: ignore[no-untyped-def]
    """Gradients on the ends of the interval."""
    positive, negative = tl.where(high < 0, 0.0, high), tl.where(low > 0, 0.0, low)
    width = positive - negative
    flat = width == 0
    inverse = 1 / tl.where(flat, 1.0, width)
    steep = positive * inverse
    by_half = on_half * -0.5
    by_slope = on_slope + by_half * negative
    on_positive = by_slope * tl.where(flat, 1.0, -negative * inverse * inverse)
    on_negative = by_slope * tl.where(flat, 0.0, steep * inverse) + by_half * steep
    return tl.where(low > 0, 0.0, on_negative), tl.where(high < 0, 0.0, on_positive)


@kernels.program(do_not_specialize=["count"])
def _forward(lower, upper, slope, half, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    steep, height = _chord(tl.load(lower + place, mask=inside), tl.load(upper + place, mask=inside))
    tl.store(slope + place, steep, mask=inside)
    tl.store(half + place, height, mask=inside)


@kernels.program(do_not_specialize=["count"])
def _backward(lower, upper, given_slope, given_half, on_lower, on_upper, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    low, high = tl.load(lower + place, mask=inside), tl.load(upper + place, mask=inside)
    by_slope, by_half = tl.load(given_slope + place, mask=inside), tl.load(given_half + place, mask=inside)
    below, above = _on_ends(low, high, by_slope, by_half)
    tl.store(on_lower + place, below, mask=inside)
    tl.store(on_upper + place, above, mask=inside)


@kernels.program(do_not_specialize=["count", "wrap"])
def _forward_around(centre, radius, lower, upper, slope, half, middle, count, wrap, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    value, reach = tl.load(centre + place, mask=inside), tl.load(radius + place % wrap, mask=inside)
    low, high = value - reach, value + reach
    steep, height = _chord(low, high)
    tl.store(lower + place, low, mask=inside)
    tl.store(upper + place, high, mask=inside)
    tl.store(slope + place, steep, mask=inside)
    tl.store(half + place, height, mask=inside)
    tl.store(middle + place, steep * value + height, mask=inside)


@kernels.program(do_not_specialize=["count", "wrap"])
def _backward_around(  # type: ignore[no-untyped-def]
    centre, radius, given_slope, given_half, given_middle, on_centre, on_radius, count, wrap, block: tl.constexpr
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    value, reach = tl.load(centre + place, mask=inside), tl.load(radius + place % wrap, mask=inside)
    low, high = value - reach, value + reach
    by_middle = tl.load(given_middle + place, mask=inside)
    by_slope = tl.load(given_slope + place, mask=inside) + by_middle * value
    below, above = _on_ends(low, high, by_slope, tl.load(given_half + place, mask=inside) + by_middle)
    tl.store(on_centre + place, below + above + by_middle * _chord(low, high)[0], mask=inside)
    tl.store(on_radius + place, above - below, mask=inside)


def launch_forward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and half of the height of the chord, both in the layout of `lower`."""
    slope, half = torch.empty_like(lower), torch.empty_like(lower)
    lower, upper = _laid_out_as(slope, lower, upper)
    _forward[(triton.cdiv(lower.numel(), BLOCK),)](lower, upper, slope, half, lower.numel(), BLOCK)
    return slope, half


def launch_backward(lower: Tensor, upper: Tensor, on_slope: Tensor, on_half: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients on the ends."""
    on_lower, on_upper = torch.empty_like(lower), torch.empty_like(lower)
    lower, upper, on_slope, on_half = _laid_out_as(on_lower, lower, upper, on_slope, on_half)
    _backward[(triton.cdiv(lower.numel(), BLOCK),)](
        lower, upper, on_slope, on_half, on_lower, on_upper, lower.numel(), BLOCK
    )
    return on_lower, on_upper


def launch_forward_around(centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Lower and upper end, slope and half height of the chord, and the band's middle at the centre; radius [N or 1, *shape]."""
    lower, upper, slope, half, middle = (torch.empty_like(centre) for _ in range(5))
    centre, radius = _laid_out_as(lower, centre, radius)
    _forward_around[(triton.cdiv(centre.numel(), BLOCK),)](
        centre, radius, lower, upper, slope, half, middle, centre.numel(), radius.numel(), BLOCK
    )
    return lower, upper, slope, half, middle


def launch_backward_around(
    centre: Tensor, radius: Tensor, on_slope: Tensor, on_half: Tensor, on_middle: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients on the centre and on the radius, which is as large as the centre then."""
    on_centre, on_radius = torch.empty_like(centre), torch.empty_like(centre)
    centre, radius, *given = _laid_out_as(on_centre, centre, radius, on_slope, on_half, on_middle)
    _backward_around[(triton.cdiv(centre.numel(), BLOCK),)](
        centre, radius, *given, on_centre, on_radius, centre.numel(), radius.numel(), BLOCK
    )
    return on_centre, on_radius


def _laid_out_as(like: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Copies tensors [N or 1, *shape] to the strides of `like`, which has no gaps, unless they have them."""
    return [t if t.stride() == like[: len(t)].stride() else torch.empty_like(like[: len(t)]).copy_(t) for t in tensors]


def trial(device: torch.device) -> None:
    """Launches every program on a few numbers."""
    one = torch.ones(1, 2, dtype=torch.float32, device=device)
    launch_backward(one, one, *launch_forward(-one, one))
    launch_backward_around(one, one, *launch_forward_around(one, one)[2:])
