"""check_engine: do an engine's bounds contain what the network computes? And slow answers that are right, to compare them with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.dual import AffineDual, DualNetwork
from autodual.dual.network import Evaluation, OnDemand
from autodual.dual.piecewise import DualReLU
from autodual.engines import (
    IBP,
    BoundEngine,
    Bounds,
    EstimatedBounds,
    Minimum,
    ProbableBounds,
    ProbableProof,
    SoundBounds,
    bounds,
)  # fmt: skip
from autodual.engines.prepare import dual_network
from autodual.graph import Network
from autodual.interval import Interval
from autodual.sets import Box, InputSet, NormSet
from autodual.spec import Spec
from autodual.testing._cases import require_below, require_close

if TYPE_CHECKING:
    import numpy as np

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
    values = OnDemand(network, Evaluation(x))
    return [values.at(index) for index in range(len(network.nodes))]


def attack_points(network: DualNetwork, input_set: InputSet, samples: int, steps: int, seed: int) -> list[Tensor]:
    """Points of the set [N, *shape]: its centre, samples, random vertices, and worst points for every output found by gradients."""
    x = input_set.centre
    generator = torch.Generator(x.device).manual_seed(seed)
    points = [x, *(input_set.sample(generator) for _ in range(samples))]
    noise = torch.randn(samples, *x.shape, dtype=x.dtype, device=x.device, generator=generator)
    points += [input_set.vertex(direction) for direction in noise]
    outputs = torch.Size(network.nodes[network.output].shape).numel()
    for output, sign in itertools.product(range(min(outputs, 8)), (1.0, -1.0)):
        points += _ascend(network, input_set, output, sign, steps)
    return points


def _ascend(network: DualNetwork, input_set: InputSet, output: int, sign: float, steps: int) -> list[Tensor]:
    """The corner that the gradient of an output points to, and where gradient steps end."""
    x = input_set.centre
    for step in range(steps):
        with torch.enable_grad():
            here = x.detach().requires_grad_()
            value = network.forward(here).flatten(1)[:, output].sum()
            gradient = sign * torch.autograd.grad(value, here)[0]
        if step == 0:
            corner = input_set.vertex(gradient)
        x = input_set.step(x, gradient, 1.0 / (1 + step))
    return [corner, x] if steps else []


def _check_minimum(
    engine: BoundEngine, network: DualNetwork, input_set: InputSet, output: Tensor, own: Bounds, seed: int
) -> None:
    """minimum and prove hold for random linear functions of the output, and claim what the bounds claim."""
    confidence = own.confidence if isinstance(own, ProbableBounds) else None
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


# Slow answers that are right, for small ReLU networks.

MOST_CORNERS = 1 << 14


def corners(input_set: InputSet) -> Tensor:
    """[P, N, *shape]: all extreme points of a small box (2^d) or l1 ball (2 d)."""
    shape, like = input_set.centre.shape[1:], input_set.centre
    count = shape.numel()
    if isinstance(input_set, Box) and 2**count <= MOST_CORNERS:
        signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=count)), dtype=like.dtype, device=like.device)
    elif isinstance(input_set, NormSet) and input_set.dual_norm == torch.inf:
        signs = torch.eye(count, dtype=like.dtype, device=like.device)
        signs = torch.cat([signs, -signs])
    else:
        raise ArgumentError(
            f"corners: needs an l1 ball, or a box of at most {MOST_CORNERS} corners; got {count} features"
        )
    return like + input_set.radius * signs.reshape(-1, 1, *shape)


def triangle_minimum(
    model: nn.Module | Network, box: Box, rows: Tensor, layers: dict[str, Interval] | None = None
) -> Tensor:
    """[N, K]: minimum of c'z over the triangle relaxation of every ReLU, for rows c [K, C], as a linear program.

    layers: bounds on the ReLUs' inputs, as in `Bounds.layers`; interval bounds when None. It is the best bound that any
    choice of slopes can reach from these, and so above that of `Dual` and `Crown` with the same.
    """
    return _solve(model, box, rows, layers, exact=False)


def exact_minimum(
    model: nn.Module | Network, box: Box, rows: Tensor, layers: dict[str, Interval] | None = None
) -> Tensor:
    """[N, K]: minimum of c'z over the box itself, for rows c [K, C], as a mixed-integer program. For small networks only."""
    return _solve(model, box, rows, layers, exact=True)


def _solve(
    model: nn.Module | Network, box: Box, rows: Tensor, layers: dict[str, Interval] | None, exact: bool
) -> Tensor:
    _scipy()
    network = dual_network(model, box.centre)
    with torch.no_grad():
        layers = bounds(model, box, IBP()).layers if layers is None else layers
        program = _Program.of(network)
        found = [program.minimise(box, rows, layers, n, exact) for n in range(len(box))]
    return torch.tensor(found, dtype=box.centre.dtype)


