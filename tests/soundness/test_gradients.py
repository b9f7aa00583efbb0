"""The robust loss has the gradient that it claims, in every parameter."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

import autodual as ad
from soundness.graphs import ACTIVATIONS

X = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
LABELS = torch.tensor([0, 1, 1, 0])


def _model(activation: str) -> nn.Module:
    torch.manual_seed(11)
    make = ACTIVATIONS[activation]
    return nn.Sequential(nn.Linear(3, 4), make(), nn.Linear(4, 3), make(), nn.Linear(3, 2)).double()


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()], ids=repr)
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "hardtanh", "abs", "tanh", "softplus", "elu", "silu"])
def test_gradient_is_right(activation: str, engine: ad.BoundEngine) -> None:
    loss = ad.RobustCrossEntropy(_model(activation), ad.LinfBall(0.15), engine)
    names = [name for name, _ in loss.named_parameters()]

    def of_parameters(*values: Tensor) -> Tensor:
        return functional_call(loss, dict(zip(names, values, strict=True)), (X, LABELS))

    values = tuple(p.detach().clone().requires_grad_() for p in loss.parameters())
    assert gradcheck(of_parameters, values, fast_mode=True)


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual()], ids=repr)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_without_perturbation_it_is_the_gradient_of_cross_entropy(activation: str, engine: ad.BoundEngine) -> None:
    """The first epochs of a schedule train with eps = 0: intervals without width must not break the gradient."""
    model = _model(activation)
    plain = torch.autograd.grad(nn.functional.cross_entropy(model(X), LABELS), list(model.parameters()))
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.0), engine)(X, LABELS)
    robust = torch.autograd.grad(loss, list(model.parameters()))
    for found, expected in zip(robust, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
