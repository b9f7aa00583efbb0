"""One function per operator of ONNX: which modules it becomes. What the opsets changed is told apart here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual._tensor import Shape
from autodual.interchange.conversion import Known, Node, Reader, Value
from autodual.interchange.layers import Apply, Clamp, Concat, Expand, Index, Pad, Permute, Reduce, ScaledLinear

READERS: dict[str, Reader] = {}


def reads(*operators: str) -> Callable[[Reader], Reader]:
    def note(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys(operators, reader))
        return reader

    return note


def _filled(module: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """A module that was made without memory, with these parameters: no random numbers are drawn for what is overwritten."""
    for name, tensor in tensors.items():
        if name in module._buffers:
            module._buffers[name] = tensor
        else:
            setattr(module, name, None if tensor is None else nn.Parameter(tensor))
    return module


# Activations.


def _activation(make: Callable[[Node], nn.Module]) -> Reader:
    def read(node: Node) -> Value:
        x = node.value()
        return node.add(make(node), [x], x.shape)

    return read


_ACTIVATIONS: dict[str, Callable[[Node], nn.Module]] = {
    "Relu": lambda node: nn.ReLU(),
    "LeakyRelu": lambda node: nn.LeakyReLU(node.attributes.get("alpha", 0.01)),
    "Sigmoid": lambda node: nn.Sigmoid(),
    "Tanh": lambda node: nn.Tanh(),
    "Elu": lambda node: nn.ELU(node.attributes.get("alpha", 1.0)),
    "Celu": lambda node: nn.CELU(node.attributes.get("alpha", 1.0)),
    "Softplus": lambda node: nn.Softplus(),
    "Softsign": lambda node: nn.Softsign(),
    "HardSwish": lambda node: nn.Hardswish(),
    "Mish": lambda node: nn.Mish(),
    "Abs": lambda node: Apply(torch.abs, [None]),
    "Neg": lambda node: Apply(torch.neg, [None]),
    "Exp": lambda node: Apply(torch.exp, [None]),
    "Log": lambda node: Apply(torch.log, [None]),
    "Sqrt": lambda node: Apply(torch.sqrt, [None]),
    "Reciprocal": lambda node: Apply(torch.reciprocal, [None]),
    "Erf": lambda node: Apply(torch.erf, [None]),
    "Sin": lambda node: Apply(torch.sin, [None]),
    "Cos": lambda node: Apply(torch.cos, [None]),
    "Gelu": lambda node: nn.GELU(approximate=node.attributes.get("approximate", b"none").decode()),
}
READERS |= {operator: _activation(make) for operator, make in _ACTIVATIONS.items()}


@reads("Selu")
def _selu(node: Node) -> Value:
    alpha, gamma = (
        node.attributes.get("alpha", 1.67326319217681884765625),
        node.attributes.get("gamma", 1.05070102214813232421875),
    )
    x = node.value()
    if (np.float32(alpha), np.float32(gamma)) == (np.float32(1.6732632423543772), np.float32(1.0507009873554805)):
        return node.add(nn.SELU(), [x], x.shape)
    scaled = node.add(nn.ELU(alpha), [x], x.shape)
    return node.add(Apply(torch.mul, [None, torch.tensor(gamma, dtype=node.building.dtype)]), [scaled], x.shape)


@reads("HardSigmoid")
def _hard_sigmoid(node: Node) -> Value:
    """clip(alpha x + beta, 0, 1); PyTorch has it for one alpha only."""
    x, dtype = node.value(), node.building.dtype
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    if (np.float32(alpha), beta) == (np.float32(1 / 6), 0.5):
        return node.add(nn.Hardsigmoid(), [x], x.shape)
    slope, shift = (torch.tensor(number, dtype=dtype) for number in (alpha, beta))
    scaled = node.add(Apply(torch.mul, [None, slope]), [x], x.shape)
    shifted = node.add(Apply(torch.add, [None, shift]), [scaled], x.shape)
    return node.add(Clamp(0.0, 1.0), [shifted], x.shape)


@reads("Swish")
def _swish(node: Node) -> Value:
    if node.attributes.get("alpha", 1.0) != 1.0:
        raise node.refuse("is supported for alpha = 1 only, which is SiLU")
    return node.add(nn.SiLU(), [node.value()], node.value().shape)


@reads("PRelu")
def _prelu(node: Node) -> Value:
    x, slope = node.value(), node.weight(1, "slope")
    channels = x.shape[1] if x.batched else 0
    per_channel = slope.size == channels and (1,) * (len(x.shape) - slope.ndim) + slope.shape == (
        1, channels, *[1] * (len(x.shape) - 2)
    )  # fmt: skip
    if slope.size != 1 and not per_channel:
        raise node.refuse(f"a slope of shape {list(slope.shape)} is not supported: give one number, or one per channel")
    module = nn.PReLU(slope.size, device="meta")
    return node.add(_filled(module, weight=node.tensor(slope).reshape(-1)), [x], x.shape)


@reads("Clip")
def _clip(node: Node) -> Value:
    if node.opset < 11:
        ends = [node.attributes.get("min"), node.attributes.get("max")]
    else:
        ends = [
            None if (c := node.constant(i, n)) is None or c.size == 0 else float(c) for i, n in ((1, "min"), (2, "max"))
        ]
    x = node.value()
    return x if ends == [None, None] else node.add(Clamp(*ends), [x], x.shape)


@reads("Softmax", "LogSoftmax")
def _softmax(node: Node) -> Value:
    kind: Any = nn.Softmax if node.op == "Softmax" else nn.LogSoftmax
    x = node.value()
    rank = len(x.shape)
    axis = node.axis(node.attributes.get("axis", -1 if node.opset >= 13 else 1), rank)
    if node.opset < 13 and axis < rank - 1:  # over all dimensions from the axis on
        flat = node.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return node.reshape(node.add(kind(-1), [flat], flat.shape), x.shape)
    if x.batched and axis > 0:
        return node.add(kind(axis), [x], x.shape)
    return node.add_full(kind(axis + 1), [node.full(x)])


# Arithmetic.


def _combined(node: Node, function: Callable[..., Tensor], inputs: Sequence[Known | None], **named: Any) -> Value:
    """A function of tensors that broadcast against one another."""
    given: list[Known] = [i for i in inputs if i is not None]
    rank = max(len(i.shape) for i in given)
    values = [i for i in given if isinstance(i, Value)]
    constants = [i for i in given if not isinstance(i, Value)]
    plain = all(v.batched and len(v.shape) == rank for v in values)
    if plain and all(c.ndim < rank or c.shape[0] == 1 for c in constants):
        held = [
            None if isinstance(i, Value) else _held(node, i.reshape(i.shape[1:]) if i.ndim == rank else i)
            for i in given
        ]
        return node.add(Apply(function, held, **named), values)
    held = [None if isinstance(i, Value) else _held(node, i) for i in given]
    return node.add_full(Apply(function, held, **named), [node.full(v, rank) for v in values])


def _held(node: Node, constant: np.ndarray) -> Tensor:
    """A constant as a module keeps it: a single number without dimensions, which broadcasts against anything."""
    tensor = node.tensor(constant)
    return tensor.reshape(()) if tensor.numel() == 1 else tensor


def _single(constant: Known) -> bool:
    return not isinstance(constant, Value) and constant.size == 1


@reads("Add", "Sub", "Div", "Pow", "Where")
def _arithmetic(node: Node) -> Value:
    functions: dict[str, Callable[..., Tensor]] = {
        "Add": torch.add,
        "Sub": torch.sub,
        "Div": torch.div,
        "Pow": torch.pow,
        "Where": torch.where,
    }
    _check_broadcast(node)
    return _combined(node, functions[node.op], node.inputs)


@reads("Mul")
def _multiply(node: Node) -> Value:
    """A product; one that makes up an activation which has bounds of its own becomes that activation."""
    _check_broadcast(node)
    for first, second in (node.inputs[:2], node.inputs[1::-1]):
        found = _activation_of(node, first, second)
        if found is not None:
            module, name = found
            assert isinstance(first, Value)
            return node.add(module, [name], first.shape)
    return _combined(node, torch.mul, node.inputs)


def _activation_of(node: Node, first: Known | None, second: Known | None) -> tuple[nn.Module, str] | None:
    """The activation that a product is, and the tensor that it is of: files of older opsets have them in parts.

    SiLU is x sigmoid(x), Hardswish x hardsigmoid(x), Mish x tanh(softplus(x)), GELU x / 2 (1 + erf(x / sqrt 2)) in any order.
    """
    if not isinstance(first, Value):
        return None
    if isinstance(second, np.ndarray):
        half = _number(second, 0.5) and second.ndim <= len(first.shape)
        return (nn.GELU(), x) if half and (x := _twice_gelu(node, first.name)) is not None else None
    if second is None or first.shape != second.shape:
        return None
    gate = node.building.made_by.get(second.name)
    if gate is None:
        return None
    for kind, module in ((nn.Sigmoid, nn.SiLU), (nn.Hardsigmoid, nn.Hardswish)):
        if isinstance(gate.module, kind) and gate.operands == (first.name,):
            return module(), first.name
    if isinstance(gate.module, nn.Tanh):
        inner = node.building.made_by.get(gate.operands[0])
        if inner is not None and isinstance(inner.module, nn.Softplus) and inner.operands == (first.name,):
            return nn.Mish(), first.name
    x = _scaled(node, first.name, torch.mul, 0.5)
    return (nn.GELU(), x) if x is not None and _gelu_gate(node, second.name) == x else None


def _twice_gelu(node: Node, name: str) -> str | None:
    """x, if a tensor is x (1 + erf(x / sqrt 2))."""
    step = node.building.made_by.get(name)
    if step is None or not _is_product(step.module) or len(step.operands) != 2:
        return None
    return next((x for x, gate in (step.operands, step.operands[::-1]) if _gelu_gate(node, gate) == x), None)


def _gelu_gate(node: Node, name: str) -> str | None:
    """x, if a tensor is 1 + erf(x / sqrt 2)."""
    inner = _scaled(node, name, torch.add, 1.0)
    step = None if inner is None else node.building.made_by.get(inner)
    if step is None or not isinstance(step.module, Apply) or step.module.function is not torch.erf:
        return None
    divided = _scaled(node, step.operands[0], torch.div, math.sqrt(2))
    return divided if divided is not None else _scaled(node, step.operands[0], torch.mul, math.sqrt(0.5))


def _is_product(module: nn.Module) -> bool:
    return isinstance(module, Apply) and module.function is torch.mul


def _scaled(node: Node, name: str, function: Callable[..., Tensor], number: float) -> str | None:
    """x, if a tensor is function(x, number); the sum and the product may have the number first."""
    step = node.building.made_by.get(name)
    if (
        step is None
        or not isinstance(step.module, Apply)
        or step.module.function is not function
        or len(step.operands) != 1
    ):
        return None
    constants = [getattr(step.module, f"constant_{place}") for place in range(step.module.places)]
    swapped = constants[0] is not None
    constant = constants[0] if swapped else constants[1]
    fits = not (swapped and function is torch.div) and _number(constant.cpu().numpy(), number)
    return step.operands[0] if fits else None


def _number(constant: np.ndarray, number: float) -> bool:
    """Whether a constant is one number, as float32 holds it."""
    return constant.size == 1 and np.float32(constant.reshape(())) == np.float32(number)


def _check_broadcast(node: Node) -> None:
    if node.opset < 7 and node.attributes.get("broadcast", 0):
        raise node.refuse(
            "broadcasting as before opset 7 is not supported; convert the file with onnx.version_converter"
        )


@reads("Sum", "Mean", "Max", "Min")
def _several(node: Node) -> Value:
    """Sum, mean, maximum or minimum of any number of tensors; a maximum with one number is a clamp."""
    found: Known = next(i for i in node.inputs if isinstance(i, Value))
    rest = list(node.inputs)
    del rest[next(place for place, i in enumerate(rest) if i is found)]
    for other in rest:
        assert other is not None
        if node.op in ("Sum", "Mean"):
            found = _combined(node, torch.add, [found, other])
        elif _single(other):
            end = float(np.asarray(other).reshape(()))
            wide = np.broadcast_shapes(found.shape, np.shape(other)) if not isinstance(other, Value) else found.shape
            assert isinstance(found, Value)
            found = node.reshape(
                node.add(Clamp(end, None) if node.op == "Max" else Clamp(None, end), [found], found.shape), wide
            )
        else:
            found = _combined(node, torch.maximum if node.op == "Max" else torch.minimum, [found, other])
    assert isinstance(found, Value)
    return _combined(node, torch.div, [found, np.array(float(len(node.inputs)))]) if node.op == "Mean" else found


@reads("MatMul")
def _matmul(node: Node) -> Value:
    left, right = node.inputs[:2]
    if isinstance(left, Value) and isinstance(right, np.ndarray) and right.ndim == 2 and len(left.shape) >= 1:
        return node.add(_linear(node, right.T, None), [left], (*left.shape[:-1], right.shape[1]))
    if any(len(i.shape) < 2 for i in (left, right) if i is not None):
        return _matmul_of_vectors(node, left, right)
    return _combined_matrices(node, left, right)


def _matmul_of_vectors(node: Node, left: Known | None, right: Known | None) -> Value:
    """A vector is a matrix of one row on the left, of one column on the right; that dimension is dropped afterwards."""
    assert left is not None
    assert right is not None
    wide: list[Known] = []
    for operand, shape in ((left, (1, *left.shape)), (right, (*right.shape, 1))):
        if len(operand.shape) > 1:
            wide.append(operand)
        else:
            wide.append(node.reshape(operand, shape) if isinstance(operand, Value) else operand.reshape(shape))
    found = _combined_matrices(node, *wide)
    left_over = list(found.shape)
    if len(right.shape) == 1:
        del left_over[-1]
    if len(left.shape) == 1:
        del left_over[-1 if len(right.shape) == 1 else -2]
    return node.reshape(found, tuple(left_over))


def _combined_matrices(node: Node, left: Known | None, right: Known | None) -> Value:
    """Products of matrices, the dimensions before which broadcast."""
    given: list[Known] = [i for i in (left, right) if i is not None]
    rank = max(len(i.shape) for i in given)
    values = [i for i in given if isinstance(i, Value)]
    if rank > 2 and all(v.batched and len(v.shape) == rank for v in values) and _fits(given, rank):
        held = [
            None if isinstance(i, Value) else node.tensor(i.reshape(i.shape[1:]) if i.ndim == rank else i)
            for i in given
        ]
        return node.add(Apply(torch.matmul, held), values)
    held = [None if isinstance(i, Value) else node.tensor(i) for i in given]
    return node.add_full(Apply(torch.matmul, held), [node.full(v, rank) for v in values])


def _fits(given: Sequence[Known], rank: int) -> bool:
    return all(isinstance(i, Value) or i.ndim < rank or i.shape[0] == 1 for i in given)


def _linear(node: Node, weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """weight [outputs, inputs]."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    tensors = {"weight": node.tensor(np.ascontiguousarray(weight))}
    return _filled(module, **tensors, **({} if bias is None else {"bias": node.tensor(bias)}))


