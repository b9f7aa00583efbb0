"""Every operator that is read computes what onnx's reference computes, for a batch of any size; random graphs of them, too."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import autodual as ad

pytest.importorskip("onnx", reason="needs the package onnx: pip install 'autodual[onnx]'")

from autodual.interchange.onnx_file import read_onnx
from autodual.interchange.onnx_reading import OPERATORS, OnnxNetwork, Reference, load_file
from interchange.graphs import CASES, Case, Graph, random_graph


def _both(path: Path) -> tuple[OnnxNetwork, Reference]:
    file = read_onnx(path)
    return load_file(file), Reference(file)


def _check_batch(network: OnnxNetwork, reference: Reference) -> None:
    for size in (1.0, 8.0):  # activations saturate at the larger ones
        x = size * torch.randn(4, *network.input_shape)
        expected = reference(x)
        with torch.no_grad():
            found = network(x)
            alone = torch.cat([network(example.unsqueeze(0)) for example in x])
        assert found.dtype == torch.float32
        scale = expected.abs().max().item() + 1e-6
        assert (found.flatten(1) - expected).abs().max().item() <= 1e-5 * scale
        assert (found - alone).abs().max().item() <= 1e-5 * scale


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_is_what_the_reference_computes_one_by_one(case: Case, tmp_path: Path) -> None:
    _check_batch(*_both(case.save(tmp_path)))


def test_every_operator_has_a_case(tmp_path: Path) -> None:
    written = set()
    for case in CASES:
        graph = Graph(case.shape, case.opset)
        case.write(graph)
        written |= {node.op_type for node in graph.nodes}
    missing = {"CastLike", "Size", "Swish"}  # refused; folded; not known to the reference of every version
    assert set(OPERATORS) - written == missing


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int, opset: int, tmp_path: Path) -> None:
    graph = random_graph(seed, opset)
    _check_batch(*_both(graph.save(tmp_path / "graph.onnx", graph.nodes[-1].output[0])))


@pytest.mark.parametrize("seed", range(100, 112))
def test_bounds_of_random_graphs_contain_what_the_reference_computes(seed: int, tmp_path: Path) -> None:
    graph = random_graph(seed)
    network, reference = _both(graph.save(tmp_path / "graph.onnx", graph.nodes[-1].output[0]))
    region = ad.LinfBall(0.02).around(torch.rand(1, *network.input_shape))
    found = ad.bounds(network, region, ad.IBP()).output
    points = torch.cat([region.sample() for _ in range(20)])
    for scores in reference(points):
        assert bool(found.contains(scores.reshape(found.lower.shape), 1e-5 * found.largest.max().item()).all())


def test_weights_stay_live_and_no_random_number_is_drawn(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "Conv all")
    state = torch.get_rng_state()
    network, _ = _both(case.save(tmp_path))
    assert torch.equal(state, torch.get_rng_state())
    assert not network.training
    x = torch.rand(2, *network.input_shape)
    before: Tensor = network(x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    assert torch.allclose(network(x), 2 * before)


def test_a_loaded_network_is_copied_and_trained_like_any_other(tmp_path: Path) -> None:
    graph = Graph((1, 6))
    hidden = graph("Relu", graph("Gemm", "x", graph.weights(6, 8), graph.weights(8), alpha=0.5))
    network, _ = _both(graph.save(tmp_path / "net.onnx", graph("Gemm", hidden, graph.weights(8, 3))))
    x, labels = torch.rand(4, 6), torch.tensor([0, 1, 2, 0])
    twin = copy.deepcopy(network)
    assert torch.equal(twin(x), network(x))
    ad.RobustCrossEntropy(network, ad.LinfBall(0.01))(x, labels).backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in network.parameters())
    assert all(p.grad is None for p in twin.parameters())


RECOGNISED = {"SiLU": torch.nn.SiLU, "SiLU swapped": torch.nn.SiLU, "Mish in parts": torch.nn.Mish}
ROUNDED = ("Hardswish in parts", *(f"GELU in parts, way {way}" for way in range(4)))
"""Activations whose constants a file holds as float32: another function than PyTorch's, by 1e-8."""


@pytest.mark.parametrize("name", RECOGNISED)
def test_activations_in_parts_are_one_module(name: str, tmp_path: Path) -> None:
    network, _ = _both(next(case for case in CASES if case.name == name).save(tmp_path))
    assert [type(step) for step in network.steps.values()] == [RECOGNISED[name]]


@pytest.mark.parametrize("name", ["nearly GELU", "Mul by another gate", *ROUNDED])
def test_what_only_looks_like_one_stays_as_it_is(name: str, tmp_path: Path) -> None:
    network, _ = _both(next(case for case in CASES if case.name == name).save(tmp_path))
    assert len(network.steps) > 1


def test_what_the_output_does_not_depend_on_is_left_out(tmp_path: Path) -> None:
    graph = Graph((1, 6))
    graph("Relu", "x")
    network, _ = _both(graph.save(tmp_path / "dead.onnx", graph("Tanh", "x")))
    assert list(network.steps) == ["Tanh_1"]


@pytest.mark.parametrize("shape", [(1, 784, 1, 1), (1, 1, 28, 28), (5,), (1, 5), (1, 784, 1), (3, 4), ("N", 6)])
def test_shapes_of_inputs(shape: tuple[int, ...], tmp_path: Path) -> None:
    graph = Graph(shape)
    size = int(torch.tensor([n if isinstance(n, int) else 1 for n in shape]).prod())
    flat = graph("Reshape", "x", graph.ints(1, size))
    path = graph.save(tmp_path / "shape.onnx", graph("Gemm", graph("Relu", flat), graph.weights(size, 3)))
    network, reference = _both(path)
    without_batch = shape if len(shape) == 1 or shape[0] == 3 else shape[1:]
    assert network.input_shape == without_batch
    _check_batch(network, reference)
    x = torch.rand(4, *network.input_shape)
    certificate = ad.certify(network, x, network(x).argmax(1), ad.LinfBall(1e-4))
    assert bool(certificate.certified.all())


def test_a_double_file_is_a_double_module(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(torch.randn(3, 2, dtype=torch.float64).numpy(), "w")
    given = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 3])
    result = helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 2])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [given], [result], [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(tmp_path / "d.onnx")
    )
    network = ad.load_onnx(tmp_path / "d.onnx")
    assert network(torch.rand(2, 3, dtype=torch.float64)).dtype == torch.float64
