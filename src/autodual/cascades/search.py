"""Points of a ball that several models share: what lies inside, and a gradient search for one at which several conditions hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual.certificates.arguments import check_perturbation
from autodual.certificates.descent import Seen, descend
from autodual.sets import L1Ball, L2Ball, LinfBall, Perturbation

# Balls that several models can share: which ones are symmetric, and what lies inside them.

NORMS: dict[type[Perturbation], tuple[str, Callable[[Tensor], Tensor]]] = {
    LinfBall: ("linf", lambda shift: shift.abs().amax(1)),
    L2Ball: ("l2", lambda shift: shift.norm(dim=1)),
    L1Ball: ("l1", lambda shift: shift.abs().sum(1)),
}
"""The balls of a norm: the norm's name, and the norm itself of [N, features]."""
ROUNDING = 4.0
"""So many units in the last place of x and eps may separate a point of the ball from the ball."""


def check_one_size(ball: Perturbation) -> None:
    """One eps for every input: stages see different parts of a batch."""
    check_perturbation(ball)
    if isinstance(ball.eps, Tensor) and ball.eps.numel() != 1:
        raise ArgumentError(
            f"ball.eps must be one number for all inputs of a combination of models, got shape {tuple(ball.eps.shape)}"
        )


def check_parts(ball: Perturbation, x: Tensor) -> None:
    """Refuse a perturbation of the user's own whose sets depend on the place of an example in its batch: stages see parts of it."""
    if type(ball) in NORMS or len(x) == 1:
        return
    rows = torch.randn(4, 1, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    forwards, backwards = ball.around(x).minimise(rows), ball.around(x.flip(0)).minimise(rows).flip(1)
    if not torch.allclose(forwards, backwards, rtol=1e-4, atol=1e-4 * float(forwards.abs().max())):
        raise ArgumentError(
            f"ball: {type(ball).__name__} gives an example another set at another place of the batch, but the stages of a combination "
            f"see parts of a batch; let `around` look at nothing but x and eps"
        )


def is_symmetric(ball: Perturbation) -> bool:
    """Whether x lies in the ball around x' whenever x' lies in the ball around x: balls of a norm, also clipped ones if x and x' are
    in range (inputs that are not are refused). A subclass may do anything, so it does not count."""
    return type(ball) in NORMS


def check_symmetric(ball: Perturbation) -> None:
    if not is_symmetric(ball):
        raise ArgumentError(
            f"ball: {type(ball).__name__} is not known to be symmetric. A certificate around the received input x' says something "
            f"about the clean x only if x lies in the ball around x' whenever x' lies in the ball around x: use LinfBall, L2Ball or "
            f"L1Ball, or RoutedCascade or SumEnsemble, which do not need it"
        )


def into_range(ball: Perturbation, points: Tensor) -> Tensor:
    """Rounding may carry a point of a clipped ball out of the range by one unit in the last place."""
    return points.clamp(*ball.clip) if isinstance(ball, LinfBall) and ball.clip is not None else points


def inside(ball: Perturbation, x: Tensor, points: Tensor) -> Tensor:
    """[N] bool: each point is in the ball around its x, from the definition and up to rounding; NaN is not.

    For a perturbation of another kind: no farther than the set reaches in the direction of the point, seen from the centre. (That is
    necessary, not sufficient; its own `step` and `sample` are trusted for the rest.)
    """
    if type(ball) not in NORMS:
        region = ball.around(x)
        away = region.centre - points
        room = 64 * torch.finfo(x.dtype).eps * (1 + (away * points).flatten(1).abs().sum(1))
        return (away * points).flatten(1).sum(1) >= region.minimise(away.unsqueeze(0)).squeeze(0) - room
    norm, eps = NORMS[type(ball)][1], float(ball.eps)
    rounding = ROUNDING * torch.finfo(x.dtype).eps * (x.double().abs() + eps)
    near = norm((points.double() - x.double()).flatten(1)) <= eps + norm(rounding.flatten(1))
    return near & (into_range(ball, points) == points).flatten(1).all(1)


# Gradient search for a point of a set at which several conditions hold at once.


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

    def objective(points: Tensor, numbers: Tensor) -> Seen:
        worst = goal.violations(points, some[numbers]).amax(
            1
        )  # one condition pushes at a time: two would block each other
        return Seen(worst, worst)

    best, least = clean, clean.new_full((len(clean),), torch.inf)
    for restart in range(effort.restarts):  # one after the other: gradients of bounds take memory
        start = clean if restart == 0 else into_range(ball, region.sample(effort.generator))
        found, merits = descend(
            objective, region, start, effort.steps, tell=partial(_tell_part, tell, restart, effort.restarts)
        )
        better = merits < least
        best, least = torch.where(_spread(better, found), found, best), torch.where(better, merits, least)
    best = into_range(ball, best)
    return torch.where(_spread(inside(ball, clean, best), best), best, clean)


def _tell_part(tell: Callable[[float], None], restart: int, restarts: int, part: float) -> None:
    tell((restart + part) / restarts)


def _spread(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (like.dim() - 1))
