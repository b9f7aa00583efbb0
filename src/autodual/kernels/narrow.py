"""Convolutions with few weights per filter, such as the first one of an image network, which GPU libraries compute slowly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._tensor import Shape, tf32_convolutions

TAPS = 64
"""Weights per filter, up to which a convolution counts as narrow."""
MORE = 4
"""How much larger than its operand a convolution's intermediate result may be on the way back."""
TENSOR_CORES = (8, 0)
"""The compute capability that brought TF32."""

Geometry = tuple[Shape, Shape, Shape]
"""Stride, padding and dilation."""


def is_narrow(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether `convolve` is faster than the library with filters [F, C, h, w]: on tensor cores, so only where TF32 is allowed."""
    few = weight.dim() == 4 and groups == 1 and weight[0].numel() <= TAPS
    if not few or not kernels.usable("narrow", x, weight) or not tf32_convolutions():
        return False
    return torch.cuda.get_device_capability(x.device) >= TENSOR_CORES


def is_narrow_back(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether `spread` is faster, with gifts that are not much larger than x."""
    return weight[0].numel() <= MORE * len(weight) and is_narrow(x, weight, groups)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """As conv2d: [M, C, H, W] -> [M, F, H', W'], with channels inside; bfloat16 under autocast, from float32 numbers."""
    half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return _Convolve.apply(x, weight, bias, geometry, torch.bfloat16 if half else torch.float32)


def spread(x: Tensor, weight: Tensor, size: Shape, geometry: Geometry) -> Tensor:
    """As conv_transpose2d: [M, F, H', W'] -> [M, C, *size]."""
    return _Spread.apply(x, weight, size, geometry)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, dtype: torch.dtype) -> Tensor:
        return kernels.programs("narrow").convolve(x, weight, bias, *geometry, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given, (wants_x, wants_weight, wants_bias, *_) = gradients[0], ctx.needs_input_grad
        on_x = spread(given.float(), weight, tuple(x.shape[2:]), ctx.geometry) if wants_x else None
        on_weight = _on_weight(given, x, weight, ctx.geometry) if wants_weight else None
        return on_x, on_weight, given.float().sum((0, 2, 3)) if wants_bias else None, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, size: Shape, geometry: Geometry) -> Tensor:
        return kernels.programs("narrow").spread(x, weight, size, *geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given, (wants_x, wants_weight, *_) = gradients[0], ctx.needs_input_grad
        on_x = convolve(given, weight, None, ctx.geometry) if wants_x else None
        return on_x, _on_weight(x, given, weight, ctx.geometry) if wants_weight else None, None, None


def _keep(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Keeps what was convolved, the weights and the geometry for the gradients of either direction."""
    x, weight, _, ctx.geometry = inputs[:4]
    ctx.save_for_backward(x, weight)


def _on_weight(given: Tensor, images: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of a convolution of `images` on its weights, from that on its result; plainly, if it is to be differentiated."""
    if not torch.is_grad_enabled():
        return kernels.programs("narrow").on_weight(given, images, tuple(weight.shape[2:]), *geometry)
    found = torch.ops.aten.convolution_backward(
        given.float(), images, weight, None, *geometry, False, (0, 0), 1, (False, True, False)
    )
    return found[1]
