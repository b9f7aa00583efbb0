"""Gradient search for a point of a set at which several conditions hold at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.certify.attack import FIRST_STEP, LAST_STEP
from autodual.certify.cascade_ball import inside, into_range
from autodual.sets import Perturbation


@dataclass(frozen=True)
class Goal:
    """One way in which the models together can be made to answer wrongly."""

    relevant: Tensor
    """[N] bool: the examples for which it is possible at all."""
    certified: bool
    """Whether the wrong answer would come with a certificate."""
    violations: Callable[[Tensor, Tensor], Tensor]
    """(points [M, *shape], which examples they belong to [M]) -> [M, V]: the goal is reached where all V are below zero;
    -inf is a condition that does not matter to the example."""


@dataclass(frozen=True)
class Effort:
    """How hard to search. The first start is the clean input, the others are random."""

    steps: int
    restarts: int
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        whole = all(isinstance(v, int) and not isinstance(v, bool) for v in (self.steps, self.restarts))
        if not whole or self.steps < 0 or self.restarts < 1:
            raise ArgumentError(
                f"attack needs whole numbers, steps >= 0 and restarts >= 1, got {self.steps!r} and {self.restarts!r}"
            )


def search(
    goal: Goal, x: Tensor, some: Tensor, ball: Perturbation, effort: Effort, tell: Callable[[float], None]
) -> Tensor:
    """[M, *shape]: for each of the M examples `some`, the point found whose largest violation is smallest.

    tell: hears after every step which part of all steps is done, and may end the search by an error of its own.
    """
    clean = x[some]
    region = ball.within(clean)
    best, least = clean, clean.new_full((len(clean),), torch.inf)
    for restart in range(effort.restarts):
        points = clean if restart == 0 else into_range(ball, region.sample(effort.generator))
        for step in range(effort.steps + 1):
            points = points.detach().requires_grad_()
            with torch.enable_grad():
                worst = goal.violations(points, some).amax(
                    1
                )  # one condition pushes at a time: two would block each other
                (gradient,) = torch.autograd.grad(worst.sum(), points)
            points, worst = points.detach(), worst.detach()
            better = worst < least
            best, least = torch.where(_spread(better, points), points, best), torch.where(better, worst, least)
            size = FIRST_STEP + (LAST_STEP - FIRST_STEP) * step / max(1, effort.steps)
            points = into_range(ball, region.step(points, -gradient.nan_to_num(), size))
            tell((restart + (step + 1) / (effort.steps + 1)) / effort.restarts)
    return torch.where(_spread(inside(ball, clean, best), best), best, clean)


def _spread(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (like.dim() - 1))
