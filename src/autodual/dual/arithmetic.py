"""Affine arithmetic: sums, products with numbers and constant matrices, fully connected layers, and normalisation by constants."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape, is_being_captured
from autodual.dual.base import AffineDual, Window, factor, parameter, register, rewrite, spectral_norm, weights
from autodual.dual.products import BilinearDual, elementwise_product, matrix_product
from autodual.graph import Call, Operand, depends

# Sums, differences, and products with constants.

FOLDING = 8 * torch.finfo(torch.float64).eps
"""Relative error of constants that are folded in float64, in proportion to the terms that they are the sum of."""


@dataclass(frozen=True)
class DualScale(AffineDual):
    """weight * x + shift with constants that broadcast: batch norm, normalisation, negation, division."""

    weight: Tensor | float
    shift: Tensor | None
    shape: Shape
    """Shape of the result, which a broadcast may make larger than the operand."""
    cancelling: Tensor | None = None
    """Total size of the terms that the shift is the sum of, if it was folded (in float64) from several; they may cancel."""
    faint: bool = False
    """Whether some weight that was folded is so small that float32 has only denormal numbers for it."""

    channelwise = True

    def linear(self, *operands: Tensor) -> Tensor:
        return (operands[0] * self.weight).expand(operands[0].shape[0], *self.shape)

    def absolute(self, *operands: Tensor) -> Tensor:
        return (operands[0] * _size(self.weight)).expand(operands[0].shape[0], *self.shape)

    def bias(self) -> Tensor | None:
        return self.shift

    def constant_error(self, *operands: Tensor) -> Tensor | None:
        """The shift, folded in float64, is wrong by a few units in the last place of its terms."""
        return self._folding_error(FOLDING, operands[0].dtype, operands[0])

    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        """PyTorch folds as well, in the dtype of the network."""
        return self._folding_error(grain, torch.float32, operands[0])

    def _folding_error(self, grain: float, dtype: torch.dtype, x: Tensor) -> Tensor | None:
        if self.cancelling is not None:
            found = grain * self.cancelling.to(x)
            return found + x * _least(dtype) if self.faint else found
        lost, tiny = self._lost(dtype), torch.finfo(x.dtype).tiny
        return None if lost == 0 else (x * (lost / tiny) * tiny).expand(len(x), *self.shape)  # lost is no normal number

    def _lost(self, dtype: torch.dtype) -> float:
        """What a factor loses in a dtype that has only denormal numbers for it."""
        if isinstance(self.weight, Tensor) and (self.weight.dim() > 0 or self.weight.requires_grad):
            return 0.0
        given = float(self.weight)
        return abs(given - torch.tensor(given, dtype=dtype).item()) if abs(given) < torch.finfo(dtype).tiny else 0.0

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        if shapes[0] != self.shape:
            return super().transpose(coefficients, shapes)
        return (coefficients * self.weight,)

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        return Window.same(len(self.shape) - 1) if self.one_to_one(shapes) else None

    def one_to_one(self, shapes: tuple[Shape, ...]) -> bool:
        return shapes[0] == self.shape

    def narrowed(self, results: Tensor | None = None, operands: Tensor | None = None) -> DualScale | None:
        if results is None or not isinstance(self.weight, Tensor) or self.weight.dim() != len(self.shape):
            return None
        weight = self.weight if self.weight.shape[0] == 1 else self.weight[results]
        return replace(self, weight=weight, shift=None, shape=(len(results), *self.shape[1:]))

    def cropped(self, shape: Shape) -> DualScale | None:
        if isinstance(self.weight, Tensor):
            per_position = self.weight.shape[1:] if self.weight.dim() == len(self.shape) else self.weight.shape
            if any(n != 1 for n in per_position):
                return None
        return replace(self, shift=None, shape=shape)


def _least(dtype: torch.dtype) -> float:
    """What a folded factor may lose that is so small that a dtype has only denormal numbers for it."""
    return 2 * torch.finfo(dtype).tiny * torch.finfo(dtype).eps


def _size(weight: Tensor | float) -> Tensor | float:
    return weight.abs() if isinstance(weight, Tensor) else abs(weight)


@dataclass(frozen=True)
class DualSum(AffineDual):
    """A weighted sum of operands: a residual connection. [SPAD app. B.2]"""

    weights: tuple[float, ...]

    channelwise = True

    def linear(self, *operands: Tensor) -> Tensor:
        return self._sum(operands, self.weights)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self._sum(operands, tuple(abs(w) for w in self.weights))

    @staticmethod
    def _sum(operands: tuple[Tensor, ...], weights: tuple[float, ...]) -> Tensor:
        total = operands[0] if weights[0] == 1 else weights[0] * operands[0]
        for operand, weight in zip(operands[1:], weights[1:], strict=True):
            total = torch.add(total, operand, alpha=weight)
        return total

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        if any(shape != coefficients.shape[1:] for shape in shapes):
            return super().transpose(coefficients, shapes)
        return tuple(coefficients if w == 1 else w * coefficients for w in self.weights)

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        return Window.same(len(shapes[0]) - 1) if len(set(shapes)) == 1 else None

    def narrowed(self, results: Tensor | None = None, operands: Tensor | None = None) -> DualSum | None:
        return None if results is None else self

    def cropped(self, shape: Shape) -> DualSum:
        return self


_ADD = (operator.add, operator.iadd, torch.add, torch.Tensor.add, torch.Tensor.add_)
_SUBTRACT = (operator.sub, operator.isub, torch.sub, torch.subtract, torch.Tensor.sub, torch.Tensor.sub_)
_MULTIPLY = (operator.mul, operator.imul, torch.mul, torch.multiply, torch.Tensor.mul, torch.Tensor.mul_)
_DIVIDE = (
    operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide, torch.Tensor.div, torch.Tensor.div_,
    torch.Tensor.true_divide,
)  # fmt: skip
_NEGATE = (operator.neg, torch.neg, torch.negative, torch.Tensor.neg)


@register(*_ADD)
def _add(call: Call) -> AffineDual:
    return _combine(call, 1.0)


@register(*_SUBTRACT)
def _subtract(call: Call) -> AffineDual:
    return _combine(call, -1.0)


@register(torch.rsub)
def _reverse_subtract(call: Call) -> AffineDual:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    swapped = _combine(replace(call, module=None, args=(right, left)), -1.0)
    # Operands stay in the call's order.
    return DualSum(swapped.weights[::-1]) if isinstance(swapped, DualSum) else swapped


def _combine(call: Call, sign: float) -> AffineDual:
    """left + sign * alpha * right."""
    if len(call.args) > 2:
        raise ArgumentError(
            f"{call.path}: is called with three positional arguments, an order that PyTorch has given up; write alpha=..."
        )
    left, right = call.argument(0, "input"), call.argument(1, "other")
    weight = sign * factor(call, parameter(call, 2, "alpha", 1.0), "alpha")
    if isinstance(left, Operand) and isinstance(right, Operand):
        return DualSum((1.0, weight))
    if isinstance(left, Operand):
        return DualScale(1.0, _number(call, right, left) * weight, call.shape)
    return DualScale(weight, _number(call, left, right), call.shape)


@register(*_MULTIPLY)
def _multiply(call: Call) -> AffineDual | BilinearDual:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(left, Operand) and isinstance(right, Operand):
        return elementwise_product(call, left.shape, right.shape)
    operand, constant = (left, right) if isinstance(left, Operand) else (right, left)
    return DualScale(_number(call, constant, operand), None, call.shape)


@rewrite(operator.mul, torch.mul, torch.multiply, torch.Tensor.mul)
def _square(input: Any, other: Any) -> Any:
    """A value times itself is a square, which is never negative."""
    same = depends(input) and depends(other) and input.node is other.node
    return torch.square(input) if same else NotImplemented


@rewrite(operator.truediv, torch.div, torch.divide, torch.true_divide, torch.Tensor.div, torch.Tensor.true_divide)
def _quotient(input: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    """x / y = x * (1 / y), where y depends on the input."""
    if not depends(other) or rounding_mode is not None:
        return NotImplemented
    return torch.reciprocal(other) * input


@register(*_DIVIDE)
def _divide(call: Call) -> AffineDual:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(right, Operand) or call.kwargs.get("rounding_mode") is not None:
        raise ArgumentError(
            f"{call.path}: only a division without rounding has a dual layer, and in place only one by a constant; write x = x / y"
        )
    divisor = _number(call, right, left)
    narrower = divisor.to(call.floating(divisor))
    if not is_being_captured(narrower) and not bool(narrower.isfinite().all()):
        raise ArgumentError(
            f"{call.path}: divides by {divisor.abs().max().item():g}, which is infinite in {narrower.dtype}, so that the "
            f"result is zero as it runs; multiply by the inverse, or divide twice"
        )
    inverse = 1 / divisor.double()  # never in less: an integer's would be taken in float32
    return DualScale(inverse if inverse.dim() == 0 else inverse.to(call.floating(divisor)), None, call.shape)


@register(*_NEGATE)
def _negate(call: Call) -> AffineDual:
    return DualScale(-1.0, None, call.shape)


@register(
    nn.Identity, torch.Tensor.contiguous, torch.Tensor.clone, torch.clone, operator.pos, torch.Tensor.float,
    torch.Tensor.double, torch.Tensor.to,
)  # fmt: skip
def _identity(call: Call) -> AffineDual:
    return DualScale(1.0, None, call.shape)


@rewrite(torch.Tensor.to)
def _to(input: Any, *args: Any, **named: Any) -> Any:
    """The result does not depend on the values of a tensor that another is converted like, only on its dtype and device."""
    other: Any = args[0] if args else named.get("other")
    if not hasattr(other, "shape"):
        return NotImplemented
    named = {name: value for name, value in named.items() if name != "other"}
    return input.to(other.device, other.dtype, *args[1:], **named)


@rewrite(torch.Tensor.type_as)
def _type_as(input: Any, other: Any) -> Any:
    return input.to(other.device, other.dtype)


@register(
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    torch.nn.functional.dropout, torch.nn.functional.dropout2d, torch.dropout,
)  # fmt: skip
def _dropout(call: Call) -> AffineDual:
    m: Any = call.module
    active = m.training if m is not None else call.kwargs.get("train", call.argument(2, "training", True))
    if active and float(parameter(call, 1, "p", 0.5)) > 0:
        raise ArgumentError(
            f"{call.path}: dropout is active, so the network is random and a bound would hold for one draw only; "
            f"call model.eval() before certifying, or set p=0 for robust training"
        )
    return DualScale(1.0, None, call.shape)


def _number(call: Call, value: Any, operand: Operand) -> Any:
    if isinstance(value, Tensor):
        constant = call.constant(value, operand.shape)
        alone = constant.dim() == 0 and constant.is_floating_point()
        return constant if alone else constant.to(call.floating(constant))
    return torch.tensor(float(value), dtype=torch.float64)  # exact, and as a scalar it leaves the operand's dtype alone


# Batch normalisation with fixed statistics: an affine map. [SPAD app. B.5, with gamma in the shift]


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(call: Call) -> DualScale:
    m: Any = call.module
    if not m.training and m.running_mean is not None:
        return _scale(call, m.running_mean, m.running_var, m.weight, m.bias, m.eps)
    if call.clean is None:
        raise ArgumentError(
            f"{call.path}: batch normalisation uses the statistics of the batch, so examples would depend on one another; "
            f"call model.eval() before certifying (the robust loss takes the clean batch's statistics as constants)"
        )
    m(call.clean[0].detach())  # moves the running statistics, as a forward pass in training does
    mean, variance = _statistics(call.clean[0])
    return _scale(call, mean, variance, m.weight, m.bias, m.eps)


@register(F.batch_norm)
def _functional_batch_norm(call: Call) -> DualScale:
    if call.argument(5, "training", False):
        raise ArgumentError(
            f"{call.path}: F.batch_norm(training=True) makes examples depend on one another; call model.eval()"
        )
    mean, variance = parameter(call, 1, "running_mean"), parameter(call, 2, "running_var")
    weight, bias = parameter(call, 3, "weight", None), parameter(call, 4, "bias", None)
    return _scale(call, mean, variance, weight, bias, call.argument(7, "eps", 1e-5))


def _statistics(batch: Tensor) -> tuple[Tensor, Tensor]:
    dims = [d for d in range(batch.dim()) if d != 1]
    variance, mean = torch.var_mean(batch, dims, correction=0)
    return mean, variance


def _scale(
    call: Call, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> DualScale:
    """slope * x + shift with slope = weight / sqrt(variance + eps) and shift = bias - mean * slope.

    With running statistics, both are folded in float64: a large mean makes the shift cancel. PyTorch folds in the network's dtype, so
    what a faint slope loses there, the mean multiplies. A training step, whose bounds are no certificate, folds the statistics of its
    batch in their own dtype.
    """
    dtype = call.floating(variance)
    if call.clean is None:
        if not is_being_captured(variance):
            _check_variance(call, variance, eps)
        mean, variance = mean.double(), variance.double()
        weight, bias = (None if p is None else p.double() for p in (weight, bias))
    slope = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    shift = -mean * slope if bias is None else bias - mean * slope
    columns = (-1, *[1] * (len(call.shape) - 1))
    folded = DualScale(slope.to(dtype).reshape(columns), shift.to(dtype).reshape(columns), call.shape)
    if call.clean is not None:
        return folded
    with torch.no_grad():
        terms = (mean * slope).abs() if bias is None else bias.abs() + (mean * slope).abs()
        faint = (slope != 0) & (slope.abs() < torch.finfo(torch.float32).tiny)
        terms = terms + torch.where(faint, mean.abs() * (_least(torch.float32) / FOLDING), 0.0)
    return replace(folded, cancelling=terms.reshape(columns), faint=is_being_captured(faint) or bool(faint.any()))


def _check_variance(call: Call, variance: Tensor, eps: float) -> None:
    """Refuse variances whose sum with eps overflows as the model runs, or is so small that only some digits are held."""
    running, exact = (variance + eps).double(), variance.double() + eps
    wrong = ~((running - exact).abs() <= 4 * torch.finfo(variance.dtype).eps * exact.abs())
    if bool((wrong & exact.isfinite()).any()):
        example = exact[wrong][0].item()
        raise ArgumentError(
            f"{call.path}: variance + eps is {example:.3g}, which {variance.dtype} cannot hold: batch normalisation divides by "
            f"another number as it runs; choose a larger eps, or smaller units"
        )


# Fully connected layers, and products with constant matrices.


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

    def operator_norms(self, shapes: tuple[Shape, ...], like: Tensor) -> tuple[float, ...]:
        return (spectral_norm(self.weight.detach()),)

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
