"""Thin convolutions of bfloat16 streams equal the library's in float32 on the same numbers, and so do their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autodual as ad
from autodual import kernels
from autodual.dual.conv import DualConv
from autodual.engines import streams
from autodual.kernels import thin
from autodual.kernels.narrow import Geometry
from autodual.kernels.thin import Blocks, convolve, is_thin

pytestmark = pytest.mark.gpu

GRAIN = 2**-8
"""A unit in the last place of bfloat16."""
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], Geometry]] = [
    ((9, 16, 32, 32), (16, 16, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((3, 16, 9, 7), (16, 16, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((5, 16, 32, 32), (32, 16, 4, 4), ((2, 2), (1, 1), (1, 1))),
    ((2, 16, 9, 11), (32, 16, 4, 4), ((2, 2), (1, 1), (1, 1))),
    ((5, 32, 28, 28), (32, 32, 4, 4), ((2, 2), (1, 1), (1, 1))),
    ((2, 32, 7, 7), (16, 32, 1, 1), ((1, 1), (0, 0), (1, 1))),
    ((2, 32, 7, 10), (32, 32, 1, 1), ((2, 2), (0, 0), (1, 1))),
    ((2, 16, 7, 9), (32, 16, 2, 2), ((2, 2), (0, 0), (1, 1))),
    ((3, 32, 14, 14), (64, 32, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((1, 64, 6, 6), (16, 64, 3, 2), ((2, 1), (0, 1), (1, 1))),
    ((2, 16, 6, 6), (64, 16, 4, 3), ((1, 2), (5, 3), (1, 1))),
    ((700, 64, 3, 3), (64, 64, 3, 3), ((1, 1), (1, 1), (1, 1))),
]
PAPER = [(16, 16, 3, 1), (32, 16, 4, 2), (32, 32, 3, 1), (32, 32, 4, 2), (64, 32, 3, 1), (64, 64, 4, 2), (64, 64, 3, 1)]
"""Filters, channels, size of the kernel and stride, as the paper's networks have them."""


FASTER = thin.faster


@pytest.fixture(autouse=True)
def _needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin, "MANY", 1)
    monkeypatch.setattr(thin, "faster", lambda *_: (True, True, True))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert kernels.usable("thin", torch.zeros(1, device="cuda")), "this machine's GPU cannot run the kernels"


