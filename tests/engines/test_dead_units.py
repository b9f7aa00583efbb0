"""Units that are zero for every input of the set cost nothing and change nothing, wherever they are."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines.backward.bands import DualSolver
from autodual.engines.effort import Budget
from autodual.engines.prepare import dual_network
from autodual.engines.rounding import Rounding
from small import DOUBLE, batch, bounds_of

ALIVE = [(0,), (0, 2), (1, 2, 3), (), (0, 1, 2, 3)]
every_pattern = pytest.mark.parametrize("alive", ALIVE, ids=str)


def _bias(layer: nn.Linear | nn.Conv2d, alive: tuple[int, ...]) -> None:
    """Push the other units far below zero."""
    with torch.no_grad():
        layer.bias[:] = torch.tensor([0.1 if i in alive else -50.0 for i in range(len(layer.bias))], dtype=DOUBLE)


def _mlp(alive: tuple[int, ...], *rest: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), *rest).to(DOUBLE).eval()
    _bias(model[0], alive)
    return model


def _conv(alive: tuple[int, ...], *rest: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *rest).to(DOUBLE).eval()
    _bias(model[1], alive)
    return model


MODELS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "before a linear layer": lambda a: _mlp(a, nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)),
    "at the end": lambda a: _mlp(a),
    "flattened": lambda a: _conv(a, nn.Flatten(), nn.Linear(24, 4)),
    "flattened at the end": lambda a: _conv(a, nn.Flatten()),
    "before a convolution": lambda a: _conv(a, nn.Conv2d(4, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 4)),
    "before pooling": lambda a: _conv(a, nn.AvgPool2d(2), nn.Flatten()),
    "normalised": lambda a: _conv(a, nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Flatten()),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@every_model
@every_pattern
def test_bounds_are_those_of_the_forward_pass(make: Callable[..., nn.Module], alive: tuple[int, ...]) -> None:
    model, region = make(alive), ad.LinfBall(0.3).around(batch(3, 6))
    for a, b in zip(bounds_of(model, region), bounds_of(model, region, ad.ForwardDual()), strict=True):
        torch.testing.assert_close(a, b)


@every_model
@every_pattern
@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown(), ad.Dual(intersect=True)], ids=["dual", "crown", "intervals"])
def test_certificates_hold(make: Callable[..., nn.Module], alive: tuple[int, ...], engine: ad.BoundEngine) -> None:
    model, x, labels = make(alive), batch(3, 6), torch.tensor([0, 1, 2])
    certificate = ad.certify(model, x, labels, ad.LinfBall(0.3), engine)
    others = certificate.margins.isfinite()
    region = ad.LinfBall(0.3).around(x)
    for _ in range(20):
        scores = model(region.sample())
        assert (certificate.margins <= scores.gather(1, labels.unsqueeze(1)) - scores + 1e-9)[others].all()


@every_model
@every_pattern
def test_gradients_are_those_of_the_forward_pass(make: Callable[..., nn.Module], alive: tuple[int, ...]) -> None:
    model, region = make(alive), ad.LinfBall(0.3).around(batch(3, 6))
    gradients = []
    for engine in (ad.Dual(), ad.ForwardDual()):
        output = ad.bounds(model, region, engine).output
        total = (output.upper - 0.5 * output.lower).sum()
        gradients.append(
            torch.autograd.grad(total, list(model.parameters()), allow_unused=True, materialize_grads=True)
        )
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_proof_leaves_dead_channels_out(dtype: torch.dtype) -> None:
    """A dead unit is exactly zero, in any arithmetic, so no rounding error keeps its channel alive."""
    model = MODELS["before a convolution"]((0, 2)).to(dtype)
    region = ad.LinfBall(0.3).around(batch(3, 6).to(dtype))
    network = dual_network(model, region.centre)
    first = network.activations[0]
    with torch.no_grad():
        solver = DualSolver(network, region, Budget.unlimited(), Rounding(network, region))
        solver.relax(first, solver.settle(first))
    assert solver.narrow(first, torch.ones(1, *network.nodes[first].shape)).shape[1] == 2
