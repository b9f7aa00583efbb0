"""Windows over one, two and three dimensions: convolutions and their transposes, averages, and maxima rewritten with ReLU."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape, channels_inside, channels_lie_inside
from autodual.dual.base import AffineDual, Window, parameter, register, rewrite, spectral_norm, weights
from autodual.dual.normalising import tournament
from autodual.dual.shape import DualPartialSums
from autodual.graph import Call
from autodual.kernels import thin
from autodual.kernels.narrow import Geometry, convolve, is_narrow, is_narrow_back, spread
from autodual.kernels.thin import is_thin

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
FEW_POSITIONS = 16
"""Up to so many positions, a convolution is fastest as one matrix."""
MANY_ROWS = 256
"""From so many rows on, a CPU is faster with a smaller matrix for each line of positions."""
FEW_CHANNELS = 4
"""Up to so many channels, a CPU is faster with a matrix product per tap than with its transposed convolution (not backwards)."""
FREQUENCIES = 4
"""Frequencies along a dimension, for each tap of the kernel, that a bound on a convolution's norm looks at."""
MANY_AT_ONCE, NUMBERS_AT_ONCE = 1 << 14, 1 << 29
"""Most examples, and most numbers, that a GPU's library transposes in one call: for 204,800 examples and 1.3e9 numbers, cuDNN took 30
times as long as for 25,600 and 0.8e9, on an H200 (benchmarks/results/bench_h200.md)."""
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
        if is_thin(x, weight, self.geometry, self.groups):
            return thin.convolve(x, weight, self.geometry)
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
        if coefficients.is_cuda and self.dims == 2 and not torch.is_grad_enabled():
            numbers = max(math.prod(coefficients.shape[1:]), self.weight.shape[1] * self.groups * math.prod(size))
            return self._in_pieces(coefficients, size, max(1, min(MANY_AT_ONCE, NUMBERS_AT_ONCE // numbers)))
        return self._by_library(coefficients, size)

    def _in_pieces(self, coefficients: Tensor, size: Shape, step: int) -> Tensor:
        """The library's result, `step` examples at a time, laid out in memory as that of all at once."""
        pieces = coefficients.split(step)
        first = self._by_library(pieces[0], size)
        if len(pieces) == 1:
            return first
        layout = torch.channels_last if channels_lie_inside(first) else torch.contiguous_format
        shape = len(coefficients), *first.shape[1:]
        whole = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=layout)
        whole[: len(first)] = first
        for number, piece in enumerate(pieces[1:], 1):
            whole[number * step : number * step + len(piece)] = self._by_library(piece, size)
        return whole

    def _by_library(self, coefficients: Tensor, size: Shape) -> Tensor:
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

    def operator_norms(self, shapes: tuple[Shape, ...], like: Tensor) -> tuple[float, ...]:
        around = [n + r for n, r in zip(shapes[0][1:], self.reach, strict=True)]
        return (kernel_norm(self.weight, self.groups, around if set(self.dilation) == {1} else None),)

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

    def operator_norms(self, shapes: tuple[Shape, ...], like: Tensor) -> tuple[float, ...]:
        return (kernel_norm(self.weight, self.groups),)


def kernel_norm(weight: Tensor, groups: int, around: Sequence[int] | None = None) -> float:
    """A bound on the l2 norm of a convolution with this kernel, or of its transpose, whatever its padding, stride and dilation.

    On an infinite grid, without strides, the norm is the supremum over frequencies w of the spectral norm of K(w), the kernel's
    Fourier transform. Zero padding and strides leave out rows and columns, which makes no norm larger; dilation repeats the same
    K. Along a dimension of k taps, u'K(w)v is up to a phase a function of exponential type t = (k - 1) / 2. At a distance d from the
    place where such a function is largest, M, it is at least M cos(t d) [Duffin and Schaeffer 1938]. Some frequency of a grid
    of n is within pi / n of that place, so the largest value on the grid is at least M cos(pi t / n).

    around: where a circle of so many positions has room for all that an image of this size touches, its frequencies suffice.
    """
    taps = weight.shape[2:]
    sizes = [FREQUENCIES * k if k > 1 else 1 for k in taps]
    circle = [False] * len(taps) if around is None else [m <= n for m, n in zip(around, sizes, strict=True)]
    missed = [
        1.0 if whole else math.cos(math.pi * (k - 1) / (2 * n)) for k, n, whole in zip(taps, sizes, circle, strict=True)
    ]
    if around is not None:
        sizes = [min(m, n) for m, n in zip(around, sizes, strict=True)]
    kernels = weight.detach().double().unflatten(0, (groups, -1))
    found = torch.fft.rfftn(
        kernels, s=sizes, dim=tuple(range(3, kernels.dim()))
    )  # [groups, rows, columns, *frequencies]
    return spectral_norm(found.flatten(3).permute(0, 3, 1, 2)) / math.prod(missed)


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


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, *_CONV_TRANSPOSE.values())
def _conv_transpose(call: Call) -> DualConvTranspose:
    """The rows and columns that are added at the end follow from the shape, which an `output_size` may have chosen."""
    weight, bias = weights(call, 1, "weight"), weights(call, 2, "bias", None)
    given = (parameter(call, 3, "stride", 1), parameter(call, 4, "padding", 0), parameter(call, 7, "dilation", 1))
    stride, padding, dilation = (per_dim(value, weight.dim() - 2) for value in given)
    sizes = zip(call.shape[1:], call.operand.shape[1:], stride, padding, dilation, weight.shape[2:], strict=True)
    extra = tuple(out - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for out, n, s, p, d, k in sizes)
    return DualConvTranspose(weight, bias, stride, padding, extra, parameter(call, 6, "groups", 1), dilation)


def _zero_padding(padding: Any, dims: int) -> Shape:
    return per_dim(0 if padding == "valid" else padding, dims)


def per_dim(value: Any, dims: int) -> Shape:
    """A number or a tuple, as PyTorch takes them, as one number per spatial dimension."""
    return (int(value),) * dims if isinstance(value, int) else tuple(int(v) for v in value) * (dims // len(value))


# Pools.

_AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_ADAPTIVE: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}


@dataclass(frozen=True)
class DualNegative(DualPartialSums):
    """Averages by a negative divisor."""

    def linear(self, *operands: Tensor) -> Tensor:
        return -self.function(*operands)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self.function(*operands)


def _average(dims: int, call: Call) -> DualPartialSums:
    """dims: spatial dimensions. Without a dimension for channels, PyTorch takes the batch for it."""
    kernel, padding = per_dim(parameter(call, 1, "kernel_size"), dims), per_dim(parameter(call, 3, "padding", 0), dims)
    stride = per_dim(parameter(call, 2, "stride", None) or kernel, dims)
    ceil, count = parameter(call, 4, "ceil_mode", False), parameter(call, 5, "count_include_pad", True)
    divisor = None if dims == 1 else parameter(call, 6, "divisor_override", None)
    low = tuple(-p for p in padding)
    window = Window(stride, low, tuple(a + k - 1 for a, k in zip(low, kernel, strict=True)))
    rest = {} if divisor is None else {"divisor_override": abs(divisor)}
    layer = DualNegative if divisor is not None and divisor < 0 else DualPartialSums
    pool, most = _AVERAGE[dims], math.prod(kernel)
    return layer(
        lambda x: pool(x, kernel, stride, padding, ceil, count, **rest),
        window if len(call.shape) == dims + 1 else None,
        counts=(most, most),
        on_the_way=1 if divisor is None else abs(divisor),  # entries are added up before they are divided
    )


def _adaptive_average(dims: int, call: Call) -> DualPartialSums:
    """A window begins and ends in the middle of a step of `size`, so it has a value more than sizes that divide."""
    size, before = call.shape[-dims:], call.operand.shape[-dims:]
    averaged = math.prod(-(-a // b) + (a % b > 0) for a, b in zip(before, size, strict=True))
    averages = math.prod(-(-b // a) + 1 for a, b in zip(before, size, strict=True))
    return DualPartialSums(lambda x: _ADAPTIVE[dims](x, size), counts=(averaged, averages))


for _dims, _module, _adaptive in (
    (1, nn.AvgPool1d, nn.AdaptiveAvgPool1d),
    (2, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    (3, nn.AvgPool3d, nn.AdaptiveAvgPool3d),
):
    register(_module, _AVERAGE[_dims])(partial(_average, _dims))
    register(_adaptive, _ADAPTIVE[_dims])(partial(_adaptive_average, _dims))


def _max_pool_module(dims: int, module: Any, input: Any) -> Any:
    m = module
    return _max_pool(dims, input, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


def _max_pool(
    dims: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """A tournament between the taps of the window, in a fixed order. dims: spatial dimensions, which are the last ones."""
    if return_indices:
        return NotImplemented
    kernel, dilation, padding = (per_dim(v, dims) for v in (kernel_size, dilation, padding))
    stride = per_dim(stride if stride else kernel, dims)
    pieces, first = [input], input.dim() - dims
    for d in range(dims):
        taps = _taps(input.shape[first + d], kernel[d], stride[d], padding[d], dilation[d], ceil_mode)
        before = (slice(None),) * (first + d)
        pieces = [piece[(*before, tap)] for piece in pieces for tap in taps]
    return tournament(pieces)


def _taps(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[slice | list[int]]:
    """Which input position each tap reads for every output position; padding reads another position of its window."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    taps: list[list[int]] = [[] for _ in range(kernel)]
    for out in range(count):
        window = [out * stride - padding + t * dilation for t in range(kernel)]
        inside = next((p for p in window if 0 <= p < size), None)
        if inside is None:
            raise ArgumentError(
                f"a window of max pooling (kernel {kernel}, dilation {dilation}, padding {padding}) holds padding alone on an input "
                f"of {size}, so that its largest entry is -inf, which cannot be bounded; use less padding or dilation"
            )
        for tap, position in zip(taps, window, strict=True):
            tap.append(position if 0 <= position < size else inside)
    return [_as_slice(tap, stride) for tap in taps]


def _adaptive_max_pool_module(dims: int, module: Any, input: Any) -> Any:
    return _adaptive_max_pool(dims, input, module.output_size, module.return_indices)


def _adaptive_max_pool(dims: int, input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The tournament of `_max_pool`; smaller windows read their last position again."""
    if return_indices:
        return NotImplemented
    sizes, pieces, first = input.shape[-dims:], [input], input.dim() - dims
    counts = output_size if isinstance(output_size, list | tuple) else [output_size] * dims
    for d, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        before = (slice(None),) * (first + d)
        pieces = [piece[(*before, tap)] for piece in pieces for tap in _adaptive_taps(size, count)]
    return tournament(pieces)


for _dims, _modules, _functions, _adaptive_function in (
    (1, (nn.MaxPool1d, nn.AdaptiveMaxPool1d), (F.max_pool1d, torch.max_pool1d), F.adaptive_max_pool1d),
    (2, (nn.MaxPool2d, nn.AdaptiveMaxPool2d), (F.max_pool2d, torch.max_pool2d), F.adaptive_max_pool2d),
    (3, (nn.MaxPool3d, nn.AdaptiveMaxPool3d), (F.max_pool3d, torch.max_pool3d), F.adaptive_max_pool3d),
):
    rewrite(_modules[0])(partial(_max_pool_module, _dims))
    rewrite(_modules[1])(partial(_adaptive_max_pool_module, _dims))
    rewrite(*_functions)(partial(_max_pool, _dims))
    rewrite(_adaptive_function)(partial(_adaptive_max_pool, _dims))


def _adaptive_taps(size: int, count: int | None) -> list[slice | list[int]]:
    """The taps of windows that share out all positions, in the form of `_taps`; None means one each."""
    count = size if count is None else count
    windows = [range(out * size // count, -(-(out + 1) * size // count)) for out in range(count)]
    taps = [[window[min(t, len(window) - 1)] for window in windows] for t in range(max(map(len, windows)))]
    return [_as_slice(tap, max(1, size // count)) for tap in taps]


def _as_slice(positions: list[int], step: int) -> slice | list[int]:
    regular = all(b - a == step for a, b in itertools.pairwise(positions))
    return slice(positions[0], positions[-1] + 1, step) if regular else positions
