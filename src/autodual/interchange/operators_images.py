"""Operators of ONNX on images [1, channels, ...]: convolutions, pooling, resizing and normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from autodual._tensor import Shape
from autodual.interchange.conversion import Node, Value, check_room, filled, reads
from autodual.interchange.layers import pad, reduce


def _pads(node: Node, sizes: Shape, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """What is added before every dimension, then after every dimension."""
    way = node.attributes.get("auto_pad", b"NOTSET").decode()
    if way == "NOTSET":
        return list(node.attributes.get("pads", [0] * 2 * len(sizes)))
    if way == "VALID":
        return [0] * 2 * len(sizes)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    total = [max((-(-n // s) - 1) * s + span - n, 0) for n, s, span in zip(sizes, stride, spans, strict=True)]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return less + more if way == "SAME_UPPER" else more + less


def _window(node: Node, sizes: Shape, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads."""
    dims = len(sizes)
    if len(kernel) != dims or not 1 <= dims <= 3:
        raise node.refuse(f"a window of {len(kernel)} dimensions does not fit an image of {dims}; 1 to 3 are supported")
    stride = list(node.attributes.get("strides", [1] * dims))
    dilation = list(node.attributes.get("dilations", [1] * dims))
    return stride, dilation, _pads(node, sizes, kernel, stride, dilation)


def _padded(node: Node, x: Value, pads: Sequence[int], mode: str = "constant") -> tuple[Value, list[int]]:
    """The image and the padding that a module can do itself: what differs between the sides is done before."""
    dims = len(pads) // 2
    before, after = list(pads[:dims]), list(pads[dims:])
    if before == after:
        return x, before
    amounts = [n for d in reversed(range(dims)) for n in (before[d], after[d])]
    return node.add(pad(amounts, mode), [x]), [0] * dims


