"""From a file of any origin to an ONNX model that is whole: parsed, checked, in one file, with one input and one output.

Nothing in a file is executed, and no other file is opened on its behalf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from autodual._errors import ArgumentError
from autodual._files import read_content
from autodual._tensor import Shape

LARGEST_FILE = 2**30
"""Bytes; the format itself ends at twice as many."""
FLOAT, DOUBLE = 1, 11
"""As the format numbers its element types."""
DTYPES = {FLOAT: torch.float32, DOUBLE: torch.float64}
"""Element types of an input that a proof can be about."""


def onnx_package() -> ModuleType:
    """The official `onnx` package with the parts that are needed here, imported when it is needed."""
    try:
        import onnx
        import onnx.checker
        import onnx.numpy_helper
        import onnx.reference
    except ImportError:
        raise ArgumentError(
            "ONNX files need the package onnx, which is not installed: pip install 'autodual[onnx]'"
        ) from None
    return onnx


@dataclass(frozen=True)
class OnnxFile:
    """A checked model with one input and one output. Shapes are those of one example, as the file counts dimensions: a batch of 1."""

    path: Path
    model: Any
    """onnx.ModelProto"""
    opset: int
    input: str
    input_shape: Shape
    any_batch: bool
    """Whether the first dimension of the input may have any size."""
    dtype: torch.dtype
    output: str
    constants: dict[str, np.ndarray]
    """The initializers by name."""


def read_onnx(path: Path | str) -> OnnxFile:
    """Read a file as an ONNX model; ArgumentError, in one sentence, for anything else."""
    onnx, place = onnx_package(), Path(path)
    model = _parsed(onnx, place)
    graph = model.graph
    constants = _constants(onnx, place, model)
    inputs = [i for i in graph.input if i.name not in constants]  # older files list initializers among the inputs
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ArgumentError(
            f"{place}: has {_named('input', inputs)} and {_named('output', graph.output)}; a network needs one of each. Cut the graph "
            f"with onnx.utils.extract_model, or join the outputs with Concat"
        )
    shape, any_batch = _shape(place, inputs[0])
    element = inputs[0].type.tensor_type.elem_type
    if element not in DTYPES:
        known = element in onnx.TensorProto.DataType.values()
        kind = onnx.TensorProto.DataType.Name(element) if known else f"number {element}, which is unknown"
        raise ArgumentError(
            f"{place}: its input {inputs[0].name!r} has elements of type {kind}; only FLOAT and DOUBLE can be proved about"
        )
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    return OnnxFile(
        place, model, opset, inputs[0].name, shape, any_batch, DTYPES[element], graph.output[0].name, constants
    )


def _parsed(onnx: ModuleType, place: Path) -> Any:
    content = read_content(place, LARGEST_FILE)
    if not content:
        raise ArgumentError(f"{place}: is empty, not an ONNX file")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # whatever protobuf raises for bytes that are no message
        raise ArgumentError(f"{place}: is not an ONNX file, or was cut short ({first_line(error)})") from None
    if not model.graph.node and not model.graph.output:
        raise ArgumentError(f"{place}: is not an ONNX file, or was cut short (it holds no graph)")
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ArgumentError(
                f"{place}: keeps {tensor.name!r} in another file, which is not opened; write one file with all weights inside: "
                f"onnx.save(onnx.load(path), new_path)"
            )
    if model.graph.sparse_initializer:
        raise ArgumentError(f"{place}: has sparse weights, which are not supported; make them dense")
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        raise ArgumentError(f"{place}: is not a valid ONNX model: {first_line(error)}") from None
    return model


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor that a graph holds, also inside attributes and the graphs of control flow."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _constants(onnx: ModuleType, place: Path, model: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for tensor in model.graph.initializer:
        try:
            found[tensor.name] = onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            raise ArgumentError(f"{place}: its tensor {tensor.name!r} cannot be read: {first_line(error)}") from None
    return found


def _named(what: str, values: Any) -> str:
    names = [v.name for v in values]
    shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}{f' ({shown})' if names else ''}"


def _shape(place: Path, given: Any) -> tuple[Shape, bool]:
    """The shape of one example with a batch of 1, and whether the file leaves the size of the batch open."""
    if not given.type.HasField("tensor_type") or not given.type.tensor_type.HasField("shape"):
        raise ArgumentError(
            f"{place}: does not say which shape its input {given.name!r} has; write the shape into the file"
        )
    dims = [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in given.type.tensor_type.shape.dim
    ]
    if not dims or None in dims[1:] or (len(dims) == 1 and dims[0] is None):
        raise ArgumentError(
            f"{place}: its input {given.name!r} has the shape {[d or '?' for d in dims]}; only the first dimension, the batch, may be "
            f"open. Write the others into the file"
        )
    return (dims[0] or 1, *(d or 1 for d in dims[1:])), dims[0] is None


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
