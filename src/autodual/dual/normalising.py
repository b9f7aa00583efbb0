"""Statistics of an example, and normalisation by them: sums, means, extremes, variances, lengths; layer, group, instance, RMS norms.

With the mean m, c = x - m and v = mean c^2, normalised values are c / sqrt(v + eps). Squares are never negative, so v + eps is at
least eps, whatever bounds say: the root is taken of the part above (`power_above`). And of n values, c_i^2 <= (n - 1) v: the others
add up to -c_i, so their squares add up to c_i^2 / (n - 1) at least, and n v >= c_i^2 n / (n - 1). So no normalised value is larger
than sqrt(n - 1), or than sqrt(n) where no mean was subtracted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._tensor import Shape
from autodual.dual.arithmetic import DualSum
from autodual.dual.base import AffineDual, register, rewrite
from autodual.dual.convex import power_above, recorded
from autodual.dual.products import BilinearDual, elementwise_product
from autodual.dual.shape import DualPartialSums
from autodual.graph import Call, depends

# Sums, means, and extremes, which are rewritten with ReLU.


@register(torch.mean, torch.Tensor.mean)
def _mean(call: Call) -> DualPartialSums:
    dims, keep = _reduced_dims(call)
    return DualPartialSums(lambda x: x.mean(dims, keepdim=keep), counts=(_together(call, dims), 1))


@register(torch.sum, torch.Tensor.sum)
def _sum(call: Call) -> DualPartialSums:
    dims, keep = _reduced_dims(call)
    return DualPartialSums(lambda x: x.sum(dims, keepdim=keep), counts=(_together(call, dims), 1))


def _reduced_dims(call: Call) -> tuple[list[int], bool]:
    given = call.argument(1, "dim", 0)
    dims = given if isinstance(given, list | tuple) else (given,)
    return [call.dimension(d) + 1 for d in dims], call.argument(2, "keepdim", False)


def _together(call: Call, dims: list[int]) -> int:
    return math.prod(call.operand.shape[d - 1] for d in dims)


@rewrite(torch.maximum, torch.Tensor.maximum)
def maximum(input: Any, other: Any) -> Any:
    """max(a, b) = a + relu(b - a)."""
    return input + torch.relu(other - input)


@rewrite(torch.minimum, torch.Tensor.minimum)
def minimum(input: Any, other: Any) -> Any:
    """min(a, b) = a - relu(a - b)."""
    return input - torch.relu(input - other)


class Extremes(NamedTuple):
    """What max and min along a dimension return; the indices cannot be bounded, and are refused where they are used."""

    values: Any
    indices: Any


@rewrite(torch.max, torch.Tensor.max)
def _max(input: Any, *args: Any, **named: Any) -> Any:
    if _is_pair(args, named):
        return maximum(input, *args, **named)
    along = _along(input, args, named)
    return NotImplemented if along is None else Extremes(_amax(input, *along), input.argmax(*along))


@rewrite(torch.min, torch.Tensor.min)
def _min(input: Any, *args: Any, **named: Any) -> Any:
    if _is_pair(args, named):
        return minimum(input, *args, **named)
    along = _along(input, args, named)
    return NotImplemented if along is None else Extremes(-_amax(-input, *along), input.argmin(*along))


def _is_pair(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether two tensors are compared with each other."""
    given = (*args, *named.values())
    return len(given) == 1 and hasattr(given[0], "shape")


def _along(input: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, bool] | None:
    """The dimension, and whether to keep it, of a call for floating-point extremes along one; None for another call."""
    values = dict(zip(("dim", "keepdim"), args, strict=False)) | named
    known = len(args) <= 2 and set(values) <= {"dim", "keepdim"} and isinstance(values.get("dim"), int)
    if not known or not input.is_floating_point():
        return None
    return values["dim"], values.get("keepdim", False)


