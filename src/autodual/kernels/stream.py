"""A stream through an activation: slope * V + radius * tan(angles + turns) in one pass. Twin: `autodual.bounds.stream_ops`.

One program owns some units of one example and walks over the k projections, so that sums over them need no second pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

BLOCK = 256


@triton.jit(do_not_specialize=["k", "features", "stream_row", "stream_example", "turn_example"])
def _forward(  # type: ignore[no-untyped-def]
    stream, slope, radius, angles, turns, result, k, features, stream_row, stream_example, turn_example,
    has_stream: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wide = features.to(tl.int64)
    stream_row = stream_row.to(tl.int64)
    example = tl.program_id(1).to(tl.int64)
    examples = tl.num_programs(1).to(tl.int64)
    unit = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < features
    place = example * features + unit
    reach = tl.load(radius + place, mask=inside, other=0.0)
    turn = tl.load(turns + example * turn_example + unit, mask=inside, other=0.0)
    if has_stream:
        steep = tl.load(slope + place, mask=inside, other=0.0)
    for row in range(k):
        value = reach * libdevice.tan(tl.load(angles + row * wide + unit, mask=inside, other=0.0) + turn)
        if has_stream:
            passed = tl.load(stream + row * stream_row + example * stream_example + unit, mask=inside, other=0.0)
            value += steep * passed
        tl.store(result + row * examples * wide + place, value, mask=inside)


@triton.jit(do_not_specialize=["k", "features", "stream_row", "stream_example", "turn_example"])
def _backward(  # type: ignore[no-untyped-def]
    gradient, stream, slope, angles, turns, on_stream, on_slope, on_radius, k, features, stream_row, stream_example,
    turn_example, has_stream: tl.constexpr, own_stream: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wide = features.to(tl.int64)
    stream_row = stream_row.to(tl.int64)
    example = tl.program_id(1).to(tl.int64)
    examples = tl.num_programs(1).to(tl.int64)
    unit = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = unit < features
    place = example * features + unit
    turn = tl.load(turns + example * turn_example + unit, mask=inside, other=0.0)
    reach_total = tl.zeros([block], dtype=tl.float32)
    slope_total = tl.zeros([block], dtype=tl.float32)
    if has_stream:
        steep = tl.load(slope + place, mask=inside, other=0.0)
    for row in range(k):
        given = tl.load(gradient + row * examples * wide + place, mask=inside, other=0.0)
        reach_total += given * libdevice.tan(tl.load(angles + row * wide + unit, mask=inside, other=0.0) + turn)
        if has_stream:
            passed = tl.load(stream + row * stream_row + example * stream_example + unit, mask=inside, other=0.0)
            slope_total += given * passed
            if own_stream:
                tl.store(on_stream + row * examples * wide + place, given * steep, mask=inside)
    tl.store(on_radius + place, reach_total, mask=inside)
    if has_stream:
        tl.store(on_slope + place, slope_total, mask=inside)


def forward(stream: Tensor | None, slope: Tensor | None, radius: Tensor, angles: Tensor, turns: Tensor) -> Tensor:
    """slope * stream + radius * tan(angles + turns): [k, N, *shape]."""
    radius, angles, turns = radius.contiguous(), angles.contiguous(), turns.contiguous()
    k, examples, features = len(angles), len(radius), radius[0].numel()
    stream = None if stream is None else stream.contiguous()
    slope = radius if slope is None else slope.contiguous()
    result = torch.empty((k, *radius.shape), dtype=radius.dtype, device=radius.device)
    rows = (0, 0) if stream is None else (stream.shape[1] * features, features if stream.shape[1] > 1 else 0)
    _forward[(triton.cdiv(features, BLOCK), examples)](
        radius if stream is None else stream, slope, radius, angles, turns, result, k, features, *rows,
        features if len(turns) > 1 else 0, stream is not None, BLOCK,
    )  # fmt: skip
    return result


def backward(
    gradient: Tensor, stream: Tensor | None, slope: Tensor | None, radius: Tensor, angles: Tensor, turns: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Gradients on the stream, the slope and the radius."""
    gradient, angles, turns = gradient.contiguous(), angles.contiguous(), turns.contiguous()
    k, examples, features = len(angles), len(radius), radius[0].numel()
    on_radius = torch.empty_like(radius, memory_format=torch.contiguous_format)
    if stream is None or slope is None:
        _backward[(triton.cdiv(features, BLOCK), examples)](
            gradient, gradient, gradient, angles, turns, on_radius, on_radius, on_radius, k, features, 0, 0,
            features if len(turns) > 1 else 0, False, False, BLOCK,
        )  # fmt: skip
        return None, None, on_radius
    stream, slope = stream.contiguous(), slope.contiguous()
    own = stream.shape[1] == examples
    on_stream = torch.empty_like(gradient if own else stream)
    on_slope = torch.empty_like(on_radius)
    _backward[(triton.cdiv(features, BLOCK), examples)](
        gradient, stream, slope, angles, turns, on_stream, on_slope, on_radius, k, features,
        stream.shape[1] * features, features if stream.shape[1] > 1 else 0, features if len(turns) > 1 else 0,
        True, own, BLOCK,
    )  # fmt: skip
    if not own:
        on_stream = (gradient * slope).sum(1, keepdim=True)
    return on_stream, on_slope, on_radius
