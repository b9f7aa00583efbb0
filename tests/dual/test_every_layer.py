"""check_dual_layer on every operation that the registry knows, over one table of cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import REGISTRY, build
from autodual.engines.prepare import dual_network
from autodual.graph import capture_graph
from autodual.graph.registry import Registry
from autodual.testing import check_dual_layer
from generators import radii_from_streams
from small import Net, batch

Shape = tuple[int, ...]
BUILDERS, REWRITES = dict(REGISTRY.builders), dict(REGISTRY.rewrites)
"""Taken when the file is read, before any test registers more."""


@dataclass(frozen=True)
class Case:
    """An operation (made anew for every test, from a fixed seed) and the shape of one example."""

    name: str
    make: Callable[[], Any]
    shape: Shape | None = None
    options: dict[str, Any] = field(default_factory=dict)


def function(f: Callable[[Tensor], Tensor]) -> Callable[[], Callable[[Tensor], Tensor]]:
    return lambda: f


def randomised(norm: nn.Module) -> nn.Module:
    """Batch normalisation that has seen some data and learnt a gamma with both signs."""
    for tensor in (*norm.parameters(), *norm.buffers()):
        if tensor.is_floating_point():
            nn.init.normal_(tensor)
    if norm.running_var is not None:
        nn.init.uniform_(norm.running_var, 0.3, 2.0)
    return norm.eval()


class WithConstants(nn.Module):
    """Sums, differences and products with buffers of several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("channel", torch.randn(3, 1, 1))
        self.register_buffer("pixel", torch.randn(4, 4))
        self.register_buffer("whole", torch.randn(1, 3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.channel) / self.channel.abs().clamp(min=0.5) + self.whole
        return self.pixel * x - 0.3 + torch.add(self.channel, x, alpha=0.7) * 0.1


LINEAR = [
    Case("linear", lambda: nn.Linear(5, 4)),
    Case("linear no bias", lambda: nn.Linear(5, 4, bias=False)),
    Case("linear on rows", lambda: nn.Linear(4, 3), (2, 4)),
    Case("F.linear", lambda: _functional(F.linear, (3, 5)), (5,)),
]

CONV = [
    Case("conv1d", lambda: nn.Conv1d(2, 3, 3)),
    Case("conv1d stride 3, indivisible", lambda: nn.Conv1d(2, 3, 2, stride=3), (2, 10)),
    Case("conv1d causal-like", lambda: nn.Conv1d(2, 3, 3, padding=4, dilation=2), (2, 6)),
    Case("conv1d same, even kernel", lambda: nn.Conv1d(2, 3, 4, padding="same"), (2, 7)),
    Case("conv1d valid", lambda: nn.Conv1d(2, 3, 3, padding="valid"), (2, 7)),
    Case("conv2d", lambda: nn.Conv2d(2, 3, 3), (2, 6, 6)),
    Case("conv2d padded", lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 6)),
    Case("conv2d stride 2, indivisible", lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 8, 6)),
    Case("conv2d stride 3, far from the border", lambda: nn.Conv2d(1, 2, 2, stride=3), (1, 10, 9)),
    Case("conv2d stride over kernel", lambda: nn.Conv2d(2, 2, 1, stride=2), (2, 5, 6)),
    Case("conv2d uneven", lambda: nn.Conv2d(2, 3, (1, 4), stride=(2, 1), padding=(0, 2), dilation=(1, 2)), (2, 4, 9)),
    Case("conv2d dilated", lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2), (2, 6, 6)),
    Case("conv2d groups", lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5)),
    Case("conv2d depthwise, strided", lambda: nn.Conv2d(3, 3, 3, stride=2, groups=3), (3, 6, 6)),
    Case("conv2d no bias", lambda: nn.Conv2d(2, 3, 3, bias=False), (2, 5, 5)),
    Case("conv2d same", lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 5, 5)),
    Case("conv2d same, even kernel", lambda: nn.Conv2d(2, 3, (2, 4), padding="same"), (2, 5, 5)),
    Case("conv2d same, dilated", lambda: nn.Conv2d(2, 3, 2, padding="same", dilation=3), (2, 6, 6)),
    Case("conv2d valid", lambda: nn.Conv2d(2, 3, 3, padding="valid"), (2, 5, 5)),
    Case("conv2d padding wider than kernel", lambda: nn.Conv2d(1, 2, 3, padding=4), (1, 3, 3)),
    Case("conv2d kernel as large as image", lambda: nn.Conv2d(2, 3, 5), (2, 5, 5)),
    Case("conv2d many channels", lambda: nn.Conv2d(6, 5, 3, padding=1), (6, 5, 5)),
    Case("conv3d", lambda: nn.Conv3d(2, 2, 2, padding=1), (2, 3, 3, 3)),
    Case("conv3d strided", lambda: nn.Conv3d(1, 2, (2, 3, 2), stride=(1, 2, 2)), (1, 3, 4, 5)),
    *(
        Case(f"conv{d}d {mode}", lambda d=d, mode=mode: _CONV[d](2, 2, 3, padding=1, padding_mode=mode), (2, *[4] * d))
        for d in (1, 2, 3)
        for mode in ("reflect", "replicate", "circular")
    ),
    Case("conv2d circular, uneven", lambda: nn.Conv2d(1, 2, 3, 2, (2, 1), padding_mode="circular"), (1, 5, 4)),
    Case("conv2d reflect same", lambda: nn.Conv2d(1, 2, 4, padding="same", padding_mode="reflect"), (1, 5, 5)),
    Case("F.conv2d same", lambda: _functional(F.conv2d, (3, 2, 2, 3), padding="same"), (2, 4, 5)),
    Case("F.conv2d", lambda: _functional(F.conv2d, (3, 2, 3, 3), stride=2, padding=1), (2, 6, 5)),
    Case("F.conv1d", lambda: _functional(F.conv1d, (4, 1, 3), padding=1, groups=2), (2, 6)),
]

