"""How a failed check reads: what failed, where, and by how much."""

from __future__ import annotations

import torch
from torch import Tensor

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
