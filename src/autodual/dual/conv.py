"""Convolutions in one, two and three dimensions, and their transposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from autodual._types import Shape
from autodual.dual.base import AffineDual, Window
from autodual.dual.registry import register, rewrite
from autodual.graph import Call

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True)
class DualConv(AffineDual):
    """Cross-correlation with zero padding: stride, dilation, groups, and sizes that the stride does not divide."""

    weight: Tensor
    bias_vector: Tensor | None
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int

    @property
    def dims(self) -> int:
        return self.weight.dim() - 2

    @property
    def reach(self) -> Shape:
        """Distance between the first and the last tap of the kernel."""
        return tuple((k - 1) * d for k, d in zip(self.weight.shape[2:], self.dilation, strict=True))

    def linear(self, *operands: Tensor) -> Tensor:
        return self._convolve(operands[0], self.weight)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self._convolve(operands[0], self.weight.abs())

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return _CONV[self.dims](x, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def bias(self) -> Tensor | None:
        return None if self.bias_vector is None else self.bias_vector.reshape(-1, *[1] * self.dims)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        size, reach = shapes[0][1:], self.reach
        left_over = tuple(
            n - ((m - 1) * s - 2 * p + r + 1)
            for n, m, s, p, r in zip(size, coefficients.shape[2:], self.stride, self.padding, reach, strict=True)
        )
        return (
            _CONV_TRANSPOSE[self.dims](
                coefficients,
                self.weight,
                None,
                self.stride,
                self.padding,
                left_over,
                self.groups,
                self.dilation,
            ),
        )

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        low = tuple(-p for p in self.padding)
        return Window(self.stride, low, tuple(a + r for a, r in zip(low, self.reach, strict=True)))


@dataclass(frozen=True)
class DualConvTranspose(AffineDual):
    """Transposed convolution."""

    weight: Tensor
    bias_vector: Tensor | None
    stride: Shape
    padding: Shape
    output_padding: Shape
    groups: int
    dilation: Shape

    @property
    def dims(self) -> int:
        return self.weight.dim() - 2

    def linear(self, *operands: Tensor) -> Tensor:
        return self._convolve(operands[0], self.weight)

    def absolute(self, *operands: Tensor) -> Tensor:
        return self._convolve(operands[0], self.weight.abs())

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return _CONV_TRANSPOSE[self.dims](
            x, weight, None, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )

    def bias(self) -> Tensor | None:
        return None if self.bias_vector is None else self.bias_vector.reshape(-1, *[1] * self.dims)


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
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if padding != "same":
        return NotImplemented
    dims = len(weight.shape) - 2
    pads: list[int] = []
    for kernel, spread in zip(reversed(weight.shape[2:]), reversed(_per_dim(dilation, dims)), strict=True):
        total = spread * (kernel - 1)
        pads += [total // 2, total - total // 2]  # the odd one goes to the end, as in PyTorch
    return _CONV[dims](F.pad(x, pads), weight, bias, stride, 0, dilation, groups)


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv_module(call: Call) -> DualConv:
    m: Any = call.module
    return DualConv(m.weight, m.bias, m.stride, _zero_padding(m.padding, m.weight.dim() - 2), m.dilation, m.groups)


@register(F.conv1d, F.conv2d, F.conv3d)
def _conv_function(call: Call) -> DualConv:
    weight = call.argument(1, "weight")
    dims = weight.dim() - 2
    return DualConv(
        weight,
        call.argument(2, "bias", None),
        _per_dim(call.argument(3, "stride", 1), dims),
        _zero_padding(call.argument(4, "padding", 0), dims),
        _per_dim(call.argument(5, "dilation", 1), dims),
        call.argument(6, "groups", 1),
    )


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose_module(call: Call) -> DualConvTranspose:
    m: Any = call.module
    return DualConvTranspose(m.weight, m.bias, m.stride, m.padding, m.output_padding, m.groups, m.dilation)


@register(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def _conv_transpose_function(call: Call) -> DualConvTranspose:
    weight = call.argument(1, "weight")
    dims = weight.dim() - 2
    return DualConvTranspose(
        weight,
        call.argument(2, "bias", None),
        _per_dim(call.argument(3, "stride", 1), dims),
        _per_dim(call.argument(4, "padding", 0), dims),
        _per_dim(call.argument(5, "output_padding", 0), dims),
        call.argument(6, "groups", 1),
        _per_dim(call.argument(7, "dilation", 1), dims),
    )


def _zero_padding(padding: Any, dims: int) -> Shape:
    return _per_dim(0 if padding == "valid" else padding, dims)


def _per_dim(value: Any, dims: int) -> Shape:
    return (int(value),) * dims if isinstance(value, int) else tuple(int(v) for v in value) * (dims // len(value))
