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
from autodual.graph import capture
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
]
for case in SMOOTH:
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

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CASES = [*LINEAR, *CONV, *CONV_TRANSPOSE, *NORMALISATION, *POOL, *SHAPE, *ARITHMETIC, *PIECEWISE, *SMOOTH, *MAXIMA]


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
            build(capture(_as_module(case.make()).float().eval(), x, registry))
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
    model = Net(lambda m, x: torch.relu(m.layer(torch.relu(x))), layer=_as_module(case.make()))
    x = 2 * batch(2, *_shape(case)) - 1
    network, region = dual_network(model, x), ad.LinfBall(0.3).around(x)
    for index, (found, exact) in radii_from_streams(network, region, merged=True).items():
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-12, msg=network.nodes[index].name)


def _shape(case: Case) -> Shape:
    return case.shape or ((2, 8) if "conv1d" in case.name else (5,))


def _as_module(operation: Any) -> nn.Module:
    return operation if isinstance(operation, nn.Module) else Net(lambda m, x: operation(x))