_CONVOLUTIONS: dict[int, tuple[Any, Any]] = {
    1: (nn.Conv1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}


@reads("Conv")
def _conv(node: Node) -> Value:
    x, weight, bias = node.image(), node.weight(1, "W"), node.constant(2, "B")
    stride, dilation, pads = _window(node, x.shape[2:], weight.shape[2:])
    sides = zip(x.shape[2:], pads, pads[len(stride) :], strict=False)
    check_room(x.shape[1] * math.prod(n + before + after for n, before, after in sides))
    x, padding = _padded(node, x, pads)
    group = node.attributes.get("group", 1)
    module = _CONVOLUTIONS[len(stride)][0](
        weight.shape[1] * group, weight.shape[0], weight.shape[2:], stride, padding, dilation, group, bias is not None, device="meta",
    )  # fmt: skip
    return node.add(_with_weight(node, module, weight, bias), [x])


def _with_weight(node: Node, module: nn.Module, weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    return filled(module, weight=node.tensor(weight), bias=None if bias is None else node.tensor(bias))


@reads("ConvTranspose")
def _conv_transpose(node: Node) -> Value:
    x, weight, bias = node.image(), node.weight(1, "W"), node.constant(2, "B")
    dims = len(x.shape) - 2
    stride, dilation, _ = _window(node, x.shape[2:], weight.shape[2:])
    group, extra = node.attributes.get("group", 1), list(node.attributes.get("output_padding", [0] * dims))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    whole = [s * (n - 1) + span + e for s, n, span, e in zip(stride, x.shape[2:], spans, extra, strict=True)]
    check_room(weight.shape[1] * group * math.prod(whole))
    pads = _cut(node, whole, [n * s for n, s in zip(x.shape[2:], stride, strict=True)])
    even = (
        pads[:dims] == pads[dims:]
        and min(pads) >= 0
        and all(e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True))
    )
    module = _CONVOLUTIONS[dims][1](
        weight.shape[0], weight.shape[1] * group, weight.shape[2:], stride, pads[:dims] if even else 0, extra if even else 0, group,
        bias is not None, dilation, device="meta",
    )  # fmt: skip
    found = node.add(_with_weight(node, module, weight, bias), [x])
    if even:
        return found
    if any(extra) and bias is not None:
        raise node.refuse("output_padding that PyTorch cannot do is supported without a bias only")
    amounts = [n for d in reversed(range(dims)) for n in (-pads[d], extra[d] - pads[dims + d])]
    return node.add(pad(amounts, "constant"), [found])


def _cut(node: Node, whole: Sequence[int], same: Sequence[int]) -> list[int]:
    """What a transposed convolution cuts off: given, or what leaves the wanted size."""
    dims, way = len(whole), node.attributes.get("auto_pad", b"NOTSET").decode()
    wanted = node.attributes.get("output_shape")
    if wanted is None and way in ("NOTSET", "VALID"):
        return list(node.attributes.get("pads", [0] * 2 * dims)) if way == "NOTSET" else [0] * 2 * dims
    total = [a - b for a, b in zip(whole, same if wanted is None else wanted[-dims:], strict=True)]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return less + more if way == "SAME_UPPER" else more + less


@reads("MaxPool")
def _max_pool(node: Node) -> Value:
    """Repeating the image's edge changes no maximum of a window that reads it, so uneven padding is done before."""
    x, kernel = node.image(), list(node.attributes["kernel_shape"])
    if len(node.outputs) > 1 and node.outputs[1]:
        raise node.refuse("its second output, the positions of the maxima, cannot be bounded")
    stride, dilation, pads = _window(node, x.shape[2:], kernel)
    dims, ceil = len(kernel), bool(node.attributes.get("ceil_mode", 0))
    inside = [p <= k // 2 for p, k in zip(pads[:dims], kernel, strict=True)]
    if pads[:dims] != pads[dims:] or not all(inside):
        if ceil or set(dilation) != {1} or any(p >= k for p, k in zip(pads, kernel * 2, strict=True)):
            raise node.refuse(
                "uneven padding together with ceil_mode, dilations, or windows of padding only is not supported"
            )
        amounts = [n for d in reversed(range(dims)) for n in (pads[d], pads[dims + d])]
        x, pads = node.add(pad(amounts, "replicate"), [x]), [0] * 2 * dims
    kind: Any = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1]
    return node.add(kind(tuple(kernel), tuple(stride), tuple(pads[:dims]), tuple(dilation), ceil_mode=ceil), [x])


@reads("AveragePool")
def _average_pool(node: Node) -> Value:
    x, kernel = node.image(), list(node.attributes["kernel_shape"])
    stride, dilation, pads = _window(node, x.shape[2:], kernel)
    if set(dilation) != {1}:
        raise node.refuse("dilations are not supported")
    dims, ceil, count = (
        len(kernel),
        bool(node.attributes.get("ceil_mode", 0)),
        bool(node.attributes.get("count_include_pad", 0)),
    )
    if pads[:dims] != pads[dims:] or any(p > k // 2 for p, k in zip(pads[:dims], kernel, strict=True)):
        if ceil or not count:
            raise node.refuse("uneven padding is supported only with count_include_pad = 1 and without ceil_mode")
        amounts = [n for d in reversed(range(dims)) for n in (pads[d], pads[dims + d])]
        x, pads = node.add(pad(amounts, "constant"), [x]), [0] * 2 * dims
    kind: Any = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1]
    return node.add(
        kind(tuple(kernel), tuple(stride), tuple(pads[:dims]), ceil_mode=ceil, count_include_pad=count), [x]
    )


@reads("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> Value:
    x = node.image()
    function = torch.mean if node.op == "GlobalAveragePool" else torch.amax
    return node.add(reduce(function, range(2, len(x.shape)), True), [x])


@reads("BatchNormalization")
def _batch_norm(node: Node) -> Value:
    x = node.value()
    if node.attributes.get("training_mode", 0) or len([o for o in node.outputs if o]) > 1:
        raise node.refuse(
            "it is in training mode, where examples depend on one another; export the network in evaluation mode"
        )
    if not x.batched or not 2 <= len(x.shape) <= 5:
        raise node.refuse(
            f"it reads a tensor of shape {list(x.shape)}; [1, channels, ...] with up to 5 dimensions is supported"
        )
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(x.shape)]
    weight, bias, mean, variance = (
        node.tensor(node.weight(i, name)) for i, name in enumerate(("scale", "B", "input_mean", "input_var"), start=1)
    )
    module = kind(len(weight), eps=node.attributes.get("epsilon", 1e-5), device="meta")
    seen = torch.zeros((), dtype=torch.long)
    whole = filled(module, weight=weight, bias=bias, running_mean=mean, running_var=variance, num_batches_tracked=seen)
    return node.add(whole, [x])


@reads("LayerNormalization")
def _layer_norm(node: Node) -> Value:
    x, weight, bias = node.value(), node.weight(1, "Scale"), node.constant(2, "B")
    shape = x.shape[node.axis(node.attributes.get("axis", -1), len(x.shape)) :]
    if shape != x.per_example[-len(shape) :] or any(o for o in node.outputs[1:]):
        raise node.refuse(
            "it normalises over the batch, or gives mean and deviation as outputs, which is not supported"
        )
    module = nn.LayerNorm(shape, node.attributes.get("epsilon", 1e-5), bias=bias is not None, device="meta")
    tensors = {"weight": node.tensor(np.broadcast_to(weight, shape))}
    if bias is not None:
        tensors["bias"] = node.tensor(np.broadcast_to(bias, shape))
    return node.add(filled(module, **tensors), [x], x.shape)


@reads("Resize", "Upsample")
def _resize(node: Node) -> Value:
    x, mode = node.image(), node.attributes.get("mode", b"nearest").decode()
    scales, sizes = _scales(node)
    dims = len(x.shape) - 2
    factors = [b / a for a, b in zip(x.shape, sizes, strict=True)] if sizes is not None else scales
    if factors is None or len(factors) != dims + 2 or list(factors[:2]) != [1, 1]:
        raise node.refuse("it must give one factor for every dimension, and leave batch and channels as they are")
    way = node.attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    if mode not in ("nearest", "linear"):
        raise node.refuse(f"the mode {mode!r} is not supported; use nearest or linear")
    named: dict[str, Any] = {"scale_factor": tuple(factors[2:])} if sizes is None else {"size": tuple(sizes[2:])}
    if mode == "linear":
        named |= {"mode": ("linear", "bilinear", "trilinear")[dims - 1], "align_corners": way == "align_corners"}
    return node.add(nn.Upsample(**named), [x])


def _scales(node: Node) -> tuple[list[float] | None, list[int] | None]:
    """Factors or sizes, of which a file gives one."""
    if node.op == "Upsample" and node.opset < 9:
        return list(node.attributes["scales"]), None
    scales = node.constant(1 if node.op == "Upsample" or node.opset < 11 else 2, "scales")
    sizes = node.constant(3, "sizes")
    if node.attributes.get("axes") is not None:
        raise node.refuse("the attribute 'axes' is not supported; give one factor for every dimension")
    if sizes is not None and sizes.size:
        return None, [int(n) for n in sizes]
    return (None if scales is None else [float(s) for s in scales]), None


@reads("DepthToSpace")
def _depth_to_space(node: Node) -> Value:
    if node.attributes.get("mode", b"DCR") != b"CRD":
        raise node.refuse("only the mode CRD is supported")
    return node.add(nn.PixelShuffle(node.attributes["blocksize"]), [node.image()])
