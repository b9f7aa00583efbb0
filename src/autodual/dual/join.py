"""Concatenation and stacking of several operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autodual._types import Shape
from autodual.dual.base import AffineDual, Window
from autodual.dual.registry import register, rewrite
from autodual.graph import Call, Operand


@dataclass(frozen=True)
class DualConcat(AffineDual):
    """Operands and constants side by side along one dimension (counted without the batch)."""

    dim: int
    parts: tuple[Tensor | None, ...]
    """One entry per part: None for the next operand, or a constant."""
    offset: Tensor | None = None
    """The constants in their places and zeros elsewhere."""
    exact: bool = True
    """Unless a constant is a number that float32 does not hold, such as a large integer."""

    def linear(self, *operands: Tensor) -> Tensor:
        following = iter(operands)
        batch = operands[0].shape[0]
        pieces = [next(following) if part is None else operands[0].new_zeros(batch, *part.shape) for part in self.parts]
        return torch.cat(pieces, self.dim + 1)

    def bias(self) -> Tensor | None:
        return self.offset

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        following = iter(shapes)
        sizes = [(next(following) if part is None else part.shape)[self.dim] for part in self.parts]
        pieces = coefficients.split(sizes, self.dim + 1)
        return tuple(piece for piece, part in zip(pieces, self.parts, strict=True) if part is None)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return 1, 1

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        return Window.same(len(shapes[0]) - 1) if self.dim == 0 else None

    def cropped(self, shape: Shape) -> DualConcat | None:
        return self if all(part is None for part in self.parts) else None


@register(torch.cat, torch.concat)
def _concat(call: Call) -> DualConcat:
    given = call.argument(1, "dim", 0)
    dim, rank = call.dimension(given), call.operand.shape
    parts = [p for p in call.argument(0, "tensors") if isinstance(p, Operand) or tuple(p.shape) != (0,)]  # as torch.cat
    constants = tuple(None if isinstance(p, Operand) else call.constant(p, rank) for p in parts)
    if all(c is None for c in constants):
        return DualConcat(dim, constants)
    like = next(c for c in constants if c is not None)
    placed = like.to(call.floating(like))
    filled = [placed.new_zeros(p.shape) if c is None else c.to(placed) for p, c in zip(parts, constants, strict=True)]
    exact = all(_held_by_float32(c) for c in constants if c is not None)
    return DualConcat(dim, constants, torch.cat(filled, dim), exact)


def _held_by_float32(constant: Tensor) -> bool:
    exact = constant.double()
    return constant.dtype == torch.float32 or bool((exact.float().double() == exact).all())


@rewrite(torch.stack)
def _stack(tensors: Any, dim: int = 0) -> Any:
    position = dim % (tensors[0].dim() + 1)
    return torch.cat([t.unsqueeze(position) for t in tensors], position)
