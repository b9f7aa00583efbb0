"""Around a centre, every activation has the interval, the band and the middle that its parts say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autodual.dual import ElementwiseDual
from autodual.engines.prepare import dual_network

ACTIVATIONS = [
    nn.ReLU(),
    nn.LeakyReLU(0.1),
    nn.PReLU(3),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.Softplus(),
    nn.Hardtanh(),
    nn.GELU(),
]


@pytest.mark.parametrize("module", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("shared", [False, True], ids=["own radius", "shared radius"])
def test_around_a_centre(module: nn.Module, shared: bool) -> None:
    torch.manual_seed(0)
    centre, radius = torch.randn(4, 3, 5).double(), torch.rand(1 if shared else 4, 3, 5).double()
    network = dual_network(module.double().eval(), centre)
    layer = network.nodes[network.output].layer
    assert isinstance(layer, ElementwiseDual)
    found = layer.relax(centre, radius)
    assert torch.equal(found.interval.lower, centre - radius)
    assert torch.equal(found.interval.upper, centre + radius)
    assert found.middle.shape == centre.shape
    for part in torch.linspace(-1, 1, 21):
        z = centre + part * radius
        middle = found.band.slope * z + found.band.centre
        assert bool(((layer.value(z) - middle).abs() <= found.band.radius + 1e-12).all())
    torch.testing.assert_close(found.middle, found.band.slope * centre + found.band.centre)
