"""Projections on a GPU: the numbers of the CPU, no waiting for the device, and a step that is captured as a CUDA graph."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.engines.streams import Draws
from autodual.kernels.stream import Angles

pytestmark = pytest.mark.gpu

BALLS = [ad.LinfBall(0.02), ad.LinfBall(0.02, clip=(0.0, 1.0)), ad.L2Ball(0.2)]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return ad.models.resnet(3, 8)


def _data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.rand(5, 3, 8, 8, dtype=dtype), torch.arange(5)


def _there(draws: Draws) -> Draws:
    def moved(part: Angles) -> Angles:
        return Angles(part.angles.cuda(), None if part.turns is None else part.turns.cuda())

    first = moved(draws.first) if isinstance(draws.first, Angles) else draws.first
    return Draws({i: moved(a) for i, a in draws.fresh.items()}, first.cuda() if isinstance(first, Tensor) else first)


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_gpu_equals_cpu_for_the_same_draws(ball: ad.Perturbation, merged: bool) -> None:
    model = _model().double()
    x, labels = _data(torch.float64)
    here = ad.RobustCrossEntropy(model, ball, ad.Projected(20, merged))
    there = ad.RobustCrossEntropy(copy.deepcopy(model).cuda(), ball, ad.Projected(20, merged))
    draws = here.draw(x)
    a, b = here(x, labels, draws), there(x.cuda(), labels.cuda(), _there(draws))
    torch.testing.assert_close(b.cpu(), a, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(a, list(model.parameters())), torch.autograd.grad(b, list(there.model.parameters()))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_a_step_never_waits_for_the_device(ball: ad.Perturbation, merged: bool) -> None:
    model = _model().cuda()
    x, labels = (t.cuda() for t in _data())
    loss = ad.RobustCrossEntropy(model, ball, ad.Projected(20, merged))
    draws = loss.draw(x)
    loss(x, labels, draws).backward()
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode may not see everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        draws.renew_()
        loss(x, labels, draws).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "per term"])
def test_a_step_is_captured_as_a_cuda_graph(merged: bool) -> None:
    model = _model().cuda()
    x, labels = (t.cuda() for t in _data())
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(torch.tensor(0.02, device="cuda")), ad.Projected(20, merged))
    draws = loss.draw(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            loss(x, labels, draws).backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(x, labels, draws)
        value.backward()
        captured = value.detach()
    del value  # and with it the graph of its gradients, which belongs to another stream
    for _ in range(3):
        draws.renew_()
        x.copy_(torch.rand_like(x))
        model.zero_grad(set_to_none=False)
        graph.replay()
        found = captured.item(), [p.grad.clone() for p in model.parameters()]
        model.zero_grad(set_to_none=False)
        plain = loss(x, labels, draws)
        expected = torch.autograd.grad(plain, list(model.parameters()))
        assert found[0] == pytest.approx(plain.item(), rel=1e-5)
        for a, b in zip(found[1], expected, strict=True):
            assert (a - b).norm() <= 0.02 * b.norm() + 1e-6  # rounding may choose another middle sample here and there


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # the compiler's own
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_step_compiles_as_one_graph(backend: str) -> None:
    model = _model().cuda()
    x, labels = (t.cuda() for t in _data())
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.02), ad.Projected(10, half=False))
    draws = loss.draw(x)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        plain = loss(x, labels, draws)
        compiled = torch.compile(loss, fullgraph=True, backend=backend)(x, labels, draws)
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_high_probability_bounds_contain_and_approach_the_exact_ones(ball: ad.Perturbation) -> None:
    torch.manual_seed(0)
    model = ad.models.small(3, 16).cuda().double().eval()
    x, labels = torch.rand(5, 3, 16, 16, dtype=torch.float64).cuda(), torch.arange(5).cuda()
    exact = ad.certify(model, x, labels, ball).margins
    found = ad.certify(model, x, labels, ball, ad.HighProbability(k=2200))
    assert isinstance(found, ad.HighProbabilityCertificate)
    finite = exact.isfinite()
    gap = (exact - found.margins)[finite]
    assert bool((gap > 0).all())
    assert gap.mean() < 0.3 * (model(x).abs().mean() + exact[finite].abs().mean())


def test_a_generator_of_the_wrong_device_is_refused() -> None:
    model = _model().cuda()
    x, labels = (t.cuda() for t in _data())
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.02), ad.Projected(10, generator=torch.Generator()))
    with pytest.raises(ad.ArgumentError, match="generator is on cpu"):
        loss(x, labels)
