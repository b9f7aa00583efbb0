"""Margins of scores, and what rounding leaves of bounds on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual.bounds.base import Proof
from autodual.bounds.decide import exceeds
from autodual.bounds.rounding import of_sum


@dataclass(frozen=True)
class Lower:
    """Lower bounds with their errors: -inf where nothing is known, +inf where there is nothing to prove."""

    bound: Tensor
    slack: Tensor
    """How far rounding may have moved each bound."""
    run_error: Tensor
    """How far the network as it runs may be from the exact function."""

    @classmethod
    def of(cls, proof: Proof, x: Tensor) -> Lower:
        """[N, K] each."""
        bound, slack, run_error = (
            values.detach().expand(len(x), -1) for values in (proof.lower, proof.slack, proof.run_error)
        )
        known = bound.isfinite() & slack.isfinite()
        return cls(torch.where(known, bound, -torch.inf), torch.where(known, slack, 0.0), run_error)

    @classmethod
    def nothing(cls, x: Tensor, rows: int) -> Lower:
        """[N, K] each: nothing is known."""
        unknown = torch.full((len(x), rows), -torch.inf, dtype=torch.float64, device=x.device)
        return cls(unknown, torch.zeros_like(unknown), torch.full_like(unknown, torch.inf))

    def beyond(self, labels: Tensor) -> Lower:
        """Bounds on margins [N, C], with nothing to prove at the label itself."""
        return Lower(self.bound.scatter(1, labels.unsqueeze(1), torch.inf), self.slack, self.run_error)

    def at(self, some: Tensor) -> Lower:
        return Lower(self.bound[some], self.slack[some], self.run_error[some])

    @property
    def certified(self) -> Tensor:
        """[N] bool: all margins are positive, whatever rounding did to their bounds."""
        return self._all(self.slack)

    @property
    def certified_as_run(self) -> Tensor:
        """[N] bool: all margins of the network as it runs are positive, too."""
        return self._all(self.slack, self.run_error)

    def _all(self, *errors: Tensor) -> Tensor:
        return (exceeds(self.bound, *errors) | (self.bound == torch.inf)).all(1)

    def at_least(self, dtype: torch.dtype) -> Tensor:
        """What differences of scores, as they are computed at inference in `dtype`, exceed for certain."""
        exact = self.bound - self.slack - self.run_error
        subtracting = of_sum(4, dtype) * (self.bound.abs() + self.slack + self.run_error)
        return torch.where(exact.isfinite(), exact - subtracting, -torch.inf)

    def better(self, other: Lower) -> Lower:
        """The bound that is proved to be larger, of two on the same numbers."""
        mine = self.bound - self.slack >= other.bound - other.slack
        bound, slack = torch.where(mine, self.bound, other.bound), torch.where(mine, self.slack, other.slack)
        return Lower(bound, slack, self.run_error)

    @classmethod
    def total(cls, parts: list[Lower], run_error: Tensor) -> Lower:
        """The sum of bounds, with what adding them up may round away; run_error: of the models' sum."""
        bounds, slacks = torch.stack([p.bound for p in parts]), torch.stack([p.slack for p in parts])
        size = torch.where(bounds.isfinite(), bounds.abs() + slacks, 0.0).sum(0)
        slack = slacks.sum(0) + size * of_sum(2 * len(parts) + 4, bounds.dtype)
        bound, known = (
            bounds.sum(0),
            (bounds == torch.inf).all(0),
        )  # at the label: other sums that are infinite have overflowed
        return cls(torch.where(known | (bound < torch.inf), bound, -torch.inf), slack, run_error)


def margin_of(scores: Tensor, labels: Tensor) -> Tensor:
    """[N]: z_label minus the largest other score."""
    own = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
    return own - others(scores, labels).amax(1)


def others(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with -inf in place of the label's."""
    return scores.scatter(1, labels.unsqueeze(1), -torch.inf)
