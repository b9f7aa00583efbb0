"""What operators of ONNX are in PyTorch: tables that reading and writing share, and modules where torch.nn has none."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._tensor import Shape

ENTRYWISE: dict[str, tuple[Any, ...]] = {
    "Relu": (nn.ReLU, F.relu, torch.relu, Tensor.relu),
    "Sigmoid": (nn.Sigmoid, torch.sigmoid, Tensor.sigmoid, F.sigmoid),
    "Tanh": (nn.Tanh, torch.tanh, Tensor.tanh, F.tanh),
    "Selu": (nn.SELU, F.selu),
    "HardSwish": (nn.Hardswish, F.hardswish),
    "Mish": (nn.Mish, F.mish),
    "Softsign": (nn.Softsign, F.softsign),
    "Exp": (torch.exp, Tensor.exp),
    "Log": (torch.log, Tensor.log),
    "Sqrt": (torch.sqrt, Tensor.sqrt),
    "Reciprocal": (torch.reciprocal, Tensor.reciprocal),
    "Erf": (torch.erf, Tensor.erf),
    "Sin": (torch.sin, Tensor.sin),
    "Cos": (torch.cos, Tensor.cos),
    "Abs": (torch.abs, Tensor.abs, operator.abs, abs),
    "Neg": (torch.neg, Tensor.neg, operator.neg),
}
"""Operators of one tensor without options: what is read becomes the first, and all of them are written."""
PAIRWISE: dict[str, tuple[Callable[..., Any], ...]] = {
    "Add": (torch.add, Tensor.add, Tensor.add_, operator.add, operator.iadd),
    "Sub": (torch.sub, Tensor.sub, Tensor.sub_, operator.sub, operator.isub),
    "Mul": (torch.mul, Tensor.mul, Tensor.mul_, operator.mul, operator.imul),
    "Div": (torch.div, Tensor.div, Tensor.div_, operator.truediv, operator.itruediv),
    "Pow": (torch.pow, Tensor.pow, operator.pow),
    "MatMul": (torch.matmul, Tensor.matmul, operator.matmul),
    "Max": (torch.maximum,),
    "Min": (torch.minimum,),
}
"""Operators of two tensors."""
REDUCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "ReduceMean": (torch.mean, Tensor.mean),
    "ReduceSum": (torch.sum, Tensor.sum),
    "ReduceMax": (torch.amax, Tensor.amax),
    "ReduceMin": (torch.amin, Tensor.amin),
}
"""Operators over some dimensions."""


class Reshape(nn.Module):
    """Gives every example another shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Index(nn.Module):
    """Selects entries along one dimension: a slice, one position, or a list of positions."""

    def __init__(self, dim: int, positions: slice | int | list[int]) -> None:
        super().__init__()
        self.dim, self.positions = dim, positions

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None),) * self.dim + (self.positions,)]


class Apply(nn.Module):
    """A function of tensors, some of which are constants: `constants` has None in place of every operand."""

    def __init__(
        self, function: Callable[..., Tensor], constants: Sequence[Tensor | None] = (None,), **named: Any
    ) -> None:
        super().__init__()
        self.function, self.named, self.places = function, named, len(constants)
        for place, constant in enumerate(constants):
            self.register_buffer(f"constant_{place}", constant)

    def forward(self, *operands: Tensor) -> Tensor:
        following = iter(operands)
        constants = (getattr(self, f"constant_{place}") for place in range(self.places))
        return self.function(*(next(following) if c is None else c for c in constants), **self.named)


def permute(dims: Sequence[int]) -> Apply:
    """Permutes dimensions; the first stays the batch."""
    return Apply(torch.permute, dims=tuple(dims))


def clamp(low: float | None, high: float | None) -> Apply:
    """min(max(x, low), high), where either end may be missing."""
    return Apply(torch.clamp, min=low, max=high)


def pad(amounts: Sequence[int], mode: str, value: float = 0.0) -> Apply:
    """Padding, or cropping where an amount is negative."""
    return Apply(F.pad, pad=tuple(amounts), mode=mode, value=value if mode == "constant" else None)


def reduce(function: Callable[..., Tensor], dims: Sequence[int], keep: bool) -> Apply:
    """Mean, sum, maximum or minimum over dimensions."""
    return Apply(function, dim=tuple(dims), keepdim=keep)


class Concat(Apply):
    """Operands and constants side by side; a constant is repeated for every example."""

    def __init__(self, dim: int, constants: Sequence[Tensor | None]) -> None:
        super().__init__(torch.cat, constants)
        self.dim = dim

    def forward(self, *operands: Tensor) -> Tensor:
        following, batch = iter(operands), operands[0].shape[0]
        constants = (getattr(self, f"constant_{place}") for place in range(self.places))
        return torch.cat([next(following) if c is None else c.expand(batch, *c.shape) for c in constants], self.dim)


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
