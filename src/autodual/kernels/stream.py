"""A stream through an activation: slope * V + radius * tan(angles + turns) in one pass. Twin: `autodual.bounds.stream_ops`.

One program owns some units of one example. Forward it treats some of the k projections, few of them where units are too few to
fill the GPU; backward it walks over all, several at a time, so that sums over them need no second pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from autodual.kernels import ENOUGH

BLOCK = 256
TILE = (4, 128)
"""Projections and units that a program treats at a time backward."""

_ANY = ["k", "each", "count", "features", "stream_row", "stream_example"]


@triton.jit(do_not_specialize=_ANY)
def _forward(  # type: ignore[no-untyped-def]
    stream, slope, radius, angles, turns, result, k, each, count, features, stream_row, stream_example,
    has_stream: tl.constexpr, turned: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wide = features.to(tl.int64)
    stream_row = stream_row.to(tl.int64)
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
            value += steep * passed
        tl.store(result + row * examples * wide + place, value, mask=inside)


@triton.jit(do_not_specialize=[name for name in _ANY if name != "each"])
def _backward(  # type: ignore[no-untyped-def]
    gradient, stream, slope, angles, turns, on_stream, on_slope, on_radius, k, count, features, stream_row, stream_example,
    has_stream: tl.constexpr, turned: tl.constexpr, own_stream: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wide = features.to(tl.int64)
    stream_row = stream_row.to(tl.int64)
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
        given = tl.load(gradient + row * examples * wide + place[None, :], mask=valid, other=0.0)
        angle = tl.load(angles + row * wide + unit[None, :], mask=valid, other=0.0) + turn[None, :]
        reach_total += given * libdevice.tan(angle)
        if has_stream:
            passed = stream + row * stream_row + (example * stream_example + unit)[None, :]
            slope_total += given * tl.load(passed, mask=valid, other=0.0)
            if own_stream:
                tl.store(on_stream + row * examples * wide + place[None, :], given * steep[None, :], mask=valid)
    tl.store(on_radius + place, tl.sum(reach_total, 0), mask=inside)
    if has_stream:
        tl.store(on_slope + place, tl.sum(slope_total, 0), mask=inside)


def forward(
    stream: Tensor | None, slope: Tensor | None, radius: Tensor, angles: Tensor, turns: Tensor | None
) -> Tensor:
    """slope * stream + radius * tan(angles + turns): [k, N, *shape]."""
    radius, angles, turned = radius.contiguous(), angles.contiguous(), turns is not None
    turns = radius if turns is None else turns.contiguous()
    k, examples, features = len(angles), len(radius), radius[0].numel()
    stream = None if stream is None else stream.contiguous()
    slope = radius if slope is None else slope.contiguous()
    result = torch.empty((k, *radius.shape), dtype=radius.dtype, device=radius.device)
    rows = (0, 0) if stream is None else (stream.shape[1] * features, features if stream.shape[1] > 1 else 0)
    blocks = triton.cdiv(features, BLOCK)
    each = triton.cdiv(k, min(k, triton.cdiv(ENOUGH, blocks * examples)))
    _forward[(blocks * examples, triton.cdiv(k, each))](
        radius if stream is None else stream, slope, radius, angles, turns, result, k, each, examples, features, *rows,
        stream is not None, turned, BLOCK,
    )  # fmt: skip
    return result


def backward(
    gradient: Tensor, stream: Tensor | None, slope: Tensor | None, radius: Tensor, angles: Tensor, turns: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Gradients on the stream, the slope and the radius."""
    gradient, angles, turned = gradient.contiguous(), angles.contiguous(), turns is not None
    turns = gradient if turns is None else turns.contiguous()
    k, examples, features = len(angles), len(radius), radius[0].numel()
    on_radius = torch.empty_like(radius, memory_format=torch.contiguous_format)
    grid = (triton.cdiv(features, TILE[1]) * examples,)
    if stream is None or slope is None:
        _backward[grid](
            gradient, gradient, gradient, angles, turns, on_radius, on_radius, on_radius, k, examples, features, 0, 0,
            False, turned, False, *TILE,
        )  # fmt: skip
        return None, None, on_radius
    stream, slope = stream.contiguous(), slope.contiguous()
    own = stream.shape[1] == examples
    on_stream = torch.empty_like(gradient if own else stream)
    on_slope = torch.empty_like(on_radius)
    _backward[grid](
        gradient, stream, slope, angles, turns, on_stream, on_slope, on_radius, k, examples, features,
        stream.shape[1] * features, features if stream.shape[1] > 1 else 0, True, turned, own, *TILE,
    )  # fmt: skip
    if not own:
        on_stream = (gradient * slope).sum(1, keepdim=True)
    return on_stream, on_slope, on_radius
