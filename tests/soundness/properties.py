"""What every network and input set must satisfy. Each function checks one property; the tests say for which networks."""

from __future__ import annotations

import torch
from torch import Tensor

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines.prepare import dual_network
from autodual.spec import Spec
from autodual.testing import corners
from autodual.testing.engines import attack_points, node_values, require_inside

ENGINES = (ad.Dual(), ad.Crown(), ad.IBP(), ad.Dual(intersect=True), ad.Crown(intermediate=ad.IBP()))
SMALL = 5
"""Boxes of so many features are tried at all their corners."""


def assert_close(found: Tensor, expected: Tensor, relative: float, what: str) -> None:
    """Equal up to `relative` times the largest value, or 1."""
    assert found.shape == expected.shape, f"{what}: shapes {tuple(found.shape)} and {tuple(expected.shape)}"
    allowed = relative * max(1.0, expected.abs().max().item())
    difference = (found - expected).abs().max().item()
    assert difference <= allowed, f"{what}: differ by {difference:.3g}, more than {allowed:.3g}"


def network_of(model: torch.nn.Module, region: ad.InputSet) -> DualNetwork:
    with torch.no_grad():
        return dual_network(model, region.centre)


def random_rows(network: DualNetwork, examples: int) -> Spec:
    """A few linear functions of the output, the same for all examples or one for each."""
    size = torch.Size(network.nodes[network.output].shape).numel()
    return Spec(torch.randn(4, examples, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size)))


@torch.no_grad()
def bounds_contain_values(network: DualNetwork, region: ad.InputSet) -> None:
    """(a) Bounds on every activation's input, on the output and on linear functions of it hold at samples, corners and the
    ends of gradient steps."""
    points = torch.stack(attack_points(network, region, samples=6, steps=4, seed=0))
    if isinstance(region, ad.Box) and region.centre[0].numel() <= SMALL:
        points = torch.cat([points, corners(region)])
    values = [v.unflatten(0, points.shape[:2]) for v in node_values(network, points.flatten(0, 1))]
    for engine in ENGINES:
        found = engine.bounds(network, region)
        assert isinstance(found, ad.SoundBounds)
        require_inside(found.output, values[network.output], f"{engine!r}: output")
        for index, (name, interval) in zip(network.activations, found.layers.items(), strict=True):
            require_inside(interval, values[network.nodes[index].inputs[0]], f"{engine!r}: input of {name}")
    spec = random_rows(network, 1)
    functions = torch.einsum("knc,pmc->pmk", spec.rows, values[network.output].flatten(2))
    for engine in (ad.Crown(), ad.Dual(intersect=True)):
        lower = engine.minimum(network, region, spec).lower
        require_inside(ad.Interval(lower, torch.full_like(lower, torch.inf)), functions, f"{engine!r}: minimum")


@torch.no_grad()
def forward_equals_backward(network: DualNetwork, region: ad.InputSet) -> ad.Bounds:
    """(b) The forward pass over generators and the dual objective are the same number; returns these bounds."""
    forward, backward = ad.ForwardDual().bounds(network, region), ad.Dual().bounds(network, region)
    for name, interval in forward.layers.items():
        assert_close(interval.lower, backward.layers[name].lower, 1e-10, f"lower bound of {name}")
        assert_close(interval.upper, backward.layers[name].upper, 1e-10, f"upper bound of {name}")
    spec = random_rows(network, len(region))
    forward_minimum, backward_minimum = (e.minimum(network, region, spec).lower for e in (ad.ForwardDual(), ad.Dual()))
    assert_close(forward_minimum, backward_minimum, 1e-10, "minimum of linear functions")
    assert_close(forward.output.lower, backward.output.lower, 1e-10, "lower bound of the output")
    assert_close(forward.output.upper, backward.output.upper, 1e-10, "upper bound of the output")
    return backward


@torch.no_grad()
def single_points_give_the_output(network: DualNetwork, region: ad.InputSet) -> None:
    """(c) With eps = 0 both bounds are the network's output."""
    x = region.centre
    expected = network.forward(x)
    nothing = (ad.LinfBall(0.0), ad.L2Ball(0.0), ad.L1Ball(0.0))
    for engine, ball in zip((ad.Dual(), ad.Crown(), ad.IBP()), nothing, strict=True):
        found = engine.bounds(network, ball.around(x)).output
        assert_close(found.lower, expected, 1e-10, f"{engine!r}: lower bound at eps = 0")
        assert_close(found.upper, expected, 1e-10, f"{engine!r}: upper bound at eps = 0")


@torch.no_grad()
def minimum_is_homogeneous(network: DualNetwork, region: ad.InputSet) -> None:
    """(d) J(a c) = a J(c) for a > 0."""
    rows = random_rows(network, len(region)).rows
    factors = torch.tensor([1.0, 0.01, 7.0], dtype=torch.float64).reshape(-1, 1, 1, 1)
    for engine in (ad.Dual(), ad.Crown(), ad.IBP()):
        scaled = engine.minimum(network, region, Spec((factors * rows).flatten(0, 1))).lower
        found = scaled.unflatten(1, (len(factors), -1)) / factors.reshape(-1, 1)
        for other in (1, 2):
            assert_close(found[:, other], found[:, 0], 1e-10, f"{engine!r}: J(a c) / a against J(c)")
