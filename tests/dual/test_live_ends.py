"""Tensors that clamp is given as its ends are learnt: the robust loss has the right gradient in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

import autodual as ad
from small import Net, batch

LABELS = torch.tensor([0, 1, 0])
CLAMPS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "max": lambda m, x: x.clamp(max=m.cap),
    "min": lambda m, x: torch.clamp(x, min=m.floor),
    "both": lambda m, x: x.clamp(m.floor, m.cap),
    "per unit": lambda m, x: x.clip(-m.sizes.abs(), m.sizes.abs()),
    "per unit and one": lambda m, x: x.clamp(m.floor.expand(4), m.sizes.abs()),
    "clamp_min": lambda m, x: torch.clamp_min(x, m.sizes),
    "clamp_max": lambda m, x: x.clamp_max(m.cap),
    "computed": lambda m, x: x.clamp(max=2 * m.cap + m.sizes),
}


def network(clamp: str) -> nn.Module:
    torch.manual_seed(5)
    net = Net(lambda m, x: m.b(CLAMPS[clamp](m, m.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    for name, value in (("cap", 0.21), ("floor", -0.13), ("sizes", [0.3, -0.17, 0.05, 0.6])):
        setattr(net, name, nn.Parameter(torch.tensor(value, dtype=torch.float64)))
    return net


@pytest.mark.parametrize("engine", [ad.IBP(), ad.Dual(), ad.Crown(), ad.ForwardDual()], ids=repr)
@pytest.mark.parametrize("clamp", CLAMPS)
def test_the_gradient_reaches_the_ends(clamp: str, engine: ad.BoundEngine) -> None:
    loss = ad.RobustCrossEntropy(network(clamp), ad.LinfBall(0.2), engine)
    named, x = dict(loss.named_parameters()), batch(3, 3)

    def of_ends(*values: Tensor) -> Tensor:
        return functional_call(loss, named | dict(zip(ends, values, strict=True)), (x, LABELS))

    given = dict(zip(named, torch.autograd.grad(loss(x, LABELS), list(named.values()), allow_unused=True), strict=True))
    ends = [
        n for n, gradient in given.items() if n.split(".")[-1] in ("cap", "floor", "sizes") and gradient is not None
    ]
    assert ends
    assert any(bool(given[n].any()) for n in ends)
    assert gradcheck(of_ends, tuple(named[n].detach().clone().requires_grad_() for n in ends))


def test_a_captured_network_follows_its_ends() -> None:
    model, x = network("both"), batch(3, 3)
    captured, region = ad.capture(model, x), ad.LinfBall(0.2).around(x)
    with torch.no_grad():
        model.cap.fill_(0.02)
        model.floor.fill_(0.5)  # above the cap, where clamp returns the cap
        for engine in (ad.IBP(), ad.Dual(), ad.Crown()):
            found = ad.bounds(captured, region, engine).output
            torch.testing.assert_close(found.lower, model(x))
            torch.testing.assert_close(found.upper, model(x))
