"""The norms that perturbations are measured in. A norm knows its dual, and how that is computed, estimated and rounded.

Over all x with norm((x - centre) / radius) <= 1, a linear function c'x lies within c'centre +- dual norm(radius * c):

    norm of the perturbation    dual norm of c       its estimate from random projections c'R
    l-infinity                  sum |c_i|            median |c'R| for standard Cauchy R         [SPAD Thm 2]
    l2                          sqrt(sum c_i^2)      norm(c'R) / sqrt(k) for k Gaussian R
    l1                          max |c_i|            none
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from autodual._tensor import safe_sqrt


class Projection(Enum):
    """The random numbers whose combinations estimate a norm."""

    CAUCHY = "Cauchy"
    GAUSSIAN = "Gaussian"


class Norm(ABC):
    """A norm of vectors, known by its dual. There are three: LINF, L2 and L1."""

    order: ClassVar[float]
    dual_order: ClassVar[float]
    projection: ClassVar[Projection | None] = None
    """What estimates the dual norm; None: nothing does, it is computed from one column per feature."""
    separable: ClassVar[bool] = False
    """Whether every feature moves on its own. Then a set is a box, and the dual norm is the inner product of |c| and the radius."""

    def dual(self, values: Tensor, dim: int | list[int] = -1) -> Tensor:
        """The dual norm over some dimensions."""
        return self.finish(self.gather(self.measure(values), dim))

    def measure(self, values: Tensor) -> Tensor:
        """What one entry contributes to the dual norm."""
        return values.abs()

    def gather(self, measured: Tensor, dim: int | list[int]) -> Tensor:
        """Combines the contributions of entries, or of parts that are combined already."""
        return measured.sum(dim)

    def finish(self, gathered: Tensor) -> Tensor:
        """The dual norm, from the contributions of all entries."""
        return gathered

    def lost(self, underflow: float) -> float:
        """What the dual norm may lose to underflow beyond what c itself loses, if a sum of as many products loses `underflow`."""
        return 0.0

    @abstractmethod
    def farthest(self, direction: Tensor) -> Tensor:
        """[N, F] -> [N, F]: the point of the unit ball that is farthest in a direction."""

    @abstractmethod
    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        """[N, F] -> [N, F]: the point of the ball of radius [N, 1] that is nearest in Euclidean distance."""


class _Linf(Norm):
    order, dual_order = math.inf, 1.0
    projection, separable = Projection.CAUCHY, True

    def farthest(self, direction: Tensor) -> Tensor:
        return direction.sign()

    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(shift, -radius), radius)


class _L2(Norm):
    order, dual_order = 2.0, 2.0
    projection = Projection.GAUSSIAN

    def measure(self, values: Tensor) -> Tensor:
        return values.square()

    def finish(self, gathered: Tensor) -> Tensor:
        return safe_sqrt(gathered)

    def lost(self, underflow: float) -> float:
        return math.sqrt(underflow)  # squares underflow, too

    def farthest(self, direction: Tensor) -> Tensor:
        return direction / direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(direction.dtype).tiny)

    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        length = shift.norm(dim=1, keepdim=True)
        return torch.where(length > radius, shift * (radius / length.clamp(min=torch.finfo(length.dtype).tiny)), shift)


class _L1(Norm):
    order, dual_order = 1.0, math.inf

    def gather(self, measured: Tensor, dim: int | list[int]) -> Tensor:
        return measured.amax(dim)

    def farthest(self, direction: Tensor) -> Tensor:
        largest = direction.abs().argmax(1, keepdim=True)
        return torch.zeros_like(direction).scatter_(1, largest, direction.gather(1, largest).sign())

    def nearest(self, shift: Tensor, radius: Tensor) -> Tensor:
        """Every entry shrinks by the amount that makes the norm fit."""
        size = shift.abs()
        ordered = size.sort(dim=1, descending=True).values
        count = torch.arange(1, size.shape[1] + 1, device=size.device, dtype=size.dtype)
        excess = (ordered.cumsum(1) - radius) / count
        last = (ordered > excess).sum(1, keepdim=True).clamp(min=1) - 1
        shrink = excess.gather(1, last).clamp(min=0)
        return torch.where(size.sum(1, keepdim=True) > radius, shift.sign() * (size - shrink).clamp(min=0), shift)


LINF, L2, L1 = _Linf(), _L2(), _L1()
BY_DUAL_ORDER: dict[float, Norm] = {norm.dual_order: norm for norm in (LINF, L2, L1)}
