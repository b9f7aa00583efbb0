"""A node that its module would compute otherwise is refused, also where no input that is tried shows it.

A network for pixels between 0 and 255 may have all its ReLUs at zero for inputs near zero: whatever stands behind them is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import autodual as ad

pytest.importorskip("onnx", reason="needs the package onnx: pip install 'autodual[onnx]'")

from interchange.graphs import Graph, Shape

IMAGE = (1, 2, 4, 6)


def _behind_relu(graph: Graph) -> str:
    """What is zero for inputs below 100, where no inputs are tried."""
    return str(graph("Relu", graph("Sub", "x", graph.constant(100.0))))


def _resize(graph: Graph, *factors: float, mode: str = "nearest", **attributes: str) -> str:
    return str(graph("Resize", _behind_relu(graph), "", graph.constant([1, 1, *factors]), mode=mode, **attributes))


def _average(graph: Graph) -> str:
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "ceil_mode": 1, "count_include_pad": 1}
    return str(graph("AveragePool", _behind_relu(graph), **attributes))


@pytest.mark.parametrize(
    ("name", "shape", "write", "opset"),
    [
        ("Resize", IMAGE, lambda g: _resize(g, 3, 2, coordinate_transformation_mode="asymmetric"), 17),
        ("Resize", IMAGE, lambda g: _resize(g, 1.5, 1, nearest_mode="ceil"), 17),
        ("Resize", IMAGE, lambda g: _resize(g, 2, 2, mode="linear", coordinate_transformation_mode="asymmetric"), 17),
        ("AveragePool", (1, 1, 4, 7), _average, 10),
    ],
)
def test_a_node_behind_an_idle_relu_is_compared(
    name: str, shape: Shape, write: Callable[[Graph], str], opset: int, tmp_path: Path
) -> None:
    graph = Graph(shape, opset)
    path = graph.save(tmp_path / "net.onnx", write(graph))
    with pytest.raises(ad.ArgumentError, match=rf"{name}.*its module computes something else than the node"):
        ad.load_onnx(path)


def test_what_is_computed_alike_is_read(tmp_path: Path) -> None:
    graph = Graph(IMAGE)
    path = graph.save(tmp_path / "net.onnx", _resize(graph, 2, 2))
    x = 100 + torch.rand(3, *IMAGE[1:])
    assert torch.equal(ad.load_onnx(path)(x), (x - 100).repeat_interleave(2, 2).repeat_interleave(2, 3))


def test_whole_numbers_to_a_power_are_refused(tmp_path: Path) -> None:
    graph = Graph((1, 3))
    path = graph.save(tmp_path / "net.onnx", graph("Pow", graph.constant(3, np.int64), "x"))
    with pytest.raises(ad.ArgumentError, match="only floating-point ones can be bounded"):
        ad.load_onnx(path)


def test_an_empty_tensor_is_refused(tmp_path: Path) -> None:
    graph = Graph((1, 1, 4, 3))
    path = graph.save(tmp_path / "net.onnx", graph("ConvTranspose", "x", graph.weights(1, 2, 1, 3), pads=[2, 0, 2, 2]))
    with pytest.raises(ad.ArgumentError, match=r"ConvTranspose.*makes an empty tensor"):
        ad.load_onnx(path)