@reads("Gemm")
def _gemm(node: Node) -> Value:
    x, weight, added = node.given(0), node.given(1), node.given(2)
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    if not isinstance(x, Value) or not isinstance(weight, np.ndarray):
        raise node.refuse(
            "only a product of a tensor that depends on the input with a constant matrix is supported; use MatMul"
        )
    x = _transposed(node, x, [1, 0]) if node.attributes.get("transA", 0) else x
    matrix = weight if node.attributes.get("transB", 0) else weight.T
    bias = None
    if isinstance(added, np.ndarray) and (added.size == 1 or added.size == added.shape[-1] == matrix.shape[0]):
        bias, added = np.ascontiguousarray(np.broadcast_to(added.reshape(-1), (matrix.shape[0],))), None
    if isinstance(added, Value) and beta != 1:
        raise node.refuse("beta other than 1 is supported for a constant only")
    shape = (*x.shape[:-1], matrix.shape[0])
    if alpha == 1 and (beta == 1 or (bias is None and added is None)):
        found = node.add(_linear(node, matrix, bias), [x], shape)
    else:
        tensors = node.tensor(np.ascontiguousarray(matrix)), None if bias is None else node.tensor(bias)
        found = node.add(ScaledLinear(*tensors, alpha, beta), [x], shape)
    if added is None:
        return found
    return _combined(
        node, torch.add, [found, added if isinstance(added, Value) else added * np.asarray(beta, added.dtype)]
    )


