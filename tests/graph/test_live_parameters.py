"""A network that was captured once follows its model: optimiser steps, replaced parameters, buffers and loaded weights."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autodual as ad
from small import DOUBLE, Net, batch, bounds_of, mlp


def _functional() -> nn.Module:
    return Net(
        lambda m, x: F.linear(F.linear(x, m.a * m.mask, m.b).relu(), m.c.exp()),
        a=nn.Parameter(torch.randn(5, 4)),
        b=nn.Parameter(torch.randn(5)),
        c=nn.Parameter(torch.randn(3, 5) * 0.3),
        mask=torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=DOUBLE),
    )


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.PReLU(), nn.Linear(5, 3)).to(DOUBLE).eval()


def _by_index() -> nn.Module:
    weights = nn.ParameterList([nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3, 5))])
    return Net(lambda m, x: F.linear(F.linear(x, m.weights[0]).relu(), m.weights[1]), weights=weights)


def _by_dictionary() -> nn.Module:
    return Net(lambda m, x: F.linear(x, dict(m.named_parameters())["w"]).relu(), w=nn.Parameter(torch.randn(3, 4)))


def _by_private_dictionary() -> nn.Module:
    return Net(lambda m, x: F.linear(x, m._parameters["w"] * 2).relu(), w=nn.Parameter(torch.randn(3, 4)))


def _by_closure() -> nn.Module:
    w = nn.Parameter(torch.randn(3, 4))
    return Net(lambda m, x: F.linear(x, w).relu(), w=w)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(4, 5, 3),
    "functional": _functional,
    "batch-norm": _normalised,
    "parameter-list": _by_index,
    "named-parameters": _by_dictionary,
    "_parameters": _by_private_dictionary,
    "closure": _by_closure,
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def _same_as_a_fresh_capture(network: ad.Network, model: nn.Module) -> None:
    region = ad.LinfBall(0.1).around(batch(2, 4))
    for ours, fresh in zip(bounds_of(network, region), bounds_of(model, region), strict=True):
        assert torch.equal(ours, fresh)


@every_model
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
def test_optimiser_steps_are_seen(make: Callable[[], nn.Module], optimiser: type[torch.optim.Optimizer]) -> None:
    model, region = make(), ad.LinfBall(0.1).around(batch(2, 4))
    network = ad.capture(model, batch(1, 4))
    step = optimiser(model.parameters(), lr=0.1)
    before = ad.bounds(network, region).output.width.detach().clone()
    for _ in range(3):
        step.zero_grad()
        ad.bounds(network, region).output.width.sum().backward()
        step.step()
    assert ad.bounds(network, region).output.width.sum() < before.sum()
    _same_as_a_fresh_capture(network, model)


@every_model
def test_gradients_reach_every_parameter(make: Callable[[], nn.Module]) -> None:
    model = make()
    found = ad.bounds(ad.capture(model, batch(1, 4)), ad.LinfBall(0.1).around(batch(2, 4)))
    (found.output.lower.square().sum() + found.output.upper.sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@every_model
def test_loaded_weights_are_seen(make: Callable[[], nn.Module]) -> None:
    model = make()
    network = ad.capture(model, batch(1, 4))
    model.load_state_dict({name: value * 1.5 + 0.1 for name, value in model.state_dict().items()})
    _same_as_a_fresh_capture(network, model)


def test_a_parameter_that_is_replaced_by_another_object_is_seen() -> None:
    model = mlp(4, 5, 3)
    network = ad.capture(model, batch(1, 4))
    model[0].weight = nn.Parameter(torch.randn(5, 4, dtype=DOUBLE))
    model[2].bias = None
    _same_as_a_fresh_capture(network, model)

    functional = _functional()
    network = ad.capture(functional, batch(1, 4))
    functional.c = nn.Parameter(torch.randn(3, 5, dtype=DOUBLE))
    _same_as_a_fresh_capture(network, functional)


def test_buffers_and_plain_tensors_are_seen() -> None:
    model = Net(lambda m, x: m.fc(x - m.mean) * m.scale, fc=nn.Linear(4, 3), scale=torch.tensor(2.0, dtype=DOUBLE))
    model.register_buffer("mean", torch.zeros(4, dtype=DOUBLE))
    network = ad.capture(model, batch(1, 4))
    model.mean.fill_(0.5)
    model.scale.fill_(3.0)
    _same_as_a_fresh_capture(network, model)
    model.mean = torch.ones(4, dtype=DOUBLE)
    _same_as_a_fresh_capture(network, model)


def test_batch_norm_statistics_are_seen() -> None:
    model = _normalised()
    network = ad.capture(model, batch(1, 4))
    model.train()
    model(batch(8, 4, seed=3))
    _same_as_a_fresh_capture(network, model.eval())


def test_a_submodule_that_was_exchanged_is_noticed() -> None:
    """Modules are part of the graph, so a capture of the old ones must not speak for the new ones."""
    model = mlp(4, 5, 3)
    network = ad.capture(model, batch(1, 4))
    model[2] = nn.Linear(5, 3, dtype=DOUBLE)
    with pytest.raises(ad.CaptureError, match="capture it again"):
        ad.bounds(network, ad.LinfBall(0.1).around(batch(2, 4)))


def test_tensors_computed_from_parameters_out_of_sight_are_refused() -> None:
    """They would be constants of the capture: stale after the next step, and without a gradient."""
    w = nn.Parameter(torch.randn(3, 4))
    model = Net(lambda m, x: F.linear(x, w * 2), w=w)
    with pytest.raises(ad.CaptureError, match="computed from parameters out of sight"):
        ad.capture(model, batch(1, 4))
