"""Weights that are functions of other parameters stay functions of them."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import autodual as ad
from small import DOUBLE, Net, batch, bounds_of


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def _new(normalise: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(
        normalise(nn.Linear(4, 5)), nn.ReLU(), normalise(nn.Conv1d(1, 2, 3)), nn.Flatten(), nn.Linear(6, 3)
    )


def _old(normalise: Callable[..., nn.Module], **options: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch deprecates these, and people still use them
        return nn.Sequential(normalise(nn.Linear(4, 5), **options), nn.ReLU(), normalise(nn.Linear(5, 3), **options))


def _custom() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 3))


def _twice() -> nn.Module:
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 3))


def _weight_read_by_the_model() -> nn.Module:
    return Net(lambda m, x: F.linear(m.fc(x).relu(), m.fc.weight.T), fc=parametrizations.weight_norm(nn.Linear(4, 5)))


def _pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    prune.random_unstructured(model[0], "weight", amount=0.4)
    return model


class AddChannel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1)


def _channelled(normalise: Callable[[nn.Module], nn.Module]) -> nn.Module:
    parts = _new(normalise)
    return nn.Sequential(*parts[:2], AddChannel(), *parts[2:])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: _channelled(parametrizations.weight_norm),
    "spectral_norm": lambda: _channelled(parametrizations.spectral_norm),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 3)),
    "custom": _custom,
    "two-on-one-weight": _twice,
    "weight-read-by-the-model": _weight_read_by_the_model,
    "old-weight_norm": lambda: _old(nn.utils.weight_norm),
    "old-spectral_norm": lambda: _old(nn.utils.spectral_norm),
    "pruning": _pruned,
    "exp": lambda: Net(lambda m, x: F.linear(x, m.w.exp()).relu(), w=nn.Parameter(torch.randn(3, 4))),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@every_model
def test_gradients_reach_the_raw_parameters(make: Callable[[], nn.Module]) -> None:
    model = make().to(DOUBLE).eval()
    x = batch(2, 4)
    found = ad.bounds(ad.capture(model, x), ad.LinfBall(0.0).around(x))
    ours = torch.autograd.grad(found.output.lower.square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    for (name, _), a, b in zip(model.named_parameters(), ours, expected, strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


@every_model
def test_a_step_on_the_raw_parameters_is_seen(make: Callable[[], nn.Module]) -> None:
    model = make().to(DOUBLE).eval()
    network, region = ad.capture(model, batch(1, 4)), ad.LinfBall(0.1).around(batch(2, 4))
    before = bounds_of(network, region)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1).add_(0.05)
    after = bounds_of(network, region)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for ours, fresh in zip(after, bounds_of(model, region), strict=True):
        torch.testing.assert_close(ours, fresh, rtol=1e-12, atol=1e-12)


@every_model
def test_bounds_hold(make: Callable[[], nn.Module]) -> None:
    model, region = make().to(DOUBLE).eval(), ad.LinfBall(0.1).around(batch(2, 4))
    output = ad.bounds(model, region).output
    for _ in range(20):
        assert output.contains(model(region.sample()), tolerance=1e-9).all()
