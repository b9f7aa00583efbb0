"""Files that are no network, or none that can be read, are refused in one sentence that names the file, the node and the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autodual as ad

pytest.importorskip("onnx", reason="needs the package onnx: pip install 'autodual[onnx]'")

import onnx
from onnx import TensorProto, helper

from autodual.interchange import onnx_reading
from interchange.graphs import Graph


def _good(path: Path) -> Path:
    graph = Graph((1, 6))
    hidden = graph("Relu", graph("Gemm", "x", graph.weights(6, 8), graph.weights(8)))
    return graph.save(path, graph("Gemm", hidden, graph.weights(8, 3), graph.weights(3)))


def _refusal(path: Path, kind: type[Exception] = ad.ArgumentError) -> str:
    with pytest.raises(kind) as caught:
        ad.load_onnx(path)
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    return said


def test_a_good_one_is_read(tmp_path: Path) -> None:
    assert ad.load_onnx(str(_good(tmp_path / "good.onnx")))(torch.zeros(2, 6)).shape == (2, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"a text, and a long one" * 100, "is not an ONNX file"),
        (b"(declare-const X_0 Real)\n", "is not an ONNX file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not an ONNX file"),
        (bytes(100_000), "is not an ONNX file"),
    ],
    ids=["empty", "text", "vnnlib", "picture", "zeros"],
)
def test_other_files(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert said in _refusal(path)


def test_no_file(tmp_path: Path) -> None:
    assert "No such file" in _refusal(tmp_path / "nothing.onnx")
    assert "is a folder" in _refusal(tmp_path)


def test_a_file_that_was_cut_short_anywhere(tmp_path: Path) -> None:
    whole = _good(tmp_path / "good.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        _refusal(path)


def test_bytes_that_were_changed_are_refused_or_are_another_network(tmp_path: Path) -> None:
    """Whatever a file holds, the answer is a module or one of our errors."""
    whole = bytearray(_good(tmp_path / "good.onnx").read_bytes())
    path, random = tmp_path / "changed.onnx", np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            changed[place] = random.integers(256)
        path.write_bytes(bytes(changed))
        try:
            module = ad.load_onnx(path)
        except ad.AutodualError:
            continue
        assert isinstance(module, torch.nn.Module)


def _changed(change: Callable[[Any], None], tmp_path: Path) -> Path:
    model = onnx.load(str(_good(tmp_path / "good.onnx")))
    change(model)
    path = tmp_path / "changed.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_in_another_file_are_not_opened(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../etc/passwd")

    assert "keeps 'c0' in another file, which is not opened" in _refusal(_changed(change, tmp_path))


def test_a_constant_node_with_weights_in_another_file(tmp_path: Path) -> None:
    graph = Graph((1, 6))
    tensor = helper.make_tensor("inside", TensorProto.FLOAT, [6], np.zeros(6))
    path = graph.save(tmp_path / "c.onnx", graph("Add", "x", graph("Constant", value=tensor)))
    model = onnx.load(str(path))
    held = model.graph.node[0].attribute[0].t
    held.ClearField("float_data")
    held.data_location = TensorProto.EXTERNAL
    held.external_data.add(key="location", value="weights.bin")
    path.write_bytes(model.SerializeToString())
    assert "in another file" in _refusal(path)


def test_a_tensor_that_claims_to_be_huge(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend([2**40, 2**20])

    _refusal(_changed(change, tmp_path))


def test_several_inputs_or_outputs(tmp_path: Path) -> None:
    def more_inputs(model: Any) -> None:
        model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 6]))

    def more_outputs(model: Any) -> None:
        model.graph.output.append(
            helper.make_tensor_value_info(model.graph.node[0].output[0], TensorProto.FLOAT, [1, 8])
        )

    assert "has 2 inputs ('x', 'z') and 1 output" in _refusal(_changed(more_inputs, tmp_path))
    assert "1 input ('x') and 2 outputs" in _refusal(_changed(more_outputs, tmp_path))


def test_initializers_among_the_inputs_are_none(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model.ir_version = 3
        for tensor in model.graph.initializer:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims)))

    assert ad.load_onnx(_changed(change, tmp_path))(torch.zeros(1, 6)).shape == (1, 3)


def test_inputs_without_a_shape_or_of_another_type(tmp_path: Path) -> None:
    def open_shape(model: Any) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"

    def half(model: Any) -> None:
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16

    assert "has the shape [1, '?']" in _refusal(_changed(open_shape, tmp_path))

    def nonsense(model: Any) -> None:
        model.graph.input[0].type.tensor_type.elem_type = 77

    assert "of type FLOAT16" in _refusal(_changed(half, tmp_path))
    assert "of type number 77, which is unknown" in _refusal(_changed(nonsense, tmp_path))


def _unknown(
    write: Callable[[Graph], str], tmp_path: Path, shape: tuple[int, ...] = (1, 4, 6, 6), opset: int = 17
) -> str:
    graph = Graph(shape, opset)
    return _refusal(graph.save(tmp_path / "unknown.onnx", write(graph)), ad.UnsupportedOperationError)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda g: g("Floor", g("Relu", "x")), "Floor (node 1, 'Floor1'): this operator is unknown"),
        (lambda g: g("Cast", g("Cast", "x", to=10), to=1), "Cast (node 0, 'Cast0'): only casts to FLOAT or DOUBLE"),
        (lambda g: g("Clip", "x", g("ReduceMin", "x", keepdims=0)), "its input 'min' depends on the network's input"),
        (lambda g: g("PRelu", "x", g.weights(6, 6)), "a slope of shape [6, 6] is not supported"),
        (lambda g: g("DepthToSpace", "x", blocksize=2), "only the mode CRD is supported"),
        (lambda g: g("Resize", "x", "", g.constant([1, 1, 2, 2]), mode="cubic"), "the mode 'cubic' is not supported"),
        (
            lambda g: g("AveragePool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
            "uneven padding is supported only with",
        ),
        (lambda g: g("ReduceL2", "x"), "ReduceL2 (node 0, 'ReduceL20'): this operator is unknown"),
        (lambda g: g("Slice", "x", g.ints(2), g.ints(2), g.ints(1)), "it selects nothing"),
        (
            lambda g: g("Cast", g("Mul", g("Cast", "x", to=11), g.constant(0.1, np.float64)), to=1),
            "Mul (node 1, 'Mul1'): a constant holds numbers of torch.float64 that are none of torch.float32",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_unknown_operators_are_named_with_node_and_reason(
    write: Callable[[Graph], str], said: str, tmp_path: Path
) -> None:
    assert said in _unknown(write, tmp_path)


def test_operators_of_other_domains(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model.opset_import.append(helper.make_opsetid("com.example", 1))
        model.graph.node[1].domain = "com.example"

    assert "operators of the domain 'com.example' are unknown" in _refusal(
        _changed(change, tmp_path), ad.UnsupportedOperationError
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda g: g("Add", "x", g("ConstantOfShape", g.ints(10**6, 10**6))),
        lambda g: g("Add", "x", g("Expand", g.weights(1), g.ints(10**6, 10**6))),
        lambda g: g("Add", "x", g("Range", g.constant(0.0), g.constant(1e18), g.constant(1.0))),
        lambda g: g("Add", "x", g("Mul", g.weights(100_000, 1), g.weights(100_000))),
        lambda g: g("Pad", "x", g.ints(0, 0, 10**7, 10**7, 0, 0, 0, 0)),
        lambda g: g("Expand", "x", g.ints(10**6, 10**6, 1, 1, 1, 1)),
        lambda g: g("Resize", "x", "", g.constant([1, 1, 1e6, 1e6])),
        lambda g: g("Conv", "x", g.weights(1, 4, 1, 1), pads=[10**7] * 4),
        lambda g: g("Conv", "x", g.weights(1, 4, 1, 1), pads=[10**7] * 4, strides=[10**7] * 2),
        lambda g: g("ConvTranspose", "x", g.weights(4, 1, 1, 1), strides=[10**7, 10**7]),
        lambda g: g("ConvTranspose", "x", g.weights(4, 1, 1, 1), strides=[10**7, 10**7], pads=[25 * 10**6 - 9] * 4),
        lambda g: g("Add", "x", g.weights(100_000, 1, 1, 1, 1)),
        lambda g: g("Gather", "x", g.ints(*[0] * 10**6), axis=0),
    ],
    ids=["ConstantOfShape", "Expand a constant", "Range", "outer product", "Pad", "Expand", "Resize", "Conv", "Conv before strides",
         "ConvTranspose", "ConvTranspose before it is cut", "broadcast", "Gather"],
)  # fmt: skip
def test_tensors_of_any_size_are_not_made(
    write: Callable[[Graph], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph((1, 4, 6, 6))
    output = write(graph)
    monkeypatch.setattr("autodual.interchange.conversion.LARGEST_TENSOR", 10**6)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 6])
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["a"])
    made = helper.make_graph(graph.nodes, "g", [given], [result], graph.constants)
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    assert "more than 1,000,000 numbers" in _refusal(path)


def test_an_output_that_does_not_depend_on_the_input(tmp_path: Path) -> None:
    graph = Graph((1, 6))
    assert "does not depend on its input" in _refusal(
        graph.save(tmp_path / "c.onnx", graph("Relu", graph.weights(1, 3)))
    )


def test_a_module_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _good(tmp_path / "good.onnx")
    plain = onnx_reading.Reference.as_given
    monkeypatch.setattr(onnx_reading.Reference, "as_given", lambda self, x: plain(self, x) * (1 + 3e-5))
    assert "differs from the file's by 3e-05 of its largest entry" in _refusal(path)


def test_old_softmax_on_which_the_reference_disagrees_with_its_definition(tmp_path: Path) -> None:
    """Before opset 13, softmax is over all dimensions from the axis on; the reference takes one. The file is refused."""
    graph = Graph((1, 4, 6), 11)
    said = _refusal(graph.save(tmp_path / "s.onnx", graph("Relu", graph("Softmax", graph("Relu", "x"), axis=1))))
    assert "differs from the file's" in said
    assert "The first node that differs is Softmax (node 1, 'Softmax1')" in said


def test_pooling_on_whose_size_the_reference_disagrees_names_its_node(tmp_path: Path) -> None:
    graph = Graph((1, 4, 7, 7))
    pooled = graph("MaxPool", "x", kernel_shape=[3, 2], auto_pad="SAME_LOWER", strides=[2, 2])
    said = _refusal(graph.save(tmp_path / "p.onnx", pooled))
    assert "the module makes [64] numbers, but the file [36]" in said
    assert "The first node that differs is MaxPool (node 0, 'MaxPool0')" in said


def test_a_cast_that_rounds_in_a_file_of_double_numbers(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=1), helper.make_node("Cast", ["h"], ["y"], to=11)]
    ends = [[helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 3])] for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "d.onnx"))
    assert "only casts to DOUBLE are supported in this file" in _refusal(
        tmp_path / "d.onnx", ad.UnsupportedOperationError
    )


def test_a_file_that_mixes_the_examples_of_a_batch(tmp_path: Path) -> None:
    graph = Graph(("N", 6))
    mixed = graph("Sub", "x", graph("ReduceMean", "x", axes=[0]))
    assert "another output beside others in a batch" in _refusal(
        graph.save(tmp_path / "m.onnx", graph("Add", "x", mixed))
    )


def test_an_output_that_is_not_a_number(tmp_path: Path) -> None:
    graph = Graph((1, 6))
    path = graph.save(tmp_path / "nan.onnx", graph("Mul", "x", graph.constant(np.nan)))
    assert "NaN or infinite" in _refusal(path)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _good(tmp_path / "good.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ad.ArgumentError, match=r"pip install 'autodual\[onnx\]'"):
        ad.load_onnx(path)
    with pytest.raises(ad.ArgumentError, match=r"pip install 'autodual\[onnx\]'"):
        ad.save_onnx(torch.nn.Linear(2, 2).eval(), tmp_path / "x.onnx", torch.zeros(1, 2))
