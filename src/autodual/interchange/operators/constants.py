"""What may be computed from constants alone, and how many numbers that makes at most: a file may ask for any size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from autodual.interchange.conversion import Node


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
