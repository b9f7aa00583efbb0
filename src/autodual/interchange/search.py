"""A search for counterexamples: gradient descent on the violation of a conjunction, from many starts in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autodual._tensor import Shape
from autodual.interchange.vnnlib import Case, Conjunction

FIRST_STEP, LAST_STEP = 0.5, 0.01
"""Step sizes, as a part of the box's radius; they fall linearly in between."""
LARGEST_BATCH = 2**22
"""Numbers in the inputs of one batch, and points at most."""
MOST_POINTS = 1024
DEEPER = 1.1
"""A point that was not confirmed is followed by one that satisfies its goal by so many times as much."""


@dataclass(frozen=True)
class Goal:
    """A box, and one conjunction that an output must satisfy."""

    case: Case
    conjunction: Conjunction


@dataclass(frozen=True)
class Effort:
    starts: int
    """From the centre, from random corners, and from random points: of these, for every goal."""
    steps: int


QUICK, THOROUGH = Effort(8, 20), Effort(48, 120)


def search(
    model: nn.Module,
    shape: Shape,
    goals: Sequence[Goal],
    effort: Effort,
    generator: torch.Generator,
    like: Tensor,
    check: Callable[[], None],
) -> Iterator[tuple[Goal, Tensor]]:
    """Points that satisfy their goal as the model computes it, one after the other: the goal, and the point [*shape].

    like: a tensor of the model's dtype and device. check: called before every step; raises when time is up.
    """
    size = max(1, like.new_zeros(shape).numel())
    together = max(1, min(MOST_POINTS, LARGEST_BATCH // size) // effort.starts)
    for first in range(0, len(goals), together):
        yield from _descend(model, shape, goals[first : first + together], effort, generator, like, check)


def _descend(
    model: nn.Module,
    shape: Shape,
    goals: Sequence[Goal],
    effort: Effort,
    generator: torch.Generator,
    like: Tensor,
    check: Callable[[], None],
) -> Iterator[tuple[Goal, Tensor]]:
    lower, upper = _boxes(goals, like)
    rows, limits = _rows(goals, like)
    owner = torch.arange(len(goals), device=like.device).repeat_interleave(effort.starts)
    lower, upper, rows, limits = (t[owner] for t in (lower, upper, rows, limits))
    radius = (upper - lower) / 2
    x = _starts(lower, upper, effort.starts, generator)
    told = [math.inf] * len(goals)
    for step in range(effort.steps + 1):
        check()
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            scores = model(x.reshape(-1, *shape)).flatten(1)
            violation = ((rows * scores.unsqueeze(1)).sum(2) - limits).amax(1)
        least, places = violation.detach().reshape(len(goals), -1).min(1)
        for goal, (value, place) in enumerate(zip(least.tolist(), places.tolist(), strict=True)):
            if value <= 0 and value < DEEPER * told[goal]:
                told[goal] = value
                yield goals[goal], x[goal * effort.starts + place].detach().reshape(shape)
        if step == effort.steps:
            return
        (gradient,) = torch.autograd.grad(violation.sum(), x)
        length = FIRST_STEP + (LAST_STEP - FIRST_STEP) * step / effort.steps
        x = torch.minimum(torch.maximum(x.detach() - length * radius * gradient.sign(), lower), upper)


def _boxes(goals: Sequence[Goal], like: Tensor) -> tuple[Tensor, Tensor]:
    """[goals, inputs]: what the model's dtype holds of the boxes; where it holds nothing between the ends, the nearest number."""
    lower, upper = (torch.stack([getattr(g.case, name) for g in goals]) for name in ("inner_lower", "inner_upper"))
    low, high = _rounded(lower, like.dtype, torch.inf), _rounded(upper, like.dtype, -torch.inf)
    none = low > high
    nearest = lower.to(like.dtype)
    return torch.where(none, nearest, low).to(like.device), torch.where(none, nearest, high).to(like.device)


def _rounded(values: Tensor, dtype: torch.dtype, towards: float) -> Tensor:
    cast = values.to(dtype)
    wrong = cast.double() < values if towards > 0 else cast.double() > values
    return torch.where(wrong, torch.nextafter(cast, torch.full_like(cast, towards)), cast)


def _rows(goals: Sequence[Goal], like: Tensor) -> tuple[Tensor, Tensor]:
    """[goals, K, outputs] and [goals, K], each condition scaled to length 1; shorter conjunctions repeat their first condition."""
    most = max(len(g.conjunction.rows) for g in goals)
    rows, limits = [], []
    for goal in goals:
        found = goal.conjunction
        index = [k if k < len(found.rows) else 0 for k in range(most)]
        length = found.rows.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        rows.append((found.rows / length.unsqueeze(1))[index])
        limits.append((found.inner_limits / length)[index])
    return torch.stack(rows).to(like), torch.stack(limits).to(like)


def _starts(lower: Tensor, upper: Tensor, each: int, generator: torch.Generator) -> Tensor:
    """Of every goal: the centre first, then random points, every other one a corner."""
    noise = torch.rand(lower.shape, generator=generator, dtype=torch.float64).to(lower)
    place = torch.arange(len(lower), device=lower.device).unsqueeze(1) % each
    noise = torch.where(place == 0, 0.5, torch.where(place % 2 == 1, noise.round(), noise))
    return torch.minimum(torch.maximum(lower + noise * (upper - lower), lower), upper)
