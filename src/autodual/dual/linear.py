"""Fully connected layers and products with constant matrices."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.dual.base import AffineDual
from autodual.dual.building import parameter, register
from autodual.graph import Call, Operand


@dataclass(frozen=True)
class DualLinear(AffineDual):
    """x W' + b over the last dimension. [SPAD Cor. 1]"""

    weight: Tensor
    bias_vector: Tensor | None = None
    flat: bool = False
    """Whether examples are vectors, so that features are channels."""

    def linear(self, *operands: Tensor) -> Tensor:
        return F.linear(operands[0], self.weight)

    def absolute(self, *operands: Tensor) -> Tensor:
        return F.linear(operands[0], self.weight.abs())

    def bias(self) -> Tensor | None:
        return self.bias_vector

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (coefficients @ self.weight,)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return self.weight.shape[1] + 1, self.weight.shape[0]

    def nonzero_terms(self, *operands: Tensor) -> Tensor | None:
        return (operands[0] > 0).sum(-1, keepdim=True) + 1

    def narrowed(self, results: Tensor | None = None, operands: Tensor | None = None) -> DualLinear | None:
        if not self.flat:
            return None
        weight, bias = self.weight, self.bias_vector
        if results is not None:
            weight, bias = weight[results], None if bias is None else bias[results]
        return replace(self, weight=weight if operands is None else weight[:, operands], bias_vector=bias)


@register(nn.Linear, F.linear)
def _linear(call: Call) -> DualLinear:
    if call.module is not None:
        return DualLinear(call.module.weight, call.module.bias, len(call.shape) == 1)
    weight = call.argument(1, "weight")
    if isinstance(weight, Operand):
        raise ArgumentError(f"{call.path}: the weight of F.linear depends on the input, so the layer is not affine")
    if weight.dim() != 2:
        raise ArgumentError(
            f"{call.path}: the weight of F.linear must have 2 dimensions, got {weight.dim()}; give it one row per score"
        )
    return DualLinear(weight, parameter(call, 2, "bias", None), len(call.shape) == 1)


@dataclass(frozen=True)
class DualMatmulLeft(AffineDual):
    """A x over the second-last dimension, for a constant matrix A."""

    matrix: Tensor

    def linear(self, *operands: Tensor) -> Tensor:
        return self.matrix @ operands[0]

    def absolute(self, *operands: Tensor) -> Tensor:
        return self.matrix.abs() @ operands[0]


@register(torch.matmul, operator.matmul, torch.Tensor.matmul, torch.mm, torch.Tensor.mm)
def _matmul(call: Call) -> AffineDual:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(left, Operand) and isinstance(right, Operand):
        raise ArgumentError(
            f"{call.path}: a product of two tensors that both depend on the input is not affine and has no dual layer"
        )
    if isinstance(left, Operand):
        if right.dim() != 2:
            raise ArgumentError(f"{call.path}: the constant matrix must have 2 dimensions, got {right.dim()}")
        return DualLinear(right.mT)
    if len(right.shape) < 2 or left.dim() != 2:
        raise ArgumentError(
            f"{call.path}: a constant on the left of a product needs 2 dimensions, and examples 2 or more"
        )
    return DualMatmulLeft(left)
