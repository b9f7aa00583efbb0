"""The wiring of the GPU's kernel for rows through an activation, with plain code in its place; tests/gpu has the kernel itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import autodual as ad
import autodual.kernels
from autodual.engines.prepare import dual_network
from autodual.kernels import weigh
from autodual.spec import margins

calls: list[bool] = []
"""Of the kernel: whether rows went on."""


def _forward(rows: Tensor, slope: Tensor | None, radius: Tensor) -> tuple[Tensor | None, Tensor]:
    calls.append(slope is not None)
    with torch.no_grad():
        return weigh._plain(rows, slope, radius)


def _backward(
    rows: Tensor, slope: Tensor | None, radius: Tensor, *gradients: Tensor | None
) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        inputs = [None if t is None else t.detach().requires_grad_() for t in (rows, slope, radius)]
        results = weigh._plain(*inputs)  # type: ignore[arg-type]
        known = [(r, g) for r, g in zip(results, gradients, strict=True) if r is not None and g is not None]
        wanted = [t for t in inputs if t is not None]
        found = iter(torch.autograd.grad([r for r, _ in known], wanted, [g for _, g in known], allow_unused=True))
        return tuple(None if t is None else next(found) for t in inputs)


@pytest.fixture
def _kernel_in_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weigh, "launch_forward", _forward)
    monkeypatch.setattr(weigh, "launch_backward", _backward)
    monkeypatch.setattr(autodual.kernels, "usable", lambda family, *tensors: family == "weigh")
    monkeypatch.setattr(weigh, "MANY_FEATURES", 1)
    monkeypatch.setattr(weigh, "MANY_VALUES", 1)


@pytest.mark.usefixtures("_kernel_in_plain_code")
@pytest.mark.parametrize("examples", [1, 3])
def test_gradients_once_and_twice(examples: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    slope = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    radius = torch.rand(examples, 4, dtype=torch.float64, requires_grad=True)
    for part in (weigh.weigh, lambda *t: weigh.weigh(*t)[0], lambda *t: weigh.weigh(*t)[1]):
        assert torch.autograd.gradcheck(part, (rows, slope, radius))
        assert torch.autograd.gradgradcheck(part, (rows, slope, radius))
    assert torch.autograd.gradcheck(weigh.weighted_l1, (rows, radius))
    assert torch.autograd.gradgradcheck(weigh.weighted_l1, (rows, radius))


@pytest.mark.parametrize("ball", [ad.LinfBall(0.1), ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.L2Ball(0.2)], ids=repr)
@pytest.mark.parametrize("engine", [ad.Dual(), ad.Projected(4, exact_first=False)], ids=repr)
def test_engines_find_the_same_with_it(
    engine: ad.BoundEngine, ball: ad.Perturbation, request: pytest.FixtureRequest
) -> None:
    torch.manual_seed(0)
    model = ad.models.small(1, 8).double().eval()
    x, labels = torch.rand(3, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 3, 9])
    network, spec = dual_network(model, x), margins(labels, 10, x.dtype)

    def lowest() -> Tensor:
        torch.manual_seed(1)
        return engine.minimum(network, ball.around(x), spec).lower

    plain = lowest()
    request.getfixturevalue("_kernel_in_plain_code")
    calls.clear()
    torch.testing.assert_close(lowest(), plain, rtol=1e-12, atol=1e-12)
    assert True in calls
