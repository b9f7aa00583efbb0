"""Convolutions in one, two and three dimensions, and their transposes."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._tensor import Shape, channels_inside, channels_lie_inside
from autodual.dual.base import AffineDual, Window
from autodual.dual.building import register, rewrite, weights
from autodual.graph import Call
from autodual.kernels.narrow import Geometry, convolve, is_narrow, is_narrow_back, spread

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
FEW_POSITIONS = 16
"""Up to so many positions, a convolution is fastest as one matrix."""
MANY_ROWS = 256
"""From so many rows on, a CPU is faster with a smaller matrix for each line of positions."""
FEW_CHANNELS = 4
"""Up to so many channels, a CPU is faster with a matrix product per tap than with its transposed convolution (not backwards)."""
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True)
class _Convolution(AffineDual):
    """What both directions share: weights, and one bias per channel."""

    weight: Tensor
    bias_vector: Tensor | None

    @property
    def dims(self) -> int:
        return self.weight.dim() - 2

    def linear(self, *operands: Tensor) -> Tensor:
        return self._convolve(operands[0], self.weight)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self._convolve(operands[0], self.weight.abs())

    @abstractmethod
    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor: ...

    def bias(self) -> Tensor | None:
        return None if self.bias_vector is None else self.bias_vector.reshape(-1, *[1] * self.dims)


@dataclass(frozen=True)
class DualConv(_Convolution):
    """Cross-correlation with zero padding: stride, dilation, groups, and sizes that the stride does not divide."""

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int
    matrices: dict[tuple[int, ...], Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)
    """The layer as a matrix, per shape of a patch and order in memory, once it has been needed."""

    @property
    def reach(self) -> Shape:
        """Distance between the first and the last tap of the kernel."""
        return tuple((k - 1) * d for k, d in zip(self.weight.shape[2:], self.dilation, strict=True))

    @property
    def geometry(self) -> Geometry:
        return self.stride, self.padding, self.dilation

    def apply(self, *operands: Tensor) -> Tensor:
        if is_narrow(operands[0], self.weight, self.groups):
            return convolve(operands[0], self.weight, self.bias_vector, self.geometry)
        return super().apply(*operands)

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        if is_narrow(x, weight, self.groups):
            return convolve(x, weight, None, self.geometry)
        return _CONV[self.dims](x, weight, None, *self.geometry, self.groups)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        shape = shapes[0]
        if self.groups == 1 and math.prod(coefficients.shape[2:]) <= FEW_POSITIONS:
            return (self._as_matrix(coefficients, shape),)
        return (self._spread(coefficients, shape),)

    def _spread(self, coefficients: Tensor, shape: Shape) -> Tensor:
        thin = self.groups == 1 and shape[0] <= FEW_CHANNELS and coefficients.device.type == "cpu"
        if thin and not torch.is_grad_enabled():
            return self._scatter(coefficients, shape[1:])
        return self._transposed(coefficients, shape[1:])

    def _transposed(self, coefficients: Tensor, size: Shape) -> Tensor:
        if is_narrow_back(coefficients, self.weight, self.groups):
            return spread(coefficients, self.weight, size, self.geometry)
        if coefficients.is_cuda and coefficients.dtype == torch.float64 and self.dims == 2 and self.groups == 1:
            return self._folded(coefficients, size)
        left_over = tuple(
            n - ((m - 1) * s - 2 * p + r + 1)
            for n, m, s, p, r in zip(size, coefficients.shape[2:], self.stride, self.padding, self.reach, strict=True)
        )
        return _CONV_TRANSPOSE[self.dims](
            channels_inside(coefficients),
            self.weight,
            None,
            self.stride,
            self.padding,
            left_over,
            self.groups,
            self.dilation,
        )

    def _folded(self, coefficients: Tensor, size: Shape) -> Tensor:
        """`transpose` in float64 on a GPU, which multiplies matrices fast but convolves slowly: one product, its taps added up."""
        taps = self.weight.flatten(1).T @ coefficients.flatten(2)
        return F.fold(taps, size, self.weight.shape[2:], self.dilation, self.padding, self.stride)

    def _as_matrix(self, coefficients: Tensor, shape: Shape) -> Tensor:
        """`transpose` for a patch of a few positions: the whole layer is one matrix.

        Most of it is zero where a patch is much larger than the kernel; the matrix of one line of positions has fewer zeros.
        """
        lines, depth = coefficients.shape[2], self.reach[0] + 1
        apart = lines > 1 and self.padding[0] == 0 and shape[1] >= 2 * depth and len(coefficients) >= MANY_ROWS
        if not apart or torch.is_grad_enabled() or coefficients.device.type != "cpu":
            return self._times_matrix(coefficients, shape)
        whole = coefficients.new_zeros(len(coefficients), *shape[1:], shape[0])
        matrix = self._matrix(coefficients[:, :, :1], (shape[0], depth, *shape[2:]), inside=True)
        for line in range(lines):
            start = line * self.stride[0]
            part = _flat(coefficients[:, :, line : line + 1], inside=True)
            whole[:, start : start + depth].flatten(1).addmm_(part, matrix)
        return whole.movedim(-1, 1)

    def _times_matrix(self, coefficients: Tensor, shape: Shape) -> Tensor:
        """The product, in the order in which the coefficients lie in memory: nothing is copied."""
        inside = channels_lie_inside(coefficients)
        return _shaped(_flat(coefficients, inside) @ self._matrix(coefficients, shape, inside), shape, inside)

    def _matrix(self, like: Tensor, shape: Shape, inside: bool) -> Tensor:
        """The matrix for patches like these, flattened as `_flat` does; so is its product, which has this shape."""
        patch = tuple(like.shape[1:])
        key = (*patch, *shape, inside)
        matrix = self.matrices.get(key)
        if matrix is None:
            basis = torch.eye(math.prod(patch), dtype=like.dtype, device=like.device)
            matrix = _flat(self._spread(_shaped(basis, patch, inside), shape), inside)
            if not torch.is_grad_enabled():  # a checkpoint must find the same operations when it runs again
                self.matrices[key] = matrix
        return matrix

    def _scatter(self, coefficients: Tensor, size: Shape) -> Tensor:
        """`transpose` for few channels: one matrix product for all taps, each then added at its place."""
        inputs, *kernel = self.weight.shape[1:]
        count, _, *space = coefficients.shape
        matrix = self.weight.movedim(0, -1).movedim(0, -2).reshape(-1, self.weight.shape[0])
        side_by_side = channels_lie_inside(coefficients)
        values = coefficients.movedim(1, -1).flatten(1, -2).mT if side_by_side else coefficients.flatten(2)
        taps = torch.bmm(matrix.expand(count, *matrix.shape), values)
        taps = taps.unflatten(1, (math.prod(kernel), inputs)).unflatten(-1, tuple(space))
        reached = [(m - 1) * s + r + 1 for m, s, r in zip(space, self.stride, self.reach, strict=True)]
        padded = [max(a, n + p) for a, n, p in zip(reached, size, self.padding, strict=True)]
        whole = coefficients.new_zeros(count, inputs, *padded)
        for tap, position in enumerate(itertools.product(*(range(k) for k in kernel))):
            starts = [t * d for t, d in zip(position, self.dilation, strict=True)]
            place = [slice(a, a + (m - 1) * s + 1, s) for a, m, s in zip(starts, space, self.stride, strict=True)]
            whole[(slice(None), slice(None), *place)].add_(taps[:, tap])
        inside = [slice(p, p + n) for p, n in zip(self.padding, size, strict=True)]
        return whole[(slice(None), slice(None), *inside)]

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return self.weight[0].numel() + 1, self.weight[:, 0].numel()

    def nonzero_terms(self, *operands: Tensor) -> Tensor | None:
        alive = (operands[0].flatten(2).sum(2) != 0).sum(1).reshape(-1, *[1] * (self.dims + 1))
        return alive * math.prod(self.weight.shape[2:]) + 1

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        low = tuple(-p for p in self.padding)
        return Window(self.stride, low, tuple(a + r for a, r in zip(low, self.reach, strict=True)))

    def narrowed(self, results: Tensor | None = None, operands: Tensor | None = None) -> DualConv | None:
        if self.groups != 1:
            return None
        weight, bias = self.weight, self.bias_vector
        if results is not None:
            weight, bias = weight[results], None if bias is None else bias[results]
        return replace(self, weight=weight if operands is None else weight[:, operands], bias_vector=bias)

    def cropped(self, shape: Shape) -> DualConv:
        return replace(self, padding=(0,) * self.dims)


def _flat(patches: Tensor, inside: bool) -> Tensor:
    """[M, C, *space] as [M, F]; inside: with the channels of a position next to each other."""
    return (patches.movedim(1, -1) if inside else patches).flatten(1)


def _shaped(values: Tensor, shape: Shape, inside: bool) -> Tensor:
    """[M, F] as [M, *shape]: undoes `_flat`."""
    return values.unflatten(1, (*shape[1:], shape[0])).movedim(-1, 1) if inside else values.unflatten(1, shape)


@dataclass(frozen=True)
class DualConvTranspose(_Convolution):
    """Transposed convolution."""

    stride: Shape
    padding: Shape
    output_padding: Shape
    groups: int
    dilation: Shape

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return _CONV_TRANSPOSE[self.dims](
            x, weight, None, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


@rewrite(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _pad_before_module(module: Any, x: Any) -> Any:
    """padding_mode circular, reflect or replicate, and uneven 'same' padding: a pad followed by a convolution."""
    if module.padding_mode == "zeros" and module.padding != "same":
        return NotImplemented
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode)
    convolve = _CONV[len(module.kernel_size)]
    return convolve(x, module.weight, module.bias, module.stride, 0, module.dilation, module.groups)


@rewrite(F.conv1d, F.conv2d, F.conv3d)
def _pad_before_function(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    if padding != "same":
        return NotImplemented
    dims = len(weight.shape) - 2
    pads: list[int] = []
    for kernel, step in zip(reversed(weight.shape[2:]), reversed(per_dim(dilation, dims)), strict=True):
        total = step * (kernel - 1)
        pads += [total // 2, total - total // 2]  # the odd one goes to the end, as in PyTorch
    return _CONV[dims](F.pad(input, pads), weight, bias, stride, 0, dilation, groups)


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv_module(call: Call) -> DualConv:
    m: Any = call.module
    return DualConv(m.weight, m.bias, m.stride, _zero_padding(m.padding, m.weight.dim() - 2), m.dilation, m.groups)


@register(F.conv1d, F.conv2d, F.conv3d)
def _conv_function(call: Call) -> DualConv:
    weight = weights(call, 1, "weight")
    dims = weight.dim() - 2
    return DualConv(
        weight,
        weights(call, 2, "bias", None),
        per_dim(call.argument(3, "stride", 1), dims),
        _zero_padding(call.argument(4, "padding", 0), dims),
        per_dim(call.argument(5, "dilation", 1), dims),
        call.argument(6, "groups", 1),
    )


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose_module(call: Call) -> DualConvTranspose:
    m: Any = call.module
    return _conv_transpose(call, m.weight, m.bias, m.stride, m.padding, m.groups, m.dilation)


@register(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def _conv_transpose_function(call: Call) -> DualConvTranspose:
    weight = weights(call, 1, "weight")
    dims = weight.dim() - 2
    return _conv_transpose(
        call,
        weight,
        weights(call, 2, "bias", None),
        per_dim(call.argument(3, "stride", 1), dims),
        per_dim(call.argument(4, "padding", 0), dims),
        call.argument(6, "groups", 1),
        per_dim(call.argument(7, "dilation", 1), dims),
    )


def _conv_transpose(
    call: Call, weight: Tensor, bias: Tensor | None, stride: Shape, padding: Shape, groups: int, dilation: Shape
) -> DualConvTranspose:
    """The rows and columns that are added at the end follow from the shape, which an `output_size` may have chosen."""
    sizes = zip(call.shape[1:], call.operand.shape[1:], stride, padding, dilation, weight.shape[2:], strict=True)
    extra = tuple(out - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for out, n, s, p, d, k in sizes)
    return DualConvTranspose(weight, bias, stride, padding, extra, groups, dilation)


def _zero_padding(padding: Any, dims: int) -> Shape:
    return per_dim(0 if padding == "valid" else padding, dims)


def per_dim(value: Any, dims: int) -> Shape:
    """A number or a tuple, as PyTorch takes them, as one number per spatial dimension."""
    return (int(value),) * dims if isinstance(value, int) else tuple(int(v) for v in value) * (dims // len(value))
