"""Operators of ONNX that compute: activations, arithmetic between tensors that broadcast, and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual.interchange.conversion import READERS, Known, Node, Reader, Value, filled, reads
from autodual.interchange.layers import ENTRYWISE, PAIRWISE, Apply, ScaledLinear, clamp
from autodual.interchange.operators_shapes import transposed

# Activations.


def _activation(make: Callable[[Node], nn.Module]) -> Reader:
    def read(node: Node) -> Value:
        x = node.value()
        return node.add(make(node), [x], x.shape)

    return read


def _plain(kind: Any) -> Callable[[Node], nn.Module]:
    return lambda node: kind() if isinstance(kind, type) else Apply(kind)


_ACTIVATIONS: dict[str, Callable[[Node], nn.Module]] = {
    **{operator: _plain(first) for operator, (first, *_) in ENTRYWISE.items()},
    "LeakyRelu": lambda node: nn.LeakyReLU(node.attributes.get("alpha", 0.01)),
    "Elu": lambda node: nn.ELU(node.attributes.get("alpha", 1.0)),
    "Celu": lambda node: nn.CELU(node.attributes.get("alpha", 1.0)),
    "Softplus": lambda node: nn.Softplus(),
    "Gelu": lambda node: nn.GELU(approximate=node.attributes.get("approximate", b"none").decode()),
}
READERS |= {operator: _activation(make) for operator, make in _ACTIVATIONS.items()}


@reads("Selu")
def _selu(node: Node) -> Value:
    alpha, gamma = (
        node.attributes.get("alpha", 1.67326319217681884765625),
        node.attributes.get("gamma", 1.05070102214813232421875),
    )
    x = node.value()  # nn.SELU has other constants: those of float64
    scaled = node.add(nn.ELU(alpha), [x], x.shape)
    return node.add(Apply(torch.mul, [None, torch.tensor(gamma, dtype=node.building.dtype)]), [scaled], x.shape)


@reads("HardSigmoid")
def _hard_sigmoid(node: Node) -> Value:
    """clip(alpha x + beta, 0, 1). nn.Hardsigmoid is for alpha = 1/6, which no file holds."""
    x, dtype = node.value(), node.building.dtype
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    slope, shift = (torch.tensor(number, dtype=dtype) for number in (alpha, beta))
    scaled = node.add(Apply(torch.mul, [None, slope]), [x], x.shape)
    shifted = node.add(Apply(torch.add, [None, shift]), [scaled], x.shape)
    return node.add(clamp(0.0, 1.0), [shifted], x.shape)


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
    return node.add(filled(module, weight=node.tensor(slope).reshape(-1)), [x], x.shape)


@reads("Clip")
def _clip(node: Node) -> Value:
    if node.opset < 11:
        ends = [node.attributes.get("min"), node.attributes.get("max")]
    else:
        ends = [
            None if (c := node.constant(i, n)) is None or c.size == 0 else float(c.reshape(()))
            for i, n in ((1, "min"), (2, "max"))
        ]
    x = node.value()
    return x if ends == [None, None] else node.add(clamp(*ends), [x], x.shape)


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


def combined(node: Node, function: Callable[..., Tensor], inputs: Sequence[Known | None], **named: Any) -> Value:
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
    _check_broadcast(node)
    return combined(node, torch.where if node.op == "Where" else PAIRWISE[node.op][0], node.inputs)


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
    return combined(node, torch.mul, node.inputs)


def _activation_of(node: Node, first: Known | None, second: Known | None) -> tuple[nn.Module, str] | None:
    """The activation that a product is, and the tensor that it is of: files of older opsets have them in parts.

    SiLU is x sigmoid(x), Mish x tanh(softplus(x)). Not GELU and Hardswish, whose constants, sqrt 2 and 1/6, a file holds rounded: it
    computes another function, which a proof must be about.
    """
    if not isinstance(first, Value) or not isinstance(second, Value):
        return None
    if first.shape != second.shape:
        return None
    gate = node.building.made_by.get(second.name)
    if gate is None:
        return None
    if isinstance(gate.module, nn.Sigmoid) and gate.operands == (first.name,):
        return nn.SiLU(), first.name
    if isinstance(gate.module, nn.Tanh):
        inner = node.building.made_by.get(gate.operands[0])
        if inner is not None and isinstance(inner.module, nn.Softplus) and inner.operands == (first.name,):
            return nn.Mish(), first.name
    return None


def _check_broadcast(node: Node) -> None:
    if node.opset < 7 and node.attributes.get("broadcast", 0):
        raise node.refuse(
            "broadcasting as before opset 7 is not supported; convert the file with onnx.version_converter"
        )


@reads("Sum", "Mean", "Max", "Min")
def _several(node: Node) -> Value:
    """Sum, mean, maximum or minimum of any number of tensors; a maximum with a constant is a clamp, which has tighter bounds."""
    found: Known = next(i for i in node.inputs if isinstance(i, Value))
    rest = list(node.inputs)
    del rest[next(place for place, i in enumerate(rest) if i is found)]
    for other in rest:
        assert other is not None
        if node.op in ("Sum", "Mean"):
            found = combined(node, torch.add, [found, other])
        elif _single(other):
            end = float(np.asarray(other).reshape(()))
            wide = np.broadcast_shapes(found.shape, np.shape(other)) if not isinstance(other, Value) else found.shape
            assert isinstance(found, Value)
            found = node.reshape(
                node.add(clamp(end, None) if node.op == "Max" else clamp(None, end), [found], found.shape), wide
            )
        elif not isinstance(other, Value) and np.broadcast_shapes(found.shape, other.shape) == found.shape:
            found = combined(node, torch.clamp_min if node.op == "Max" else torch.clamp_max, [found, other])
        else:
            found = combined(node, PAIRWISE[node.op][0], [found, other])
    assert isinstance(found, Value)
    return combined(node, torch.div, [found, np.array(float(len(node.inputs)))]) if node.op == "Mean" else found


# Products of matrices.


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
    return filled(module, **tensors, **({} if bias is None else {"bias": node.tensor(bias)}))


@reads("Gemm")
def _gemm(node: Node) -> Value:
    x, weight, added = node.given(0), node.given(1), node.given(2)
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    if not isinstance(x, Value) or not isinstance(weight, np.ndarray):
        raise node.refuse(
            "only a product of a tensor that depends on the input with a constant matrix is supported; use MatMul"
        )
    x = transposed(node, x, [1, 0]) if node.attributes.get("transA", 0) else x
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
    return combined(
        node, torch.add, [found, added if isinstance(added, Value) else added * np.asarray(beta, added.dtype)]
    )
