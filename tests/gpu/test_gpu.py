"""The GPU gives the bounds that the CPU gives, and certificates do not use TF32."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import autodual as ad
from autodual._tensor import full_precision
from autodual.dual import conv

pytestmark = pytest.mark.gpu

DATA = Path(__file__).parents[1] / "golden" / "data"
ENGINES = [ad.IBP(), ad.Dual(), ad.Crown(), ad.ForwardDual(), ad.Dual(intersect=True), ad.Crown(intermediate=ad.IBP())]


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    return {
        "small": (ad.models.small(1, 12), (1, 12, 12)),
        "resnet": (ad.models.resnet(3, 8), (3, 8, 8)),
        "pool": (
            nn.Sequential(
                nn.Conv2d(3, 6, 3, padding=1),
                nn.BatchNorm2d(6),
                nn.GELU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(96, 4),
            ),
            (3, 8, 8),
        ),
        "smooth": (
            nn.Sequential(
                nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.SiLU(), nn.Linear(9, 7), nn.Hardtanh(), nn.Linear(7, 3)
            ),
            (6,),
        ),
    }


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("name", ["small", "resnet", "pool", "smooth"])
def test_gpu_equals_cpu(name: str, engine: ad.BoundEngine) -> None:
    model, shape = networks()[name]
    model = model.double().eval()
    x = torch.rand(3, *shape, dtype=torch.float64)
    for ball in (ad.LinfBall(0.02, clip=(0.0, 1.0)), ad.L2Ball(0.1), ad.L1Ball(0.2)):
        with torch.no_grad():
            here = ad.bounds(model, ball.around(x), engine)
            there = ad.bounds(copy.deepcopy(model).cuda(), ball.around(x.cuda()), engine)
        assert list(here.layers) == list(there.layers)
        for a, b in [(here.output, there.output), *zip(here.layers.values(), there.layers.values(), strict=True)]:
            torch.testing.assert_close(b.lower.cpu(), a.lower, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(b.upper.cpu(), a.upper, rtol=1e-9, atol=1e-9)


def test_robust_loss_gradients_on_gpu() -> None:
    model, shape = networks()["small"]
    model = model.double()
    x, labels = torch.rand(4, *shape, dtype=torch.float64), torch.arange(4)
    ad.RobustCrossEntropy(model, ad.LinfBall(0.05))(x, labels).backward()
    other = copy.deepcopy(model).cuda()
    other.zero_grad()
    ad.RobustCrossEntropy(other, ad.LinfBall(0.05))(x.cuda(), labels.cuda()).backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("tf32", [False, True])
def test_certificates_ignore_tf32(tf32: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    weights, images = np.load(DATA / "weights_mnist.npz"), np.load(DATA / "mnist300.npz")
    model = ad.models.small(1, 28).eval()
    model.load_state_dict({k.removeprefix("stage0."): torch.tensor(weights[k]) for k in weights.files})
    x = torch.tensor(images["images"]).float().reshape(-1, 1, 28, 28) / 255
    labels = torch.tensor(images["labels"]).long()
    ball = ad.LinfBall(0.1, clip=(0.0, 1.0))
    reference = ad.certify(model.double(), x.double(), labels, ball)
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        found = ad.certify(model.float().cuda(), x.cuda(), labels.cuda(), ball)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    assert torch.equal(found.certified.cpu(), reference.certified)
    own = torch.nn.functional.one_hot(labels, 10).bool()
    margins, slack = found.margins.cpu().double()[~own], found.slack.cpu().double()[~own]
    stored = 2 * torch.finfo(torch.float32).eps * margins.abs()  # margins of a second look are rounded down to float32
    assert bool(((margins - reference.margins[~own]).abs() <= slack + stored).all())


def test_model_and_input_on_different_devices() -> None:
    model = nn.Linear(3, 2).cuda()
    with pytest.raises(ad.ArgumentError, match="different devices"):
        ad.certify(model, torch.rand(2, 3), torch.zeros(2).long(), ad.LinfBall(0.1))


def test_memory_budget_on_gpu() -> None:
    model, shape = networks()["small"]
    model = model.double().cuda().eval()
    x = torch.rand(3, *shape, dtype=torch.float64, device="cuda")
    with torch.no_grad(), full_precision():
        large, little = (ad.bounds(model, ad.LinfBall(0.05).around(x), ad.Dual(max_bytes=b)) for b in (None, 1 << 19))
    torch.testing.assert_close(large.output.lower, little.output.lower, rtol=1e-10, atol=1e-10)


def test_a_gpu_is_really_there() -> None:
    assert torch.cuda.is_available(), os.environ.get("CUDA_VISIBLE_DEVICES")


def test_a_large_transpose_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ad.models.large(3, 32).cuda().eval()
    x, labels = torch.rand(6, 3, 32, 32, device="cuda"), torch.arange(6, device="cuda")
    found = ad.certify(model, x, labels, ad.LinfBall(1 / 255), ad.Dual())
    monkeypatch.setattr(conv, "MANY_AT_ONCE", 7)
    again = ad.certify(model, x, labels, ad.LinfBall(1 / 255), ad.Dual())
    torch.testing.assert_close(again.margins, found.margins, rtol=0, atol=1e-4)
