"""A stream of projections through an activation, V <- D V + r * Cauchy; its gradients keep no random numbers. [docs/projections]"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._tensor import Shape, has_channels_inside, stacked

if TYPE_CHECKING:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

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
    """slope * V + radius * Cauchy. Gradients make the random numbers again from their angles: half the memory, at the price of a tan.

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
            return launch_forward(stream, slope, radius, Angles(angles, turns), dtype)
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
        (gradient,), (stream, slope, radius, angles, turns) = gradients, ctx.saved_tensors
        draws = Angles(angles, turns)
        if torch.is_grad_enabled():
            return *_gradients_plainly(gradient, stream, slope, draws), None, None, None
        if kernels.usable("stream", radius, angles, gradient) and angles.shape[1] == 1:
            return *launch_backward(gradient, stream, slope, radius, draws), None, None, None
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


# The Triton programs, and what launches them.
#
# One program owns some units of one example. Forward it treats some of the k projections, few of them where units are too few to
# fill the GPU; backward it walks over all, several at a time, so that sums over them need no second pass. A stream may be bfloat16,
# and is treated in the order in which it lies in memory. Programs are compiled apart for numbers of features that 16 divides, where a
# thread takes several at once.

BLOCK = 512
TILE = (4, 128)
"""Projections and units that a program treats at a time backward."""


