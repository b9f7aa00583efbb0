"""Thin convolutions, without a GPU: when they are used, which window a group of results reads, and that their gradients fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autodual import kernels
from autodual.dual.conv import DualConv
from autodual.kernels import thin
from autodual.kernels.narrow import Geometry
from autodual.kernels.thin import MANY, Windows, convolve, is_thin

ONE: Geometry = (1, 1), (1, 1), (1, 1)
CASES = [  # size, kernel, stride, padding, and a group of results
    ((9, 7), (3, 3), (1, 1), (1, 1), (2, 2)),
    ((8, 9), (4, 4), (2, 2), (1, 1), (1, 1)),
    ((7, 9), (2, 2), (2, 2), (0, 0), (2, 4)),
    ((7, 10), (1, 1), (2, 2), (0, 0), (1, 2)),
    ((6, 6), (4, 3), (1, 2), (5, 3), (2, 1)),
    ((6, 5), (3, 2), (2, 1), (0, 1), (1, 4)),
]


def _pairs(
    windows: Windows, kernel: tuple[int, ...], size: tuple[int, ...], source: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Result, place of the source and weight that meet, each as two numbers: as the Triton programs find them."""
    found: list[list[tuple[int, int, int]]] = [[], []]
    for d in range(2):
        for t, a in itertools.product(range(-(-size[d] // windows.group[d])), range(windows.group[d])):
            for i in range(windows.size[d]):
                result, place = windows.group[d] * t + a, windows.step[d] * t + windows.first[d] + i
                weight = windows.by_place[d] * i + windows.by_result[d] * a + windows.offset[d]
                if result < size[d] and 0 <= place < source[d] and 0 <= weight < kernel[d]:
                    found[d].append((result, place, weight))
    for (y, v, p), (x, u, q) in itertools.product(*found):
        yield y, x, v, u, p, q


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_weight_meets_what_a_convolution_has_it_meet(case: tuple[tuple[int, ...], ...]) -> None:
    size, kernel, stride, padding, group = case
    geometry = stride, padding, (1, 1)
    x = torch.rand(1, 1, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(1, 1, *kernel, dtype=torch.float64)
    exact = F.conv2d(x, weight, None, *geometry)
    given = torch.rand_like(exact)
    (back,) = torch.autograd.grad(exact, x, given)
    there = torch.zeros_like(exact)
    for y, i, v, u, p, q in _pairs(Windows.forward(group, kernel, geometry), kernel, tuple(exact.shape[2:]), size):
        there[0, 0, y, i] += weight[0, 0, p, q] * x.detach()[0, 0, v, u]
    torch.testing.assert_close(there, exact)
    group = tuple(g * s for g, s in zip(group, stride, strict=True))
    found = torch.zeros_like(x)
    for y, i, v, u, p, q in _pairs(Windows.back(group, kernel, geometry), kernel, size, tuple(exact.shape[2:])):
        found.data[0, 0, y, i] += weight[0, 0, p, q] * given[0, 0, v, u]
    torch.testing.assert_close(found, back)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under autocast to bfloat16 on a GPU of today."""
    monkeypatch.setattr(kernels, "usable", lambda family, *_: family == "thin")
    monkeypatch.setattr(thin, "products_are_half", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: thin.HOPPER)


def _images(channels: int) -> Tensor:
    return torch.zeros(1, channels, 1, MANY // channels, dtype=torch.bfloat16)


def test_never_on_a_cpu() -> None:
    assert not is_thin(_images(16), torch.zeros(16, 16, 3, 3), ONE, 1)


@pytest.mark.usefixtures("half")
def test_few_channels_small_kernels_and_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = _images(16), torch.zeros(32, 16, 3, 3)
    assert is_thin(x, weight, ONE, 1)
    assert is_thin(x, weight, ((2, 2), (0, 1), (1, 1)), 1)
    assert not is_thin(x, weight, ONE, 2)
    assert not is_thin(x, weight, ((1, 1), (1, 1), (2, 2)), 1)
    assert not is_thin(x, weight, ((3, 3), (1, 1), (1, 1)), 1)
    assert not is_thin(x, torch.zeros(20, 16, 3, 3), ONE, 1)
    assert not is_thin(_images(64), torch.zeros(64, 64, 3, 3), ONE, 1)
    assert not is_thin(x, torch.zeros(32, 16, 5, 3), ONE, 1)
    assert not is_thin(x, torch.zeros(32, 16, 3), ONE, 1)
    assert not is_thin(x.float(), weight, ONE, 1)
    assert not is_thin(x, weight.double(), ONE, 1)
    assert not is_thin(x[..., 1:], weight, ONE, 1)
    monkeypatch.setattr(thin, "products_are_half", lambda: False)
    assert not is_thin(x, weight, ONE, 1)


def test_nowhere_without_autocast_to_bfloat16() -> None:
    assert not thin.products_are_half()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The library's convolutions in the place of the kernels; names of those that were called."""
    calls: list[str] = []

    def gradients(given: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, which: int) -> Tensor:
        mask = which == 0, which == 1, False
        found = torch.ops.aten.convolution_backward(given, x, weight, None, *geometry, False, (0, 0), 1, mask)
        return found[which]

    def there(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        calls.append("there")
        return F.conv2d(x, weight.to(x.dtype), None, *geometry)

    def back(given: Tensor, weight: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
        calls.append("back")
        return gradients(
            given, given.new_empty(len(given), weight.shape[1], *size), weight.to(given.dtype), geometry, 0
        )

    def on_weight(given: Tensor, x: Tensor, kernel: tuple[int, ...], geometry: Geometry) -> Tensor:
        calls.append("on weight")
        weight = x.new_empty(given.shape[1], x.shape[1], *kernel)
        found = gradients(given, x, weight, geometry, 1)
        return found.float() if found.dtype == torch.bfloat16 else found

    for name, function in (("convolve", there), ("back", back), ("on_weight", on_weight)):
        monkeypatch.setattr(thin, f"launch_{name}", function)
    return calls


@pytest.mark.parametrize(
    ("filters", "stride", "expected"),
    [
        ((16, 16, 3, 3), (1, 1), (True, True, True)),
        ((32, 16, 4, 4), (2, 2), (True, True, True)),
        ((32, 32, 4, 4), (2, 2), (False, True, True)),
        ((64, 32, 3, 3), (1, 1), (False, False, True)),
        ((64, 64, 3, 3), (1, 1), (False, False, False)),
        ((64, 32, 2, 2), (2, 2), (True, True, True)),
        ((64, 64, 4, 4), (2, 2), (False, False, False)),  # the matrix would take 288 KiB
    ],
    ids=str,
)
def test_what_is_faster(filters: tuple[int, ...], stride: tuple[int, ...], expected: tuple[bool, ...]) -> None:
    assert thin.faster(filters, stride) == expected


@pytest.mark.parametrize("ours", list(itertools.product((False, True), repeat=3)), ids=str)
def test_the_library_does_what_it_is_faster_at(
    ours: tuple[bool, ...], launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thin, "faster", lambda *_: ours)
    x = torch.rand(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(3, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    found, exact = convolve(x, weight, ONE), F.conv2d(x, weight, None, *ONE)
    torch.testing.assert_close(found, exact)
    for mine, its in zip(*(torch.autograd.grad(y.square().sum(), (x, weight)) for y in (found, exact)), strict=True):
        torch.testing.assert_close(mine, its)
    names = ("there", "back", "on weight")
    assert sorted(launched) == sorted(name for name, one in zip(names, ours, strict=True) if one)


@pytest.mark.parametrize("geometry", [ONE, ((2, 2), (1, 0), (1, 1))], ids=str)
def test_gradients_once_and_twice(geometry: Geometry, launched: list[str]) -> None:
    x = torch.rand(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(3, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: convolve(*given, geometry), (x, weight))
    assert torch.autograd.gradgradcheck(lambda *given: convolve(*given, geometry), (x, weight))
    launched.clear()
    torch.autograd.grad(convolve(x.detach(), weight, geometry).sum(), weight)
    torch.autograd.grad(convolve(x, weight.detach(), geometry).sum(), x)
    assert launched == ["there", "on weight", "there", "back"]


@pytest.mark.usefixtures("half")
def test_a_layer_uses_it(launched: list[str]) -> None:
    layer = DualConv(torch.rand(16, 16, 1, 1, requires_grad=True), None, (1, 1), (0, 0), (1, 1), 1)
    x = _images(16).requires_grad_()
    found = layer.linear(x)
    found.sum().backward()
    assert found.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert sorted(launched) == ["back", "on weight", "there"]
