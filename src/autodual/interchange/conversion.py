"""From the nodes of an ONNX graph to modules and how they are wired.

A file is one function of one example: it is read with a batch of 1. Tensors that the file gives a first dimension of 1 have
the batch in its place; any other tensor has the batch in front, as one dimension more:

    file       modules
    [1, 3, 8]  [N, 3, 8]
    [3, 8]     [N, 3, 8]
    [1]        [N, 1]

So a fixed batch of 1, a `Reshape` to [1, -1] or a graph without any batch work for N examples at once. What does not depend on the
input is computed while the file is read, in the file's own precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError, UnsupportedOperationError
from autodual._tensor import Shape
from autodual.interchange.layers import Reshape
from autodual.interchange.onnx_file import OnnxFile, first_line, onnx_package

LARGEST_TENSOR = 2**26
"""Numbers in one tensor of one example; a file may ask for any size."""


@dataclass(frozen=True)
class Value:
    """A tensor that depends on the input: its name among the modules' tensors, and its shape in the file."""

    name: str
    shape: Shape

    @property
    def batched(self) -> bool:
        """Whether the batch has the place of the file's first dimension."""
        return len(self.shape) >= 2 and self.shape[0] == 1

    @property
    def per_example(self) -> Shape:
        """Shape of one example between modules."""
        return self.shape[1:] if self.batched else self.shape


Known: TypeAlias = Value | np.ndarray


@dataclass(frozen=True)
class Step:
    """One module, the names of the tensors that it takes, and the name of the one that it makes."""

    module: nn.Module
    operands: tuple[str, ...]
    result: str


