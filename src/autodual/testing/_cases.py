"""What the checks of layers share: intervals and points worth trying, the best line that there is, and how a failure reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from autodual._tensor import Shape
from autodual.dual import ElementwiseDual
from autodual.interval import Interval

# How a failed check reads: what failed, where, and by how much.

ROUNDING = 32.0
"""Units in the last place that a short computation may be off by."""


def rounding(dtype: torch.dtype, *terms: Tensor) -> Tensor:
    """What rounding in `dtype` may have done to a sum of these terms."""
    total = sum((term.detach().abs().double() for term in terms[1:]), terms[0].detach().abs().double())
    return ROUNDING * torch.finfo(dtype).eps * total


def require_below(excess: Tensor, what: str, **where: Tensor) -> None:
    """`excess` must be <= 0 everywhere (NaN is not); the message gives the worst place in terms of `where`."""
    if bool((excess <= 0).all()):
        return
    worst = int(torch.where(excess.isnan(), torch.inf, excess).argmax())
    places = {name: value.expand_as(excess).reshape(-1)[worst].item() for name, value in where.items()}
    at = ", ".join(f"{name} = {value:.17g}" for name, value in places.items())
    count = int((~(excess <= 0)).sum())
    raise AssertionError(
        f"{what}: off by {excess.reshape(-1)[worst].item():.6g}{' at ' + at if at else ''} "
        f"(the worst of {count} failures among {excess.numel()} checks)"
    )


def require_close(found: Tensor, expected: Tensor, allowed: Tensor, what: str, **where: Tensor) -> None:
    """|found - expected| <= allowed everywhere."""
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: has shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    difference = (found - expected).detach().abs()
    require_below(difference - allowed, what, found=found.detach(), expected=expected.detach(), **where)


# Intervals and points.

GRID_STEP, GRID_END = 1e-3, 25.0


def spread(values: Tensor, shape: Shape) -> Tensor:
    """[K] -> [K, *shape]: the values, repeated for every feature."""
    return values.reshape(-1, *[1] * len(shape)).expand(-1, *shape).clone()


Domain = tuple[float, float]
NEAR_ZERO = 1e-3
EVERYWHERE: Domain = (-math.inf, math.inf)


def within(layer: ElementwiseDual, given: Domain) -> Domain:
    """Where a layer is tried: in what the caller gives of its domain, and away from zero where it begins there."""
    low, high = layer.domain
    return max(NEAR_ZERO if low == 0 else low, given[0]), min(high, given[1])


def find_kinks(function: Callable[[Tensor], Tensor], shape: Shape, domain: Domain = EVERYWHERE) -> tuple[float, ...]:
    """Where the derivative jumps, judged by second differences on a grid."""
    count = round(2 * GRID_END / GRID_STEP) + 1
    grid = torch.linspace(max(-GRID_END, domain[0]), min(GRID_END, domain[1]), count, dtype=torch.float64)
    values = function(spread(grid, shape)).reshape(count, -1).detach()
    bend = (values[2:] - 2 * values[1:-1] + values[:-2]).abs().amax(1) / (grid[1] - grid[0])
    places = grid[1:-1][bend > 0.02 * (1 + bend.median())].tolist()
    apart = [p for i, p in enumerate(places) if i == 0 or p - places[i - 1] > 1.5 * GRID_STEP]
    return tuple(round(p, 6) for p in apart[:8])


def interval_cases(kinks: tuple[float, ...], generator: torch.Generator, domain: Domain = EVERYWHERE) -> Interval:
    """[K] intervals: random, tiny, wide, of no width, and at, beside and across every kink."""

    def uniform(count: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, dtype=torch.float64, generator=generator)

    def sizes(count: int, low: float, high: float) -> Tensor:
        return 10 ** uniform(count, low, high)

    centres = [uniform(48, -4, 4), uniform(16, -30, 30), uniform(16, -4, 4), uniform(16, -20, 20), uniform(12, -6, 6)]
    halves = [sizes(48, -3, 0.6), sizes(16, -1, 1), sizes(16, -12, -6), sizes(16, 1, 3), torch.zeros(12).double()]
    lower = [c - h for c, h in zip(centres, halves, strict=True)]
    upper = [c + h for c, h in zip(centres, halves, strict=True)]
    for kink, (below, above) in product({0.0, *kinks}, ((1, 1), (1, 0), (0, 1), (0, 0))):
        count = 16 if below and above else 4 if below or above else 1
        lower.append(kink - below * sizes(count, -6, 2))
        upper.append(kink + above * sizes(count, -6, 2))
    return Interval(torch.cat(lower).clamp(*domain), torch.cat(upper).clamp(*domain))


def generic_intervals(
    kinks: tuple[float, ...], count: int, generator: torch.Generator, domain: Domain = EVERYWHERE
) -> Interval:
    """Intervals whose ends are no special points, so that bounds are differentiable there."""
    start = max(min(-4.0, domain[1] - 10), domain[0] + 0.3)
    scale = min(1.0, (domain[1] - start) / 10)
    lower = start + scale * 6 * torch.rand(8 * count, dtype=torch.float64, generator=generator)
    upper = lower + scale * (0.3 + 3 * torch.rand(8 * count, dtype=torch.float64, generator=generator))
    special = torch.tensor([0.0, *kinks], dtype=torch.float64).unsqueeze(1)
    far = ((lower - special).abs() > 0.05).all(0) & ((upper - special).abs() > 0.05).all(0)
    return Interval(lower[far][:count], upper[far][:count])


def sample_points(z: Interval, kinks: tuple[float, ...]) -> Tensor:
    """[S, *shape] points of each interval: evenly spread, crowded at its ends, and crowded at zero and the kinks."""
    even = torch.linspace(0, 1, 65, dtype=torch.float64)
    near = 10 ** torch.linspace(-6, -1.9, 9, dtype=torch.float64)
    parts = torch.cat([even, near, 1 - near]).reshape(-1, *[1] * z.lower.dim())
    lower, upper = z.lower.double(), z.upper.double()
    steps = 10 ** torch.linspace(-4, 1.6, 72, dtype=torch.float64)
    special = torch.cat([torch.tensor([k], dtype=torch.float64) + torch.cat([-steps, steps.new_zeros(1), steps])
                         for k in {0.0, *kinks}])  # fmt: skip
    inner = special.reshape(-1, *[1] * lower.dim()).expand(-1, *lower.shape)
    points = torch.cat([lower + parts * (upper - lower), inner])
    return torch.minimum(torch.maximum(points, lower), upper).to(z.lower.dtype)


def hurting_points(kinks: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Numbers of every size from the smallest to the largest, where functions saturate, and a few units around every kink."""
    sizes = torch.cat([10 ** torch.linspace(-45, 38.5, 336, dtype=torch.float64), torch.linspace(0, 130, 522).double()])
    sizes = sizes * (1 + 0.01 * torch.rand(len(sizes), dtype=torch.float64, generator=generator))
    near = [torch.tensor([k], dtype=torch.float64) for k in {0.0, *kinks}]
    steps = 2.0 ** torch.arange(-26, 0, dtype=torch.float64)
    around = [k + s * (k.abs() + (k == 0)) * torch.cat([steps, -steps]) for k in near for s in (0.5, 0.75, 1.0)]
    points = torch.cat([sizes, -sizes, *near, *around]).to(torch.float32)
    return points[points.isfinite()]


