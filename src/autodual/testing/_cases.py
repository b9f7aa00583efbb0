"""What the checks share: how a failure reads, where layers are tried, and inputs that hurt."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autodual._tensor import Shape
from autodual.dual import ElementwiseDual

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


# Where layers are tried.


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


# Statements about errors.

LARGEST = torch.finfo(torch.float32).max


def require_stated(found: Tensor, exact: Tensor, stated: Tensor, what: str, **where: Tensor) -> None:
    """|found - exact| <= stated, wherever float32 can hold the exact value. An error that is no number certifies nothing."""
    stated = stated.double().expand_as(exact)
    excess = (found.double() - exact).abs() - stated
    silent = ~stated.isfinite() | ~(exact.abs() < LARGEST)
    numbers = {"found": found.double(), "exact": exact, "stated": stated} | {n: v.double() for n, v in where.items()}
    require_below(torch.where(silent, 0.0, excess), what, **numbers)
