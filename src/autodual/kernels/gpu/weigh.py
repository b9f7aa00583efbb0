"""Rows through an activation: coefficients times slope, and the l1 norm of coefficients times radius, in one pass.

One program owns a part of one row; the sums of the parts are added up afterwards, in the
same order always.
Kernels are compiled apart for numbers of features that 16 divides, where a thread takes four at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodual.kernels import ENOUGH

BLOCK = 1024
ALONE = 4096
"""Features that are no work to share: adding up the parts would take longer."""
UNITS = 256
"""Units that a program treats backward, for all rows."""


@triton.jit(do_not_specialize=["examples"])
def _forward(  # type: ignore[no-untyped-def]
    rows, slope, radius, passed, sizes, examples, features, radius_example, each, passes: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    example = row % examples
    first = tl.program_id(1) * each
    total = tl.zeros([block], dtype=tl.float32)
    for start in range(first, tl.minimum(first + each, features), block):
        unit = start + tl.arange(0, block)
        inside = unit < features
        value = tl.load(rows + row * features + unit, mask=inside, other=0.0)
        total += tl.abs(value) * tl.load(radius + example * radius_example + unit, mask=inside, other=0.0)
        if passes:
            steep = tl.load(slope + example * features + unit, mask=inside, other=0.0)
            tl.store(passed + row * features + unit, value * steep, mask=inside)
    tl.store(sizes + row * tl.num_programs(1) + tl.program_id(1), tl.sum(total, 0))


@triton.jit(do_not_specialize=["count", "examples"])
def _backward(  # type: ignore[no-untyped-def]
    rows, slope, radius, on_passed, on_sizes, on_rows, on_slope, on_radius, count, examples, features, radius_example,
    passes: tl.constexpr, sized: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    example = (tl.program_id(0) % examples).to(tl.int64)
    unit = tl.program_id(0) // examples * block + tl.arange(0, block)
    inside = unit < features
    reach = tl.load(radius + example * radius_example + unit, mask=inside, other=0.0)
    slope_total = tl.zeros([block], dtype=tl.float32)
    radius_total = tl.zeros([block], dtype=tl.float32)
    if passes:
        steep = tl.load(slope + example * features + unit, mask=inside, other=0.0)
    for row in range(count):
        line = row * examples + example
        value = tl.load(rows + line * features + unit, mask=inside, other=0.0)
        gradient = tl.zeros([block], dtype=tl.float32)
        if sized:
            given = tl.load(on_sizes + line)
            sign = tl.where(value > 0, 1.0, tl.where(value < 0, -1.0, 0.0))
            gradient += sign * reach * given
            radius_total += tl.abs(value) * given
        if passes:
            onward = tl.load(on_passed + line * features + unit, mask=inside, other=0.0)
            gradient += steep * onward
            slope_total += value * onward
        tl.store(on_rows + line * features + unit, gradient, mask=inside)
    tl.store(on_radius + example * features + unit, radius_total, mask=inside)
    if passes:
        tl.store(on_slope + example * features + unit, slope_total, mask=inside)


def forward(rows: Tensor, slope: Tensor | None, radius: Tensor) -> tuple[Tensor | None, Tensor]:
    """rows [R, N, F], slope [N, F], radius [N or 1, F] -> rows * slope, or None without a slope; and sizes [R, N]."""
    rows, radius = rows.contiguous(), radius.contiguous()
    count, examples, features = rows.shape
    passed = None if slope is None else torch.empty_like(rows)
    parts = min(triton.cdiv(features, ALONE), triton.cdiv(ENOUGH, count * examples))
    each = triton.cdiv(triton.cdiv(features, parts), BLOCK) * BLOCK
    parts = triton.cdiv(features, each)
    sizes = rows.new_empty(count, examples, parts)
    _forward[(count * examples, parts)](
        rows, rows if slope is None else slope.contiguous(), radius, rows if passed is None else passed, sizes, examples, features,
        features if len(radius) > 1 else 0, each, slope is not None, BLOCK,
    )  # fmt: skip
    return passed, sizes.squeeze(2) if parts == 1 else sizes.sum(2)


def backward(
    rows: Tensor, slope: Tensor | None, radius: Tensor, on_passed: Tensor | None, on_sizes: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients on the rows, the slope and the radius; a missing one of the results counts as zero."""
    rows, radius = rows.contiguous(), radius.contiguous()
    count, examples, features = rows.shape
    passes = slope is not None and on_passed is not None
    on_rows, on_radius = torch.empty_like(rows), rows.new_empty(examples, features)
    on_slope = torch.empty_like(on_radius) if passes else None
    _backward[(triton.cdiv(features, UNITS) * examples,)](
        rows, slope.contiguous() if slope is not None else rows, radius, rows if on_passed is None else on_passed.contiguous(),
        rows if on_sizes is None else on_sizes.contiguous(), on_rows, on_radius if on_slope is None else on_slope, on_radius,
        count, examples, features, features if len(radius) > 1 else 0, passes, on_sizes is not None, UNITS,
    )  # fmt: skip
    return on_rows, on_slope, on_radius if len(radius) > 1 else on_radius.sum(0, keepdim=True)