def hurting_batch(shape: Shape, generator: torch.Generator) -> Tensor:
    """[N, *shape]: of usual size, tiny, huge, denormal, with a large mean, large and nearly cancelling, of mixed sizes, sparse."""

    def normal() -> Tensor:
        return torch.randn(2, *shape, generator=generator)

    signs = torch.where(torch.arange(torch.Size(shape).numel()) % 2 == 0, 1.0, -1.0).reshape(shape)
    mixed = normal() * 10 ** (40 * torch.rand(2, *shape, generator=generator) - 20)
    scaled = [normal() * size for size in (0.0, 1e-41, 1e-30, 1e-3, 1.0, 30.0, 1e6, 1e30)]
    return torch.cat([*scaled, 1e4 + normal(), -3e6 + normal(), signs * 1e6 + normal(), mixed, normal().relu()])


# The best line that there is, found numerically.

GOLDEN = (5**0.5 - 1) / 2


def best_slope(points: Tensor, values: Tensor, height: Callable[[Tensor], Tensor], steps: int = 64) -> Tensor:
    """The slope a that minimises the convex function `height` of values - a * points, by golden-section search."""
    order = points.argsort(0)
    z, f = points.gather(0, order), values.gather(0, order)
    run = z.diff(dim=0)
    steep = f.diff(dim=0) / torch.where(run > 0, run, torch.inf)
    low, high = steep.amin(0), steep.amax(0)
    for _ in range(steps):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        go_left = height(values - left * points) <= height(values - right * points)
        low, high = torch.where(go_left, low, left), torch.where(go_left, right, high)
    return (low + high) / 2


def smallest_radius(points: Tensor, values: Tensor) -> Tensor:
    """Half the width of the narrowest band of two parallel lines around the points: the minimax error of a line."""

    def width(errors: Tensor) -> Tensor:
        return errors.amax(0) - errors.amin(0)

    return width(values - best_slope(points, values, width) * points) / 2


def envelope(points: Tensor, values: Tensor, middle: Tensor) -> Tensor:
    """Height at `middle` of the lowest line above all points: the concave envelope."""
    shifted = points - middle

    def top(errors: Tensor) -> Tensor:
        return errors.amax(0)

    return top(values - best_slope(shifted, values, top) * shifted)


# Statements about errors.

LARGEST = torch.finfo(torch.float32).max


def require_stated(found: Tensor, exact: Tensor, stated: Tensor, what: str, **where: Tensor) -> None:
    """|found - exact| <= stated, wherever float32 can hold the exact value. An error that is no number certifies nothing."""
    stated = stated.double().expand_as(exact)
    excess = (found.double() - exact).abs() - stated
    silent = ~stated.isfinite() | ~(exact.abs() < LARGEST)
    numbers = {"found": found.double(), "exact": exact, "stated": stated} | {n: v.double() for n, v in where.items()}
    require_below(torch.where(silent, 0.0, excess), what, **numbers)
