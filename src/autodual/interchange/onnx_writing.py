"""ad.save_onnx: a network as an ONNX file, written from its captured graph and compared with the network before it is kept.

PyTorch's own exporter needs a further package (onnxscript), and its older one is deprecated; the networks here need neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError, UnsupportedOperationError
from autodual._files import replacing
from autodual._tensor import full_precision
from autodual.engines.arguments import check_evaluation_mode, check_input, check_placement
from autodual.graph import Call, Network, Operand, capture_graph
from autodual.graph.registry import Registry
from autodual.interchange.layers import ENTRYWISE, PAIRWISE, REDUCTIONS
from autodual.interchange.onnx_file import onnx_package
from autodual.interchange.onnx_reading import TOLERANCE, load_onnx

OPSET, IR_VERSION = 20, 9
"""Gelu came with opset 20; readers of 2024 know both."""


def save_onnx(model: nn.Module, path: Path | str, example: Tensor) -> None:
    """Write a network as an ONNX file, for batches of any size.

    The file is read again and compared with the network before it takes its place; otherwise nothing is written.

    Args:
        model: Any nn.Module in evaluation mode, of layers, activations and other operations that have an operator in ONNX.
        path: Where to write.
        example: A batch [N, *shape] of the shape, dtype and device that inputs have.

    Raises:
        ArgumentError: An argument cannot be used, the file cannot be written, or it would compute something else.
        CaptureError: The model could not be turned into a graph.
        UnsupportedOperationError: An operation cannot be written; the message names it.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
        >>> ad.save_onnx(model, "network.onnx", torch.zeros(1, 3))  # doctest: +SKIP
    """
    onnx_package()
    check_input(example, "example")
    check_placement(model, example, "example")
    check_evaluation_mode(model)
    place = Path(path)
    proto = _written(_captured(model, example))
    with replacing(place) as temporary:
        temporary.write_bytes(proto.SerializeToString())
        _check_same(model, temporary, place, example)


def _captured(model: nn.Module, example: Tensor) -> Network:
    try:
        return capture_graph(model, example, WRITERS)
    except UnsupportedOperationError as error:
        where = str(error).split(" has no dual layer")[0]
        raise UnsupportedOperationError(f"{where} cannot be written as ONNX; see docs/onnx.md for what can") from None


def _check_same(model: nn.Module, temporary: Path, place: Path, example: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand((3, *example.shape[1:]), generator=generator).to(example)
    again = load_onnx(temporary)
    with full_precision(), torch.no_grad():
        expected, found = model(x).flatten(1).cpu(), again(x.cpu()).flatten(1)
    apart = ((found - expected).abs().amax() / expected.abs().amax().clamp(min=torch.finfo(expected.dtype).tiny)).item()
    if not apart <= TOLERANCE:
        raise ArgumentError(
            f"{place}: not written: the file would differ from the network by {apart:.1g} of its largest output, more than "
            f"{TOLERANCE:g}"
        )


class Sheet:
    """The ONNX graph that is being written; owns its nodes, constants and their names."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.onnx, self.dtype = onnx_package(), dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        """A tensor or number in the network's precision, or in another one."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        kind = {torch.float32: np.float32, torch.float64: np.float64}[self.dtype] if dtype is None else dtype
        name = f"constant_{len(self.constants)}"
        self.constants.append(
            self.onnx.numpy_helper.from_array(np.ascontiguousarray(array, dtype=kind).reshape(array.shape), name)
        )
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values), np.int64)

    def model(self, output: str, network: Network) -> Any:
        helper, kind = self.onnx.helper, {torch.float32: 1, torch.float64: 11}[self.dtype]  # FLOAT, DOUBLE
        graph = helper.make_graph(
            self.nodes,
            "autodual",
            [helper.make_tensor_value_info("input", kind, ["batch", *network.input_shape])],
            [helper.make_tensor_value_info(output, kind, ["batch", *network.output_shape])],
            self.constants,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="autodual", opset_imports=opsets, ir_version=IR_VERSION)


