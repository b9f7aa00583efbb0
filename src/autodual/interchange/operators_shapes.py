"""Operators of ONNX that move, copy, join, select or reduce entries, and shapes themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autodual.interchange.conversion import Node, Value, reads
from autodual.interchange.layers import REDUCTIONS, Concat, Expand, Index, pad, permute, reduce
from autodual.interchange.onnx_file import DOUBLE, DTYPES, FLOAT


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
    wide = [element for element, dtype in DTYPES.items() if dtype.itemsize >= node.building.dtype.itemsize]
    if node.op == "CastLike" or node.attributes.get("to", FLOAT) not in wide:
        kinds = "DOUBLE" if wide == [DOUBLE] else "FLOAT or DOUBLE"
        raise node.refuse(f"only casts to {kinds} are supported in this file: others round values")
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
    return transposed(node, x, list(node.attributes.get("perm", reversed(range(len(x.shape))))))


def transposed(node: Node, x: Value, order: Sequence[int]) -> Value:
    if list(order) == sorted(order):
        return x
    if x.batched and order[0] == 0:
        return node.add(permute(order), [x])
    return node.add_full(permute([0, *(d + 1 for d in order)]), [node.full(x)])


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
    module = pad([n for side in reversed(sides) for n in side], mode, value)
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


@reads(*REDUCTIONS)
def _reduce(node: Node) -> Value:
    x, rank = node.value(), len(node.value().shape)
    function = REDUCTIONS[node.op][0]
    axes = node.option("axes", 1, 13 if node.op == "ReduceSum" else 18)
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return x
    dims = sorted(node.axis(a, rank) for a in axes) if axes else list(range(rank))
    keep = bool(node.attributes.get("keepdims", 1))
    if x.batched and 0 not in dims:
        return node.add(reduce(function, dims, keep), [x])
    return node.add_full(reduce(function, [d + 1 for d in dims], keep), [node.full(x)])
