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
from autodual.dual.building import register, weights
from autodual.dual.products import BilinearDual, matrix_product
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
    return DualLinear(weights(call, 1, "weight"), weights(call, 2, "bias", None), len(call.shape) == 1)


@dataclass(frozen=True)
class DualMatmulLeft(AffineDual):
    """A x over the second-last dimension, for a constant matrix A."""

    matrix: Tensor

    def linear(self, *operands: Tensor) -> Tensor:
        return self.matrix @ operands[0]

    def absolute(self, *operands: Tensor) -> Tensor:
        return self.matrix.abs() @ operands[0]


@register(torch.matmul, operator.matmul, torch.Tensor.matmul, torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm)
def _matmul(call: Call) -> AffineDual | BilinearDual:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(left, Operand) and isinstance(right, Operand):
        return matrix_product(call, left.shape, right.shape)
    if isinstance(left, Operand):
        right = right if right.dim() <= 2 else call.constant(right, left.shape)
        if right.dim() == 2:
            return DualLinear(right.mT.to(call.floating(right)))
        return _constant_matrices(call, left.shape, right, from_left=False)
    left = left if left.dim() <= 2 else call.constant(left, right.shape)
    if len(right.shape) < 2:
        raise ArgumentError(f"{call.path}: a constant on the left of a product needs examples of 2 dimensions or more")
    if left.dim() == 2:
        return DualMatmulLeft(left.to(call.floating(left)))
    return _constant_matrices(call, right.shape, left, from_left=True)


def _constant_matrices(call: Call, operand: Shape, constant: Tensor, from_left: bool) -> DualEinsum:
    """A product with one matrix per head, or the like."""
    if constant.dim() != len(operand) or constant.shape[:-2] != operand[:-2]:
        raise ArgumentError(
            f"{call.path}: a constant of shape {tuple(constant.shape)} in a product with examples of shape {operand} is neither one "
            f"matrix nor one per leading dimension; expand one of them, or use einsum"
        )
    heads = "abcdefgh"[: len(operand) - 2]
    constant = constant.to(call.floating(constant))
    if from_left:
        return DualEinsum(f"{heads}yz", f"{heads}xy", f"{heads}xz", constant, (constant.shape[-1], constant.shape[-2]))
    return DualEinsum(f"{heads}xy", f"{heads}yz", f"{heads}xz", constant, (constant.shape[-2], constant.shape[-1]))


@dataclass(frozen=True)
class DualEinsum(AffineDual):
    """einsum of one operand and a constant; letters are those of one example."""

    operand: str
    constant: str
    result: str
    weight: Tensor
    counts: tuple[int, int]
    """Products that an entry of the result is the sum of, and the most that a pulled coefficient is."""

    def linear(self, *operands: Tensor) -> Tensor:
        return self._with(operands[0], self.weight)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self._with(operands[0], self.weight.abs())

    def _with(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum(f"...{self.operand},{self.constant}->...{self.result}", x, weight)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return self.counts[0] + 1, self.counts[1]
