"""Sums and averages state how many entries they add up, and in how many sums an entry is: counted in the matrix that they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._tensor import Shape
from autodual.dual import AffineDual, build
from autodual.dual.shape import DualPartialSums
from autodual.engines import capture
from small import Net

POOLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
ADAPTIVE = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _layers(operation: Callable[[Tensor], Tensor], shape: Shape) -> list[tuple[AffineDual, tuple[Shape, ...], Shape]]:
    """Every affine layer that the operation becomes, with the shapes of its operands and of its result."""
    module = operation if isinstance(operation, nn.Module) else Net(lambda m, x: operation(x))
    network = build(capture(module.eval(), torch.zeros(2, *shape)))
    nodes = list(enumerate(network.nodes))
    return [(n.layer, network.operand_shapes(i), n.shape) for i, n in nodes if isinstance(n.layer, AffineDual)]


@torch.no_grad()
def _counted(layer: AffineDual, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
    """The most entries of a row of W and b, and of a column of W, that are not zero."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    basis = torch.eye(sum(sizes)).split(sizes, 1)
    operands = [part.reshape(-1, *of) for part, of in zip(basis, shapes, strict=True)]
    columns = layer.linear(*operands).reshape(sum(sizes), -1) != 0
    bias = layer.bias()
    added = 0 if bias is None else (bias != 0).expand(shape).flatten().int()
    return int((columns.sum(0) + added).max()), int(columns.sum(1).max())


def _check(operation: Callable[[Tensor], Tensor], shape: Shape, what: object) -> int:
    """Returns how many layers state their own counts."""
    own = 0
    for layer, shapes, result in _layers(operation, shape):
        together, sums = _counted(layer, shapes, result)
        stated = layer.terms(shapes, result)
        assert stated[0] >= together, f"{what} on {shape}: {together} entries are added up, {stated[0]} stated"
        assert stated[1] >= sums, f"{what} on {shape}: an entry is in {sums} sums, {stated[1]} stated"
        own += isinstance(layer, DualPartialSums)
    return own


def _average_pools() -> Iterator[tuple[int, tuple[Any, ...], Shape]]:
    for kernel, stride, ceil, include, size in product(
        (1, 2, 3, 5), (1, 2, 3, 7), (False, True), (False, True), (5, 8)
    ):
        for padding in range(kernel // 2 + 1):
            yield 1, (kernel, stride, padding, ceil, include), (2, size)
    for kernel, stride, padding in product(((2, 3), (3, 1)), ((1, 2), (2, 1), (3, 3)), ((0, 0), (1, 0))):
        for ceil, divisor in product((False, True), (None, 1, 7, -3)):
            yield 2, (kernel, stride, padding, ceil, True, divisor), (2, 5, 7)
    for stride, ceil, divisor in product((1, (2, 1, 3)), (False, True), (None, 11)):
        yield 3, ((2, 3, 2), stride, 1, ceil, False, divisor), (1, 3, 4, 5)


def test_average_pools() -> None:
    for dims, options, shape in _average_pools():
        assert _check(lambda x, d=dims, o=options: POOLS[d - 1](x, *o), shape, options) == 1  # type: ignore[misc]


def test_adaptive_average_pools() -> None:
    """Every number of positions to every other, also to more than there are."""
    for before, after in product(range(1, 14), range(1, 14)):
        assert _check(lambda x, n=after: ADAPTIVE[0](x, n), (1, before), after) == 1  # type: ignore[misc]
    for size in ((1, 1), (2, 3), (5, 4), (7, 1), (None, 2), (11, 3)):
        assert _check(lambda x, n=size: ADAPTIVE[1](x, n), (2, 5, 7), size) == 1  # type: ignore[misc]
    assert _check(lambda x: ADAPTIVE[2](x, (2, 1, 4)), (2, 3, 4, 5), "3d") == 1


@pytest.mark.parametrize("operation", [torch.mean, torch.sum], ids=["mean", "sum"])
def test_sums_over_any_dimensions(operation: Callable[..., Tensor]) -> None:
    for dims in (1, -1, 2, (1,), (1, 2), (-1, 1), (2, 3), (1, 2, 3), [3, 1]):
        for keep in (False, True):
            assert _check(lambda x, d=dims, k=keep: operation(x, d, k), (2, 3, 4), dims) == 1  # type: ignore[misc]


@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed convolution"])
def test_convolutions(transposed: bool) -> None:
    for dims, groups, kernel, stride, dilation in product((1, 2), (1, 2), (1, 3), (1, 2, 4), (1, 2)):
        for padding in {0, kernel // 2}:
            kind = (TRANSPOSED if transposed else CONVOLUTIONS)[dims - 1]
            layer = kind(4, 6, kernel, stride, padding, groups=groups, dilation=dilation)
            _check(layer, (4, *(7, 6)[:dims]), layer)


JOINED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of a stack": lambda x: torch.stack([x, x.flip(1), x * 2], 1).mean(1),
    "mean of a concatenation": lambda x: torch.cat([x, x[:, :1], torch.ones(len(x), 1, 4, 6)], 1).mean((1, 3)),
    "mean of means": lambda x: x.mean(3).mean(1),
    "sum of an average": lambda x: F.avg_pool2d(x, 2, 1).sum((2, 3)),
    "einsum with ones": lambda x: torch.einsum("nchw,hw->nc", x, torch.ones(4, 6)),
    "einsum of one": lambda x: torch.einsum("nchw->nw", x),
    "cumulative sum": lambda x: x.cumsum(2),
    "matrix on the left": lambda x: torch.ones(5, 4) @ x,
    "area": lambda x: F.interpolate(x, size=(3, 4), mode="area"),
    "bilinear": lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    "expanded": lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1),
    "broadcast": lambda x: x + x.mean((2, 3), keepdim=True),
    "picked twice": lambda x: x[:, [0, 0, 1, 1, 1]],
    "reflected": lambda x: F.pad(x, (2, 2, 3, 3), mode="reflect"),
    "circular": lambda x: F.pad(x, (6, 6, 4, 4), mode="circular"),
    "replicated": lambda x: F.pad(x, (3, 9, 1, 0), mode="replicate"),
    "difference from the mean": lambda x: x - x.mean((1, 2, 3), keepdim=True),
    "rolled": lambda x: x.roll(2, 2) + x,
    "pixels shuffled": lambda x: F.pixel_unshuffle(x, 2).sum(1),
    "unfolded": lambda x: F.unfold(x, 3, padding=1).sum(2),
}  # fmt: skip


@pytest.mark.parametrize("operation", JOINED.values(), ids=JOINED)
def test_joined(operation: Callable[[Tensor], Tensor]) -> None:
    _check(operation, (2, 4, 6), operation)