@dataclass(frozen=True)
class Writing:
    """One operation that is written: the sheet, the call, and the names of its operands there."""

    sheet: Sheet
    call: Call
    operands: Sequence[str]

    def add(self, op: str, *more: str, **attributes: Any) -> str:
        """Adds an operator on the first operand and more inputs; returns the name of the result."""
        return self.sheet.add(op, self.operands[0], *more, **attributes)

    def option(self, place: int, name: str, otherwise: Any = None) -> Any:
        """An option of a module, or the argument of the function in its place."""
        module = self.call.module
        return self.call.argument(place, name, otherwise) if module is None else getattr(module, name)

    def clip(self, *ends: Any) -> str:
        """min(max(x, low), high), where either end may be None."""
        if any(isinstance(end, Operand | Tensor) for end in ends):
            raise self.refusal("a clamp between tensors cannot be written; use numbers")
        return self.add("Clip", *("" if end is None else self.sheet.constant(float(end)) for end in ends))

    def refusal(self, reason: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(f"{self.call.path}: {reason}")


Writer: TypeAlias = Callable[[Writing], str]
"""Adds what a call computes; returns the name of the result."""
WRITERS = Registry()
"""The operations that can be written: its builders are of type `Writer`."""


def writes(*targets: Any) -> Callable[[Writer], Writer]:
    def note(writer: Writer) -> Writer:
        WRITERS.register(*targets)(writer)
        return writer

    return note


def _written(network: Network) -> Any:
    sheet, parameters = Sheet(network.dtype), network.parameters_now()
    names: dict[int, str] = {}
    for index, node in enumerate(network.nodes):
        if not node.depends:
            continue
        if node.target is None:
            names[index] = "input"
            continue
        writer: Any = network.registry.builder_of(node.target)  # type: ignore[arg-type]
        call = network.call(node, parameters)
        names[index] = writer(Writing(sheet, call, [names[i] for i in node.refs if i in names]))
    output = sheet.add("Identity", names[network.output]) if names[network.output] == "input" else names[network.output]
    return sheet.model(output, network)


# Layers.


@writes(nn.Linear, F.linear)
def _linear(at: Writing) -> str:
    weight, bias = at.option(1, "weight"), at.option(2, "bias")
    if len(at.call.operand.shape) == 1:
        added = [] if bias is None else [at.sheet.constant(bias)]
        return at.add("Gemm", at.sheet.constant(weight), *added, transB=1)
    product = at.add("MatMul", at.sheet.constant(weight.T))
    return product if bias is None else at.sheet.add("Add", product, at.sheet.constant(bias))


@writes(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _convolution(at: Writing) -> str:
    m: Any = at.call.module
    if m.padding_mode != "zeros" or (isinstance(m.padding, str) and m.padding == "same" and set(m.stride) != {1}):
        raise at.refusal(f"padding_mode {m.padding_mode!r} cannot be written; pad before the convolution")
    named = {
        name: list(value)
        for name, value in (("strides", m.stride), ("dilations", m.dilation), ("kernel_shape", m.kernel_size))
    }
    if isinstance(m.padding, str):
        half = [d * (k - 1) // 2 for d, k in zip(m.dilation, m.kernel_size, strict=True)]
        rest = [d * (k - 1) - h for d, k, h in zip(m.dilation, m.kernel_size, half, strict=True)]
        named["pads"] = half + rest if m.padding == "same" else [0] * 2 * len(half)
    else:
        named["pads"] = 2 * list(m.padding)
    transposed = isinstance(at.call.module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    if transposed:
        named["output_padding"] = list(m.output_padding)
    weights = [at.sheet.constant(m.weight), *([] if m.bias is None else [at.sheet.constant(m.bias)])]
    return at.add("ConvTranspose" if transposed else "Conv", *weights, group=m.groups, **named)


@writes(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(at: Writing) -> str:
    m: Any = at.call.module
    if m.running_mean is None:
        raise at.refusal("batch normalisation without running statistics makes examples depend on one another")
    weight = torch.ones_like(m.running_mean) if m.weight is None else m.weight
    bias = torch.zeros_like(m.running_mean) if m.bias is None else m.bias
    tensors = [at.sheet.constant(t) for t in (weight, bias, m.running_mean, m.running_var)]
    return at.add("BatchNormalization", *tensors, epsilon=float(m.eps))


@writes(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
def _pool(at: Writing) -> str:
    m: Any = at.call.module
    dims = len(at.call.shape) - 1
    kernel, padding = _each(m.kernel_size, dims), _each(m.padding, dims)
    named: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": _each(m.stride or kernel, dims),
        "pads": 2 * padding,
        "ceil_mode": int(m.ceil_mode),
    }
    if isinstance(at.call.module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d):
        return at.add("MaxPool", dilations=_each(m.dilation, dims), **named)
    if getattr(m, "divisor_override", None) is not None:
        raise at.refusal("divisor_override cannot be written")
    return at.add("AveragePool", count_include_pad=int(m.count_include_pad), **named)


@writes(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_pool(at: Writing) -> str:
    before, after = at.call.operand.shape[1:], at.call.shape[1:]
    if any(a % b for a, b in zip(before, after, strict=True)):
        raise at.refusal(
            f"adaptive pooling from {list(before)} to {list(after)} has windows of several sizes, and cannot be written"
        )
    kernel = [a // b for a, b in zip(before, after, strict=True)]
    return at.add("AveragePool", kernel_shape=kernel, strides=kernel)


def _each(value: Any, dims: int) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value] * dims


# Activations.


def _plain(op: str) -> Writer:
    return lambda at: at.add(op)


for _op, _targets in ENTRYWISE.items():
    writes(*_targets)(_plain(_op))


_SHORT: dict[tuple[Any, ...], Writer] = {
    (nn.LeakyReLU, F.leaky_relu): lambda at: at.add("LeakyRelu", alpha=float(at.option(1, "negative_slope", 0.01))),
    (nn.GELU, F.gelu): lambda at: at.add("Gelu", approximate=at.option(1, "approximate", "none")),
    (nn.SiLU, F.silu): lambda at: at.add("Mul", at.add("Sigmoid")),
    (nn.Hardsigmoid, F.hardsigmoid): lambda at: at.add("HardSigmoid", alpha=1 / 6, beta=0.5),
    (nn.Hardtanh, nn.ReLU6, F.hardtanh): lambda at: at.clip(
        at.option(1, "min_val", -1.0), at.option(2, "max_val", 1.0)
    ),
    (F.relu6,): lambda at: at.clip(0.0, 6.0),
    (torch.clamp, Tensor.clamp, torch.clip, Tensor.clip): lambda at: at.clip(at.option(1, "min"), at.option(2, "max")),
    (nn.PReLU,): lambda at: at.add(
        "PRelu", at.sheet.constant(at.call.module.weight.reshape(-1, *[1] * (len(at.call.shape) - 1)))
    ),
    (nn.PixelShuffle,): lambda at: at.add("DepthToSpace", blocksize=int(at.call.module.upscale_factor), mode="CRD"),
}
"""Operations that one line writes."""
for _targets, _writer in _SHORT.items():
    writes(*_targets)(_writer)


@writes(nn.ELU, F.elu, nn.CELU, F.celu)
def _elu(at: Writing) -> str:
    alpha = at.option(1, "alpha", 1.0)
    if at.call.module is None and alpha != 1:
        raise at.refusal(
            "ELU or CELU as a function is written for alpha = 1 only, where they are equal; use nn.ELU or nn.CELU"
        )
    return at.add("Celu" if isinstance(at.call.module, nn.CELU) else "Elu", alpha=float(alpha))


@writes(nn.Softplus)
def _softplus(at: Writing) -> str:
    if at.call.module.beta != 1:
        raise at.refusal("Softplus is written for beta = 1 only")
    return at.add("Softplus")


def _softmax(op: str) -> Writer:
    def write(at: Writing) -> str:
        dim = at.option(1, "dim")
        if dim is None:
            raise at.refusal("a softmax without a dimension cannot be written; say dim=1")
        return at.add(op, axis=int(dim))

    return write


writes(nn.Softmax, F.softmax, torch.softmax, torch.Tensor.softmax)(_softmax("Softmax"))
writes(nn.LogSoftmax, F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax)(_softmax("LogSoftmax"))


@writes(nn.LayerNorm)
def _layer_norm(at: Writing) -> str:
    m: Any = at.call.module
    weight = torch.ones(m.normalized_shape) if m.weight is None else m.weight
    bias = [] if m.bias is None else [at.sheet.constant(m.bias)]
    axis = -len(m.normalized_shape)
    return at.add("LayerNormalization", at.sheet.constant(weight), *bias, axis=axis, epsilon=float(m.eps))


@writes(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, torch.Tensor.contiguous, torch.Tensor.clone)
def _identity(at: Writing) -> str:
    return at.operands[0]


# Arithmetic.


def _arithmetic(op: str, second: str = "other") -> Writer:
    def write(at: Writing) -> str:
        if set(at.call.kwargs) & {"alpha", "rounding_mode"}:
            raise at.refusal("alpha and rounding_mode cannot be written")
        following = iter(at.operands)
        given = at.call.argument(0, "input"), at.call.argument(1, second)
        names = [next(following) if isinstance(v, Operand) else at.sheet.constant(v) for v in given]
        return at.sheet.add(op, *names)

    return write


for _op, _targets in PAIRWISE.items():
    writes(*_targets)(_arithmetic(_op, "exponent" if _op == "Pow" else "other"))
writes(torch.clamp_min)(_arithmetic("Max", "min"))
writes(torch.clamp_max)(_arithmetic("Min", "max"))


def _reduction(op: str) -> Writer:
    def write(at: Writing) -> str:
        given = at.call.argument(1, "dim", 0)
        dims = [at.call.dimension(d) + 1 for d in (given if isinstance(given, list | tuple) else (given,))]
        return at.add(op, at.sheet.ints(*dims), keepdims=int(at.call.argument(2, "keepdim", False)))

    return write


for _op, _targets in REDUCTIONS.items():
    writes(*_targets)(_reduction(_op))


# Shapes.


@writes(nn.Flatten, nn.Unflatten, torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape, torch.reshape,
        torch.squeeze, torch.Tensor.squeeze, torch.unsqueeze, torch.Tensor.unsqueeze)  # fmt: skip
def _reshape(at: Writing) -> str:
    if isinstance(at.call.module, nn.Flatten) and len(at.call.shape) == 1:
        return at.add("Flatten")
    return at.add("Reshape", at.sheet.ints(-1, *at.call.shape))


@writes(torch.permute, torch.Tensor.permute)
def _permute(at: Writing) -> str:
    order = at.call.args[1:] if len(at.call.args) > 2 else at.call.argument(1, "dims")
    return at.add("Transpose", perm=[d % (len(at.call.shape) + 1) for d in order])


@writes(torch.transpose, torch.Tensor.transpose)
def _transpose(at: Writing) -> str:
    order = list(range(len(at.call.shape) + 1))
    first, second = (at.call.dimension(at.call.argument(i, name)) + 1 for i, name in ((1, "dim0"), (2, "dim1")))
    order[first], order[second] = second, first
    return at.add("Transpose", perm=order)


@writes(torch.cat, torch.concat)
def _concat(at: Writing) -> str:
    if any(not isinstance(part, Operand) for part in at.call.argument(0, "tensors")):
        raise at.refusal("a constant part of a concatenation cannot be written")
    return at.sheet.add("Concat", *at.operands, axis=at.call.dimension(at.call.argument(1, "dim", 0)) + 1)


@writes(operator.getitem, torch.Tensor.__getitem__)
def _index(at: Writing) -> str:
    """Slices as Slice, positions as Gather; from the last dimension on, since a single position takes its dimension away."""
    given = at.call.argument(1, "index")
    index = given if isinstance(given, tuple) else (given,)
    lists = [part for part in index if not isinstance(part, slice | int)]
    if not index or index[0] != slice(None) or len(lists) > 1 or not all(isinstance(part, list) for part in lists):
        raise at.refusal("only slices, positions and one list of positions after the batch can be written")
    name = at.operands[0]
    for axis, part in reversed(list(enumerate(index))[1:]):
        size = at.call.operand.shape[axis - 1]
        if not isinstance(part, slice):
            name = at.sheet.add("Gather", name, at.sheet.constant(np.array(part), np.int64), axis=axis)
        elif (ends := part.indices(size)) != (0, size, 1):
            if ends[2] < 0:
                raise at.refusal("a slice backwards cannot be written")
            name = at.sheet.add("Slice", name, *(at.sheet.ints(n) for n in (ends[0], ends[1], axis, ends[2])))
    return name


@writes(torch.Tensor.expand)
def _expand(at: Writing) -> str:
    if len(at.call.shape) != len(at.call.operand.shape):
        raise at.refusal("an expansion to more dimensions cannot be written; unsqueeze first")
    return at.add("Expand", at.sheet.ints(1, *at.call.shape))


@writes(nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, F.pad)
def _pad(at: Writing) -> str:
    m: Any = at.call.module
    amounts = m.padding if m is not None else at.call.argument(1, "pad")
    mode = "constant" if m is not None else at.call.argument(2, "mode", "constant")
    value = m.value if m is not None else at.call.argument(3, "value", None) or 0.0
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    rank = len(at.call.shape) + 1
    before, after = [0] * rank, [0] * rank
    for place in range(len(amounts) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = amounts[2 * place], amounts[2 * place + 1]
    fill = [at.sheet.constant(float(value))] if mode == "constant" else []
    return at.add("Pad", at.sheet.ints(*before, *after), *fill, mode=mode)


@writes(nn.Upsample, nn.UpsamplingNearest2d)
def _upsample(at: Writing) -> str:
    factors = [a / b for a, b in zip(at.call.shape[1:], at.call.operand.shape[1:], strict=True)]
    if at.call.module.mode != "nearest" or any(f != int(f) for f in factors):
        raise at.refusal("only upsampling to the nearest pixel, by whole factors, can be written")
    scales = at.sheet.constant(np.array([1, 1, *factors]), np.float32)
    way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return at.add("Resize", "", scales, **way)
