"""Convolutions with few weights per filter equal the library's, up to the rounding of TF32, and so do their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual._tensor import full_precision
from autodual.dual.conv import DualConv
from autodual.kernels import narrow
from autodual.kernels.narrow import Geometry, convolve, is_narrow, spread

pytestmark = pytest.mark.gpu

TF32 = 2.0**-10
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], Geometry]] = [
    ((3, 1, 28, 28), (48, 1, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((2, 4, 28, 28), (44, 4, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((2, 4, 28, 28), (70, 4, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((2, 4, 28, 28), (150, 4, 3, 3), ((1, 1), (1, 1), (1, 1))),
    ((5, 3, 32, 32), (16, 3, 4, 4), ((2, 2), (1, 1), (1, 1))),
    ((1, 1, 5, 4), (1, 1, 1, 1), ((1, 1), (0, 0), (1, 1))),
    ((2, 2, 9, 11), (17, 2, 3, 2), ((2, 1), (0, 1), (2, 1))),
    ((2, 3, 10, 7), (5, 3, 2, 5), ((3, 2), (2, 3), (1, 1))),
]


@pytest.fixture(params=SHAPES, ids=lambda s: f"{s[0]} by {s[1]}")
def case(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Tensor, Geometry]:
    torch.manual_seed(0)
    image, weight, geometry = request.param
    x = torch.randn(image, device="cuda", requires_grad=True)
    return x, torch.randn(weight, device="cuda", requires_grad=True), torch.randn(weight[0], device="cuda"), geometry


def _close(found: Tensor, exact: Tensor, terms: Tensor) -> None:
    """Within what rounding the factors of every term can do."""
    assert found.shape == exact.shape
    assert bool(((found - exact).abs() <= 2 * TF32 * terms + 1e-6).all())


def test_there_and_back(case: tuple[Tensor, Tensor, Tensor, Geometry]) -> None:
    x, weight, bias, geometry = case
    assert is_narrow(x, weight, 1)
    wide, heavy = x.double(), weight.double()
    exact = F.conv2d(wide, heavy, bias.double(), *geometry)
    _close(
        convolve(x, weight, bias, geometry), exact, F.conv2d(wide.abs(), heavy.abs(), bias.double().abs(), *geometry)
    )
    size = tuple(x.shape[2:])
    given = torch.randn(exact.shape, device="cuda")
    (back,) = torch.autograd.grad(F.conv2d(wide, heavy, None, *geometry), wide, given.double())
    (terms,) = torch.autograd.grad(F.conv2d(wide, heavy.abs(), None, *geometry), wide, given.double().abs())
    _close(spread(given, weight, size, geometry), back, terms)


def test_gradients(case: tuple[Tensor, Tensor, Tensor, Geometry]) -> None:
    x, weight, bias, geometry = case
    bias.requires_grad_()
    found = convolve(x, weight, bias, geometry)
    plain = F.conv2d(x, weight, bias, *geometry)
    given = torch.randn_like(plain)
    for a, b in zip(
        torch.autograd.grad(found, (x, weight, bias), given),
        torch.autograd.grad(plain, (x, weight, bias), given),
        strict=True,
    ):
        assert (a - b).norm() <= 4 * TF32 * b.norm()
    rows = given.clone().requires_grad_()
    back = spread(rows, weight, tuple(x.shape[2:]), geometry)
    (plain,) = torch.autograd.grad(F.conv2d(x, weight, None, *geometry), x, rows, create_graph=True)
    given = torch.randn_like(back)
    for a, b in zip(
        torch.autograd.grad(back, (rows, weight), given), torch.autograd.grad(plain, (rows, weight), given), strict=True
    ):
        assert (a - b).norm() <= 4 * TF32 * b.norm()


def test_only_where_rounding_to_tf32_is_allowed() -> None:
    x, weight = torch.zeros(1, 1, 8, 8, device="cuda"), torch.zeros(4, 1, 3, 3, device="cuda")
    assert is_narrow(x, weight, 1)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert not is_narrow(x, weight, 1)
    with full_precision():
        assert not is_narrow(x, weight, 1)
    assert not is_narrow(x.double(), weight.double(), 1)
    assert not is_narrow(x.expand(1, 4, 8, 8), weight, 4)
    assert not is_narrow(x, torch.zeros(4, 16, 3, 3, device="cuda"), 1)


def test_a_dual_layer_uses_it(watch: Callable[..., list[str]]) -> None:
    calls = watch(narrow, "launch_convolve", "launch_spread")
    x, weight = torch.rand(2, 1, 8, 8, device="cuda"), torch.rand(4, 1, 3, 3, device="cuda")
    layer = DualConv(weight, torch.rand(4, device="cuda"), (1, 1), (1, 1), (1, 1), 1)
    exact = F.conv2d(x, weight, layer.bias_vector, padding=1)
    torch.testing.assert_close(layer.apply(x), exact, rtol=4 * TF32, atol=0)
    torch.testing.assert_close(layer.absolute(x), F.conv2d(x, weight, padding=1), rtol=4 * TF32, atol=0)
    layer.transpose(torch.rand(2, 4, 8, 8, device="cuda"), ((1, 8, 8),))
    assert calls == ["launch_convolve", "launch_convolve", "launch_spread"]


def test_certificates_never_rest_on_tf32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10)).eval()
    x, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    here = ad.certify(model, x, labels, ad.LinfBall(0.05, clip=(0.0, 1.0))).margins
    there = ad.certify(model.cuda(), x.cuda(), labels.cuda(), ad.LinfBall(0.05, clip=(0.0, 1.0))).margins
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
