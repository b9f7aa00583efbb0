"""Products with matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from autodual.interchange.conversion import Known, Node, Value
from autodual.interchange.layers import Apply, ScaledLinear
from autodual.interchange.operators.elementwise import combined
from autodual.interchange.operators.shapes import transposed
from autodual.interchange.operators.table import filled, reads


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