@dataclass(frozen=True)
class _Program:
    """Variables are the values of all nodes, one after the other; every affine layer is a block of equations."""

    network: DualNetwork
    starts: tuple[int, ...]
    equations: Any
    """(sparse matrix, right-hand side)."""

    @classmethod
    def of(cls, network: DualNetwork) -> _Program:
        sizes = [torch.Size(node.shape).numel() for node in network.nodes]
        starts = tuple(itertools.accumulate(sizes, initial=0))
        entries: list[tuple[Any, Any, Any]] = []
        right: list[float] = []
        for index, node in enumerate(network.nodes):
            if isinstance(node.layer, AffineDual):
                entries += _affine_block(network, index, starts, len(right))
                zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in network.operand_shapes(index)]
                right += node.layer.apply(*zeros).flatten().double().tolist()
            elif node.layer is not None and not isinstance(node.layer, DualReLU):
                raise ArgumentError(
                    f"{node.name}: the oracles know affine layers and ReLU, not {type(node.layer).__name__}"
                )
        return cls(network, starts, (_sparse(entries, (len(right), starts[-1])), right))

    def minimise(self, box: Box, rows: Tensor, layers: dict[str, Interval], example: int, exact: bool) -> list[float]:
        """The minimum of every row for one example."""
        import numpy as np

        milp, linear, limits = _scipy()
        relus = [(i, layers[self.network.nodes[i].name]) for i in self.network.activations]
        switches = sum(r.lower[example].numel() for _, r in relus) if exact else 0
        total = self.starts[-1] + switches
        lower, upper = np.full(total, -np.inf), np.full(total, np.inf)
        region = box.box()
        lower[: self.starts[1]] = region.lower[example].flatten().double().numpy()
        upper[: self.starts[1]] = region.upper[example].flatten().double().numpy()
        lower[self.starts[-1] :], upper[self.starts[-1] :] = 0, 1
        constraints = [linear(_widened(self.equations[0], total), self.equations[1], self.equations[1])]
        switch = self.starts[-1]
        for index, interval in relus:
            low, high = (end[example].flatten().double().numpy() for end in (interval.lower, interval.upper))
            before, after = self.starts[self.network.nodes[index].inputs[0]], self.starts[index]
            first = switch if exact else None
            constraints += [linear(a, -np.inf, b) for a, b in _relu(low, high, before, after, first, total)]
            switch += len(low)
        integrality = np.concatenate([np.zeros(self.starts[-1]), np.ones(switches)])
        found = []
        for row in rows.flatten(1).double().tolist():
            objective = np.zeros(total)
            objective[self.starts[self.network.output] : self.starts[self.network.output] + len(row)] = row
            result = milp(objective, integrality=integrality, bounds=limits(lower, upper), constraints=constraints)
            if not result.success:
                raise ArgumentError(f"the solver found no optimum: {result.message}")
            found.append(float(result.fun))
        return found


def _relu(
    low: np.ndarray, high: np.ndarray, before: int, after: int, switch: int | None, total: int
) -> list[tuple[Any, np.ndarray]]:
    """Rows a'v <= b for y = relu(x) with x in [low, high]: the triangle, or with a 0/1 switch s the two pieces themselves.

    Always y >= 0 and y >= x. Triangle: y <= high (x - low) / (high - low). Pieces: y <= high s and y <= x - low (1 - s).
    """
    import numpy as np

    count = len(low)
    unit = np.arange(count)
    x, y = before + unit, after + unit
    one = np.ones(count)
    positive, negative = np.maximum(high, 0), np.minimum(low, 0)
    blocks = [
        (_sparse([(unit, y, -one)], (count, total)), np.zeros(count)),
        (_sparse([(unit, y, -one), (unit, x, one)], (count, total)), np.zeros(count)),
    ]
    if switch is None:
        slope = positive / np.maximum(positive - negative, np.finfo(float).tiny)
        blocks.append((_sparse([(unit, y, one), (unit, x, -slope)], (count, total)), -slope * negative))
    else:
        s = switch + unit
        blocks.append((_sparse([(unit, y, one), (unit, s, -positive)], (count, total)), np.zeros(count)))
        blocks.append((_sparse([(unit, y, one), (unit, x, -one), (unit, s, -negative)], (count, total)), -negative))
    return blocks


def _affine_block(network: DualNetwork, index: int, starts: tuple[int, ...], first: int) -> list[tuple[Any, Any, Any]]:
    """Entries (row, column, value) of result - W operands = bias."""
    node, shapes = network.nodes[index], network.operand_shapes(index)
    assert isinstance(node.layer, AffineDual)
    size = torch.Size(node.shape).numel()
    ones = torch.ones(size, dtype=torch.float64).numpy()
    rows = torch.arange(first, first + size)
    entries = [(rows.numpy(), torch.arange(starts[index], starts[index] + size).numpy(), ones)]
    basis = torch.eye(size, dtype=torch.float64).reshape(size, *node.shape)
    for source, block in zip(node.inputs, node.layer.transpose(basis, shapes), strict=True):
        matrix = block.reshape(size, -1)
        row, column = matrix.nonzero(as_tuple=True)
        entries.append(((first + row).numpy(), (starts[source] + column).numpy(), -matrix[row, column].numpy()))
    return entries


def _sparse(entries: list[tuple[Any, Any, Any]], shape: tuple[int, int]) -> Any:
    import numpy as np
    from scipy.sparse import csr_array

    row, column, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    return csr_array((value, (row, column)), shape=shape)


def _widened(matrix: Any, columns: int) -> Any:
    from scipy.sparse import csr_array

    return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], columns))


def _scipy() -> tuple[Any, Any, Any]:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise ImportError(
            "the oracles solve linear programs with SciPy, which is not installed: pip install 'autodual[test]'"
        ) from error
    return milp, LinearConstraint, Bounds
