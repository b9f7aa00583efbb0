"""Streams of bfloat16: kernels that read and write them equal float32 ones on the same numbers, and bounds hardly change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual import kernels
from autodual.kernels.stream import Angles, fresh_stream, pass_and_add

pytestmark = pytest.mark.gpu

GRAIN = 2**-8
"""A unit in the last place of bfloat16."""
KINDS = [ad.QuietGradient(), ad.QuietGradient(1), ad.MaximumLikelihood(0)]


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    assert kernels.usable("stream", torch.zeros(1, device="cuda")), "this machine's GPU cannot run the kernels"
    torch.manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda")


def _inside(a: Tensor) -> Tensor:
    """With the channels of a position next to each other, if it is of images."""
    return a.movedim(-3, -1).contiguous().movedim(-1, -3) if a.dim() >= 4 else a


@pytest.mark.parametrize("k", [1, 2, 10, 20, 50, 256])
@pytest.mark.parametrize("shape", [(1,), (63,), (5, 3, 7, 7), (16, 16, 4, 4)])
@pytest.mark.parametrize("estimator", KINDS, ids=repr)
def test_a_scale_is_that_of_the_same_numbers_in_float32(
    estimator: ad.Estimator, k: int, shape: tuple[int, ...]
) -> None:
    samples = _inside(((_random(k, *shape) - 0.5) * math.pi).tan().bfloat16())
    found, gradients = [], []
    for given in (samples.requires_grad_(), samples.detach().float().requires_grad_()):
        found.append(estimator.scale(given))
        gradients.append(torch.autograd.grad(found[-1].sum(), given)[0])
    assert torch.equal(*found)
    assert gradients[0].dtype == torch.bfloat16
    torch.testing.assert_close(gradients[0].float(), gradients[1], rtol=GRAIN, atol=1e-30)


@pytest.mark.parametrize("shared", [True, False], ids=["shared stream", "own streams"])
@pytest.mark.parametrize("shape", [(1,), (3,), (4, 9, 9), (16, 8, 8), (700,), (1, 5, 5)])
def test_passing_an_activation(shape: tuple[int, ...], shared: bool) -> None:
    k, examples = 6, 5
    stream = _inside(_random(k, 1 if shared else examples, *shape)).bfloat16()
    slope, radius = _random(examples, *shape).requires_grad_(), _random(examples, *shape).requires_grad_()
    angles = Angles(_inside(_random(k, 1, *shape)), _inside(_random(examples, *shape) * 0.3))
    found, gradients = [], []
    weight = torch.randn(k, examples, *shape, device="cuda").bfloat16().float()
    for given in (stream.detach().requires_grad_(), stream.detach().float().requires_grad_()):
        result = pass_and_add(given, slope, radius, angles)
        found.append(result)
        gradients.append(torch.autograd.grad((result.float() * weight).sum(), (given, slope, radius)))
    assert found[0].dtype == torch.bfloat16
    torch.testing.assert_close(found[0].float(), found[1], rtol=GRAIN, atol=1e-30)
    assert gradients[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(gradients[0][0].float(), gradients[1][0], rtol=2 * GRAIN, atol=2 * GRAIN)
    for half, whole in zip(gradients[0][1:], gradients[1][1:], strict=True):
        torch.testing.assert_close(half, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(50,), (16, 8, 8)])
def test_a_fresh_stream(shape: tuple[int, ...]) -> None:
    radius, angles = _random(3, *shape), Angles(_inside(_random(6, 1, *shape)), _inside(_random(3, *shape) * 0.3))
    half, whole = fresh_stream(radius, angles, torch.bfloat16), fresh_stream(radius, angles)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), whole, rtol=GRAIN, atol=1e-30)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.skip = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(3, 8, 1),
        )
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(8 * 12 * 12, 10)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.norm(self.second(self.first(x).relu()))
        return self.last((inner + self.skip(x)).relu().flatten(1))


NETWORKS = {
    "small": lambda: ad.models.small(3, 12),
    "large": lambda: ad.models.large(3, 12),
    "skip and batch norm": Residual,
    "flat": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(432, 200), nn.ReLU(), nn.Linear(200, 150), nn.ReLU(), nn.Linear(150, 10)
    ),
}


@pytest.mark.parametrize("ball", [ad.LinfBall(0.01), ad.LinfBall(0.01, clip=(0.0, 1.0)), ad.L2Ball(0.2)], ids=repr)
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_and_gradients_change_by_little_beside_their_noise(name: str, ball: ad.Perturbation) -> None:
    """With the same draws, what differs is what bfloat16 loses. Two draws differ by sqrt(2) times the noise."""
    model = NETWORKS[name]().cuda().train()
    x, labels = _random(9, 3, 12, 12), torch.arange(9, device="cuda")
    draws = ad.RobustCrossEntropy(model, ball, ad.Projected(20)).draw(x)
    found: dict[bool, list[Tensor]] = {True: [], False: []}
    for _ in range(6):
        draws.renew_()
        for half, gradients in found.items():
            value = ad.RobustCrossEntropy(model, ball, ad.Projected(20, half=half))(x, labels, draws)
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))]))
    half, whole = (torch.stack(gradients) for gradients in found.values())
    lost = (half - whole).square().sum(1).mean().sqrt()
    noise = whole.var(0).sum().sqrt()
    assert 0 < lost < 0.5 * noise


def test_streams_stay_float32_where_they_must(watch_dtypes: list[torch.dtype]) -> None:
    model, x, labels = ad.models.small(3, 32).cuda(), _random(4, 3, 32, 32), torch.arange(4, device="cuda")
    for engine in (ad.Projected(20, half=False), ad.Projected(20, estimator=ad.Median()), ad.Projected(300)):
        ad.RobustCrossEntropy(model, ad.LinfBall(0.01), engine)(x, labels)
    ad.certify(model, x, labels, ad.LinfBall(0.001), engine=ad.HighProbability(0.01))
    assert not watch_dtypes
    ad.RobustCrossEntropy(model, ad.LinfBall(0.01), ad.Projected(20))(x, labels)
    assert set(watch_dtypes) == {
        torch.float32,
        torch.bfloat16,
    }  # the input's stream, and those after the first activation


@pytest.fixture
def watch_dtypes(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Of the streams that pass a layer in half precision."""
    from autodual.engines import streams

    seen: list[torch.dtype] = []
    plain = streams._in_half

    def noting(layer: ad.AffineDual, columns: list[Tensor]) -> Tensor:
        seen.extend(c.dtype for c in columns)
        return plain(layer, columns)

    monkeypatch.setattr(streams, "_in_half", noting)
    return seen