@dataclass(frozen=True)
class Node:
    """One node of the graph, with what is known about its inputs, as the reader of its operator sees it."""

    op: str
    label: str
    inputs: tuple[Known | None, ...]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]
    opset: int
    building: Conversion

    # What a node is given.

    def refuse(self, reason: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(f"{self.building.path}: {self.label}: {reason}")

    def given(self, place: int) -> Known | None:
        return self.inputs[place] if place < len(self.inputs) else None

    def value(self, place: int = 0) -> Value:
        """An input that depends on the network's input."""
        found = self.given(place)
        if not isinstance(found, Value):
            raise self.refuse(f"its input number {place} is missing, or does not depend on the network's input")
        return found

    def image(self) -> Value:
        """The first input, which must be a batch of signals or images with channels."""
        found = self.value()
        if not found.batched or len(found.shape) < 3:
            raise self.refuse(
                f"it reads a tensor of shape {list(found.shape)}, whose first dimension is not the batch; use [1, channels, ...]"
            )
        return found

    def constant(self, place: int, name: str) -> np.ndarray | None:
        """An input that must not depend on the network's input; None if it is left out."""
        found = self.given(place)
        if isinstance(found, Value):
            raise self.refuse(f"its input {name!r} depends on the network's input, where only a constant is supported")
        return found

    def weight(self, place: int, name: str) -> np.ndarray:
        found = self.constant(place, name)
        if found is None:
            raise self.refuse(f"its input {name!r} is missing")
        return found

    def option(self, name: str, place: int, since: int) -> list[int] | None:
        """Whole numbers that are an attribute in older files, and an input from opset `since` on; None if left out."""
        found: Any = self.attributes.get(name) if self.opset < since else self.constant(place, name)
        if found is None:
            return None
        return [int(number) for number in np.asarray(found).reshape(-1)]

    def axis(self, axis: int, rank: int) -> int:
        """A dimension counted from the front."""
        if not -rank <= axis < rank:
            raise self.refuse(f"dimension {axis} does not exist in a tensor of {rank} dimensions")
        return axis % rank

    def tensor(self, constant: np.ndarray) -> Tensor:
        """A constant as the modules hold it: floating-point numbers in the precision of the network."""
        tensor = torch.from_numpy(np.array(constant))  # a copy, and one that may be written to
        if not tensor.is_floating_point():
            return tensor
        held = tensor.to(self.building.dtype)
        if not torch.equal(held.to(tensor.dtype), tensor) and not bool(tensor.isnan().any()):
            raise self.refuse(
                f"a constant holds numbers of {tensor.dtype} that are none of {held.dtype}, in which the network computes; store the "
                f"constant in that type, so that proofs are about what is stored"
            )
        return held

    # What a node adds.

    def add(self, module: nn.Module, operands: Sequence[Value | str], shape: Shape | None = None) -> Value:
        """Adds a module. The batch has the place of the file's first dimension in its result, unless `shape` says its shape there."""
        names = [o.name if isinstance(o, Value) else o for o in operands]
        return self.building.add(module, names, shape)

    def full(self, value: Value, rank: int | None = None) -> str:
        """The name of a tensor [N, *shape] with all dimensions of the file, behind as many of size 1 as make up `rank`."""
        shape = (1,) * ((rank or 0) - len(value.shape)) + value.shape
        return self.building.reshaped(value.name, value.per_example, shape)

    def add_full(self, module: nn.Module, operands: Sequence[str]) -> Value:
        """Adds a module that takes and makes tensors with all dimensions of the file."""
        return self.building.add(module, operands, self.building.outcome(module, operands))

    def reshape(self, value: Value, shape: Shape) -> Value:
        """The entries in another shape of the file; a module is added only where examples get another shape, too."""
        if math.prod(shape) != math.prod(value.shape):
            raise self.refuse(f"cannot give {list(value.shape)} the shape {list(shape)}")
        target = Value(value.name, shape)
        return Value(self.building.reshaped(value.name, value.per_example, target.per_example), shape)


Reader: TypeAlias = Callable[[Node], "Known | tuple[Known, ...]"]
READERS: dict[str, Reader] = {}
"""Who reads which operator; the files `operators_...` fill it."""


def reads(*operators: str) -> Callable[[Reader], Reader]:
    def note(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys(operators, reader))
        return reader

    return note


def filled(module: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """A module that was made without memory, with these parameters: no random numbers are drawn for what is overwritten."""
    for name, tensor in tensors.items():
        if name in module._buffers:
            module._buffers[name] = tensor
        else:
            setattr(module, name, None if tensor is None else nn.Parameter(tensor))
    return module


@dataclass
class Conversion:
    """The work on one file; owns the names of tensors and the list of steps."""

    path: Path
    dtype: torch.dtype
    steps: list[Step] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    """The shape of every tensor between modules, for one example."""
    made_by: dict[str, Step] = field(default_factory=dict)

    def add(self, module: nn.Module, operands: Sequence[str], shape: Shape | None) -> Value:
        """Adds a step, and another shape for its result if tensors of this shape in the file are held in another."""
        outcome = self.outcome(module, operands)
        name = self._named(module, operands, outcome)
        shape = (1, *outcome) if shape is None else shape
        return Value(self.reshaped(name, outcome, Value(name, shape).per_example), shape)

    def reshaped(self, name: str, before: Shape, after: Shape) -> str:
        return name if before == after else self._named(Reshape(after), [name], after)

    def _named(self, module: nn.Module, operands: Sequence[str], outcome: Shape) -> str:
        name = f"t{len(self.steps) + 1}"
        step = Step(module, tuple(operands), name)
        self.steps.append(step)
        self.shapes[name], self.made_by[name] = outcome, step
        return name

    def outcome(self, module: nn.Module, operands: Sequence[str]) -> Shape:
        """Shape of a module's result for one example, found on a device without memory: a file may ask for any size."""
        own = {name: tensor.to("meta") for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        given = (torch.empty(1, *self.shapes[name], dtype=self.dtype, device="meta") for name in operands)
        with torch.no_grad():
            result = torch.func.functional_call(module.eval(), own, tuple(given))
        check_room(result.numel())
        if result.numel() == 0:
            raise ArgumentError("makes an empty tensor, which cannot be bounded")
        return tuple(result.shape[1:])


def check_room(numbers: int, what: str = "tensor") -> None:
    """Refuses a tensor that is too large."""
    if numbers > LARGEST_TENSOR:
        raise ArgumentError(f"makes a {what} of more than {LARGEST_TENSOR:,} numbers")


@dataclass(frozen=True)
class Part:
    """One node of the file that depends on the input, and the steps that it has become."""

    proto: Any
    """onnx.NodeProto"""
    label: str
    inputs: dict[str, Known]
    """By their names in the file."""
    outputs: dict[str, Known]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Wiring:
    """All modules of a network in order, the tensors where it begins and ends, and the nodes that they were made of."""

    steps: tuple[tuple[str, Step], ...]
    entrance: str
    exit: str
    input_shape: Shape
    parts: tuple[Part, ...]


ENTRANCE = "t0"


def convert(file: OnnxFile) -> Wiring:
    """Turns every node into modules."""
    building = Conversion(file.path, file.dtype)
    entrance = Value(ENTRANCE, file.input_shape)
    building.shapes[ENTRANCE] = entrance.per_example
    known: dict[str, Known] = {**file.constants, file.input: entrance}
    named: list[tuple[str, Step]] = []
    parts: list[Part] = []
    for index, proto in enumerate(file.model.graph.node):
        node = _node(proto, index, known, file, building)
        found = _outputs(node, proto, file)
        made = {name: output for name, output in zip(node.outputs, found, strict=False) if name}
        known |= made
        fresh = building.steps[len(named) :]
        if any(isinstance(i, Value) for i in node.inputs):
            given = {name: known[name] for name in proto.input if name}
            parts.append(Part(proto, node.label, given, made, tuple(fresh)))
        named += [(f"{node.op}_{index}{f'_{k}' if len(fresh) > 1 else ''}", step) for k, step in enumerate(fresh)]
    output = known.get(file.output)
    if not isinstance(output, Value):
        raise ArgumentError(
            f"{file.path}: its output {file.output!r} does not depend on its input, so there is nothing to prove"
        )
    last = building.reshaped(output.name, output.per_example, output.per_example or (1,))
    if last != output.name:
        named.append(("Output", building.steps[-1]))
    return Wiring(_used(named, last), ENTRANCE, last, entrance.per_example, tuple(parts))


def _used(named: Sequence[tuple[str, Step]], last: str) -> tuple[tuple[str, Step], ...]:
    """The steps that the output depends on; others are left out, such as the parts of an activation that was recognised."""
    needed, kept = {last}, list[tuple[str, Step]]()
    for name, step in reversed(named):
        if step.result in needed:
            needed |= set(step.operands)
            kept.append((name, step))
    return tuple(reversed(kept))


def node_label(proto: Any, index: int) -> str:
    return f"{proto.op_type} (node {index}{f', {proto.name!r}' if proto.name else ''})"


def _node(proto: Any, index: int, known: dict[str, Known], file: OnnxFile, building: Conversion) -> Node:
    label = node_label(proto, index)
    for name in proto.input:
        if name and name not in known:
            raise ArgumentError(f"{file.path}: {label}: reads {name!r}, which no node before it makes")
    attributes = {a.name: onnx_package().helper.get_attribute_value(a) for a in proto.attribute}
    inputs = tuple(known[name] if name else None for name in proto.input)
    return Node(proto.op_type, label, inputs, attributes, tuple(proto.output), file.opset, building)


FAILURES = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError)
"""What PyTorch and NumPy raise for sizes and numbers that do not fit."""


def _outputs(node: Node, proto: Any, file: OnnxFile) -> tuple[Known, ...]:
    if proto.domain not in ("", "ai.onnx"):
        raise node.refuse(f"operators of the domain {proto.domain!r} are unknown")
    try:
        if not any(isinstance(i, Value) for i in node.inputs):
            return _folded(node, proto, file)
        if node.op not in READERS:
            raise node.refuse("this operator is unknown; docs/onnx.md lists those that are read")
        found = READERS[node.op](node)
        return found if isinstance(found, tuple) else (found,)
    except AutodualError as error:
        if node.label in str(error):
            raise
        raise type(error)(f"{file.path}: {node.label}: {error}") from None
    except FAILURES as error:
        raise ArgumentError(f"{file.path}: {node.label}: cannot be read: {first_line(error)}") from None


# What is computed from constants alone.


def _folded(node: Node, proto: Any, file: OnnxFile) -> tuple[np.ndarray, ...]:
    """The outputs of a node that reads constants only."""
    if node.op not in FOLDED:
        raise node.refuse(
            "this operator is unknown where it reads constants only; compute it before the file is written"
        )
    check_room(FOLDED[node.op](node), "constant")
    inputs = {name: value for name, value in zip(proto.input, node.inputs, strict=True) if name}
    results = iter(run_node(proto, inputs, file))
    return tuple(np.asarray(next(results)) if name else np.zeros(0) for name in proto.output)


def run_node(proto: Any, inputs: dict[str, Any], file: OnnxFile) -> list[Any]:
    """The named outputs of one node for these arrays, by onnx's own reference, which is written in NumPy."""
    onnx = onnx_package()
    helper, element = onnx.helper, onnx.TensorProto.FLOAT  # a name is all that the reference reads of these
    graph = helper.make_graph(
        [proto],
        "node",
        [helper.make_tensor_value_info(name, element, None) for name in inputs],
        [helper.make_tensor_value_info(name, element, None) for name in proto.output if name],
    )
    model = helper.make_model(graph, opset_imports=list(file.model.opset_import), ir_version=file.model.ir_version)
    with np.errstate(all="ignore"):
        found: list[Any] = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    return found


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


FOLDED: dict[str, Callable[[Node], int]] = {
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
"""Operators that constants are computed with, and how many numbers each makes at most: a file may ask for any size."""