@rewrite(torch.amax, torch.Tensor.amax)
def _amax(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    dims = sorted((d % input.dim() for d in ((dim,) if isinstance(dim, int) else dim)), reverse=True)
    for d in dims:
        input = tournament([input.narrow(d, i, 1) for i in range(input.shape[d])])
        input = input if keepdim else input.squeeze(d)
    return input if dims else NotImplemented  # no dimension means all of them, the batch included


@rewrite(torch.amin, torch.Tensor.amin)
def _amin(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    highest = _amax(-input, dim, keepdim)
    return NotImplemented if highest is NotImplemented else -highest


def tournament(pieces: list[Any]) -> Any:
    """The largest of several values, by comparing pairs, the winners again, and so on."""
    while len(pieces) > 1:
        paired = [maximum(a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=False)]
        pieces = paired + pieces[len(paired) * 2 :]
    return pieces[0]


# Variances and lengths.


def variance_of(squares: Tensor, x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """mean of (x - mean)^2, from these squares. For rewrites."""
    return squares.mean(dims, keepdim=True)


@dataclass(frozen=True)
class DualVariance(AffineDual):
    """The mean of squares of differences from the mean. PyTorch may compute mean x^2 - (mean x)^2 instead, which cancels more."""

    dims: tuple[int, ...]
    count: int

    def linear(self, *operands: Tensor) -> Tensor:
        return operands[0].mean(self.dims, keepdim=True)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        rows = len(coefficients)
        return (coefficients / self.count).expand(rows, *shapes[0]), coefficients.new_zeros(rows, *shapes[1])

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return self.count + 2, 1

    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        """PyTorch may subtract the square of a sum of x from a sum of squares of x: both are rounded, in proportion to x^2.

        They may overflow where the variance does not.
        """
        squares = operands[1].square().mean(self.dims, keepdim=True)
        error = grain * (2 + self.count / 4) * squares
        return torch.where(2 * self.count**2 * squares <= torch.finfo(torch.float32).max, error, torch.inf)


@register(variance_of)
def _variance_of(call: Call) -> DualVariance:
    dims = tuple(call.dimension(d) + 1 for d in call.argument(2, "dims"))
    return DualVariance(dims, math.prod(call.operand.shape[d - 1] for d in dims))


def from_mean(x: Tensor, mean: Tensor) -> Tensor:
    """x - mean, on the way to what is divided by the standard deviation. For rewrites."""
    return x - mean


@dataclass(frozen=True)
class DualFromMean(DualSum):
    """x - mean. PyTorch may add up squares of x itself, or of means of some of it, which overflow where the result does not."""

    weights: tuple[float, ...] = (1.0, -1.0)

    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        x, mean = operands
        squares = 2 * (x[0].numel() // mean[0].numel()) * x.square()
        return torch.where(squares <= torch.finfo(torch.float32).max, 0.0, torch.inf).to(x)


@register(from_mean)
def _from_mean(call: Call) -> DualFromMean:
    return DualFromMean()


def limited_product(x: Tensor, y: Tensor, limit: float) -> Tensor:
    """x * y, which is known to be no larger than `limit` in size. For rewrites."""
    return x * y


@register(limited_product)
def _limited_product(call: Call) -> BilinearDual:
    left, right = call.operands
    return replace(elementwise_product(call, left.shape, right.shape), limit=float(call.argument(2, "limit")))  # type: ignore[type-var]


def standardised(x: Any, dims: tuple[int, ...], eps: float, by_sums: bool = False) -> Any:
    """(x - mean) / sqrt(variance + eps) over some dimensions. by_sums: whether PyTorch may compute the variance from sums of x^2."""
    apart = recorded(from_mean, x, x.mean(dims, keepdim=True))
    squares = torch.square(apart)
    variance = recorded(variance_of, squares, x, dims) if by_sums else squares.mean(dims, keepdim=True)
    inverse = recorded(power_above, variance + eps, -0.5, eps)
    return recorded(limited_product, apart, inverse, math.sqrt(math.prod(x.shape[d] for d in dims) - 1))


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@rewrite(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *rest: Any
) -> Any:
    if not depends(input) or eps <= 0:
        return NotImplemented
    dims = tuple(range(input.dim() - len(tuple(normalized_shape)), input.dim()))
    return NotImplemented if 0 in dims else _scaled(standardised(input, dims, eps), weight, bias)


@rewrite(nn.LayerNorm)
def _layer_norm_module(module: Any, input: Any) -> Any:
    return layer_norm(input, module.normalized_shape, module.weight, module.bias, module.eps)


@rewrite(F.rms_norm)
def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    dims = tuple(range(input.dim() - len(tuple(normalized_shape)), input.dim()))
    if not depends(input) or eps <= 0 or 0 in dims:
        return NotImplemented
    squares = torch.square(input).mean(dims, keepdim=True)
    inverse, count = recorded(power_above, squares + eps, -0.5, eps), math.prod(input.shape[d] for d in dims)
    return _scaled(recorded(limited_product, input, inverse, math.sqrt(count)), weight, None)


@rewrite(nn.RMSNorm)
def _rms_norm_module(module: Any, input: Any) -> Any:
    return rms_norm(input, module.normalized_shape, module.weight, module.eps)


@rewrite(F.group_norm)
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if not depends(input) or eps <= 0:
        return NotImplemented
    grouped = input.reshape(input.shape[0], num_groups, -1)
    found = standardised(grouped, (2,), eps, by_sums=True).reshape(input.shape)
    columns = (-1, *[1] * (input.dim() - 2))
    return _scaled(found, *(None if p is None else p.reshape(columns) for p in (weight, bias)))


@rewrite(nn.GroupNorm)
def _group_norm_module(module: Any, input: Any) -> Any:
    return group_norm(input, module.num_groups, module.weight, module.bias, module.eps)


@rewrite(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def _instance_norm_module(module: Any, input: Any) -> Any:
    """With the statistics of the example; with kept ones it is batch normalisation."""
    rank = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
    dims = next(r for kind, r in rank.items() if isinstance(module, kind))
    if input.dim() != dims or not depends(input):
        return NotImplemented
    if module.track_running_stats and not module.training:
        return F.batch_norm(
            input, module.running_mean, module.running_var, module.weight, module.bias, False, 0.0, module.eps
        )
    return group_norm(input, input.shape[1], module.weight, module.bias, module.eps)


@rewrite(F.instance_norm)
def _instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not depends(input) or not use_input_stats or running_mean is not None:
        return NotImplemented
    return group_norm(input, input.shape[1], weight, bias, eps)


# Variances and lengths.


def _statistics(input: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[int, ...], float, bool] | None:
    """The dimensions, the correction and whether to keep dimensions, of a call of var or std."""
    given = dict(zip(("dim", "unbiased", "keepdim"), args, strict=False)) | named
    if args and isinstance(args[0], bool):
        return None
    dims, keep = given.pop("dim", given.pop("axis", None)), given.pop("keepdim", given.pop("keepdims", False))
    correction = given.pop("correction", None)
    unbiased = given.pop("unbiased", True)
    if given or dims is None or not depends(input):
        return None
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    places = tuple(d % input.dim() for d in dims)
    correction = (1 if unbiased else 0) if correction is None else correction
    count = math.prod(input.shape[d] for d in places)
    return None if 0 in places or count <= correction else (places, correction, keep)


def _variance(input: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, bool, tuple[int, ...]] | None:
    found = _statistics(input, args, named)
    if found is None:
        return None
    dims, correction, keep = found
    count = math.prod(input.shape[d] for d in dims)
    squares = torch.square(input - input.mean(dims, keepdim=True))
    return squares.sum(dims, keepdim=True) / (count - correction), keep, dims


def _without(x: Any, keep: bool, dims: tuple[int, ...]) -> Any:
    for d in sorted(() if keep else dims, reverse=True):
        x = x.squeeze(d)
    return x


@rewrite(torch.var, torch.Tensor.var)
def _var(input: Any, *args: Any, **named: Any) -> Any:
    found = _variance(input, args, named)
    return NotImplemented if found is None else _without(*found)


@rewrite(torch.std, torch.Tensor.std)
def _std(input: Any, *args: Any, **named: Any) -> Any:
    found = _variance(input, args, named)
    if found is None:
        return NotImplemented
    return _without(recorded(power_above, found[0], 0.5, 0.0), *found[1:])


@rewrite(torch.var_mean)
def _var_mean(input: Any, *args: Any, **named: Any) -> Any:
    found = _variance(input, args, named)
    return NotImplemented if found is None else (_without(*found), input.mean(found[2], keepdim=found[1]))


@rewrite(torch.std_mean)
def _std_mean(input: Any, *args: Any, **named: Any) -> Any:
    variance, mean = (found := _variance(input, args, named)) and found[0], None
    if found is None:
        return NotImplemented
    mean = input.mean(found[2], keepdim=found[1])
    return _without(recorded(power_above, variance, 0.5, 0.0), *found[1:]), mean


def _length(input: Any, p: Any, dim: Any) -> Any:
    """The l1, l2 or l-infinity norm along dimensions, which are kept; None for another call."""
    dims = (dim,) if isinstance(dim, int) else dim
    if not depends(input) or not isinstance(dims, list | tuple) or any(d % input.dim() == 0 for d in dims):
        return None
    dims = tuple(dims)
    if p in (2, "fro"):
        return recorded(power_above, torch.square(input).sum(dims, keepdim=True), 0.5, 0.0)
    if p == 1:
        return input.abs().sum(dims, keepdim=True)
    return input.abs().amax(dims, keepdim=True) if p == math.inf else None


@rewrite(torch.norm, torch.Tensor.norm)
def _norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Any:
    length = None if dtype is not None or out is not None else _length(input, 2 if p is None else p, dim)
    dims = (dim,) if isinstance(dim, int) else dim
    return NotImplemented if length is None else _without(length, keepdim, tuple(d % input.dim() for d in dims))


@rewrite(torch.linalg.vector_norm, torch.linalg.norm)
def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if ord is not None and not isinstance(dim, int):
        return NotImplemented  # torch.linalg.norm of two dimensions is that of a matrix
    length = None if dtype is not None else _length(x, 2 if ord is None else ord, dim)
    return (
        NotImplemented
        if length is None
        else _without(length, keepdim, (dim % x.dim(),) if isinstance(dim, int) else ())
    )


@rewrite(F.normalize)
def _normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    length = None if out is not None or eps <= 0 else _length(input, p, dim)
    if length is None:
        return NotImplemented
    return input * recorded(power_above, length.clamp(min=eps), -1.0, eps)
