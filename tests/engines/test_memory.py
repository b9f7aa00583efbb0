"""A smaller budget means more pieces, never other numbers; what fits in no piece is refused."""

import pytest
import torch
from torch import nn

import autodual as ad
from small import DOUBLE, batch, bounds_of, convnet, mlp

BALLS = [ad.LinfBall(0.1), ad.L2Ball(0.3), ad.L1Ball(0.5)]
KINDS = [
    pytest.param(ad.Dual, {}, id="dual"),
    pytest.param(ad.Crown, {}, id="crown"),
    pytest.param(ad.Dual, {"intersect": True}, id="dual-and-intervals"),
    pytest.param(ad.Crown, {"intermediate": ad.Dual(max_bytes=30_000)}, id="crown-after-dual"),
]
every_kind = pytest.mark.parametrize(("kind", "options"), KINDS)


def deep() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh(),
        nn.Conv2d(4, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3),
    ).to(DOUBLE).eval()  # fmt: skip


def smallest(model: nn.Module, x: torch.Tensor) -> int:
    """The least budget that one example can be treated with; the same for all networks of one kind, whatever their weights."""
    key = str(model)
    if key not in _SMALLEST:
        _SMALLEST[key] = _smallest(model, x)
    return _SMALLEST[key]


_SMALLEST: dict[str, int] = {}


def _smallest(model: nn.Module, x: torch.Tensor) -> int:
    low, high = 1, 1 << 24
    while low < high:
        middle = (low + high) // 2
        try:
            ad.bounds(model, ad.LinfBall(0.1).around(x[:1]), ad.Dual(max_bytes=middle))
            high = middle
        except ad.MemoryBudgetError:
            low = middle + 1
    return low


@every_kind
@pytest.mark.parametrize("factor", [1, 1.7, 4, 20, 300])
def test_small_budgets_give_the_same_bounds(kind: type[ad.Dual], options: dict, factor: float) -> None:
    """Five examples in parts of one, two or all, rows in chunks of one or more; every ball with the most pieces."""
    model, x = deep(), batch(5, 1, 6, 6)
    budget = int(factor * smallest(model, x))
    for ball in BALLS if factor == 1 else BALLS[:1]:
        region = ball.around(x)
        large = bounds_of(model, region, kind(**options, max_bytes=1 << 32))
        for a, b in zip(large, bounds_of(model, region, kind(**options, max_bytes=budget)), strict=True):
            torch.testing.assert_close(a, b)


@every_kind
@pytest.mark.parametrize("factor", [1, 4])
def test_small_budgets_give_the_same_gradients(kind: type[ad.Dual], options: dict, factor: float) -> None:
    x, labels, losses, gradients = batch(5, 1, 6, 6), torch.arange(5) % 3, [], []
    model = deep()
    for budget in (1 << 32, int(factor * smallest(model, x))):
        loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1), kind(**options, max_bytes=budget))(x, labels)
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    torch.testing.assert_close(*losses)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@every_kind
def test_small_budgets_give_the_same_certificate(kind: type[ad.Dual], options: dict) -> None:
    model, x, labels = deep(), batch(5, 1, 6, 6), torch.arange(5) % 3
    large = ad.certify(model, x, labels, ad.LinfBall(0.02), kind(**options))
    small = ad.certify(model, x, labels, ad.LinfBall(0.02), kind(**options, max_bytes=smallest(model, x)))
    torch.testing.assert_close(large.margins, small.margins)
    torch.testing.assert_close(large.slack, small.slack)
    assert torch.equal(large.certified, small.certified)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_gradients_are_recorded_only_when_asked_for(grad: bool) -> None:
    model, region = convnet(), ad.LinfBall(0.1).around(batch(3, 1, 6, 6))
    with torch.set_grad_enabled(grad):
        plain, cut = (
            ad.bounds(model, region),
            ad.bounds(model, region, ad.Dual(max_bytes=smallest(model, region.centre))),
        )
    for found in (plain, cut):
        assert found.output.lower.requires_grad is grad
    torch.testing.assert_close(plain.output.lower, cut.output.lower)


@pytest.mark.parametrize("engine", [ad.Dual(max_bytes=1), ad.Crown(max_bytes=100), ad.ForwardDual(max_bytes=100)])
def test_absurd_budgets_are_refused_with_advice(engine: ad.BoundEngine) -> None:
    model, x = mlp(6, 8, 3), batch(2, 6)
    with pytest.raises(ad.MemoryBudgetError, match=r"max_bytes = 1(00)?\b"):
        ad.bounds(model, ad.LinfBall(0.1).around(x), engine)
    with pytest.raises(ad.MemoryBudgetError, match=r"Raise max_bytes|Use Dual"):
        ad.certify(model, x, torch.tensor([0, 1]), ad.LinfBall(0.1), engine)
    with pytest.raises(MemoryError):
        ad.certified_radius(model, x, torch.tensor([0, 1]), ad.LinfBall(0.1), engine)
