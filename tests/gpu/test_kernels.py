"""Every kernel equals its plain twin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual import kernels
from autodual.dual.piecewise import DualReLU
from autodual.interval import Interval
from autodual.kernels import median
from autodual.kernels.median import median_of_sizes
from autodual.kernels.stream import Angles, fresh_stream, pass_and_add

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    assert kernels.usable("median", torch.zeros(1, device="cuda")), "this machine's GPU cannot run the kernels"


@pytest.mark.parametrize("k", [1, 2, 7, 10, 50, 64, 100, 256, 300])
@pytest.mark.parametrize("shape", [(1,), (63,), (5, 3, 7, 7), (3, 1000)])
def test_median(k: int, shape: tuple[int, ...]) -> None:
    samples = torch.randn(k, *shape, device="cuda").requires_grad_()
    found = median_of_sizes(samples)
    expected = samples.detach().cpu().abs().sort(0).values[(k - 1) // 2]
    assert torch.equal(found.detach().cpu(), expected)
    weight = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * weight).sum(), samples)
    here = samples.detach().cpu().requires_grad_()
    (plain,) = torch.autograd.grad((median_of_sizes(here) * weight.cpu()).sum(), here)
    assert torch.equal(gradient.cpu(), plain)


def test_median_of_nothing_but_zeros_and_of_nan() -> None:
    samples = torch.zeros(10, 100, device="cuda").requires_grad_()
    found = median_of_sizes(samples)
    assert not found.any()
    assert not torch.autograd.grad(found.sum(), samples)[0].any()
    broken = torch.randn(10, 10, device="cuda")
    broken.fill_diagonal_(torch.nan)
    assert bool(median_of_sizes(broken).isnan().all())


def _cauchy(*shape: int) -> Tensor:
    return torch.empty(shape).uniform_(-1.57, 1.57, generator=torch.Generator().manual_seed(0)).tan()


QUIET = [
    ad.QuietGradient(),
    ad.QuietGradient(1),
    ad.MaximumLikelihood(0),
    ad.MaximumLikelihood(1),
    ad.MaximumLikelihood(),
]


def _value_and_gradient(estimator: ad.Estimator, samples: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    samples = samples.detach().requires_grad_()
    found = estimator.scale(samples)
    (gradient,) = torch.autograd.grad((found * weight.to(samples)).sum(), samples)
    return found.detach().cpu().double(), gradient.cpu().double()


def _compare_with_twin(estimator: ad.Estimator, samples: Tensor) -> None:
    """float32 on the GPU against float64 on the CPU."""
    weight = torch.randn(samples.shape[1:], generator=torch.Generator().manual_seed(1))
    value, gradient = _value_and_gradient(estimator, samples, weight)
    expected, slope = _value_and_gradient(estimator, samples.cpu().double(), weight)
    torch.testing.assert_close(value, expected, rtol=2e-5, atol=0, equal_nan=True)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("k", [1, 2, 3, 10, 20, 50, 64, 65, 200, 256, 257])
@pytest.mark.parametrize("shape", [(), (1,), (63,), (5, 3, 7, 7), (3, 1000)])
@pytest.mark.parametrize("estimator", QUIET, ids=repr)
def test_newton_scale(estimator: ad.Estimator, k: int, shape: tuple[int, ...]) -> None:
    _compare_with_twin(estimator, _cauchy(k, *shape).cuda())


@pytest.mark.parametrize("k", [10, 100])
@pytest.mark.parametrize("estimator", QUIET[:3], ids=repr)
def test_newton_scale_in_any_layout(estimator: ad.Estimator, k: int) -> None:
    plain = _cauchy(k, 4, 6, 5, 7).cuda()
    inside = plain.movedim(2, -1).contiguous().movedim(-1, 2)
    swapped, shared = plain.transpose(0, 1).contiguous().transpose(0, 1), plain[:, :1].expand_as(plain)
    for samples in (inside, swapped, shared, plain[:, ::2, :, 1:, ::3]):
        _compare_with_twin(estimator, samples)
    assert estimator.scale(inside).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("k", [1, 10, 50, 100, 257])
@pytest.mark.parametrize("estimator", QUIET, ids=repr)
def test_newton_scale_of_odd_values(estimator: ad.Estimator, k: int) -> None:
    """Zeros, most of them zeros, tiny, huge, both, infinite, not a number."""
    samples = _cauchy(k, 9)
    samples[:, 0] = 0
    samples[: (k - 1) // 2 + 1, 1] = 0
    samples[:, 2] *= 1e-30
    samples[:, 3] *= 1e28
    samples[::3, 4] *= 1e30
    samples[1::3, 4] *= 1e-30
    samples[k // 2, 5] = torch.inf
    samples[:, 6] = -torch.inf
    samples[k // 2, 7] = torch.nan
    weight = torch.ones(9)
    found, gradient = _value_and_gradient(estimator, samples.cuda(), weight)
    expected, slope = _value_and_gradient(estimator, samples, weight)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=0, equal_nan=True)
    assert torch.equal(gradient.isfinite(), slope.isfinite())
    torch.testing.assert_close(gradient.nan_to_num(), slope.nan_to_num(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [50, 100])
def test_newton_scale_is_captured_as_a_graph(k: int) -> None:
    samples = _cauchy(k, 300).cuda().requires_grad_()
    estimator = ad.QuietGradient(1)

    def both() -> tuple[Tensor, Tensor]:
        found = estimator.scale(samples)
        return found.detach(), torch.autograd.grad(found.sum(), samples)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    with torch.no_grad():
        samples.mul_(3).add_(0.5)
    graph.replay()
    for a, b in zip(captured, both(), strict=True):
        assert torch.equal(a, b)


def test_newton_scale_runs_on_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("launch_scale", "launch_gradient_of_newton_scale"):
        plain = getattr(median, name)
        monkeypatch.setattr(
            median, name, lambda *given, _name=name, _plain=plain: (calls.append(_name), _plain(*given))[1]
        )
    samples = _cauchy(50, 30).cuda().requires_grad_()
    ad.QuietGradient().scale(samples).sum().backward()
    assert calls == ["launch_scale", "launch_gradient_of_newton_scale"]


@pytest.mark.parametrize("k", [50, 100])
def test_newton_scale_beyond_two_to_the_31(k: int) -> None:
    units = (1 << 31) // k + 1000
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free GPU memory")
    samples = torch.empty(k, units, device="cuda").uniform_(-1.57, 1.57).tan_().requires_grad_()
    found = ad.QuietGradient(1).scale(samples)
    (gradient,) = torch.autograd.grad(found.sum(), samples)
    for part in (slice(0, 500), slice(units - 500, units)):
        _compare_with_twin(ad.QuietGradient(1), samples[:, part].contiguous())
        value, slope = _value_and_gradient(ad.QuietGradient(1), samples[:, part].contiguous(), torch.ones(500))
        torch.testing.assert_close(found[part].detach().cpu().double(), value, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient[:, part].cpu().double(), slope, rtol=1e-5, atol=1e-7)


def _random(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda")


@pytest.mark.parametrize("examples", [1, 5])
@pytest.mark.parametrize("shared", [True, False], ids=["shared stream", "own streams"])
@pytest.mark.parametrize("shape", [(1,), (3,), (4, 9, 9), (700,)])
def test_passing_an_activation(shape: tuple[int, ...], shared: bool, examples: int) -> None:
    torch.manual_seed(0)
    stream = _random(6, 1 if shared else examples, *shape).requires_grad_()
    slope, radius = _random(examples, *shape).requires_grad_(), _random(examples, *shape).requires_grad_()
    angles = Angles(_random(6, 1, *shape) * math.pi, _random(examples, *shape) * math.pi)
    numbers = (angles.angles.double() + angles.turns.double()).tan()
    weight = torch.randn(6, examples, *shape, device="cuda") / (1 + numbers.abs()).float()
    found = pass_and_add(stream, slope, radius, angles)
    plain = slope * stream + radius * numbers
    assert bool(((found - plain).abs() <= 1e-5 * (1 + numbers.square())).all())
    wanted = (stream, slope, radius)
    for a, b in zip(
        torch.autograd.grad((found * weight).sum(), wanted),
        torch.autograd.grad((plain * weight).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b.float(), rtol=1e-3, atol=1e-3)


def test_a_fresh_stream() -> None:
    radius, angles = _random(3, 50).requires_grad_(), Angles(_random(6, 1, 50), _random(3, 50) * 0.3)
    found = fresh_stream(radius, angles)
    torch.testing.assert_close(found, radius * (angles.angles + angles.turns).tan(), rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), radius)
    torch.testing.assert_close(gradient, (angles.angles + angles.turns).tan().sum(0), rtol=1e-4, atol=1e-4)


def _ends(*shape: int) -> tuple[Tensor, Tensor]:
    """Intervals of all kinds: crossing zero, on either side of it, touching it, of no width."""
    lower = torch.randn(*shape, device="cuda")
    upper = lower + _random(*shape) * 2
    lower.view(-1)[::7] = 0
    upper.view(-1)[::7] = 0
    lower.view(-1)[1::11] = 0
    upper.view(-1)[1::11] = 1
    upper.view(-1)[2::13] = lower.view(-1)[2::13]
    return lower.requires_grad_(), upper.requires_grad_()


@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (2, 5, 9, 9)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_band_of_a_relu(shape: tuple[int, ...], channels_last: bool) -> None:
    torch.manual_seed(0)
    lower, upper = _ends(*shape)
    given = (lower, upper)
    if channels_last and len(shape) == 4:
        given = (lower.contiguous(memory_format=torch.channels_last), upper)
    found = DualReLU().band(Interval(*given))
    exact = DualReLU().band(Interval(lower.double(), upper.double()))
    torch.testing.assert_close(found.slope.double(), exact.slope, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.radius.double(), exact.radius, rtol=1e-6, atol=1e-6)
    weights = [torch.randn(shape, device="cuda") for _ in range(3)]
    gradients = [
        torch.autograd.grad(
            sum((w * t).sum() for w, t in zip(weights, (b.slope, b.centre, b.radius), strict=True)), (lower, upper)
        )
        for b in (found, exact)
    ]
    width = (upper.clamp(min=0) - lower.clamp(max=0)).detach()
    terms = sum(w.abs() for w in weights) * (1 + 1 / torch.where(width == 0, 1.0, width))  # which may cancel
    for a, b in zip(*gradients, strict=True):
        assert bool(((a - b).abs() <= 1e-6 * terms).all())


def test_the_band_of_nan_is_nan() -> None:
    broken = torch.full((4,), torch.nan, device="cuda")
    assert bool(DualReLU().band(Interval(broken, broken)).slope.isnan().all())


def test_kernels_that_do_not_compile_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(median, "trial", fail)
    kernels.tried.clear()
    try:
        with pytest.warns(UserWarning, match="no compiler"):
            assert not kernels.usable("median", torch.zeros(1, device="cuda"))
        samples = torch.randn(11, 40, device="cuda")
        assert torch.equal(median_of_sizes(samples), samples.abs().median(0).values)
    finally:
        kernels.tried.clear()