CONV_TRANSPOSE = [
    Case("conv_transpose1d", lambda: nn.ConvTranspose1d(2, 3, 3), (2, 5)),
    Case("conv_transpose1d strided", lambda: nn.ConvTranspose1d(2, 3, 3, 2, padding=1, output_padding=1), (2, 4)),
    Case("conv_transpose2d", lambda: nn.ConvTranspose2d(2, 3, 3), (2, 4, 4)),
    Case("conv_transpose2d strided", lambda: nn.ConvTranspose2d(2, 3, (3, 2), 2, 1, (1, 0), bias=False), (2, 3, 4)),
    Case("conv_transpose2d groups", lambda: nn.ConvTranspose2d(4, 2, 3, groups=2, dilation=2), (4, 3, 3)),
    Case("conv_transpose3d", lambda: nn.ConvTranspose3d(1, 2, 2, stride=2, padding=1), (1, 3, 3, 2)),
    Case("F.conv_transpose2d", lambda: _functional(F.conv_transpose2d, (2, 3, 3, 3), stride=2), (2, 3, 3)),
]

NORMALISATION = [
    Case("batch_norm1d", lambda: randomised(nn.BatchNorm1d(5))),
    Case("batch_norm1d on sequences", lambda: randomised(nn.BatchNorm1d(3)), (3, 4)),
    Case("batch_norm1d not affine", lambda: randomised(nn.BatchNorm1d(5, affine=False))),
    Case("batch_norm2d", lambda: randomised(nn.BatchNorm2d(3, eps=1e-2)), (3, 4, 4)),
    Case("batch_norm3d", lambda: randomised(nn.BatchNorm3d(2)), (2, 3, 3, 3)),
    Case("F.batch_norm", lambda: _functional(_normalised, (4, 3)), (3, 2)),
]

POOL = [
    Case("avg_pool1d", lambda: nn.AvgPool1d(2), (2, 7)),
    Case("avg_pool1d ceil", lambda: nn.AvgPool1d(3, 2, padding=1, ceil_mode=True), (2, 8)),
    Case("avg_pool2d", lambda: nn.AvgPool2d(2), (2, 5, 6)),
    Case("avg_pool2d overlapping", lambda: nn.AvgPool2d(3, stride=1, padding=1), (2, 4, 5)),
    Case("avg_pool2d ceil", lambda: nn.AvgPool2d(3, 2, ceil_mode=True), (2, 6, 6)),
    Case("avg_pool2d count", lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), (2, 5, 5)),
    Case("avg_pool2d ceil, count", lambda: nn.AvgPool2d(3, 2, 1, True, False), (2, 6, 6)),
    Case("avg_pool2d divisor", lambda: nn.AvgPool2d((2, 3), divisor_override=4), (2, 4, 6)),
    Case("avg_pool3d", lambda: nn.AvgPool3d(2, padding=1), (1, 3, 4, 3)),
    Case("F.avg_pool2d", function(lambda x: F.avg_pool2d(x, 2, stride=1)), (2, 4, 4)),
    Case("F.avg_pool1d", function(lambda x: F.avg_pool1d(x, 2, padding=1)), (2, 4)),
    Case("F.avg_pool3d", function(lambda x: F.avg_pool3d(x, (1, 2, 1))), (1, 2, 3, 2)),
    Case("adaptive_avg_pool1d", lambda: nn.AdaptiveAvgPool1d(3), (2, 7)),
    Case("adaptive_avg_pool2d", lambda: nn.AdaptiveAvgPool2d((2, 3)), (2, 5, 7)),
    Case("adaptive_avg_pool2d None", lambda: nn.AdaptiveAvgPool2d((None, 1)), (2, 3, 4)),
    Case("adaptive_avg_pool3d", lambda: nn.AdaptiveAvgPool3d(1), (2, 3, 3, 3)),
    Case("mean", function(lambda x: x.mean((2, 3))), (3, 4, 4)),
    Case("mean keepdim", function(lambda x: torch.mean(x, -1, keepdim=True)), (3, 4)),
    Case("sum", function(lambda x: x.sum(1)), (3, 4)),
    Case("sum of several", function(lambda x: torch.sum(x, dim=[1, 3], keepdim=True)), (3, 4, 2)),
]