# Convolutions, pooling and normalisation: images [1, channels, ...].


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
    return node.add(Pad(amounts, mode, 0.0), [x]), [0] * dims


_CONVOLUTIONS: dict[int, tuple[Any, Any]] = {
    1: (nn.Conv1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}


@reads("Conv")
def _conv(node: Node) -> Value:
    x, weight, bias = node.image(), node.weight(1, "W"), node.constant(2, "B")
    stride, dilation, pads = _window(node, x.shape[2:], weight.shape[2:])
    x, padding = _padded(node, x, pads)
    group = node.attributes.get("group", 1)
    module = _CONVOLUTIONS[len(stride)][0](
        weight.shape[1] * group,
        weight.shape[0],
        weight.shape[2:],
        stride,
        padding,
        dilation,
        group,
        bias is not None,
        device="meta",
    )
    return node.add(_with_weight(node, module, weight, bias), [x])


def _with_weight(node: Node, module: nn.Module, weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    return _filled(module, weight=node.tensor(weight), bias=None if bias is None else node.tensor(bias))


@reads("ConvTranspose")
def _conv_transpose(node: Node) -> Value:
    x, weight, bias = node.image(), node.weight(1, "W"), node.constant(2, "B")
    dims = len(x.shape) - 2
    stride, dilation, _ = _window(node, x.shape[2:], weight.shape[2:])
    group, extra = node.attributes.get("group", 1), list(node.attributes.get("output_padding", [0] * dims))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    whole = [s * (n - 1) + span + e for s, n, span, e in zip(stride, x.shape[2:], spans, extra, strict=True)]
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
    return node.add(Pad(amounts, "constant", 0.0), [found])


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
        x, pads = node.add(Pad(amounts, "replicate", 0.0), [x]), [0] * 2 * dims
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
        x, pads = node.add(Pad(amounts, "constant", 0.0), [x]), [0] * 2 * dims
    kind: Any = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1]
    return node.add(
        kind(tuple(kernel), tuple(stride), tuple(pads[:dims]), ceil_mode=ceil, count_include_pad=count), [x]
    )


@reads("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> Value:
    x = node.image()
    function = torch.mean if node.op == "GlobalAveragePool" else torch.amax
    return node.add(Reduce(function, range(2, len(x.shape)), True), [x])


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
    filled = _filled(
        module, weight=weight, bias=bias, running_mean=mean, running_var=variance, num_batches_tracked=seen
    )
    return node.add(filled, [x])


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
    return node.add(_filled(module, **tensors), [x], x.shape)


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


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "ReduceMean": torch.mean,
    "ReduceSum": torch.sum,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
}


@reads("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(node: Node) -> Value:
    x, rank = node.value(), len(node.value().shape)
    function = _REDUCTIONS[node.op]
    axes = node.option("axes", 1, 13 if node.op == "ReduceSum" else 18)
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return x
    dims = sorted(node.axis(a, rank) for a in axes) if axes else list(range(rank))
    keep = bool(node.attributes.get("keepdims", 1))
    if x.batched and 0 not in dims:
        return node.add(Reduce(function, dims, keep), [x])
    return node.add_full(Reduce(function, [d + 1 for d in dims], keep), [node.full(x)])


# Shapes: what moves, copies, joins or selects entries.


@reads("Identity", "Dropout")
def _identity(node: Node) -> Value:
    active = node.constant(2, "training_mode")
    if active is not None and bool(np.any(active)):
        raise node.refuse("it is in training mode, which is random; export the network in evaluation mode")
    if node.op == "Dropout" and any(node.outputs[1:]):
        raise node.refuse("its mask is used, which cannot be bounded")
    return node.value()


@reads("Cast", "CastLike")
def _cast(node: Node) -> Value:
    """The network computes in one precision; a cast to float16 or to whole numbers would be another function."""
    to = node.attributes.get("to", 1)
    if node.op == "CastLike" or to not in (1, 11):  # FLOAT, DOUBLE
        raise node.refuse("only casts to FLOAT or DOUBLE are supported: others round values")
    return node.value()


@reads("Flatten")
def _flatten(node: Node) -> Value:
    x = node.value()
    axis = node.attributes.get("axis", 1)
    axis = axis if axis == len(x.shape) else node.axis(axis, len(x.shape))
    return node.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@reads("Reshape")
def _reshape(node: Node) -> Value:
    x, target = node.value(), node.option("shape", 1, 5)
    if target is None:
        raise node.refuse("it does not say the new shape")
    if not node.attributes.get("allowzero", 0):
        target = [x.shape[i] if n == 0 and i < len(x.shape) else n for i, n in enumerate(target)]
    rest = math.prod(n for n in target if n != -1)
    size = math.prod(x.shape)
    if target.count(-1) > 1 or rest == 0 or size % max(rest, 1):
        raise node.refuse(f"cannot give {list(x.shape)} the shape {target}")
    return node.reshape(x, tuple(size // rest if n == -1 else n for n in target))


@reads("Squeeze")
def _squeeze(node: Node) -> Value:
    x, axes = node.value(), node.option("axes", 1, 13)
    rank = len(x.shape)
    gone = {node.axis(a, rank) for a in axes} if axes is not None else {i for i, n in enumerate(x.shape) if n == 1}
    return node.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


@reads("Unsqueeze")
def _unsqueeze(node: Node) -> Value:
    x, axes = node.value(), node.option("axes", 1, 13) or []
    rank = len(x.shape) + len(axes)
    fresh, rest = {node.axis(a, rank) for a in axes}, iter(x.shape)
    return node.reshape(x, tuple(1 if i in fresh else next(rest) for i in range(rank)))


@reads("Transpose")
def _transpose(node: Node) -> Value:
    x = node.value()
    return _transposed(node, x, list(node.attributes.get("perm", reversed(range(len(x.shape))))))


def _transposed(node: Node, x: Value, order: Sequence[int]) -> Value:
    if list(order) == sorted(order):
        return x
    if x.batched and order[0] == 0:
        return node.add(Permute(order), [x])
    return node.add_full(Permute([0, *(d + 1 for d in order)]), [node.full(x)])


@reads("Concat")
def _concat(node: Node) -> Value:
    given = [i for i in node.inputs if i is not None]
    rank = len(given[0].shape)
    axis = node.axis(node.attributes.get("axis", 1), rank)
    values = [i for i in given if isinstance(i, Value)]
    if axis > 0 and all(v.batched for v in values):
        held = [None if isinstance(i, Value) else node.tensor(i.reshape(i.shape[1:])) for i in given]
        return node.add(Concat(axis, held), values)
    held = [None if isinstance(i, Value) else node.tensor(i) for i in given]
    return node.add_full(Concat(axis + 1, held), [node.full(v) for v in values])


def _selected(node: Node, x: Value, axis: int, positions: slice | int | list[int]) -> Value:
    """Some entries along one dimension of the file."""
    kept = range(x.shape[axis])[positions] if isinstance(positions, slice) else positions
    if isinstance(kept, range) and kept == range(x.shape[axis]):
        return x
    if isinstance(kept, range) and len(kept) == 0:
        raise node.refuse("it selects nothing, and an empty tensor cannot be bounded")
    if isinstance(kept, range) and kept.step < 0:
        positions = list(kept)
    if x.batched and axis > 0:
        return node.add(Index(axis, positions), [x])
    return node.add_full(Index(axis + 1, positions), [node.full(x)])


@reads("Slice")
def _slice(node: Node) -> Value:
    x, rank = node.value(), len(node.value().shape)
    starts, ends = node.option("starts", 1, 10), node.option("ends", 2, 10)
    if starts is None or ends is None:
        raise node.refuse("it does not say where to begin and end")
    axes = node.option("axes", 3, 10) or list(range(len(starts)))
    steps = (node.option("steps", 4, 10) if node.opset >= 10 else None) or [1] * len(starts)
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(given, rank)
        stop = None if step < 0 and end < -x.shape[axis] else end
        x = _selected(node, x, axis, slice(start, stop, step))
    return x


@reads("Gather")
def _gather(node: Node) -> Value:
    x, indices = node.value(), node.weight(1, "indices")
    axis = node.axis(node.attributes.get("axis", 0), len(x.shape))
    size = x.shape[axis]
    if bool(((indices < -size) | (indices >= size)).any()):
        raise node.refuse(f"its indices go beyond the {size} entries that there are")
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if size == 1 and indices.size == 1:
        return node.reshape(x, shape)
    found = _selected(node, x, axis, [int(i) % size for i in indices.reshape(-1)])
    return node.reshape(found, shape)


@reads("Split")
def _split(node: Node) -> tuple[Value, ...]:
    x = node.value()
    axis = node.axis(node.attributes.get("axis", 0), len(x.shape))
    size, parts = x.shape[axis], len(node.outputs)
    each = -(-size // parts)
    lengths = node.option("split", 1, 13) or [max(min(each, size - k * each), 0) for k in range(parts)]
    if len(lengths) != parts or sum(lengths) != size or min(lengths) < 1:
        raise node.refuse(f"cannot split {size} entries into parts of {lengths}")
    starts = [sum(lengths[:k]) for k in range(parts)]
    return tuple(_selected(node, x, axis, slice(a, a + n)) for a, n in zip(starts, lengths, strict=True))


@reads("Pad")
def _pad(node: Node) -> Value:
    x, rank = node.value(), len(node.value().shape)
    mode = {b"constant": "constant", b"reflect": "reflect", b"edge": "replicate", b"wrap": "circular"}.get(
        node.attributes.get("mode", b"constant")
    )
    amounts = node.option("pads", 1, 11)
    if mode is None or amounts is None:
        raise node.refuse("it does not say how, or how much, to pad")
    fill = node.attributes.get("value", 0.0) if node.opset < 11 else node.constant(2, "constant_value")
    axes = (node.option("axes", 3, 18) if node.opset >= 18 else None) or list(range(rank))
    sides = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        sides[node.axis(axis, rank)] = amounts[place], amounts[place + len(axes)]
    value = 0.0 if fill is None or np.size(fill) == 0 else float(np.asarray(fill).reshape(()))
    plain = x.batched and sides[0] == (0, 0)
    sides = sides[1:] if plain else sides
    while len(sides) > 1 and sides[0] == (0, 0) and (mode == "constant" or len(sides) > len(x.per_example) - 1):
        sides = sides[1:]
    if all(side == (0, 0) for side in sides):
        return x
    module = Pad([n for side in reversed(sides) for n in side], mode, value)
    return node.add(module, [x]) if plain else node.add_full(module, [node.full(x)])


@reads("Expand")
def _expand(node: Node) -> Value:
    x, target = node.value(), tuple(int(n) for n in node.weight(1, "shape"))
    shape = np.broadcast_shapes(x.shape, target)
    if shape == x.shape:
        return x
    return node.add_full(Expand(shape), [node.full(x, len(shape))])


@reads("Shape")
def _shape_of(node: Node) -> np.ndarray:
    shape = node.value().shape
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(shape))
    return np.array(shape[slice(start, end)], dtype=np.int64)


@reads("Size")
def _size_of(node: Node) -> np.ndarray:
    return np.array(math.prod(node.value().shape), dtype=np.int64)


# What may be computed from constants alone, and how many numbers that makes at most.


def _constants(node: Node) -> list[np.ndarray]:
    return [i for i in node.inputs if isinstance(i, np.ndarray)]


def _as_large(node: Node) -> int:
    return sum(c.size for c in _constants(node))


def _broadcast(node: Node) -> int:
    return math.prod(np.broadcast_shapes(*(c.shape for c in _constants(node))))


def _tensor_attribute(node: Node) -> int:
    return 0  # it is in the file already


def _filled_size(node: Node) -> int:
    return math.prod(int(n) for n in _constants(node)[0].reshape(-1))


def _expanded(node: Node) -> int:
    data, shape = _constants(node)[:2]
    return math.prod(np.broadcast_shapes(data.shape, tuple(int(n) for n in shape)))


def _gathered(node: Node) -> int:
    data, indices = _constants(node)[:2]
    return data.size // max(data.shape[node.attributes.get("axis", 0)], 1) * indices.size


def _counted(node: Node) -> int:
    start, limit, delta = (float(c.reshape(())) for c in _constants(node)[:3])
    return math.ceil((limit - start) / delta)


def _product(node: Node) -> int:
    left, right = _constants(node)[:2]
    return left.size * right.size // max(right.shape[0] if right.ndim == 1 else right.shape[-2], 1) ** 2


FOLDERS: dict[str, Callable[[Node], int]] = {
    **dict.fromkeys(("Constant",), _tensor_attribute),
    "ConstantOfShape": _filled_size,
    "Expand": _expanded,
    "Gather": _gathered,
    "Range": _counted,
    "MatMul": _product,
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "Where", "Equal", "Greater", "Less", "And", "Or", "Sum", "Mean"),
        _broadcast,
    ),
    **dict.fromkeys(
        ("Identity", "Cast", "Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Floor", "Ceil", "Round", "Sign", "Not", "Relu",
         "Sigmoid", "Tanh", "Clip", "Concat", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Shape", "Size",
         "ReduceProd", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "Split", "Dropout"),
        _as_large,
    ),
}  # fmt: skip

OPERATORS = tuple(sorted(READERS))
"""Operators that are read where they depend on the input."""
