"""Operators of ONNX that torch.nn has no module for, as small modules of ordinary PyTorch operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._tensor import Shape


class Reshape(nn.Module):
    """Gives every example another shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Permute(nn.Module):
    """Permutes dimensions; the first stays the batch."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.dims)


class Index(nn.Module):
    """Selects entries along one dimension: a slice, one position, or a list of positions."""

    def __init__(self, dim: int, positions: slice | int | list[int]) -> None:
        super().__init__()
        self.dim, self.positions = dim, positions

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None),) * self.dim + (self.positions,)]


class Apply(nn.Module):
    """A function of tensors, some of which are constants: `constants` has None in place of every operand."""

    def __init__(self, function: Callable[..., Tensor], constants: Sequence[Tensor | None], **named: Any) -> None:
        super().__init__()
        self.function, self.named = function, named
        self.places = len(constants)
        for place, constant in enumerate(constants):
            self.register_buffer(f"constant_{place}", constant)

    def forward(self, *operands: Tensor) -> Tensor:
        following = iter(operands)
        constants = (getattr(self, f"constant_{place}") for place in range(self.places))
        return self.function(*(next(following) if c is None else c for c in constants), **self.named)


class Concat(nn.Module):
    """Operands and constants side by side: `constants` has None in place of every operand."""

    def __init__(self, dim: int, constants: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.dim, self.places = dim, len(constants)
        for place, constant in enumerate(constants):
            self.register_buffer(f"constant_{place}", constant)

    def forward(self, *operands: Tensor) -> Tensor:
        following, batch = iter(operands), operands[0].shape[0]
        constants = (getattr(self, f"constant_{place}") for place in range(self.places))
        return torch.cat([next(following) if c is None else c.expand(batch, *c.shape) for c in constants], self.dim)


class Clamp(nn.Module):
    """min(max(x, low), high), where either end may be missing."""

    def __init__(self, low: float | None, high: float | None) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, self.low, self.high)


class Pad(nn.Module):
    """Padding, or cropping where an amount is negative."""

    def __init__(self, amounts: Sequence[int], mode: str, value: float) -> None:
        super().__init__()
        self.amounts, self.mode, self.value = tuple(amounts), mode, value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.amounts, self.mode, self.value if self.mode == "constant" else None)


class Reduce(nn.Module):
    """Mean, sum, maximum or minimum over dimensions."""

    def __init__(self, function: Callable[..., Tensor], dims: Sequence[int], keep: bool) -> None:
        super().__init__()
        self.function, self.dims, self.keep = function, tuple(dims), keep

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.dims, self.keep)


class Expand(nn.Module):
    """Copies every example along dimensions of size 1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(x.shape[0], *self.shape)


class ScaledLinear(nn.Module):
    """alpha x W' + beta b, for factors other than 1."""

    def __init__(self, weight: Tensor, bias: Tensor | None, alpha: float, beta: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.alpha, self.beta = alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.weight) * self.alpha
        return product if self.bias is None else product + self.bias * self.beta
