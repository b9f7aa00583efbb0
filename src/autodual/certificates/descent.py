"""Projected gradient descent inside input sets, with step sizes that find themselves: the one search of the library.

The step follows Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks"
(2020), section 3, called Auto-PGD there. Many runs go on side by side; a run is one start for one example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from autodual.sets import Box, InputSet, NormSet

FIRST_STEP = 2.0
"""The first step, as a part of the set's radius: from one end of the set to the other."""
MOMENTUM = 0.75
"""Weight of the new step; the rest goes on in the direction of the last one."""
ENOUGH = 0.75
"""A step size stays if so large a part of the steps since the last checkpoint was an improvement."""


class Seen(NamedTuple):
    """What an objective says about points, [M] each."""

    loss: Tensor
    """What is made smaller, differentiable in the points."""
    merit: Tensor
    """What counts: the point with the smallest one is kept."""


Objective = Callable[[Tensor, Tensor], Seen]
"""(points [M, *shape], numbers of the runs that they belong to [M]) -> what is seen there."""


def checkpoints(steps: int) -> list[int]:
    """The steps after which step sizes are looked at: after 22 % of all steps, and then after ever shorter parts, 6 % at least."""
    parts = [0, 22]
    while parts[-1] < 100:
        parts.append(parts[-1] + max(parts[-1] - parts[-2] - 3, 6))
    return sorted({step for part in parts if 0 < (step := -(-part * steps // 100)) < steps})


@dataclass(frozen=True)
class _Runs:
    """The state of all runs that still go on; [M] or [M, *shape] each."""

    number: Tensor
    x: Tensor
    before: Tensor
    """The point one step earlier."""
    loss: Tensor
    slope: Tensor
    low: Tensor
    """The point with the smallest loss, from which a run goes on when its step is halved."""
    low_loss: Tensor
    low_slope: Tensor
    best: Tensor
    """The point with the smallest merit."""
    merit: Tensor
    size: Tensor
    improved: Tensor
    """Steps since the last checkpoint that made the loss smaller."""
    low_then: Tensor
    """The smallest loss at the last checkpoint."""
    halved: Tensor
    """Whether the step was halved then."""

    def some(self, which: Tensor) -> _Runs:
        return _Runs(*(getattr(self, f.name)[which] for f in fields(self)))


def descend(
    objective: Objective,
    region: InputSet,
    starts: Tensor,
    steps: int,
    finished: Callable[[Tensor, Tensor], Tensor] | None = None,
    tell: Callable[[float], None] = lambda part: None,
) -> tuple[Tensor, Tensor]:
    """The best point of every run, [M, *shape], and its merit [M].

    Args:
        objective: What to look for. It is called with gradients enabled.
        region: The set of every run.
        starts: Where runs begin, [M, *shape], inside their sets.
        steps: Gradient steps of each run.
        finished: (numbers of runs, their merits so far) -> which of them need not go on. They leave at the next checkpoint, if the set
            can be taken apart.
        tell: Hears after every step which part of all steps is done, and may end the search by an error of its own.
    """
    everyone = torch.arange(len(starts), device=starts.device)
    seen, slope = _look(objective, starts, everyone, steps > 0)
    zeros = torch.zeros_like(seen.loss)
    runs = _Runs(
        everyone, starts, starts, seen.loss, slope, starts, seen.loss, slope, starts, seen.merit,
        zeros + FIRST_STEP, zeros, seen.loss, zeros.bool(),
    )  # fmt: skip
    points, merits = starts.clone(), seen.merit.clone()
    last, ends = 0, set(checkpoints(steps))
    tell(1 / (steps + 1))
    for step in range(1, steps + 1):
        runs = _step(objective, region, runs, first=step == 1, last=step == steps)
        if step in ends:
            runs, last = _checkpoint(runs, step - last), step
            over = None if finished is None else finished(runs.number, runs.merit)
            if over is not None and bool(over.any()):
                smaller = region.take((~over).nonzero().squeeze(1))
                if smaller is not None:
                    points[runs.number[over]], merits[runs.number[over]] = runs.best[over], runs.merit[over]
                    region, runs = smaller, runs.some(~over)
        tell((step + 1) / (steps + 1))
        if len(runs.number) == 0:
            break
    points[runs.number], merits[runs.number] = runs.best, runs.merit
    return points, merits


def _step(objective: Objective, region: InputSet, runs: _Runs, first: bool, last: bool) -> _Runs:
    """All runs one step on. The first step has no momentum, and after the last one no slope is needed."""
    x = moved(region, runs.x, -runs.slope, runs.size)
    if not first:
        onwards = region.project(runs.x + MOMENTUM * (x - runs.x) + (1 - MOMENTUM) * (runs.x - runs.before))
        x = x if onwards is None else onwards
    seen, slope = _look(objective, x, runs.number, not last)
    better, lower = seen.merit < runs.merit, seen.loss < runs.low_loss
    return replace(
        runs,
        x=x,
        before=runs.x,
        loss=seen.loss,
        slope=slope,
        low=torch.where(_spread(lower, x), x, runs.low),
        low_loss=torch.where(lower, seen.loss, runs.low_loss),
        low_slope=torch.where(_spread(lower, x), slope, runs.low_slope),
        best=torch.where(_spread(better, x), x, runs.best),
        merit=torch.where(better, seen.merit, runs.merit),
        improved=runs.improved + (seen.loss < runs.loss),
    )


def _checkpoint(runs: _Runs, since: int) -> _Runs:
    """Halves the steps that did not help: few of them were improvements, or neither they nor another size found a smaller loss."""
    few = runs.improved < ENOUGH * since
    stuck = ~runs.halved & ~(runs.low_loss < runs.low_then)
    halve = few | stuck
    back = _spread(halve, runs.x)
    return replace(
        runs,
        x=torch.where(back, runs.low, runs.x),
        before=torch.where(back, runs.low, runs.before),
        loss=torch.where(halve, runs.low_loss, runs.loss),
        slope=torch.where(back, runs.low_slope, runs.slope),
        size=torch.where(halve, runs.size / 2, runs.size),
        improved=torch.zeros_like(runs.improved),
        low_then=runs.low_loss,
        halved=halve,
    )


def moved(region: InputSet, x: Tensor, direction: Tensor, size: Tensor) -> Tensor:
    """A step of each run's own size [M] in a direction. Sets of other kinds than ours take one size at a time."""
    wide = size.to(x).reshape(-1, *[1] * (x.dim() - 1))
    if type(region) in (Box, NormSet):
        onwards = region.project(x + wide * (region.vertex(direction) - region.centre))
        assert onwards is not None
        return onwards
    found = x
    for one in size.unique().tolist():
        found = torch.where(wide == one, region.step(x, direction, one), found)
    return found


def _look(objective: Objective, x: Tensor, number: Tensor, with_slope: bool) -> tuple[Seen, Tensor]:
    """What is seen at x, and the gradient of the loss there; zero where it is not a number."""
    x = x.detach().requires_grad_(with_slope)
    with torch.set_grad_enabled(with_slope):
        seen = objective(x, number)
        if not with_slope or not seen.loss.requires_grad:
            return Seen(seen.loss.detach(), seen.merit.detach()), torch.zeros_like(x)
        (slope,) = torch.autograd.grad(seen.loss.sum(), x, allow_unused=True)
    slope = torch.zeros_like(x) if slope is None else slope.nan_to_num()
    return Seen(seen.loss.detach(), seen.merit.detach()), slope


def _spread(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (like.dim() - 1))
