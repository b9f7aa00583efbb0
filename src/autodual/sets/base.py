"""What may change: the set of inputs over which a statement is to hold.

A set of your own is a subclass of `InputSet` with `centre`, `minimise` and `__getitem__`; `autodual.testing.check_input_set`
checks it. Everything else, attacks included, follows from the support function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.interval import Interval
from autodual.sets.norms import BY_DUAL_ORDER, Norm


class InputSet(ABC):
    """A convex set of inputs for each example of a batch, known by the minimum of every linear function over it."""

    centre: Tensor
    """A point of the set, [N, *shape]."""
    dual_norm: float | None = None
    """1, 2 or inf when the minimum of c'x is c'centre - norm(radius * c); None for a set of another kind."""
    radius: Tensor
    """Only for sets with a `dual_norm`: broadcastable to the centre."""

    @abstractmethod
    def minimise(self, coefficients: Tensor) -> Tensor:
        """min over x in the set of sum(coefficients * x): [R, N or 1, *shape] -> [R, N]."""

    @abstractmethod
    def __getitem__(self, examples: slice) -> InputSet:
        """The sets of some of the examples."""

    def double(self) -> InputSet | None:
        """This set, or one around it, in float64; None if it cannot say. Bounds of float32 that rounding blurs are computed there."""
        return None

    def inwards(self) -> InputSet:
        """This set, or one inside it: what its `step` and `sample` compute lies in this set, whatever is rounded on the way."""
        return self

    def __len__(self) -> int:
        return int(self.centre.shape[0])

    def box(self) -> Interval:
        """The smallest box around the set."""
        shape = self.centre.shape
        basis = torch.eye(shape[1:].numel(), dtype=self.centre.dtype, device=self.centre.device)
        rows = basis.reshape(-1, 1, *shape[1:])
        lower, upper = self.minimise(rows), -self.minimise(-rows)
        return Interval(lower.T.reshape(shape), upper.T.reshape(shape))

    def vertex(self, direction: Tensor) -> Tensor:
        """A point of the set that is farthest in `direction` [N, *shape]: the gradient of the support function."""
        if torch.is_inference_mode_enabled() or self.centre.is_inference():
            raise ArgumentError(
                f"{type(self).__name__}: its extreme points come from gradients of `minimise`, which torch.inference_mode() forbids; "
                f"use torch.no_grad() instead, and inputs that were not made in inference mode, or give the set a method `vertex`"
            )
        with torch.enable_grad():
            negative = (-direction).detach().unsqueeze(0).requires_grad_()
            lowest = self.minimise(negative).sum()
        return torch.autograd.grad(lowest, negative)[0].squeeze(0)

    def step(self, x: Tensor, direction: Tensor, size: float) -> Tensor:
        """Move from x towards the farthest point in `direction`, staying in the set."""
        return x + min(size, 1.0) * (self.vertex(direction) - x)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A random point of each example's set; here, a random mixture of the centre and a random extreme point."""
        noise = torch.randn(self.centre.shape, dtype=self.centre.dtype, device=self.centre.device, generator=generator)
        weight = torch.rand(len(self), dtype=noise.dtype, device=noise.device, generator=generator)
        weight = weight.reshape(-1, *[1] * (noise.dim() - 1))
        return self.centre + weight * (self.vertex(noise) - self.centre)


def norm_of(region: InputSet) -> Norm | None:
    """The norm whose dual is the set's `dual_norm`; None for a set of another kind."""
    if region.dual_norm is None:
        return None
    if region.dual_norm not in BY_DUAL_ORDER:
        raise ArgumentError(
            f"{type(region).__name__}: dual_norm must be 1, 2 or inf, or None for a set of another kind, got {region.dual_norm!r}"
        )
    return BY_DUAL_ORDER[region.dual_norm]


class Perturbation(ABC):
    """What may be done to any input: turns a batch of inputs into the sets around them."""

    eps: float | Tensor

    @abstractmethod
    def around(self, x: Tensor) -> InputSet:
        """The set of inputs that an adversary may choose from instead of each x, rounded outwards: a proof must hold for all of them.

        Each example has a set of its own, whatever others are in the batch: parts of a batch come, too.
        """

    def within(self, x: Tensor) -> InputSet:
        """A set rounded inwards: what its `step` and `sample` compute is an allowed input. Attacks search it.

        A perturbation of your own answers for the rounding of its sets.
        """
        return self.around(x)

    @abstractmethod
    def with_eps(self, eps: float | Tensor) -> Perturbation:
        """A perturbation of this kind with another size."""