@kernels.program(do_not_specialize=["k", "each", "count"])
def _forward(  # type: ignore[no-untyped-def]
    stream, slope, radius, angles, turns, result, k, each, count, features, stream_row, stream_example,
    has_stream: tl.constexpr, turned: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wide = tl.cast(features, tl.int64)
    stream_row = tl.cast(stream_row, tl.int64)
    example = (tl.program_id(0) % count).to(tl.int64)
    examples = count.to(tl.int64)
    unit = (tl.program_id(0) // count).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < features
    place = example * features + unit
    reach = tl.load(radius + place, mask=inside, other=0.0)
    turn = tl.zeros([block], dtype=tl.float32)
    if turned:
        turn = tl.load(turns + place, mask=inside, other=0.0)
    if has_stream:
        steep = tl.load(slope + place, mask=inside, other=0.0)
    first = tl.program_id(1) * each
    for row in range(first, tl.minimum(first + each, k)):
        value = reach * libdevice.tan(tl.load(angles + row * wide + unit, mask=inside, other=0.0) + turn)
        if has_stream:
            passed = tl.load(stream + row * stream_row + example * stream_example + unit, mask=inside, other=0.0)
            value += steep * passed.to(tl.float32)
        tl.store(result + row * examples * wide + place, value, mask=inside)


@kernels.program(do_not_specialize=["k", "count"])
def _backward(  # type: ignore[no-untyped-def]
    gradient, stream, slope, angles, turns, on_stream, on_slope, on_radius, k, count, features, stream_row, stream_example,
    has_stream: tl.constexpr, turned: tl.constexpr, own_stream: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wide = tl.cast(features, tl.int64)
    stream_row = tl.cast(stream_row, tl.int64)
    example = (tl.program_id(0) % count).to(tl.int64)
    examples = count.to(tl.int64)
    unit = (tl.program_id(0) // count).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < features
    place = example * features + unit
    turn = tl.zeros([block], dtype=tl.float32)
    if turned:
        turn = tl.load(turns + place, mask=inside, other=0.0)
    reach_total = tl.zeros([rows, block], dtype=tl.float32)
    slope_total = tl.zeros([rows, block], dtype=tl.float32)
    if has_stream:
        steep = tl.load(slope + place, mask=inside, other=0.0)
    for first in range(0, k, rows):
        row = (first + tl.arange(0, rows)).to(tl.int64)[:, None]
        valid = (row < k) & inside[None, :]
        given = tl.load(gradient + row * examples * wide + place[None, :], mask=valid, other=0.0).to(tl.float32)
        angle = tl.load(angles + row * wide + unit[None, :], mask=valid, other=0.0) + turn[None, :]
        reach_total += given * libdevice.tan(angle)
        if has_stream:
            passed = stream + row * stream_row + (example * stream_example + unit)[None, :]
            slope_total += given * tl.load(passed, mask=valid, other=0.0).to(tl.float32)
            if own_stream:
                tl.store(on_stream + row * examples * wide + place[None, :], given * steep[None, :], mask=valid)
    tl.store(on_radius + place, tl.sum(reach_total, 0), mask=inside)
    if has_stream:
        tl.store(on_slope + place, tl.sum(slope_total, 0), mask=inside)


@kernels.program(do_not_specialize=["count"])
def _on_shared(gradient, slope, on_stream, count, features, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum over examples of gradient * slope, for one of the projections."""
    wide, examples = tl.cast(features, tl.int64), count.to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < features
    total = tl.zeros([block], dtype=tl.float32)
    for example in range(count):
        given = tl.load(gradient + (row * examples + example) * wide + unit, mask=inside, other=0.0).to(tl.float32)
        total += given * tl.load(slope + example * wide + unit, mask=inside, other=0.0)
    tl.store(on_stream + row * wide + unit, total, mask=inside)


def launch_forward(
    stream: Tensor | None, slope: Tensor | None, radius: Tensor, draws: Angles, dtype: torch.dtype
) -> Tensor:
    """slope * stream + radius * tan(angles + turns): [k, N, *shape], in the layout of the stream, or of the angles without one."""
    angles, turns = draws.angles, draws.turns
    inside = has_channels_inside(angles if stream is None else stream)
    k = len(angles)
    radius, angles = _in_order(radius, inside), _in_order(angles, inside)
    turned, turns = turns is not None, radius if turns is None else _in_order(turns, inside)
    stream = None if stream is None else _in_order(stream, inside)
    slope = radius if slope is None else _in_order(slope, inside)
    result = torch.empty((k, *radius.shape), dtype=dtype, device=radius.device)
    examples, features = len(radius), radius[0].numel()
    blocks = triton.cdiv(features, BLOCK)
    each = triton.cdiv(k, min(k, triton.cdiv(kernels.ENOUGH, blocks * examples)))
    _forward[(blocks * examples, triton.cdiv(k, each))](
        radius if stream is None else stream, slope, radius, angles, turns, result, k, each, examples, features,
        *_strides(stream, features), stream is not None, turned, BLOCK,
    )  # fmt: skip
    return _shaped(result, inside)


def launch_backward(
    gradient: Tensor, stream: Tensor | None, slope: Tensor | None, radius: Tensor, draws: Angles
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Gradients on the stream, the slope and the radius."""
    angles, turns = draws.angles, draws.turns
    inside = has_channels_inside(angles if stream is None else stream)
    gradient, angles = _in_order(gradient, inside), _in_order(angles, inside)
    turned, turns = turns is not None, gradient if turns is None else _in_order(turns, inside)
    k, examples, features = len(angles), len(radius), radius[0].numel()
    on_radius = torch.empty(gradient.shape[1:], dtype=radius.dtype, device=radius.device)
    grid = (triton.cdiv(features, TILE[1]) * examples,)
    if stream is None or slope is None:
        _backward[grid](
            gradient, gradient, gradient, angles, turns, on_radius, on_radius, on_radius, k, examples, features, 0, 0,
            False, turned, False, *TILE,
        )  # fmt: skip
        return None, None, _shaped(on_radius, inside)
    stream, slope = _in_order(stream, inside), _in_order(slope, inside)
    own = stream.shape[1] == examples
    on_stream = torch.empty_like(stream)
    on_slope = torch.empty_like(on_radius)
    _backward[grid](
        gradient, stream, slope, angles, turns, on_stream, on_slope, on_radius, k, examples, features,
        *_strides(stream, features), True, turned, own, *TILE,
    )  # fmt: skip
    if not own:
        _on_shared[(triton.cdiv(features, BLOCK), k)](gradient, slope, on_stream, examples, features, BLOCK)
    return _shaped(on_stream, inside), _shaped(on_slope, inside), _shaped(on_radius, inside)


def _in_order(a: Tensor, inside: bool) -> Tensor:
    """[..., C, H, W] as [..., H, W, C], if channels are to lie inside; without gaps in memory."""
    return (a.movedim(-3, -1) if inside else a).contiguous()


def _shaped(a: Tensor, inside: bool) -> Tensor:
    """Undoes `_in_order`."""
    return a.movedim(-1, -3) if inside else a


def _strides(stream: Tensor | None, features: int) -> tuple[int, int]:
    """Strides of a stream in order, between projections and between examples; the latter is zero where examples share it."""
    if stream is None:
        return 0, 0
    return stream.shape[1] * features, features if stream.shape[1] > 1 else 0


def trial(device: torch.device) -> None:
    """Launches every program on a few numbers."""
    three, one = (torch.ones(*shape, dtype=torch.float32, device=device) for shape in ((3, 1, 2), (1, 2)))
    for dtype in (torch.float32, torch.bfloat16):
        passed = launch_forward(three.to(dtype), one, one, Angles(three, one), dtype)
        launch_backward(passed, three.to(dtype), one, one, Angles(three, one))
    launch_forward(None, None, one, Angles(three), torch.float32)
