"""Operators of ONNX that torch.nn has no module for, as small modules of ordinary PyTorch operations."""

from __future__ import annotations

import math
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


def most_numbers(module: nn.Module, shapes: Sequence[Shape]) -> int:
    """How many numbers a module makes of one example at most: asked before it runs, since a file may name any size.

    Modules that are not named here make no more than they are given, or than their own parameters have.
    """
    first, m = shapes[0], _any(module)
    if isinstance(module, nn.Upsample):
        factors = m.scale_factor if isinstance(m.scale_factor, tuple) else [1] * (len(first) - 1)
        sizes = m.size if m.size is not None else [math.ceil(n * f) for n, f in zip(first[1:], factors, strict=True)]
        return first[0] * math.prod(sizes)
    if isinstance(module, Pad):
        amounts = [0] * (2 * len(first) - len(m.amounts)) + list(m.amounts[::-1])
        return math.prod(n + max(a, 0) + max(b, 0) for n, a, b in zip(first, amounts[::2], amounts[1::2], strict=True))
    if isinstance(module, Index):
        count = len(m.positions) if isinstance(m.positions, list) else 1
        return math.prod(first) * count
    if isinstance(module, Expand):
        return math.prod(m.shape)
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        sizes = [n + 2 * p for n, p in zip(first[1:], m.padding, strict=True)]
        return max(m.in_channels, m.out_channels) * math.prod(sizes)
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        each = zip(first[1:], m.stride, m.dilation, m.kernel_size, m.output_padding, strict=True)
        return m.out_channels * math.prod(s * (n - 1) + d * (k - 1) + 1 + e for n, s, d, k, e in each)
    if isinstance(module, nn.Linear | ScaledLinear):
        return math.prod(first[:-1]) * len(m.weight)
    if isinstance(module, Apply):
        return _combined_numbers(m, shapes)
    return sum(math.prod(shape) for shape in shapes)


def _any(module: nn.Module) -> Any:
    return module


def _combined_numbers(module: Apply, shapes: Sequence[Shape]) -> int:
    """Numbers in the broadcast of these shapes, or in a product of matrices, whose leading dimensions broadcast."""
    following = iter(shapes)
    constants = (getattr(module, f"constant_{place}") for place in range(module.places))
    given = [next(following) if c is None else tuple(c.shape) for c in constants]
    if module.function is torch.matmul:
        left, right = given
        return math.prod(torch.broadcast_shapes(left[:-2], right[:-2])) * left[-2] * right[-1]
    return math.prod(torch.broadcast_shapes(*given))
