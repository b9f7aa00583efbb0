"""Averages and sums over windows and dimensions, and maxima rewritten with ReLU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual.dual.base import Window
from autodual.dual.building import register, rewrite
from autodual.dual.conv import per_dim
from autodual.dual.shape import DualMonotone
from autodual.graph import Call

_AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_ADAPTIVE: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}


@dataclass(frozen=True)
class DualNegative(DualMonotone):
    """Minus a linear map with non-negative coefficients."""

    def linear(self, *operands: Tensor) -> Tensor:
        return -self.function(*operands)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self.function(*operands)


def _average_module(dims: int, call: Call) -> DualMonotone:
    m: Any = call.module
    divisor = None if dims == 1 else m.divisor_override
    return _average(dims, call, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, divisor)


def _average_function(dims: int, call: Call) -> DualMonotone:
    kernel, stride = call.argument(1, "kernel_size"), call.argument(2, "stride", None)
    ceil, count = call.argument(4, "ceil_mode", False), call.argument(5, "count_include_pad", True)
    divisor = None if dims == 1 else call.argument(6, "divisor_override", None)
    return _average(dims, call, kernel, stride, call.argument(3, "padding", 0), ceil, count, divisor)


def _average(
    dims: int, call: Call, kernel: Any, stride: Any, padding: Any, ceil: bool, count: bool, divisor: int | None
) -> DualMonotone:
    """dims: spatial dimensions. Without a dimension for channels, PyTorch takes the batch for it."""
    kernel, padding = per_dim(kernel, dims), per_dim(padding, dims)
    stride = per_dim(stride if stride else kernel, dims)
    low = tuple(-p for p in padding)
    window = Window(stride, low, tuple(a + k - 1 for a, k in zip(low, kernel, strict=True)))
    rest = {} if divisor is None else {"divisor_override": abs(divisor)}
    layer = DualNegative if divisor is not None and divisor < 0 else DualMonotone
    pool = _AVERAGE[dims]
    return layer(
        lambda x: pool(x, kernel, stride, padding, ceil, count, **rest), window if len(call.shape) == dims + 1 else None
    )


def _adaptive_average(dims: int, call: Call) -> DualMonotone:
    size = call.shape[-dims:]
    return DualMonotone(lambda x: _ADAPTIVE[dims](x, size))


for _dims, _module, _adaptive in (
    (1, nn.AvgPool1d, nn.AdaptiveAvgPool1d),
    (2, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    (3, nn.AvgPool3d, nn.AdaptiveAvgPool3d),
):
    register(_module)(partial(_average_module, _dims))
    register(_AVERAGE[_dims])(partial(_average_function, _dims))
    register(_adaptive, _ADAPTIVE[_dims])(partial(_adaptive_average, _dims))


@register(torch.mean, torch.Tensor.mean)
def _mean(call: Call) -> DualMonotone:
    dims, keep = _reduced_dims(call)
    return DualMonotone(lambda x: x.mean(dims, keepdim=keep))


@register(torch.sum, torch.Tensor.sum)
def _sum(call: Call) -> DualMonotone:
    dims, keep = _reduced_dims(call)
    return DualMonotone(lambda x: x.sum(dims, keepdim=keep))


def _reduced_dims(call: Call) -> tuple[list[int], bool]:
    given = call.argument(1, "dim", 0)
    dims = given if isinstance(given, list | tuple) else (given,)
    return [call.dimension(d) + 1 for d in dims], call.argument(2, "keepdim", False)


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
        input = _tournament([input.narrow(d, i, 1) for i in range(input.shape[d])])
        input = input if keepdim else input.squeeze(d)
    return input if dims else NotImplemented  # no dimension means all of them, the batch included


@rewrite(torch.amin, torch.Tensor.amin)
def _amin(input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    highest = _amax(-input, dim, keepdim)
    return NotImplemented if highest is NotImplemented else -highest


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
    return _tournament(pieces)


def _taps(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[slice | list[int]]:
    """Which input position each tap reads for every output position; padding reads another position of its window."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1
    taps: list[list[int]] = [[] for _ in range(kernel)]
    for out in range(count):
        window = [out * stride - padding + t * dilation for t in range(kernel)]
        inside = next(p for p in window if 0 <= p < size)
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
    return _tournament(pieces)


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
    """As `_taps`, for windows that share out all positions; None means one each."""
    count = size if count is None else count
    windows = [range(out * size // count, -(-(out + 1) * size // count)) for out in range(count)]
    taps = [[window[min(t, len(window) - 1)] for window in windows] for t in range(max(map(len, windows)))]
    return [_as_slice(tap, max(1, size // count)) for tap in taps]


def _as_slice(positions: list[int], step: int) -> slice | list[int]:
    regular = all(b - a == step for a, b in itertools.pairwise(positions))
    return slice(positions[0], positions[-1] + 1, step) if regular else positions


def _tournament(pieces: list[Any]) -> Any:
    while len(pieces) > 1:
        paired = [maximum(a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=False)]
        pieces = paired + pieces[len(paired) * 2 :]
    return pieces[0]
