"""Random numbers for projections, drawn before the step that uses them.

An activation needs k Cauchy numbers per unit and example. They are not drawn one by one: tan of a uniform angle is Cauchy (several
times faster than `Tensor.cauchy_`, and never infinite), and an angle turned by any other angle is as uniform as before. So a batch
shares k angles per unit, and each example turns them by an angle of its own per unit. The numbers of one example are exactly k
independent Cauchy numbers per unit; those of two examples are independent for every one of the k. It takes k + N random numbers per
unit instead of k * N. The input's numbers are not turned but shared by all examples, deliberately: where all radii are the same, as in
an unclipped ball, its stream is computed once for the whole batch up to the first activation, and that part of the errors is common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import Shape, channels_inside, stacked
from autodual.dual import DualNetwork
from autodual.kernels.stream import Angles
from autodual.sets import InputSet, Norm, Projection, norm_of


@dataclass(frozen=True)
class Draws:
    """The randomness of one step: Cauchy numbers for every activation, and for the input Cauchy or (l2 ball) Gaussian ones.

    Tensors are only ever overwritten in place (`renew_`), so a captured CUDA graph can be fed with fresh ones.
    """

    fresh: dict[int, Angles]
    """By the activation's place in the network."""
    first: Angles | Tensor | None
    """For the input: Cauchy as angles, or Gaussian [k, 1, *input shape]; None for an l1 ball, whose dual norm takes no projection."""
    pool: Tensor | None = None
    """The memory of all angles, where they are drawn in one go."""
    exact: bool = False
    """No numbers at all: bounds are to be exact, since so many projections would cost more."""
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    """The source of the numbers; PyTorch's global one when None."""

    def begins_for(self, norm: Norm, shape: Shape) -> bool:
        """Whether the input's numbers are those that sets of this norm need, for examples of this shape."""
        if norm.projection is Projection.CAUCHY:
            return isinstance(self.first, Angles) and self.first.fits(shape, 1)
        if norm.projection is Projection.GAUSSIAN:
            return isinstance(self.first, Tensor) and tuple(self.first.shape[2:]) == shape
        return self.first is None

    def renew_(self, generator: torch.Generator | None = None) -> Draws:
        """Fresh numbers in the same memory, from where the first ones came unless another generator is given."""
        generator = self.generator if generator is None else generator
        if self.pool is not None:
            self.pool.uniform_(0, math.pi, generator=generator)
        else:
            for part in self.fresh.values():
                part.angles.uniform_(0, math.pi, generator=generator)
                if part.turns is not None:
                    part.turns.uniform_(0, math.pi, generator=generator)
            if isinstance(self.first, Angles):
                self.first.angles.uniform_(-math.pi / 2, math.pi / 2, generator=generator)
        if isinstance(self.first, Tensor):
            self.first.normal_(generator=generator)
        return self


def passed_activations(network: DualNetwork) -> list[int]:
    """Activations that another activation comes after; streams end at the others."""
    sources = {network.source(i) for i in network.activations}
    before = {i for source in sources for i in network.ancestors(source)}
    return [i for i in network.activations if i in before]


def draw(
    network: DualNetwork,
    region: InputSet,
    k: int,
    generator: torch.Generator | None = None,
    activations: Sequence[int] | None = None,
) -> Draws:
    """Fresh numbers for one batch, for all activations that a stream passes; or for those that are named."""
    like = region.centre
    if generator is not None and generator.device != like.device:
        raise ArgumentError(
            f"generator is on {generator.device}, but the input is on {like.device}; "
            f"make it with torch.Generator(device={str(like.device)!r})"
        )
    shapes = {i: network.nodes[i].shape for i in (passed_activations(network) if activations is None else activations)}
    norm = norm_of(region)
    projection = None if norm is None else norm.projection
    draws = (_in_one_piece if like.is_cuda else _apart)(shapes, like, k, projection is Projection.CAUCHY)
    if projection is Projection.GAUSSIAN:
        draws = replace(draws, first=like.new_empty(k, 1, *like.shape[1:]))
    return replace(draws, generator=generator).renew_()


def _apart(shapes: dict[int, Shape], like: Tensor, k: int, cauchy: bool) -> Draws:
    """Memory for angles, laid out as a CPU likes it; also for the input's, if those are Cauchy."""
    turns = {i: channels_inside(like.new_empty(len(like), *shape)) for i, shape in shapes.items()}
    fresh = {i: Angles(stacked(turn[:1], k), turn) for i, turn in turns.items()}
    return Draws(fresh, Angles(like.new_empty(k, 1, *like.shape[1:])) if cauchy else None)


def _in_one_piece(shapes: dict[int, Shape], like: Tensor, k: int, cauchy: bool) -> Draws:
    """Memory for angles in one piece, for a GPU, which draws many numbers as fast as a few."""
    sizes = [count * math.prod(shape) for shape in shapes.values() for count in (k, len(like))]
    pool = like.new_empty(sum(sizes) + (k * like[0].numel() if cauchy else 0))
    parts = iter(pool.split([*sizes, len(pool) - sum(sizes)]))
    fresh = {
        i: Angles(_laid_out(next(parts), (k, 1), s), _laid_out(next(parts), (len(like),), s)) for i, s in shapes.items()
    }
    return Draws(fresh, Angles(_laid_out(next(parts), (k, 1), tuple(like.shape[1:]))) if cauchy else None, pool)


def _laid_out(memory: Tensor, leading: Shape, shape: Shape) -> Tensor:
    """A view [*leading, *shape]; of images, with the channels of a position next to each other, as a GPU convolves fastest."""
    if len(shape) != 3 or shape[0] == 1:
        return memory.view(*leading, *shape)
    channels, height, width = shape
    return memory.view(*leading, height, width, channels).movedim(-1, -3)
