"""ad.save_onnx: a network as an ONNX file, written from its captured graph and compared with the network before it is kept.

PyTorch's own exporter needs a further package (onnxscript), and its older one is deprecated; the networks here need neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError, UnsupportedOperationError
from autodual._files import replacing
from autodual._tensor import full_precision
from autodual.engines.prepare import check_evaluation_mode, check_input, check_placement
from autodual.graph import Call, Network, Operand, capture_graph
from autodual.graph.registry import Registry
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


Writer: TypeAlias = Callable[[Sheet, Call, Sequence[str]], str]
"""Adds what a call computes from operands of these names; returns the name of the result."""
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
        names[index] = writer(sheet, call, [names[i] for i in node.refs if i in names])
    output = sheet.add("Identity", names[network.output]) if names[network.output] == "input" else names[network.output]
    return sheet.model(output, network)


# Layers.


@writes(nn.Linear, F.linear)
def _linear(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    m: Any = call.module
    weight = m.weight if m is not None else call.argument(1, "weight")
    bias = m.bias if m is not None else call.argument(2, "bias", None)
    if len(call.operand.shape) == 1:
        added = [] if bias is None else [sheet.constant(bias)]
        return sheet.add("Gemm", operands[0], sheet.constant(weight), *added, transB=1)
    product = sheet.add("MatMul", operands[0], sheet.constant(weight.T))
    return product if bias is None else sheet.add("Add", product, sheet.constant(bias))


@writes(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _convolution(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    m: Any = call.module
    if m.padding_mode != "zeros" or (isinstance(m.padding, str) and m.padding == "same" and set(m.stride) != {1}):
        raise _refusal(call, f"padding_mode {m.padding_mode!r} cannot be written; pad before the convolution")
    named: dict[str, Any] = {
        "strides": list(m.stride),
        "dilations": list(m.dilation),
        "group": m.groups,
        "kernel_shape": list(m.kernel_size),
    }
    if isinstance(m.padding, str):
        half = [d * (k - 1) // 2 for d, k in zip(m.dilation, m.kernel_size, strict=True)]
        rest = [d * (k - 1) - h for d, k, h in zip(m.dilation, m.kernel_size, half, strict=True)]
        named["pads"] = half + rest if m.padding == "same" else [0] * 2 * len(half)
    else:
        named["pads"] = 2 * list(m.padding)
    transposed = isinstance(call.module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    if transposed:
        named["output_padding"] = list(m.output_padding)
    weights = [sheet.constant(m.weight), *([] if m.bias is None else [sheet.constant(m.bias)])]
    return sheet.add("ConvTranspose" if transposed else "Conv", operands[0], *weights, **named)


@writes(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    m: Any = call.module
    if m.running_mean is None:
        raise _refusal(call, "batch normalisation without running statistics makes examples depend on one another")
    weight = torch.ones_like(m.running_mean) if m.weight is None else m.weight
    bias = torch.zeros_like(m.running_mean) if m.bias is None else m.bias
    tensors = [sheet.constant(t) for t in (weight, bias, m.running_mean, m.running_var)]
    return sheet.add("BatchNormalization", operands[0], *tensors, epsilon=float(m.eps))


@writes(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
def _pool(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    m: Any = call.module
    dims = len(call.shape) - 1
    kernel, padding = _each(m.kernel_size, dims), _each(m.padding, dims)
    named: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": _each(m.stride or kernel, dims),
        "pads": 2 * padding,
        "ceil_mode": int(m.ceil_mode),
    }
    if isinstance(call.module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d):
        return sheet.add("MaxPool", operands[0], dilations=_each(m.dilation, dims), **named)
    if getattr(m, "divisor_override", None) is not None:
        raise _refusal(call, "divisor_override cannot be written")
    return sheet.add("AveragePool", operands[0], count_include_pad=int(m.count_include_pad), **named)


@writes(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def _adaptive_pool(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    before, after = call.operand.shape[1:], call.shape[1:]
    if any(a % b for a, b in zip(before, after, strict=True)):
        raise _refusal(
            call,
            f"adaptive pooling from {list(before)} to {list(after)} has windows of several sizes, and cannot be written",
        )
    kernel = [a // b for a, b in zip(before, after, strict=True)]
    return sheet.add("AveragePool", operands[0], kernel_shape=kernel, strides=kernel)


def _each(value: Any, dims: int) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value] * dims


def _refusal(call: Call, reason: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"{call.path}: {reason}")


# Activations.

_PLAIN: dict[str, tuple[Any, ...]] = {
    "Relu": (nn.ReLU, F.relu, torch.relu, torch.Tensor.relu),
    "Sigmoid": (nn.Sigmoid, torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid),
    "Tanh": (nn.Tanh, torch.tanh, torch.Tensor.tanh, F.tanh),
    "Selu": (nn.SELU, F.selu),
    "HardSwish": (nn.Hardswish, F.hardswish),
    "Mish": (nn.Mish, F.mish),
    "Softsign": (nn.Softsign, F.softsign),
    "Exp": (torch.exp, torch.Tensor.exp),
    "Log": (torch.log, torch.Tensor.log),
    "Sqrt": (torch.sqrt, torch.Tensor.sqrt),
    "Reciprocal": (torch.reciprocal, torch.Tensor.reciprocal),
    "Erf": (torch.erf, torch.Tensor.erf),
    "Sin": (torch.sin, torch.Tensor.sin),
    "Cos": (torch.cos, torch.Tensor.cos),
    "Abs": (torch.abs, torch.Tensor.abs, operator.abs, abs),
    "Neg": (operator.neg, torch.neg, torch.Tensor.neg),
}


def _plain(op: str) -> Writer:
    return lambda sheet, call, operands: sheet.add(op, operands[0])


for _op, _targets in _PLAIN.items():
    writes(*_targets)(_plain(_op))


@writes(nn.LeakyReLU, F.leaky_relu)
def _leaky_relu(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    slope = call.module.negative_slope if call.module is not None else call.argument(1, "negative_slope", 0.01)
    return sheet.add("LeakyRelu", operands[0], alpha=float(slope))


@writes(nn.ELU, F.elu, nn.CELU, F.celu)
def _elu(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    alpha = call.module.alpha if call.module is not None else call.argument(1, "alpha", 1.0)
    smooth = isinstance(call.module, nn.CELU)
    if call.module is None and alpha != 1:
        raise _refusal(
            call, "ELU or CELU as a function is written for alpha = 1 only, where they are equal; use nn.ELU or nn.CELU"
        )
    return sheet.add("Celu" if smooth else "Elu", operands[0], alpha=float(alpha))


@writes(nn.Softplus)
def _softplus(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    if call.module.beta != 1:
        raise _refusal(call, "Softplus is written for beta = 1 only")
    return sheet.add("Softplus", operands[0])


@writes(nn.GELU, F.gelu)
def _gelu(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    way = call.module.approximate if call.module is not None else call.kwargs.get("approximate", "none")
    return sheet.add("Gelu", operands[0], approximate=way)


@writes(nn.SiLU, F.silu)
def _silu(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return sheet.add("Mul", operands[0], sheet.add("Sigmoid", operands[0]))


@writes(nn.Hardsigmoid, F.hardsigmoid)
def _hardsigmoid(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return sheet.add("HardSigmoid", operands[0], alpha=1 / 6, beta=0.5)


@writes(nn.PReLU)
def _prelu(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    slope = call.module.weight
    return sheet.add("PRelu", operands[0], sheet.constant(slope.reshape(-1, *[1] * (len(call.shape) - 1))))


@writes(nn.Hardtanh, nn.ReLU6)
def _hardtanh(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return _between(sheet, call, operands, call.module.min_val, call.module.max_val)


@writes(F.hardtanh)
def _functional_hardtanh(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return _between(sheet, call, operands, call.argument(1, "min_val", -1.0), call.argument(2, "max_val", 1.0))


@writes(F.relu6)
def _relu6(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return _between(sheet, call, operands, 0.0, 6.0)


@writes(torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip)
def _clamp(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return _between(sheet, call, operands, call.argument(1, "min", None), call.argument(2, "max", None))


def _between(sheet: Sheet, call: Call, operands: Sequence[str], *ends: Any) -> str:
    if any(isinstance(end, Operand | Tensor) for end in ends):
        raise _refusal(call, "a clamp between tensors cannot be written; use numbers")
    return sheet.add("Clip", operands[0], *("" if end is None else sheet.constant(float(end)) for end in ends))


def _softmax(op: str) -> Writer:
    def write(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
        dim = call.module.dim if call.module is not None else call.argument(1, "dim", None)
        if dim is None:
            raise _refusal(call, "a softmax without a dimension cannot be written; say dim=1")
        return sheet.add(op, operands[0], axis=int(dim))

    return write


writes(nn.Softmax, F.softmax, torch.softmax, torch.Tensor.softmax)(_softmax("Softmax"))
writes(nn.LogSoftmax, F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax)(_softmax("LogSoftmax"))


@writes(nn.LayerNorm)
def _layer_norm(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    m: Any = call.module
    weight = torch.ones(m.normalized_shape) if m.weight is None else m.weight
    bias = [] if m.bias is None else [sheet.constant(m.bias)]
    axis = -len(m.normalized_shape)
    return sheet.add("LayerNormalization", operands[0], sheet.constant(weight), *bias, axis=axis, epsilon=float(m.eps))


@writes(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, torch.Tensor.contiguous, torch.Tensor.clone)
def _identity(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return operands[0]


# Arithmetic.


def _arithmetic(op: str, second: str = "other") -> Writer:
    def write(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
        if set(call.kwargs) & {"alpha", "rounding_mode"}:
            raise _refusal(call, "alpha and rounding_mode cannot be written")
        following = iter(operands)
        given = call.argument(0, "input"), call.argument(1, second)
        names = [next(following) if isinstance(v, Operand) else sheet.constant(v) for v in given]
        return sheet.add(op, *names)

    return write


for _op, _targets in {
    "Add": (operator.add, operator.iadd, torch.add, torch.Tensor.add, torch.Tensor.add_),
    "Sub": (operator.sub, operator.isub, torch.sub, torch.Tensor.sub, torch.Tensor.sub_),
    "Mul": (operator.mul, operator.imul, torch.mul, torch.Tensor.mul, torch.Tensor.mul_),
    "Div": (operator.truediv, operator.itruediv, torch.div, torch.Tensor.div, torch.Tensor.div_),
    "MatMul": (torch.matmul, operator.matmul, torch.Tensor.matmul),
    "Max": (torch.maximum,),
    "Min": (torch.minimum,),
}.items():
    writes(*_targets)(_arithmetic(_op))
writes(torch.clamp_min)(_arithmetic("Max", "min"))
writes(torch.clamp_max)(_arithmetic("Min", "max"))
writes(torch.pow, operator.pow, torch.Tensor.pow)(_arithmetic("Pow", "exponent"))


def _reduction(op: str) -> Writer:
    def write(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
        given = call.argument(1, "dim", 0)
        dims = [call.dimension(d) + 1 for d in (given if isinstance(given, list | tuple) else (given,))]
        return sheet.add(op, operands[0], sheet.ints(*dims), keepdims=int(call.argument(2, "keepdim", False)))

    return write


writes(torch.mean, torch.Tensor.mean)(_reduction("ReduceMean"))
writes(torch.sum, torch.Tensor.sum)(_reduction("ReduceSum"))
writes(torch.amax, torch.Tensor.amax)(_reduction("ReduceMax"))
writes(torch.amin, torch.Tensor.amin)(_reduction("ReduceMin"))


# Shapes.


@writes(nn.Flatten, nn.Unflatten, torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape, torch.reshape,
        torch.squeeze, torch.Tensor.squeeze, torch.unsqueeze, torch.Tensor.unsqueeze)  # fmt: skip
def _reshape(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    if isinstance(call.module, nn.Flatten) and len(call.shape) == 1:
        return sheet.add("Flatten", operands[0])
    return sheet.add("Reshape", operands[0], sheet.ints(-1, *call.shape))


@writes(torch.permute, torch.Tensor.permute)
def _permute(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    order = call.args[1:] if len(call.args) > 2 else call.argument(1, "dims")
    return sheet.add("Transpose", operands[0], perm=[d % (len(call.shape) + 1) for d in order])


@writes(torch.transpose, torch.Tensor.transpose)
def _transpose(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    order = list(range(len(call.shape) + 1))
    first, second = (call.dimension(call.argument(i, name)) + 1 for i, name in ((1, "dim0"), (2, "dim1")))
    order[first], order[second] = second, first
    return sheet.add("Transpose", operands[0], perm=order)


@writes(torch.cat, torch.concat)
def _concat(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    if any(not isinstance(part, Operand) for part in call.argument(0, "tensors")):
        raise _refusal(call, "a constant part of a concatenation cannot be written")
    return sheet.add("Concat", *operands, axis=call.dimension(call.argument(1, "dim", 0)) + 1)


@writes(operator.getitem, torch.Tensor.__getitem__)
def _index(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    """Slices as Slice, positions as Gather; from the last dimension on, since a single position takes its dimension away."""
    given = call.argument(1, "index")
    index = given if isinstance(given, tuple) else (given,)
    lists = [part for part in index if not isinstance(part, slice | int)]
    if not index or index[0] != slice(None) or len(lists) > 1 or not all(isinstance(part, list) for part in lists):
        raise _refusal(call, "only slices, positions and one list of positions after the batch can be written")
    name = operands[0]
    for axis, part in reversed(list(enumerate(index))[1:]):
        size = call.operand.shape[axis - 1]
        if not isinstance(part, slice):
            name = sheet.add("Gather", name, sheet.constant(np.array(part), np.int64), axis=axis)
        elif (ends := part.indices(size)) != (0, size, 1):
            if ends[2] < 0:
                raise _refusal(call, "a slice backwards cannot be written")
            name = sheet.add("Slice", name, *(sheet.ints(n) for n in (ends[0], ends[1], axis, ends[2])))
    return name


@writes(torch.Tensor.expand)
def _expand(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    if len(call.shape) != len(call.operand.shape):
        raise _refusal(call, "an expansion to more dimensions cannot be written; unsqueeze first")
    return sheet.add("Expand", operands[0], sheet.ints(1, *call.shape))


@writes(nn.PixelShuffle)
def _pixel_shuffle(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    return sheet.add("DepthToSpace", operands[0], blocksize=int(call.module.upscale_factor), mode="CRD")


@writes(nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, F.pad)
def _pad(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    m: Any = call.module
    amounts = m.padding if m is not None else call.argument(1, "pad")
    mode = "constant" if m is not None else call.argument(2, "mode", "constant")
    value = m.value if m is not None else call.argument(3, "value", None) or 0.0
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    rank = len(call.shape) + 1
    before, after = [0] * rank, [0] * rank
    for place in range(len(amounts) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = amounts[2 * place], amounts[2 * place + 1]
    fill = [sheet.constant(float(value))] if mode == "constant" else []
    return sheet.add("Pad", operands[0], sheet.ints(*before, *after), *fill, mode=mode)


@writes(nn.Upsample, nn.UpsamplingNearest2d)
def _upsample(sheet: Sheet, call: Call, operands: Sequence[str]) -> str:
    factors = [a / b for a, b in zip(call.shape[1:], call.operand.shape[1:], strict=True)]
    if call.module.mode != "nearest" or any(f != int(f) for f in factors):
        raise _refusal(call, "only upsampling to the nearest pixel, by whole factors, can be written")
    scales = sheet.constant(np.array([1, 1, *factors]), np.float32)
    return sheet.add(
        "Resize",
        operands[0],
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
