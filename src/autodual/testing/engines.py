"""check_engine: do an engine's bounds contain what the network computes?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autodual.dual import DualNetwork
from autodual.dual.network import evaluate
from autodual.engines import BoundEngine, Bounds, EstimatedBounds, Minimum, ProbableBounds, ProbableProof, SoundBounds
from autodual.engines.prepare import dual_network
from autodual.graph import Network
from autodual.interval import Interval
from autodual.sets import Box, InputSet
from autodual.spec import Spec
from autodual.testing._report import require_below, require_close

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Rounding that a bound may be off by, relative to the largest value at its node."""


def check_engine(
    engine: BoundEngine,
    model: nn.Module | Network,
    input_set: InputSet,
    *,
    samples: int = 16,
    steps: int = 8,
    seed: int = 0,
) -> None:
    """Check that an engine bounds a model over a set of inputs soundly.

    Bounds on every activation's input, on every output and on random linear functions of it must hold at samples, at vertices
    and at points found by gradient steps on each output. On a set of single points, bounds are the network's own output. For
    an engine that only estimates, this last property alone is checked. Bounds with a stated probability are checked like sound
    ones, and must state it everywhere; that they fail by bad luck has probability delta per example, the same for the same seed.

    Args:
        engine: What is checked.
        model: A network in evaluation mode to check it on.
        input_set: A set of inputs to check it on.
        samples: Random points of the set for each example.
        steps: Gradient steps towards each output's ends.
        seed: Of the random points.

    Raises:
        AssertionError: A bound does not hold; the message says which one, and by how much.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
        >>> ad.testing.check_engine(ad.Crown(), model, ad.LinfBall(0.1).around(torch.zeros(2, 3)))
    """
    network = dual_network(model, input_set.centre)
    name = repr(engine)
    with torch.no_grad():
        found = engine.bounds(network, input_set)
        if not isinstance(found, SoundBounds | ProbableBounds | EstimatedBounds):
            raise AssertionError(
                f"{name}: bounds() must return SoundBounds, ProbableBounds or EstimatedBounds, not {type(found).__name__}"
            )
        if not isinstance(found, EstimatedBounds):
            points = torch.stack(attack_points(network, input_set, samples, steps, seed))
            values = node_values(network, points.flatten(0, 1))
            for index, (layer, interval) in zip(network.activations, found.layers.items(), strict=True):
                source = network.source(index)
                require_inside(interval, values[source].unflatten(0, points.shape[:2]), f"{name}: input of {layer}")
            output = values[network.output].unflatten(0, points.shape[:2])
            require_inside(found.output, output, f"{name}: output")
            _check_minimum(engine, network, input_set, output, found, seed)
        _check_single_points(engine, network, input_set)


def require_inside(interval: Interval, values: Tensor, what: str) -> None:
    """Values [P, N, *shape] must lie in the interval [N, *shape], up to rounding."""
    allowed = TOLERANCE[values.dtype] * values.abs().amax().clamp(min=1.0)
    require_below(interval.lower - values - allowed, f"{what}: the lower bound is above a value", value=values)
    require_below(values - interval.upper - allowed, f"{what}: the upper bound is below a value", value=values)


def node_values(network: DualNetwork, x: Tensor) -> list[Tensor]:
    """What every node computes for a batch of inputs."""
    values = [x]
    for node in network.nodes[1:]:
        assert node.layer is not None
        values.append(evaluate(node.layer, *(values[i] for i in node.inputs)))
    return values


def attack_points(network: DualNetwork, input_set: InputSet, samples: int, steps: int, seed: int) -> list[Tensor]:
    """Points of the set [N, *shape]: its centre, samples, random vertices, and worst points for every output found by gradients."""
    x = input_set.centre
    generator = torch.Generator(x.device).manual_seed(seed)
    points = [x, *(input_set.sample(generator) for _ in range(samples))]
    noise = torch.randn(samples, *x.shape, dtype=x.dtype, device=x.device, generator=generator)
    points += [input_set.vertex(direction) for direction in noise]
    outputs = torch.Size(network.nodes[network.output].shape).numel()
    for output in range(min(outputs, 8)):
        for sign in (1.0, -1.0):
            points += _ascend(network, input_set, output, sign, steps)
    return points


def _ascend(network: DualNetwork, input_set: InputSet, output: int, sign: float, steps: int) -> list[Tensor]:
    x = input_set.centre
    for step in range(steps):
        gradient = _gradient(network, x, output)
        if step == 0:
            corner = input_set.vertex(sign * gradient)
        x = input_set.step(x, sign * gradient, 1.0 / (1 + step))
    return [corner, x] if steps else []


def _gradient(network: DualNetwork, x: Tensor, output: int) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = network.forward(x).flatten(1)[:, output].sum()
        return torch.autograd.grad(value, x)[0]


def _check_minimum(
    engine: BoundEngine, network: DualNetwork, input_set: InputSet, output: Tensor, bounds: Bounds, seed: int
) -> None:
    """minimum and prove hold for random linear functions of the output, and claim what the bounds claim."""
    confidence = bounds.confidence if isinstance(bounds, ProbableBounds) else None
    flat = output.flatten(2)
    generator = torch.Generator(flat.device).manual_seed(seed)
    rows = torch.randn(4, 1, flat.shape[-1], dtype=flat.dtype, device=flat.device, generator=generator)
    values = torch.einsum("knc,pmc->pmk", rows, flat)
    for verb in (engine.minimum, engine.prove):
        found = verb(network, input_set, Spec(rows))
        what = f"{engine!r}: {verb.__name__}"
        given = found.confidence if isinstance(found, ProbableProof) else None
        if not isinstance(found, Minimum) and given != confidence:
            raise AssertionError(f"{what} has confidence {given}, but bounds() has {confidence}")
        if tuple(found.lower.shape) != tuple(values.shape[1:]):
            raise AssertionError(f"{what} has shape {tuple(found.lower.shape)} instead of {tuple(values.shape[1:])}")
        require_inside(Interval(found.lower, torch.full_like(found.lower, torch.inf)), values, what)


def _check_single_points(engine: BoundEngine, network: DualNetwork, input_set: InputSet) -> None:
    x = input_set.centre
    expected = network.forward(x)
    found = engine.bounds(network, Box.around(x, torch.zeros_like(x))).output
    allowed = TOLERANCE[x.dtype] * expected.abs().amax().clamp(min=1.0).expand_as(expected)
    for side, end in (("lower", found.lower), ("upper", found.upper)):
        require_close(end, expected, allowed, f"{engine!r}: the {side} bound over single points against the output")