@pytest.fixture(params=SHAPES, ids=lambda s: f"{s[0]} by {s[1]}")
def case(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Geometry]:
    """Images, weights that bfloat16 holds, and a geometry."""
    image, filters, geometry = request.param
    x = torch.randn(image, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    weight = torch.randn(filters, device="cuda").bfloat16().float()
    return x.requires_grad_(), weight.requires_grad_(), geometry


def _exact(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return F.conv2d(x.double(), weight.double(), None, *geometry)


def _close(found: Tensor, exact: Tensor, part: float) -> None:
    assert found.shape == exact.shape
    assert (found - exact).norm() <= part * exact.norm()


def test_values_and_gradients(case: tuple[Tensor, Tensor, Geometry]) -> None:
    x, weight, geometry = case
    found, exact = convolve(x, weight, geometry), _exact(x, weight, geometry)
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    _close(found, exact, GRAIN)
    given = torch.randn_like(found)
    on_x, on_weight = torch.autograd.grad(found, (x, weight), given)
    exact_on_x, exact_on_weight = torch.autograd.grad(exact, (x, weight), given.double())
    assert on_x.dtype == torch.bfloat16
    assert on_weight.dtype == torch.float32
    _close(on_x.double(), exact_on_x.double(), GRAIN)
    _close(on_weight, exact_on_weight, 1e-4)


@pytest.mark.parametrize("blocks", [Blocks((2, 2), 32, 64, 3, 4, 1), Blocks((2, 2), 128, 128, 1, 8, 2)], ids=str)
def test_whatever_the_blocks(blocks: Blocks) -> None:
    geometry = (2, 2), (1, 1), (1, 1)
    x = torch.randn(7, 16, 17, 21, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(16, 16, 4, 4, device="cuda").bfloat16().float().requires_grad_()
    exact = _exact(x, weight, geometry)
    given = torch.randn(exact.shape, device="cuda").bfloat16()
    on_x, on_weight = torch.autograd.grad(exact, (x, weight), given.double())
    x, weight = x.detach(), weight.detach()
    _close(thin.launch_convolve(x, weight, geometry, blocks), exact, GRAIN)
    _close(thin.launch_back(given, weight, (17, 21), geometry, blocks).double(), on_x.double(), GRAIN)
    for parts in (1, 3, 100):
        _close(thin.launch_on_weight(given, x, (4, 4), geometry, replace(blocks, parts=parts)), on_weight, 1e-5)


@pytest.mark.parametrize(("filters", "channels", "side", "stride"), PAPER)
def test_layers_of_the_paper_as_they_are_trained(
    filters: int, channels: int, side: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is chosen for each fits into the GPU's fast memory."""
    monkeypatch.setattr(thin, "faster", FASTER)
    geometry = (stride, stride), (1, 1), (1, 1)
    x = torch.randn(20, channels, 16, 16, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(filters, channels, side, side, device="cuda").bfloat16().float().requires_grad_()
    found, exact = convolve(x, weight, geometry), _exact(x, weight, geometry)
    _close(found, exact, GRAIN)
    given = torch.randn_like(found)
    on_x, on_weight = torch.autograd.grad(found, (x, weight), given)
    exact_on_x, exact_on_weight = torch.autograd.grad(exact, (x, weight), given.double())
    _close(on_x.double(), exact_on_x.double(), GRAIN)
    _close(on_weight, exact_on_weight, GRAIN)


def test_gradients_are_the_same_every_time(case: tuple[Tensor, Tensor, Geometry]) -> None:
    x, weight, geometry = case
    found = convolve(x, weight, geometry)
    given = torch.randn_like(found)
    once, again = (torch.autograd.grad(found, (x, weight), given, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_a_gradient_that_is_differentiated_again() -> None:
    geometry = (1, 1), (1, 1), (1, 1)
    x = torch.randn(2, 16, 8, 8, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(16, 16, 3, 3, device="cuda").bfloat16().float().requires_grad_()
    seconds = []
    for way in (convolve, _exact):
        result = way(x, weight, geometry)
        (on_weight,) = torch.autograd.grad(result.double().square().sum(), weight, create_graph=True)
        seconds.append(torch.autograd.grad(on_weight.square().sum(), weight)[0])
    _close(*seconds, 8 * GRAIN)


def test_captured_equals_eager(case: tuple[Tensor, Tensor, Geometry]) -> None:
    x, weight, geometry = case
    given = torch.randn_like(convolve(x, weight, geometry))

    def step() -> tuple[Tensor, ...]:
        result = convolve(x, weight, geometry)
        return result.detach(), *torch.autograd.grad(result, (x, weight), given)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
        weight.mul_(0.5)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


def test_only_streams_in_half_use_it(watch: Callable[..., list[str]]) -> None:
    calls = watch(thin, "launch_convolve", "launch_back", "launch_on_weight")
    weight = torch.rand(16, 16, 3, 3, device="cuda", requires_grad=True)
    layer = DualConv(weight, None, (1, 1), (1, 1), (1, 1), 1)
    x = torch.rand(2, 16, 8, 8, device="cuda").bfloat16()
    assert not is_thin(x, weight, layer.geometry, 1)
    layer.linear(x.float())
    assert calls == []
    found = streams._in_half(layer, [x.requires_grad_()])
    _close(found, F.conv2d(x.float(), weight, padding=1), 2 * GRAIN)
    found.sum().backward()
    assert sorted(calls) == ["launch_back", "launch_convolve", "launch_on_weight"]


def test_a_robust_loss_hardly_changes(watch: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = ad.models.small(1, 8).cuda()
    x, labels = torch.rand(4, 1, 8, 8, device="cuda"), torch.arange(4, device="cuda")
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.02), engine=ad.Projected(k=20))
    draws = loss.draw(x)
    calls = watch(thin, "launch_convolve", "launch_on_weight")
    found = []
    for few in (thin.MANY, 1 << 60):
        monkeypatch.setattr(thin, "MANY", few)
        model.zero_grad()
        value = loss(x, labels, draws)
        value.backward()
        found.append((value.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    assert set(calls) == {"launch_convolve", "launch_on_weight"}
    torch.testing.assert_close(found[0][0], found[1][0], rtol=2e-2, atol=0)
    _close(found[0][1], found[1][1], 0.1)
