"""Streams of more values than 32 bits count are treated as those of their examples one by one, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.engines.streams import Draws
from autodual.kernels.stream import Angles

pytestmark = pytest.mark.gpu

K, EXAMPLES, FILTERS = 50, 50, 1104
BYTES = 60 << 30
"""What the tests hold at once, with room."""


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    if torch.cuda.mem_get_info()[0] < BYTES:
        pytest.skip(f"needs {BYTES >> 30} GiB of free GPU memory")
    yield
    torch.cuda.empty_cache()


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, FILTERS - 4, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(28),
        nn.Flatten(),
        nn.Linear(FILTERS - 4, 10),
    ).cuda()


def _of(draws: Draws, part: slice) -> Draws:
    """The numbers of some examples."""
    turned = {i: Angles(a.angles, None if a.turns is None else a.turns[part]) for i, a in draws.fresh.items()}
    return Draws(turned, draws.first)


@pytest.fixture
def case() -> tuple[ad.RobustCrossEntropy, Tensor, Tensor, Draws]:
    assert K * EXAMPLES * (FILTERS - 4) * 784 > 1 << 31
    loss = ad.RobustCrossEntropy(_network(), ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.Projected(K))
    x, labels = torch.rand(EXAMPLES, 1, 28, 28, device="cuda"), torch.arange(EXAMPLES, device="cuda") % 10
    return loss, x, labels, loss.draw(x)


def test_the_loss_is_the_mean_of_its_examples(case: tuple[ad.RobustCrossEntropy, Tensor, Tensor, Draws]) -> None:
    loss, x, labels, draws = case
    with torch.no_grad():
        together = loss(x, labels, draws)
        parts = [slice(start, start + 10) for start in range(0, EXAMPLES, 10)]
        apart = torch.stack([loss(x[part], labels[part], _of(draws, part)) for part in parts]).mean()
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)


def test_so_is_its_gradient(case: tuple[ad.RobustCrossEntropy, Tensor, Tensor, Draws]) -> None:
    loss, x, labels, draws = case
    parameters = list(loss.model.parameters())
    together = torch.autograd.grad(loss(x, labels, draws), parameters)
    apart = [torch.zeros_like(p) for p in parameters]
    for start in range(0, EXAMPLES, 10):
        part = slice(start, start + 10)
        for total, found in zip(
            apart, torch.autograd.grad(loss(x[part], labels[part], _of(draws, part)), parameters), strict=True
        ):
            total += found * 10 / EXAMPLES
    for found, expected in zip(together, apart, strict=True):
        # Rounding may choose another middle sample here and there.
        assert (found - expected).norm() <= 0.02 * expected.norm() + 1e-6
