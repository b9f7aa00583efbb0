"""Random numbers for projections, drawn before the step that uses them.

An activation needs k Cauchy numbers per unit and example. They are not drawn one by one: tan of a uniform angle is Cauchy, and an
angle turned by any other angle is as uniform as before. So a batch shares k angles per unit, and each example turns them by an
angle of its own per unit. The numbers of one example are exactly k independent Cauchy numbers per unit; those of two
examples are independent for every one of the k. It takes k + N random numbers per unit instead of k * N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import channels_inside, stacked
from autodual._types import Shape
from autodual.dual import DualNetwork
from autodual.sets import InputSet


@dataclass(frozen=True)
class Angles:
    """Cauchy numbers [k, N or 1, *shape] as tan(angles + turns): angles [k, 1, *shape], turns [N or 1, *shape]."""

    angles: Tensor
    turns: Tensor

    def numbers(self) -> Tensor:
        return (self.angles + self.turns).tan_()

    @classmethod
    def of(cls, numbers: Tensor) -> Angles:
        """Given Cauchy numbers [k, N or 1, *shape]."""
        return cls(numbers.atan(), numbers.new_zeros(1, *numbers.shape[2:]))

    def fits(self, shape: Shape, examples: int) -> bool:
        return tuple(self.angles.shape[2:]) == shape and tuple(self.turns.shape) in ((examples, *shape), (1, *shape))

    def some(self, part: slice) -> Tensor:
        """The numbers of some of the k projections."""
        return (self.angles[part] + self.turns).tan_()


@dataclass(frozen=True)
class Draws:
    """The randomness of one step: Cauchy numbers for every activation, and for the input Cauchy or (l2 ball) Gaussian ones.

    Tensors are only ever overwritten in place (`renew_`), so a captured CUDA graph can be fed with fresh ones.
    """

    fresh: dict[int, Angles]
    """By the activation's place in the network."""
    first: Tensor | None
    """[k, 1, *input shape]; None for an l1 ball, whose dual norm takes no projection."""
    gaussian: bool
    """Whether `first` is Gaussian."""

    def renew_(self, generator: torch.Generator | None = None) -> Draws:
        """Fresh numbers in the same memory."""
        for part in self.fresh.values():
            part.angles.uniform_(0, math.pi, generator=generator)
            part.turns.uniform_(0, math.pi, generator=generator)
        if self.first is not None and self.gaussian:
            self.first.normal_(generator=generator)
        elif self.first is not None:
            cauchy_(self.first, generator)
        return self


def passed(network: DualNetwork) -> list[int]:
    """Activations that some other activation comes after; a stream ends at the others."""
    sources = {network.nodes[i].inputs[0] for i in network.activations}
    before = {i for source in sources for i in network.ancestors(source)}
    return [i for i in network.activations if i in before]


def cauchy_(numbers: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Cauchy numbers as the tan of a uniform angle: several times faster than `Tensor.cauchy_`, and never infinite."""
    return numbers.uniform_(-math.pi / 2, math.pi / 2, generator=generator).tan_()


def draw(
    network: DualNetwork,
    region: InputSet,
    k: int,
    generator: torch.Generator | None = None,
    activations: Sequence[int] | None = None,
) -> Draws:
    """Fresh numbers for one batch, for all activations that a stream passes; or for those that are named."""
    like = region.centre
    if generator is not None and generator.device.type != like.device.type:
        raise ArgumentError(
            f"generator is on {generator.device}, but the input is on {like.device}; "
            f"make it with torch.Generator(device={str(like.device)!r})"
        )

    def angles(shape: Shape) -> Angles:
        turns = channels_inside(like.new_empty((len(region), *shape)))
        return Angles(stacked(turns[:1], k), turns)

    fresh = {i: angles(network.nodes[i].shape) for i in (passed(network) if activations is None else activations)}
    first = None if region.dual_norm not in (1, 2) else like.new_empty((k, 1, *like.shape[1:]))
    return Draws(fresh, first, region.dual_norm == 2).renew_(generator)