SHAPE = [
    Case("flatten", lambda: nn.Flatten(), (2, 3, 2)),
    Case("flatten some", lambda: nn.Flatten(2), (2, 3, 2)),
    Case("unflatten", lambda: nn.Unflatten(1, (2, 3)), (6,)),
    Case("torch.flatten", function(lambda x: torch.flatten(x, 1)), (2, 3)),
    Case("view", function(lambda x: x.view(x.size(0), -1)), (2, 3)),
    Case("reshape", function(lambda x: x.reshape(-1, 3, 2)), (2, 3)),
    Case("permute", function(lambda x: x.permute(0, 3, 1, 2)), (2, 3, 4)),
    Case("transpose", function(lambda x: x.transpose(1, -1)), (2, 3, 4)),
    Case("squeeze", function(lambda x: x.squeeze(2)), (3, 1, 2)),
    Case("unsqueeze", function(lambda x: x.unsqueeze(-1)), (3,)),
    Case("slice", function(lambda x: x[:, 1:, ::2]), (3, 5)),
    Case("slice of space", function(lambda x: x[:, :, 1:4, ::2]), (2, 5, 5)),
    Case("slice from the end", function(lambda x: x[..., -2:]), (2, 5)),
    Case("index", function(lambda x: x[:, 1]), (3, 4)),
    Case("index list", function(lambda x: x[:, [2, 0, 2]]), (3, 4)),
    Case("narrow", function(lambda x: x.narrow(1, 1, 2)), (4, 3)),
    Case("chunk", function(lambda x: x.chunk(2, 1)[1]), (5, 2)),
    Case("split", function(lambda x: sum(torch.split(x, 2, dim=1))), (6,)),
    Case("split, method", function(lambda x: x.split([1, 3], 1)[1]), (4, 2)),
    Case("unbind", function(lambda x: x.unbind(1)[0]), (3, 2)),
    Case("flip", function(lambda x: x.flip(1, 2)), (3, 4)),
    Case("expand", function(lambda x: x.unsqueeze(1).expand(-1, 3, -1)), (4,)),
    Case("expand_as", function(lambda x: x[:, :1].expand_as(x)), (3, 2)),
    Case("view_as", function(lambda x: x.view_as(x.flatten(1))), (3, 2)),
    Case("reshape_as", function(lambda x: x.transpose(1, 2).reshape_as(x)), (3, 2)),
    Case("zero pad", lambda: nn.ZeroPad2d((1, 0, 2, 1)), (2, 3, 3)),
    Case("constant pad", lambda: nn.ConstantPad1d((2, 1), 0.7), (2, 4)),
    Case("constant pad 3d", lambda: nn.ConstantPad3d(1, -0.3), (1, 2, 3, 2)),
    Case("crop", function(lambda x: F.pad(x, (-1, 0, 1, -1), value=0.1)), (2, 4, 4)),
    Case("F.pad of channels", function(lambda x: F.pad(x, (0, 0, 0, 0, 1, 2))), (2, 3, 3)),
    Case("reflection pad", lambda: nn.ReflectionPad2d(2), (1, 4, 3)),
    Case("replication pad", lambda: nn.ReplicationPad1d((0, 3)), (2, 4)),
    Case("circular pad", lambda: nn.CircularPad2d((1, 2, 0, 1)), (1, 3, 3)),
    Case("upsample nearest", lambda: nn.Upsample(scale_factor=2), (2, 3, 2)),
    Case("upsample to a size", lambda: nn.Upsample(size=(5, 7)), (1, 3, 3)),
    Case("upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 3)),
    Case("upsample bilinear aligned", lambda: nn.Upsample(size=5, mode="bilinear", align_corners=True), (1, 3, 3)),
    Case("F.interpolate", function(lambda x: F.interpolate(x, scale_factor=2.0)), (2, 3)),
    Case("pixel shuffle", lambda: nn.PixelShuffle(2), (4, 2, 3)),
]

ARITHMETIC = [
    Case("add", function(lambda x: x + x.flip(1)), (3, 2)),
    Case("add itself", function(lambda x: x + x), (3,)),
    Case("subtract", function(lambda x: x - 2 * x.flip(1)), (3, 2)),
    Case("subtract with alpha", function(lambda x: torch.sub(x, x.flip(1), alpha=0.3)), (3,)),
    Case("subtract from a number", function(lambda x: 1 - x), (3,)),
    Case("rsub", function(lambda x: torch.rsub(x, 1.5)), (3,)),
    Case("rsub of two", function(lambda x: torch.rsub(x, x.flip(1), alpha=2)), (3,)),
    Case("negate", function(lambda x: -x), (3,)),
    Case("times a number", function(lambda x: 0.1 * x), (3,)),
    Case("divided by a number", function(lambda x: x / 0.3), (3,)),
    Case("plus a number", function(lambda x: x + 0.1), (3,)),
    Case("broadcast sum", function(lambda x: x + x.mean(2, keepdim=True)), (2, 3)),
    Case("sum broadcast over channels", function(lambda x: x - x[:, :1]), (3, 4)),
    Case("constants", WithConstants, (3, 4, 4)),
    Case("in place", function(lambda x: (x * 2).add_(1).mul_(0.5)), (3,)),
    Case("cat", function(lambda x: torch.cat([x, 2 * x, x.flip(1)], 1)), (2, 3)),
    Case("cat last", function(lambda x: torch.cat([x, -x], -1)), (2, 3)),
    Case("cat constant", lambda: _Token(), (2, 3)),
    Case("stack", function(lambda x: torch.stack([x, 2 * x], 1)), (2, 3)),
    Case("stack last", function(lambda x: torch.stack([x, 2 * x], -1)), (2, 3)),
    Case("matmul", lambda: _functional(torch.matmul, (3, 2)), (2, 3)),
    Case("matmul from the left", lambda: _functional(lambda x, w: w @ x, (4, 2)), (2, 3)),
    Case("dropout", lambda: nn.Dropout(0.5).eval(), (4,)),
    Case("identity", lambda: nn.Identity(), (4,)),
    Case("to, like another", function(lambda x: (2 * x).to(x)), (4,)),
    Case("type_as", function(lambda x: (2 * x).type_as(x)), (4,)),
]

PIECEWISE = [
    Case("relu", nn.ReLU, (1,)),
    Case("relu guessed shape", nn.ReLU),
    Case("F.relu", function(F.relu), (1,)),
    Case("leaky_relu", lambda: nn.LeakyReLU(0.1), (1,)),
    Case("leaky_relu steep", lambda: nn.LeakyReLU(1.7), (1,)),
    Case("leaky_relu negative", lambda: nn.LeakyReLU(-0.5), (1,)),
    Case("prelu", nn.PReLU, (1,)),
    Case("prelu per channel", lambda: _prelu([-0.4, 0.2, 1.0, 1.6]), (4, 2)),
    Case("relu6", nn.ReLU6, (1,)),
    Case("hardtanh", nn.Hardtanh, (1,)),
    Case("hardtanh shifted", lambda: nn.Hardtanh(-0.3, 2.0), (1,)),
    Case("clamp", function(lambda x: torch.clamp(x, -1, 2)), (1,)),
    Case("clamp min", function(lambda x: x.clamp(min=-0.5)), (1,)),
    Case("clamp max", function(lambda x: x.clamp(max=0.7)), (1,)),
    Case("clamp_min", function(lambda x: torch.clamp_min(x, -0.5)), (1,)),
    Case("clamp_max", function(lambda x: x.clamp_max(0.7)), (1,)),
    Case("hardsigmoid", nn.Hardsigmoid, (1,)),
    Case("abs", function(torch.abs), (1,)),
]
for case in PIECEWISE:
    case.options.setdefault("lines_tightness", 0.01)

_NOT_TIGHT = {"tightness": None, "lines_tightness": None}
"""A jump at the threshold, on either side of which a rounded number may lie."""
_MODERATE, _POSITIVE = (-8.0, 8.0), (1e-3, torch.inf)
SMOOTH = [
    Case("hardswish", nn.Hardswish),
    Case("tanh", nn.Tanh),
    Case("sigmoid", nn.Sigmoid),
    Case("softplus", lambda: nn.Softplus()),
    Case("softplus at its threshold", lambda: nn.Softplus(5.0), options={"kinks": (4.0,), **_NOT_TIGHT}),
    Case("softplus beta 5", lambda: nn.Softplus(5.0)),
    Case("softplus beta 0.3", lambda: nn.Softplus(0.3)),
    Case("softplus jumps", lambda: nn.Softplus(0.5, 2.0), options=dict(_NOT_TIGHT)),
    Case("elu", lambda: nn.ELU()),
    Case("elu 0.5", lambda: nn.ELU(0.5)),
    Case("elu 2", lambda: nn.ELU(2.0)),
    Case("elu_", function(lambda x: F.elu_(1 * x, 0.5, 2.0))),
    Case("celu 0.5", lambda: nn.CELU(0.5)),
    Case("celu 2", lambda: nn.CELU(2.0)),
    Case("selu", nn.SELU),
    Case("gelu", nn.GELU),
    Case("gelu tanh", lambda: nn.GELU("tanh")),
    Case("silu", nn.SiLU),
    Case("mish", nn.Mish),
    Case("logsigmoid", nn.LogSigmoid),
    Case("erf", function(torch.erf)),
    Case("atan", function(torch.atan)),
    Case("asinh", function(torch.asinh)),
    Case("tanhshrink", nn.Tanhshrink),
    Case("square", function(torch.square)),
    Case("times itself", function(lambda x: x * x)),
    Case("cube", function(lambda x: x**3)),
    Case("fourth power", function(lambda x: x.pow(4))),
    Case("exp", function(torch.exp), options={"domain": _MODERATE}),
    Case("sinh", function(torch.sinh), options={"domain": _MODERATE}),
    Case("cosh", function(torch.cosh), options={"domain": _MODERATE}),
    Case("power of a number", function(lambda x: 1.7**x), options={"domain": _MODERATE}),
    Case("exp2", function(torch.exp2), options={"domain": _MODERATE}),
    Case("expm1", function(torch.expm1), options={"domain": _MODERATE}),
    # Of numbers above zero: plus one, so that there is a way back to zero in a network.
    Case("log", function(lambda x: torch.log(x + 1)), options={"domain": _POSITIVE}),
    Case("log1p", function(torch.log1p), options={"domain": _POSITIVE}),
    Case("log2", function(lambda x: torch.log2(x + 1)), options={"domain": _POSITIVE}),
    Case("log10", function(lambda x: torch.log10(x + 1)), options={"domain": _POSITIVE}),
    Case("sqrt", function(lambda x: torch.sqrt(x + 1)), options={"domain": _POSITIVE}),
    Case("rsqrt", function(lambda x: torch.rsqrt(x + 1)), options={"domain": _POSITIVE}),
    Case("reciprocal", function(lambda x: torch.reciprocal(x + 1)), options={"domain": _POSITIVE}),
    Case("power -2.5", function(lambda x: (x + 1) ** -2.5), options={"domain": _POSITIVE}),
    Case("power 0.3", function(lambda x: (x + 1) ** 0.3), options={"domain": _POSITIVE}),
    Case("power 1.5", function(lambda x: (x + 1) ** 1.5), options={"domain": _POSITIVE}),
    Case("over x", function(lambda x: 2 / (x + 1)), options={"domain": _POSITIVE}),
]
NEGATIVE = [
    Case("reciprocal below zero", function(torch.reciprocal), (1,), {"domain": (-torch.inf, -1e-3)}),
    Case("power -2 below zero", function(lambda x: x**-2), (1,), {"domain": (-torch.inf, -1e-3)}),
]
for case in [*SMOOTH, *NEGATIVE]:
    case.options.setdefault("lines_tightness", 0.01)

MAXIMA = [
    Case("max_pool1d", lambda: nn.MaxPool1d(2), (1, 5)),
    Case("max_pool2d", lambda: nn.MaxPool2d(2), (1, 4, 5)),
    Case("max_pool2d padded", lambda: nn.MaxPool2d(3, 2, padding=1), (1, 5, 4)),
    Case("max_pool2d dilated", lambda: nn.MaxPool2d(2, 1, dilation=2), (1, 4, 4)),
    Case("max_pool2d ceil", lambda: nn.MaxPool2d((1, 3), (1, 2), ceil_mode=True), (1, 2, 6)),
    Case("max_pool3d", lambda: nn.MaxPool3d((1, 2, 1)), (1, 2, 2, 2)),
    Case("F.max_pool2d", function(lambda x: F.max_pool2d(x, 2, stride=1)), (1, 3, 3)),
    Case("F.max_pool1d", function(lambda x: F.max_pool1d(x, 2, padding=1)), (1, 4)),
    Case("F.max_pool3d", function(lambda x: F.max_pool3d(x, (1, 1, 2))), (1, 1, 2, 3)),
    Case("adaptive_max_pool1d, uneven", lambda: nn.AdaptiveMaxPool1d(3), (2, 5)),
    Case("adaptive_max_pool1d, more than there are", lambda: nn.AdaptiveMaxPool1d(4), (1, 3)),
    Case("adaptive_max_pool2d", lambda: nn.AdaptiveMaxPool2d((2, 1)), (1, 4, 3)),
    Case("adaptive_max_pool2d None", lambda: nn.AdaptiveMaxPool2d((None, 2)), (1, 2, 5)),
    Case("adaptive_max_pool3d", lambda: nn.AdaptiveMaxPool3d(1), (1, 2, 1, 2)),
    Case("F.adaptive_max_pool2d", function(lambda x: F.adaptive_max_pool2d(x, 1).flatten(1)), (2, 2, 2)),
    Case("F.adaptive_max_pool1d", function(lambda x: F.adaptive_max_pool1d(x, 2)), (1, 3)),
    Case("F.adaptive_max_pool3d", function(lambda x: F.adaptive_max_pool3d(x, (1, 2, 1))), (1, 1, 3, 2)),
    Case("max along", function(lambda x: x.max(dim=1)[0]), (3, 2)),
    Case("max along, values", function(lambda x: torch.max(x, -1, keepdim=True).values), (2, 3)),
    Case("min along", function(lambda x: torch.min(x, 2).values), (2, 3)),
    Case("amin", function(lambda x: x.amin(1)), (3, 2)),
    Case("maximum", function(lambda x: torch.maximum(x, x.flip(1))), (3,)),
    Case("minimum", function(lambda x: torch.minimum(x, -x)), (3,)),
    Case("maximum with a constant", function(lambda x: torch.maximum(x, torch.zeros(()).to(x.dtype))), (3,)),
    Case("amax", function(lambda x: x.amax(1)), (3, 2)),
    Case("amax of several", function(lambda x: torch.amax(x, (1, 2), keepdim=True)), (2, 2)),
]

_MASK = torch.tensor([True, False, True])
PRODUCTS = [
    Case("times another", function(lambda x: x * x.flip(1)), (3, 2)),
    Case("times another, images", function(lambda x: x * x.flip(2)), (2, 3, 3)),
    Case("times itself, in place", function(lambda x: (x + 1).mul_(x)), (4,)),
    Case("times an average", function(lambda x: x.mean((2, 3), keepdim=True) * x), (3, 2, 2)),
    Case("outer product", function(lambda x: x[:, :1] * x[:, :, :1]), (3, 2)),
    Case("matrix product", function(lambda x: x @ x.transpose(1, 2)), (3, 2)),
    Case("matrix product per head", function(lambda x: x @ x.transpose(-2, -1)), (2, 3, 4)),
    Case("matrix product with one for all heads", function(lambda x: x[:, :1] @ x.mT), (2, 3, 4)),
    Case("bmm", function(lambda x: torch.bmm(x, x.flip(1).transpose(1, 2))), (3, 2)),
    Case("einsum of two", function(lambda x: torch.einsum("bhid,bhjd->bhij", x, x.flip(2))), (2, 3, 2)),
    Case("einsum with a constant", lambda: _functional(lambda x, w: torch.einsum("bic,cd->bid", x, w), (4, 5)), (2, 4)),
    Case("einsum, constant first", lambda: _functional(lambda x, w: torch.einsum("ij,bjc->bic", w, x), (3, 2)), (2, 4)),
    Case("einsum of one", function(lambda x: torch.einsum("bic->bc", x)), (2, 3)),
    Case("over another", function(lambda x: x / (x.flip(1) + 3)), (3,), {"domain": (1e-3, 8.0)}),
    Case("addcmul", function(lambda x: torch.addcmul(x, x, x.flip(1), value=0.5)), (3,)),
    Case("addcdiv", function(lambda x: torch.addcdiv(x, x, x.flip(1) + 3)), (3,), {"domain": (1e-3, 8.0)}),
    Case("baddbmm", function(lambda x: torch.baddbmm(x, x, x.flip(1), beta=0.3, alpha=2)), (2, 2)),
    Case("addmm", lambda: _functional(lambda x, w: torch.addmm(w[0], x, w, alpha=0.5), (3, 2)), (3,)),
    Case("lerp", function(lambda x: torch.lerp(x, x.flip(1), 0.3)), (3,)),
    Case("glu", function(lambda x: F.glu(x, 1)), (4,)),
    Case("GLU", lambda: nn.GLU(), (2, 4)),
]
ATTENTION = [
    Case("softmax", function(lambda x: 2 * x.softmax(1)), (3,)),
    Case("softmax module", lambda: nn.Sequential(nn.Softmax(-1), nn.Identity()), (2, 3)),
    Case("softmax2d", lambda: nn.Sequential(nn.Softmax2d(), nn.Identity()), (3, 2, 1)),
    Case("log_softmax", function(lambda x: 2 * F.log_softmax(x, 1)), (3,)),
    Case("log_softmax module", lambda: nn.Sequential(nn.LogSoftmax(1), nn.Identity()), (3,)),
    Case("softmin", function(lambda x: 2 * F.softmin(x, 1)), (3,)),
    Case("softmin module", lambda: nn.Sequential(nn.Softmin(1), nn.Identity()), (3,)),
    Case("masked softmax", function(lambda x: 2 * x.masked_fill(_MASK, -torch.inf).softmax(1)), (3,)),
    Case("logsumexp", function(lambda x: torch.logsumexp(x, 1, keepdim=True)), (3,)),
    Case("logaddexp", function(lambda x: torch.logaddexp(x, x.flip(1))), (3,)),
    Case("attention", function(lambda x: F.scaled_dot_product_attention(x, x.flip(1), 2 * x)), (3, 2)),
    Case(
        "causal attention",
        function(lambda x: F.scaled_dot_product_attention(x, x.flip(1), 2 * x, is_causal=True)),
        (3, 2),
    ),
    Case("multi-head attention", lambda: _SelfAttention(), (2, 4)),
    Case(
        "multi-head attention with a mask",
        lambda: _SelfAttention(torch.tensor([[False, True], [False, False]])),
        (2, 4),
    ),
    Case("encoder layer", lambda: _encoder_layer(norm_first=False), (2, 4)),
    Case("RNN", lambda: _Recurrent(nn.RNN(2, 2, batch_first=True)), (2, 2)),
    Case("LSTM", lambda: _Recurrent(nn.LSTM(2, 2, batch_first=True)), (2, 2)),
    Case("GRU", lambda: _Recurrent(nn.GRU(2, 2, batch_first=True, bidirectional=True)), (2, 2)),
    Case("last states, one layer", lambda: _lstm(2, lambda h: h[-1]), (2, 2)),
    Case("last states, a part", lambda: _lstm(2, lambda h: h[-2, :, 1:]), (2, 2)),
    Case("last states, the only layer", lambda: _lstm(1, lambda h: h.squeeze(0)), (2, 2)),
    Case("last states, transposed", lambda: _lstm(2, lambda h: h.transpose(0, 1)), (2, 2)),
    Case("last states, permuted", lambda: _lstm(2, lambda h: h.permute(1, 0, 2)), (2, 2)),
    Case("encoder layer, norm first", lambda: _encoder_layer(norm_first=True), (2, 4)),
]
STATISTICS = [
    Case("layer_norm", lambda: nn.LayerNorm(4), (4,)),
    Case("layer_norm over two", lambda: nn.LayerNorm((2, 3)), (2, 2, 3)),
    Case("F.layer_norm", lambda: _functional(lambda x, w: F.layer_norm(x, (4,), w), (4,)), (2, 4)),
    Case("group_norm", lambda: nn.GroupNorm(2, 4), (4, 3)),
    Case("F.group_norm", function(lambda x: F.group_norm(x, 2)), (4, 3)),
    Case("instance_norm", lambda: nn.InstanceNorm1d(3, affine=True), (3, 4)),
    Case("instance_norm with kept statistics", lambda: nn.InstanceNorm1d(3, track_running_stats=True), (3, 4)),
    Case("F.instance_norm", function(lambda x: F.instance_norm(x)), (3, 4)),
    Case("rms_norm", lambda: nn.RMSNorm(4), (2, 4)),
    Case("F.rms_norm", function(lambda x: F.rms_norm(x, (4,), eps=1e-3)), (2, 4)),
    Case("var", function(lambda x: x.var(1)), (4, 2)),
    Case("std", function(lambda x: torch.std(x, -1, keepdim=True, correction=0)), (2, 4)),
    Case("var_mean", function(lambda x: torch.add(*torch.var_mean(x, 1))), (4, 2)),
    Case("std_mean", function(lambda x: torch.add(*torch.std_mean(x, 1))), (4, 2)),
    Case("norm", function(lambda x: x.norm(dim=1, keepdim=True)), (4,)),
    Case("vector_norm", function(lambda x: torch.linalg.vector_norm(x, 1, dim=1, keepdim=True)), (4,)),
    Case("normalize", function(lambda x: F.normalize(x, dim=1)), (4,)),
]
for case in [*ATTENTION, *STATISTICS]:
    case.options.setdefault("domain", _MODERATE)
SELECTION = [
    Case("roll", function(lambda x: x.roll((1, -1), (1, 2))), (3, 4)),
    Case("rot90", function(lambda x: torch.rot90(x, 1, (1, 2))), (2, 4)),
    Case("index_select", function(lambda x: torch.index_select(x, 1, torch.tensor([1, 0, 1]))), (2, 4)),
    Case("repeat", function(lambda x: x.repeat(1, 2, 1)), (2, 3)),
    Case("cumsum", function(lambda x: x.cumsum(1)), (4,)),
    Case("diagonal", function(lambda x: x.diagonal(1, 1, 2)), (3, 3)),
    Case("windows", function(lambda x: x.unfold(1, 2, 1)), (4,)),
    Case("unfold", lambda: nn.Unfold(2, padding=1), (2, 3, 3)),
    Case("fold", lambda: nn.Fold((3, 3), 2), (4, 4)),
    Case("pixel unshuffle", lambda: nn.PixelUnshuffle(2), (1, 4, 4)),
    Case("channel shuffle", lambda: nn.ChannelShuffle(2), (4, 2, 2)),
    Case("detach", function(lambda x: x.detach()), (4,)),
    Case("movedim", function(lambda x: x.movedim(1, 3)), (2, 3, 4)),
    Case("fliplr", function(torch.fliplr), (3, 2)),
    Case("concatenate", function(lambda x: torch.concatenate([x, -x], 1)), (3,)),
    Case("diff", function(lambda x: torch.diff(x, dim=1)), (4, 2)),
    Case("tril", function(lambda x: x.tril(-1)), (3, 3)),
    Case("triu", function(lambda x: torch.triu(x)), (2, 3)),
    Case("softshrink", lambda: nn.Softshrink(0.4), (3,)),
    Case("F.softshrink", function(F.softshrink), (3,)),
    Case("where", function(lambda x: torch.where(_MASK, x, x.flip(1))), (3,)),
    Case("where, a number", function(lambda x: torch.where(_MASK, 0.3, x)), (3,)),
    Case("where, method", function(lambda x: x.where(_MASK, 0.3)), (3,)),
    Case("masked_fill", function(lambda x: x.masked_fill(_MASK, 0.3)), (3,)),
]

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CASES = [
    *LINEAR, *CONV, *CONV_TRANSPOSE, *NORMALISATION, *POOL, *SHAPE, *ARITHMETIC, *PIECEWISE, *SMOOTH, *NEGATIVE, *MAXIMA, *PRODUCTS,
    *ATTENTION, *STATISTICS, *SELECTION,
]  # fmt: skip


class _Weighted(nn.Module):
    def __init__(self, f: Callable[..., Tensor], shape: Shape, options: dict[str, Any]) -> None:
        super().__init__()
        self.weight, self.f, self.options = nn.Parameter(torch.randn(shape)), f, options

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x, self.weight, **self.options)


