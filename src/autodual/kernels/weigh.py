"""Rows through an activation that has a band: what goes on, rows * slope, and how far the rows can move there, sum |rows| * radius.

Engines do this in plain operations wherever rows are not `weighable`: shared, gathered or few rows are faster so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._tensor import flat_pair, has_channels_inside, in_memory_order

MANY_FEATURES = 256
"""Features from which a pass of its own for every row is worthwhile."""
MANY_VALUES = 1 << 25
"""Values from which the kernels are faster although the host takes longer to launch them."""


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
    """Both results in one pass, and their gradients too; plainly where those are to be differentiated again."""

    @staticmethod
    def forward(rows: Tensor, slope: Tensor | None, radius: Tensor) -> tuple[Tensor | None, Tensor]:
        return kernels.programs("weigh").forward(rows, slope, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, Tensor]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, slope, radius = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return kernels.programs("weigh").backward(rows, slope, radius, *gradients)

        def reached(*given: Tensor) -> tuple[Tensor, ...]:
            results = _plain(given[0], given[1] if slope is not None else None, given[-1])
            return tuple(r for r, g in zip(results, gradients, strict=True) if g is not None and r is not None)

        inputs = [t for t in (rows, slope, radius) if t is not None]
        found = torch.func.vjp(reached, *inputs)[1](tuple(g for g in gradients if g is not None))
        return found[0], found[1] if slope is not None else None, found[-1]
