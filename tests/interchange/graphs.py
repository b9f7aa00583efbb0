"""Small ONNX files, made by onnx.helper: one per operator and opset, and random graphs over many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Shape = Sequence[int | str]


@dataclass
class Graph:
    """A graph that is being written; every method adds a node or a constant and returns the name of its (first) output."""

    shape: Shape
    opset: int = 17
    seed: int = 0
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values), np.int64)

    def weights(self, *shape: int, scale: float = 0.5) -> str:
        return self.constant(scale * self.random.standard_normal(shape))

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def model(self, output: str) -> Any:
        """The model; the format wants the output's shape, which onnx's reference tells."""
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.shape))
        opsets = [helper.make_opsetid("", self.opset)]

        def made(shape: Sequence[int] | None) -> Any:
            result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
            graph = helper.make_graph(self.nodes, "graph", [given], [result], self.constants)
            return helper.make_model(graph, opset_imports=opsets, ir_version=8)

        x = np.zeros([n if isinstance(n, int) else 1 for n in self.shape], dtype=np.float32)
        with np.errstate(all="ignore"):
            [found] = ReferenceEvaluator(made(None)).run(None, {"x": x})
        return made(list(np.shape(found)))

    def save(self, path: Path, output: str) -> Path:
        onnx.save(self.model(output), str(path))
        return path


@dataclass(frozen=True)
class Case:
    """A graph of one or few nodes; `write` returns the name of the output."""

    name: str
    shape: Shape
    write: Callable[[Graph], str]
    opset: int = 17

    def save(self, folder: Path) -> Path:
        graph = Graph(self.shape, self.opset)
        return graph.save(folder / "case.onnx", self.write(graph))


IMAGE, VECTOR, PLAIN = (1, 4, 6, 6), (1, 6), (5,)


def _gelu_in_parts(g: Graph, way: int) -> str:
    inner = g("Div", "x", g.constant(2**0.5)) if way % 2 else g("Mul", g.constant(0.5**0.5), "x")
    gate = g("Add", g.constant(1.0), g("Erf", inner)) if way % 2 else g("Add", g("Erf", inner), g.constant([1.0]))
    if way < 2:
        return g("Mul", g("Mul", "x", gate) if way else g("Mul", gate, "x"), g.constant(0.5))
    return (
        g("Mul", gate, g("Mul", "x", g.constant(0.5))) if way == 2 else g("Mul", g("Mul", g.constant(0.5), "x"), gate)
    )


def _unary(op: str, shape: Shape = IMAGE, opset: int = 17, **attributes: Any) -> Case:
    shown = ", ".join(f"{k}={v}" for k, v in attributes.items())
    return Case(f"{op}({shown}) {list(shape)} opset {opset}", shape, lambda g: g(op, "x", **attributes), opset)


CASES = [
    *(
        _unary(op, shape)
        for op in (
            "Relu",
            "LeakyRelu",
            "Sigmoid",
            "Tanh",
            "Elu",
            "Softplus",
            "HardSigmoid",
            "Selu",
            "Celu",
            "HardSwish",
            "Neg",
            "Abs",
            "Identity",
            "Softsign",
            "Exp",
            "Erf",
            "Sin",
            "Cos",
        )
        for shape in (IMAGE, PLAIN)
    ),
    _unary("LeakyRelu", alpha=0.3),
    _unary("Elu", alpha=0.7),
    _unary("HardSigmoid", alpha=0.3, beta=0.4),
    _unary("Selu", alpha=1.2, gamma=0.9),
    _unary("Celu", alpha=0.6),
    _unary("Mish", opset=18),
    _unary("Gelu", opset=20),
    _unary("Gelu", opset=20, approximate="tanh"),
    *(
        _unary("Softmax", shape, 13, **axis)
        for shape in (VECTOR, IMAGE, PLAIN)
        for axis in ({}, {"axis": 0}, {"axis": -1})
    ),
    _unary("Softmax", VECTOR, 11),
    _unary("Softmax", IMAGE, 11, axis=3),
    _unary("Softmax", PLAIN, 11, axis=0),
    _unary("LogSoftmax", VECTOR),
    _unary("Flatten"),
    *(_unary("Flatten", axis=a) for a in (0, 2, 3, -1)),
    _unary("Flatten", (1, 784, 1)),
    _unary("Transpose"),
    _unary("Transpose", perm=[0, 2, 3, 1]),
    _unary("Transpose", perm=[2, 0, 1, 3]),
    _unary("Transpose", PLAIN),
    _unary("GlobalAveragePool"),
    _unary("GlobalMaxPool"),
    _unary("GlobalAveragePool", (1, 3, 9)),
    _unary("Cast", to=1),
    _unary("Cast", to=11),
    _unary("Clip", opset=6, min=-0.2, max=0.4),
    _unary("Clip", opset=6, max=0.4),
    _unary("Clip"),
    Case("Clip by inputs", IMAGE, lambda g: g("Clip", "x", g.constant(-0.1), g.constant(0.3))),
    Case("Clip below", IMAGE, lambda g: g("Clip", "x", g.constant(-0.1))),
    Case("Clip above", IMAGE, lambda g: g("Clip", "x", "", g.constant(0.3))),
    Case("Clip by tensors", IMAGE, lambda g: g("Clip", "x", g.constant([-0.1]), g.constant([0.3]))),
    Case("PRelu one", IMAGE, lambda g: g("PRelu", "x", g.constant([0.3]))),
    Case("PRelu channels", IMAGE, lambda g: g("PRelu", "x", g.weights(4, 1, 1))),
    Case("Dropout", VECTOR, lambda g: g("Dropout", "x")),
    _unary("Dropout", VECTOR, 10, ratio=0.3),
    # Products with matrices.
    Case("Gemm", VECTOR, lambda g: g("Gemm", "x", g.weights(6, 3), g.weights(3))),
    Case("Gemm transB", VECTOR, lambda g: g("Gemm", "x", g.weights(3, 6), g.weights(1, 3), transB=1)),
    Case("Gemm without C", VECTOR, lambda g: g("Gemm", "x", g.weights(6, 3))),
    Case("Gemm scalar C", VECTOR, lambda g: g("Gemm", "x", g.weights(6, 3), g.constant(0.7))),
    Case("Gemm scaled", VECTOR, lambda g: g("Gemm", "x", g.weights(6, 3), g.weights(3), alpha=0.3, beta=1.7)),
    Case("Gemm alpha", VECTOR, lambda g: g("Gemm", "x", g.weights(6, 3), alpha=0.3)),
    Case("Gemm transA", (4, 6), lambda g: g("Gemm", "x", g.weights(4, 3), g.weights(6, 3), transA=1, beta=0.5)),
    Case("Gemm with activation", VECTOR, lambda g: g("Gemm", "x", g.weights(6, 6), g("Relu", "x"))),
    Case("MatMul", VECTOR, lambda g: g("MatMul", "x", g.weights(6, 3))),
    Case("MatMul plain", PLAIN, lambda g: g("MatMul", "x", g.weights(5, 3))),
    Case("MatMul deep", (1, 2, 4, 6), lambda g: g("MatMul", "x", g.weights(6, 3))),
    Case("MatMul left", (1, 2, 4, 6), lambda g: g("MatMul", g.weights(3, 4), "x")),
    Case("MatMul left of row", (1, 6), lambda g: g("MatMul", g.weights(3, 1), "x")),
    Case("MatMul left plain", PLAIN, lambda g: g("MatMul", g.weights(3, 5), "x")),
    Case("MatMul vector", VECTOR, lambda g: g("MatMul", "x", g.weights(6))),
    Case("MatMul of vectors", PLAIN, lambda g: g("Unsqueeze", g("MatMul", "x", g.weights(5)), g.ints(0))),
    Case("MatMul stack", (1, 2, 4, 6), lambda g: g("MatMul", "x", g.weights(2, 6, 3))),
    Case("MatMul of activations", (1, 2, 4, 6), lambda g: g("MatMul", "x", g("Transpose", "x", perm=[0, 1, 3, 2]))),
    Case("MatMul of activations in 2 dimensions", (4, 6), lambda g: g("MatMul", "x", g("Transpose", "x"))),
    # Arithmetic.
    *(
        Case(
            f"{op} {where} {list(shape)}",
            IMAGE,
            lambda g, op=op, shape=shape, where=where: g(
                op,
                *(
                    ("x", g.constant(0.5 + g.random.random(shape)))
                    if where == "constant right"
                    else (g.constant(0.5 + g.random.random(shape)), "x")
                ),
            ),
        )
        for op in ("Add", "Sub", "Mul", "Max", "Min")
        for shape in ((), (1,), (6,), (4, 1, 1), (1, 4, 6, 6), (3, 1, 1, 1), (1, 1, 1, 1, 1))
        for where in ("constant right", "constant left")
    ),
    *(
        Case(
            f"Div by {list(shape)}",
            IMAGE,
            lambda g, shape=shape: g("Div", "x", g.constant(0.5 + g.random.random(shape))),
        )
        for shape in ((), (4, 1, 1), (1, 4, 6, 6))
    ),
    *(
        Case(f"{op} of activations", IMAGE, lambda g, op=op: g(op, "x", g("Relu", "x")))
        for op in ("Add", "Sub", "Mul", "Max", "Min")
    ),
    Case("Add broadcasts activations", IMAGE, lambda g: g("Add", "x", g("GlobalAveragePool", "x"))),
    Case("Add of other ranks", IMAGE, lambda g: g("Add", "x", g("Squeeze", g("Relu", "x"), g.ints(0)))),
    Case("Add of a row and a column", (4,), lambda g: g("Add", "x", g("Unsqueeze", "x", g.ints(1)))),
    *(Case(f"GELU in parts, way {way}", IMAGE, lambda g, way=way: _gelu_in_parts(g, way)) for way in range(4)),
    Case("Hardswish in parts", IMAGE, lambda g: g("Mul", g("HardSigmoid", "x", alpha=1 / 6), "x")),
    Case("Mish in parts", IMAGE, lambda g: g("Mul", "x", g("Tanh", g("Softplus", "x")))),
    Case(
        "nearly GELU",
        IMAGE,
        lambda g: g(
            "Mul", g("Mul", "x", g("Add", g("Erf", g("Div", "x", g.constant(1.5))), g.constant(1.0))), g.constant(0.5)
        ),
    ),
    Case("SiLU", IMAGE, lambda g: g("Mul", "x", g("Sigmoid", "x"))),
    Case("SiLU swapped", IMAGE, lambda g: g("Mul", g("Sigmoid", "x"), "x")),
    Case("Mul by another gate", IMAGE, lambda g: g("Mul", "x", g("Sigmoid", g("Neg", "x")))),
    Case("Sum", IMAGE, lambda g: g("Sum", "x", g("Relu", "x"), g.weights(6))),
    Case("Mean", IMAGE, lambda g: g("Mean", "x", g("Relu", "x"), g.weights(6))),
    Case("Max of three", IMAGE, lambda g: g("Max", g.constant(0.1), "x", g("Neg", "x"))),
    Case("Pow", IMAGE, lambda g: g("Pow", "x", g.constant(2.0))),
    Case("Sqrt", IMAGE, lambda g: g("Sqrt", g("Abs", "x"))),
    Case("Log", IMAGE, lambda g: g("Log", g("Exp", "x"))),
    Case("Reciprocal", IMAGE, lambda g: g("Reciprocal", g("Exp", "x"))),
    Case("Where", IMAGE, lambda g: g("Where", g.constant([1, 0, 1, 1, 0, 0], np.bool_), "x", g.constant(0.5))),
    # Convolutions and pooling.
    Case("Conv", IMAGE, lambda g: g("Conv", "x", g.weights(5, 4, 3, 3), g.weights(5))),
    Case(
        "Conv all",
        IMAGE,
        lambda g: g(
            "Conv",
            "x",
            g.weights(6, 2, 3, 2),
            g.weights(6),
            group=2,
            dilations=[2, 1],
            strides=[1, 2],
            pads=[1, 2, 1, 2],
        ),
    ),
    Case("Conv uneven", IMAGE, lambda g: g("Conv", "x", g.weights(5, 4, 3, 3), pads=[0, 1, 2, 1])),
    *(
        Case(
            f"Conv {way} stride {s} kernel {k}",
            (1, 4, 7, 6),
            lambda g, way=way, s=s, k=k: g("Conv", "x", g.weights(5, 4, k, k), auto_pad=way, strides=[s, s]),
        )
        for way in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for s in (1, 2, 3)
        for k in (2, 3, 4)
    ),
    Case(
        "Conv SAME_UPPER dilated",
        IMAGE,
        lambda g: g("Conv", "x", g.weights(5, 4, 3, 3), auto_pad="SAME_UPPER", dilations=[2, 2]),
    ),
    Case("Conv 1d", (1, 3, 9), lambda g: g("Conv", "x", g.weights(2, 3, 4), g.weights(2), strides=[2], pads=[1, 2])),
    Case("Conv 3d", (1, 2, 4, 4, 4), lambda g: g("Conv", "x", g.weights(2, 2, 2, 2, 2))),
    Case(
        "ConvTranspose", IMAGE, lambda g: g("ConvTranspose", "x", g.weights(4, 3, 3, 3), g.weights(3), strides=[2, 2])
    ),
    Case(
        "ConvTranspose all",
        IMAGE,
        lambda g: g(
            "ConvTranspose", "x", g.weights(4, 3, 3, 3), strides=[2, 3], pads=[1, 1, 1, 1], output_padding=[1, 1]
        ),
    ),
    Case(
        "ConvTranspose uneven",
        IMAGE,
        lambda g: g("ConvTranspose", "x", g.weights(4, 3, 3, 3), g.weights(3), strides=[2, 2], pads=[0, 1, 1, 0]),
    ),
    Case(
        "ConvTranspose 1d", (1, 3, 5), lambda g: g("ConvTranspose", "x", g.weights(3, 2, 4), strides=[2], pads=[1, 1])
    ),
    *(
        _unary("MaxPool", kernel_shape=[2, 2], **rest)
        for rest in (
            {},
            {"strides": [2, 2]},
            {"strides": [2, 2], "pads": [1, 1, 1, 1]},
            {"strides": [2, 2], "pads": [0, 0, 1, 1]},
            {"dilations": [2, 2]},
            {"auto_pad": "SAME_UPPER"},
            {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        )
    ),
    _unary("MaxPool", (1, 4, 7, 7), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    _unary("MaxPool", (1, 3, 9), kernel_shape=[3]),
    _unary("AveragePool", kernel_shape=[2, 2]),
    _unary("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
    _unary("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    _unary("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1),
    _unary("AveragePool", (1, 3, 9), kernel_shape=[3]),
    *(
        Case(
            f"BatchNormalization {list(s)}",
            s,
            lambda g, s=s: g(
                "BatchNormalization",
                "x",
                *(g.weights(s[1]) for _ in range(3)),
                g.constant(0.3 + g.random.random(s[1])),
                epsilon=1e-3,
            ),
        )
        for s in (IMAGE, VECTOR, (1, 3, 7))
    ),
    Case("LayerNormalization", (1, 5, 6), lambda g: g("LayerNormalization", "x", g.weights(6), g.weights(6))),
    Case(
        "Resize by factors",
        IMAGE,
        lambda g: g(
            "Resize",
            "x",
            "",
            g.constant([1, 1, 2, 3]),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ),
    Case("Resize half pixel", IMAGE, lambda g: g("Resize", "x", "", g.constant([1, 1, 2, 2]))),
    Case(
        "Resize by sizes",
        IMAGE,
        lambda g: g(
            "Resize",
            "x",
            "",
            "",
            g.ints(1, 4, 12, 18),
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ),
    Case("Resize linear", IMAGE, lambda g: g("Resize", "x", "", g.constant([1, 1, 2, 2]), mode="linear")),
    Case(
        "Resize corners",
        IMAGE,
        lambda g: g(
            "Resize", "x", "", "", g.ints(1, 4, 9, 11), mode="linear", coordinate_transformation_mode="align_corners"
        ),
    ),
    Case("Upsample", IMAGE, lambda g: g("Upsample", "x", g.constant([1, 1, 2, 3])), 9),
    _unary("DepthToSpace", blocksize=2, mode="CRD"),
    *(
        _unary(op, shape, 11, **rest)
        for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
        for shape in (IMAGE, PLAIN)
        for rest in (
            {},
            {"axes": [-1]},
            {"axes": [0], "keepdims": 0},
            *([{"axes": [2, 3], "keepdims": 0}, {"axes": [1]}] if shape == IMAGE else []),
        )
        if not (shape == PLAIN and rest.get("keepdims") == 0)
    ),
    *(
        Case(f"{op} axes as input", IMAGE, lambda g, op=op: g(op, "x", g.ints(1, 3), keepdims=0), 18)
        for op in ("ReduceMean", "ReduceSum")
    ),
    _unary("ReduceSum", opset=13, noop_with_empty_axes=1),
    # Shapes.
    *(
        Case(f"Reshape {list(to)}", IMAGE, lambda g, to=to: g("Reshape", "x", g.ints(*to)))
        for to in ((1, -1), (-1, 144), (1, 4, 36), (0, 0, -1), (4, 36), (144,), (-1,), (2, 2, 6, 6), (1, 1, 144))
    ),
    Case(
        "Reshape back and forth",
        (1, 8),
        lambda g: g("Reshape", g("Relu", g("Reshape", "x", g.ints(2, 4))), g.ints(1, 8)),
    ),
    Case(
        "Reshape by Shape",
        IMAGE,
        lambda g: g(
            "Reshape",
            "x",
            g(
                "Concat",
                g("Unsqueeze", g("Gather", g("Shape", "x"), g.constant(0, np.int64), axis=0), g.ints(0)),
                g.ints(-1),
                axis=0,
            ),
        ),
    ),
    Case(
        "Reshape by arithmetic on shapes",
        IMAGE,
        lambda g: g(
            "Reshape",
            "x",
            g(
                "Concat",
                g("Slice", g("Shape", "x"), g.ints(0), g.ints(2)),
                g(
                    "Mul",
                    g("Slice", g("Shape", "x"), g.ints(2), g.ints(3)),
                    g("Slice", g("Shape", "x"), g.ints(3), g.ints(4)),
                ),
                axis=0,
            ),
        ),
    ),
    Case(
        "ConstantOfShape",
        IMAGE,
        lambda g: g(
            "Add",
            "x",
            g("ConstantOfShape", g("Shape", "x"), value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0.25])),
        ),
    ),
    Case("Constant", IMAGE, lambda g: g("Mul", "x", g("Constant", value=numpy_helper.from_array(np.float32(0.3))))),
    Case("Constant number", IMAGE, lambda g: g("Mul", "x", g("Constant", value_float=0.3))),
    Case("Squeeze", (1, 1, 6, 1), lambda g: g("Squeeze", "x", g.ints(1, 3))),
    _unary("Squeeze", (1, 1, 6, 1), 11, axes=[3]),
    Case("Squeeze the batch", (1, 4, 6), lambda g: g("Squeeze", "x", g.ints(0))),
    _unary("Squeeze", (1, 4, 1, 6)),
    Case("Unsqueeze", VECTOR, lambda g: g("Unsqueeze", "x", g.ints(0, 3))),
    _unary("Unsqueeze", VECTOR, 11, axes=[1]),
    *(
        Case(f"Concat {axis}", IMAGE, lambda g, axis=axis: g("Concat", "x", g("Relu", "x"), axis=axis))
        for axis in (0, 1, 3, -2)
    ),
    Case("Concat constant", IMAGE, lambda g: g("Concat", g.weights(1, 2, 6, 6), "x", axis=1)),
    Case("Concat plain", PLAIN, lambda g: g("Concat", "x", g.weights(2), g("Neg", "x"), axis=0)),
    Case("Split", IMAGE, lambda g: g("Sub", *g("Split", "x", outputs=2, axis=1))),
    Case(
        "Split by sizes",
        IMAGE,
        lambda g: g("Concat", *reversed(g("Split", "x", g.ints(1, 3), outputs=2, axis=1)), axis=1),
    ),
    Case(
        "Split by attribute",
        IMAGE,
        lambda g: g("Concat", *reversed(g("Split", "x", outputs=2, axis=2, split=[2, 4])), axis=2),
        11,
    ),
    Case("Slice", IMAGE, lambda g: g("Slice", "x", g.ints(1, 0), g.ints(9, -1), g.ints(1, 3))),
    Case(
        "Slice with steps", IMAGE, lambda g: g("Slice", "x", g.ints(0, 5), g.ints(6, -9), g.ints(2, 3), g.ints(2, -2))
    ),
    Case("Slice by attributes", IMAGE, lambda g: g("Slice", "x", starts=[0, 1], ends=[1, 3]), 9),
    Case("Slice plain", PLAIN, lambda g: g("Slice", "x", g.ints(-1), g.ints(-9), g.ints(0), g.ints(-1))),
    *(
        Case(
            f"Gather {indices} along {axis}",
            IMAGE,
            lambda g, indices=indices, axis=axis: g("Gather", "x", g.constant(indices, np.int64), axis=axis),
        )
        for indices, axis in ((2, 1), ([2, 0, -1], 1), ([[0, 1], [5, 5]], 3), (0, 0), ([0, 0], 0))
    ),
    Case("Pad", IMAGE, lambda g: g("Pad", "x", g.ints(0, 0, 1, 2, 0, 1, 0, 3))),
    Case("Pad with a number", IMAGE, lambda g: g("Pad", "x", g.ints(0, 0, 1, 2, 0, 0, 0, 3), g.constant(0.7))),
    *(
        Case(f"Pad {mode}", IMAGE, lambda g, mode=mode: g("Pad", "x", g.ints(0, 0, 1, 2, 0, 0, 0, 3), mode=mode))
        for mode in ("reflect", "edge")
    ),
    _unary("Pad", opset=9, pads=[0, 0, 1, 2, 0, 0, 0, 3], value=0.5),
    Case("Pad plain", PLAIN, lambda g: g("Pad", "x", g.ints(1, 2))),
    Case("Pad by axes", IMAGE, lambda g: g("Pad", "x", g.ints(1, 2), "", g.ints(3)), 18),
    Case("Expand", (1, 4, 1, 6), lambda g: g("Expand", "x", g.ints(4, 3, 1))),
    Case("Expand ranks", PLAIN, lambda g: g("Expand", "x", g.ints(2, 3, 5))),
    Case("Open batch", ("N", 3, 4), lambda g: g("Gemm", g("Reshape", "x", g.ints(-1, 12)), g.weights(12, 2))),
    Case("Image as in 784x1x1", (1, 784, 1, 1), lambda g: g("Gemm", g("Flatten", "x"), g.weights(784, 3))),
]


def random_graph(seed: int, opset: int = 17) -> Graph:
    """Ten random nodes behind one another, with branches, over an image, and a linear layer at the end."""
    graph = Graph((1, 3, 8, 8), opset, seed)
    random, tensors = graph.random, [("x", (1, 3, 8, 8))]
    while len(tensors) < 10:
        name, shape = tensors[-1 - int(random.integers(min(3, len(tensors))))]
        tensors.append(_random_node(graph, name, shape, tensors))
    name, shape = tensors[-1]
    flat = graph("Flatten", name)
    graph("Gemm", flat, graph.weights(int(np.prod(shape)), 5, scale=0.1), graph.weights(5))
    return graph


def _random_node(
    g: Graph, x: str, shape: tuple[int, ...], tensors: list[tuple[str, tuple[int, ...]]]
) -> tuple[str, tuple[int, ...]]:
    _, c, h, w = shape
    like = [name for name, other in tensors if other == shape and name != x]
    choices: list[Callable[[], tuple[str, tuple[int, ...]]]] = [
        lambda: (
            g(
                str(
                    g.random.choice(
                        [
                            "Relu",
                            "LeakyRelu",
                            "Sigmoid",
                            "Tanh",
                            "Elu",
                            "Softplus",
                            "HardSigmoid",
                            "HardSwish",
                            "Abs",
                            "Neg",
                        ]
                    )
                ),
                x,
            ),
            shape,
        ),
        lambda: (g("Clip", x, g.constant(-0.4), g.constant(0.6)), shape),
        lambda: (g("Conv", x, g.weights(4, c, 3, 3, scale=0.3), g.weights(4), pads=[1, 1, 1, 1]), (1, 4, h, w)),
        lambda: (g("Conv", x, g.weights(c, 1, 3, 3), auto_pad="SAME_LOWER", group=c), shape),
        lambda: (
            g("BatchNormalization", x, *(g.weights(c) for _ in range(3)), g.constant(0.3 + g.random.random(c))),
            shape,
        ),
        lambda: (g(str(g.random.choice(["Add", "Sub", "Mul"])), x, g.weights(c, 1, 1)), shape),
        lambda: (g("Div", x, g.constant(0.5 + g.random.random((1, c, h, w)))), shape),
        lambda: (g("Transpose", x, perm=[0, 1, 3, 2]), (1, c, w, h)),
        lambda: (g("Slice", x, g.ints(0), g.ints(max(c - 1, 1)), g.ints(1)), (1, max(c - 1, 1), h, w)),
        lambda: (g("Reshape", g("Reshape", x, g.ints(0, -1)), g.ints(1, c, h, w)), shape),
        lambda: (g("Squeeze", g("Unsqueeze", x, g.ints(2)), g.ints(2)), shape),
        lambda: (g("Pad", x, g.ints(0, 0, 1, 0, 0, 0, 0, 1), g.constant(0.1)), (1, c, h + 1, w + 1)),
        lambda: (g("Max", x, g.constant(-0.2)), shape),
        lambda: (g("MatMul", x, g.weights(w, 5)), (1, c, h, 5)),
        lambda: (g("ReduceMean", x, axes=[2], keepdims=1), (1, c, 1, w)),
        lambda: (g("Concat", x, x, axis=3), (1, c, h, 2 * w)),
        lambda: (g("Gather", x, g.constant([0, c - 1], np.int64), axis=1), (1, 2, h, w)),
    ]
    if h >= 4 and w >= 4:
        choices += [
            lambda: (g("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), (1, c, h // 2, w // 2)),
            lambda: (g("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1]), (1, c, h - 1, w - 1)),
        ]
    if like:
        choices += [
            lambda: (g(str(g.random.choice(["Add", "Sub", "Max", "Min"])), x, str(g.random.choice(like))), shape)
        ] * 3
    if c * h * w < 300:
        choices.append(
            lambda: (
                g(
                    "Upsample" if g.opset < 10 else "Resize",
                    x,
                    *(() if g.opset < 10 else ("",)),
                    g.constant([1, 1, 2, 1]),
                ),
                (1, c, 2 * h, w),
            )
        )
    return choices[int(g.random.integers(len(choices)))]()