class _Token(nn.Module):
    """A learnt row beside the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


class _SelfAttention(nn.Module):
    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(4, 2, batch_first=True), mask

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False, attn_mask=self.mask)[0]


class _Recurrent(nn.Module):
    """The outputs of a recurrent layer, or what is taken from its last states h, of an LSTM from both."""

    def __init__(self, layer: nn.Module, take: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.take = layer, take

    def forward(self, x: Tensor) -> Tensor:
        output, last = self.layer(x)
        if self.take is None:
            return output
        return torch.cat([self.take(h) for h in last], 1) if isinstance(last, tuple) else self.take(last)


def _lstm(layers: int, take: Callable[[Tensor], Tensor]) -> nn.Module:
    return _Recurrent(nn.LSTM(2, 2, layers, batch_first=True), take)


def _encoder_layer(norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=norm_first).eval()


def _functional(f: Callable[..., Tensor], shape: Shape, **options: Any) -> nn.Module:
    return _Weighted(f, shape, options)


def _normalised(x: Tensor, weight: Tensor) -> Tensor:
    """Batch normalisation whose mean, variance, gamma and beta are the rows of a weight."""
    return F.batch_norm(x, weight[0], weight[1].square() + 0.3, weight[2], weight[3], eps=1e-3)


def _prelu(weights: list[float]) -> nn.PReLU:
    module = nn.PReLU(len(weights))
    module.weight.data = torch.tensor(weights)
    return module


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_every_registered_operation_has_a_case() -> None:
    """By builder and rewrite; tests/dual/test_odd_parameters.py has each of the names that share one."""
    used: set[Any] = set()

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **named: Any) -> Any:
            found = work(*args, **named)
            if found is not NotImplemented:
                used.add(work)
            return found

        return noted

    kinds = ({target: noting(work) for target, work in known.items()} for known in (BUILDERS, REWRITES))
    registry = Registry(*kinds, REGISTRY.bodies)
    for case in CASES:
        x = torch.zeros(2, *_shape(case))
        with torch.no_grad():
            build(capture_graph(_as_module(case.make()).float().eval(), x, registry))
    missing = [t.__name__ for t, work in (*BUILDERS.items(), *REWRITES.items()) if work not in used]
    assert not missing, f"registered, but in no case: {', '.join(missing)}"


# PyTorch's remark on how it computes uneven 'same' padding; ours pads itself, but the module that we compare with does not.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keeps_its_contract(case: Case) -> None:
    torch.manual_seed(0)
    shape = (1,) if case in SMOOTH else case.shape
    check_dual_layer(case.make(), None if shape is None else torch.zeros(2, *shape), **case.options)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streams_of_projections_pass_it_with_the_exact_widths(case: Case) -> None:
    """Between two activations, so that a stream passes it; what enters the second one is as wide as the exact engine says."""
    torch.manual_seed(0)
    sign = -1 if case in NEGATIVE else 1
    model = Net(lambda m, x: torch.relu(m.layer(sign * (torch.relu(x) + (sign < 0)))), layer=_as_module(case.make()))
    x = 2 * batch(2, *_shape(case)) - 1
    eps = 0.01 if case in ATTENTION else 0.3  # so that no exponential overflows
    network, region = dual_network(model, x), ad.LinfBall(eps).around(x)
    for index, (found, exact) in radii_from_streams(network, region, merged=True).items():
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-12, msg=network.nodes[index].name)


def _shape(case: Case) -> Shape:
    return case.shape or ((2, 8) if "conv1d" in case.name else (5,))


def _as_module(operation: Any) -> nn.Module:
    return operation if isinstance(operation, nn.Module) else Net(lambda m, x: operation(x))
