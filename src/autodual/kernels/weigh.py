"""Rows of linear functions: those of margins, with which bounds begin, and rows that go back through an activation with a band.

There, rows * slope goes on, and sum |rows| * radius is how far the rows can move. Engines do this in plain operations wherever rows
are not `weighable`: shared, gathered or few rows are faster so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._tensor import flat_pair, has_channels_inside, in_memory_order

if TYPE_CHECKING:
    import triton
    import triton.language as tl

MANY_FEATURES = 256
"""Features from which a pass of its own for every row is worthwhile."""
MANY_VALUES = 1 << 25
"""Values from which the kernels are faster although the host takes longer to launch them."""


def margin_rows(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Returns the rows, [classes, N, classes]. A label outside the classes is an error, or NaN where the kernel runs."""
    if dtype == torch.float32 and len(labels) > 0 and kernels.ready("weigh", labels.device):
        return launch_margins(labels, classes)
    identity = torch.eye(classes, dtype=dtype, device=labels.device)
    return identity[labels].unsqueeze(0) - identity.unsqueeze(1)


def weighable(rows: Tensor, radius: Tensor, *slope: Tensor, in_graph: bool = False) -> bool:
    """Whether to use the kernels for rows [R, N, *shape], which must be each example's own, with these bands.

    in_graph: for a CUDA graph, or on the way to one, so that launches take no time.
    """
    return (
        (in_graph or rows.numel() >= MANY_VALUES)
        and radius[0].numel() >= MANY_FEATURES
        and rows.shape[1] >= len(radius)
        and all(part.shape == rows.shape[1:] for part in slope)
        and radius.shape[1:] == rows.shape[2:]
        and kernels.usable("weigh", rows, radius, *slope)
    )


def weigh(rows: Tensor, slope: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """rows * slope, and sum |rows| * radius [R, N]."""
    flat_rows, flat_slope = flat_pair(rows, slope)
    passed, sizes = _Weigh.apply(flat_rows, flat_slope, flat_pair(rows, radius)[1])
    ordered = passed.unflatten(2, in_memory_order(rows).shape[2:])
    return ordered.movedim(-1, 2) if has_channels_inside(rows) else ordered, sizes


def weighted_l1(rows: Tensor, radius: Tensor) -> Tensor:
    """sum |rows| * radius [R, N]."""
    flat_rows, flat_radius = flat_pair(rows, radius)
    return _Weigh.apply(flat_rows, None, flat_radius)[1]


def _plain(rows: Tensor, slope: Tensor | None, radius: Tensor) -> tuple[Tensor | None, Tensor]:
    return None if slope is None else rows * slope, (rows.abs() * radius).sum(2)


class _Weigh(torch.autograd.Function):
    """Both results in one pass, and their gradients in another; plain code where those are to be differentiated again."""

    @staticmethod
    def forward(rows: Tensor, slope: Tensor | None, radius: Tensor) -> tuple[Tensor | None, Tensor]:
        return launch_forward(rows, slope, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, Tensor]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, slope, radius = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return launch_backward(rows, slope, radius, *gradients)

        def used_results(*given: Tensor) -> tuple[Tensor, ...]:
            results = _plain(given[0], given[1] if slope is not None else None, given[-1])
            return tuple(r for r, g in zip(results, gradients, strict=True) if g is not None and r is not None)

        inputs = [t for t in (rows, slope, radius) if t is not None]
        found = torch.func.vjp(used_results, *inputs)[1](tuple(g for g in gradients if g is not None))
        return found[0], found[1] if slope is not None else None, found[-1]


# The Triton programs, and what launches them.
#
# One program owns a part of one row; the sums of the parts are added up afterwards, always in the same order. Programs are compiled
# apart for numbers of features that 16 divides, where a thread takes four at once.

BLOCK = 1024
ALONE = 4096
"""Features that are no work to share: adding up the parts would take longer."""
UNITS = 256
"""Units that a program treats backward, for all rows."""


@kernels.program(do_not_specialize=["examples"])
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


@kernels.program(do_not_specialize=["count", "examples"])
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


@kernels.program(do_not_specialize=["classes"])
def _margins(labels, rows, classes, block: tl.constexpr):  # type: ignore[no-untyped-def]
    example, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, block)
    label = tl.load(labels + example)
    value = (column == label).to(tl.float32) - (column == row).to(tl.float32)
    value = tl.where((label >= 0) & (label < classes), value, float("nan"))
    tl.store(rows + (row * tl.num_programs(0) + example) * classes + column, value, mask=column < classes)


def launch_forward(rows: Tensor, slope: Tensor | None, radius: Tensor) -> tuple[Tensor | None, Tensor]:
    """rows [R, N, F], slope [N, F], radius [N or 1, F] -> rows * slope, or None without a slope; and sizes [R, N]."""
    rows, radius = rows.contiguous(), radius.contiguous()
    count, examples, features = rows.shape
    passed = None if slope is None else torch.empty_like(rows)
    parts = min(triton.cdiv(features, ALONE), triton.cdiv(kernels.ENOUGH, count * examples))
    each = triton.cdiv(triton.cdiv(features, parts), BLOCK) * BLOCK
    parts = triton.cdiv(features, each)
    sizes = rows.new_empty(count, examples, parts)
    _forward[(count * examples, parts)](
        rows, rows if slope is None else slope.contiguous(), radius, rows if passed is None else passed, sizes, examples, features,
        features if len(radius) > 1 else 0, each, slope is not None, BLOCK,
    )  # fmt: skip
    return passed, sizes.squeeze(2) if parts == 1 else sizes.sum(2)


def launch_backward(
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


def launch_margins(labels: Tensor, classes: int) -> Tensor:
    rows = torch.empty(classes, len(labels), classes, dtype=torch.float32, device=labels.device)
    block = triton.next_power_of_2(classes)
    _margins[(len(labels), classes)](labels.contiguous(), rows, classes, block, num_warps=1 if block <= 128 else 4)
    return rows


def trial(device: torch.device) -> None:
    """Launches every program on a few numbers."""
    rows, one = (torch.ones(*shape, dtype=torch.float32, device=device) for shape in ((1, 1, 2), (1, 2)))
    launch_backward(rows, one, one, *launch_forward(rows, one, one))
    launch_backward(rows, None, one, *launch_forward(rows, None, one))
    launch_margins(torch.zeros(1, dtype=torch.int64, device=device), 2)
