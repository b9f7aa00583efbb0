"""Margins of scores, and what rounding leaves of bounds on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual.bounds.base import Proof
from autodual.bounds.rounding import of_sum


@dataclass(frozen=True)
class Lower:
    """Lower bounds, and how far rounding may have moved each of them; -inf where nothing is known."""

    bound: Tensor
    slack: Tensor

    @classmethod
    def of(cls, proof: Proof, x: Tensor) -> Lower:
        """[N, K] each."""
        bound, slack = (values.detach().expand(len(x), -1) for values in (proof.lower, proof.slack))
        known = bound.isfinite() & slack.isfinite()
        return cls(torch.where(known, bound, -torch.inf), torch.where(known, slack, 0.0))

    @classmethod
    def nothing(cls, x: Tensor, rows: int) -> Lower:
        """[N, K] each: nothing is known."""
        unknown = torch.full((len(x), rows), -torch.inf, dtype=torch.float64, device=x.device)
        return cls(unknown, torch.zeros_like(unknown))

    def beyond(self, labels: Tensor) -> Lower:
        """Of margins [N, C]: there is nothing to prove at the label itself."""
        return Lower(self.bound.scatter(1, labels.unsqueeze(1), torch.inf), self.slack)

    def at(self, some: Tensor) -> Lower:
        return Lower(self.bound[some], self.slack[some])

    @property
    def certified(self) -> Tensor:
        """[N] bool: all margins are positive, whatever rounding did."""
        return (self.bound > self.slack).all(1)

    def better(self, other: Lower) -> Lower:
        """Of two bounds on the same numbers, the one that is proved to be larger."""
        mine = self.bound - self.slack >= other.bound - other.slack
        return Lower(torch.where(mine, self.bound, other.bound), torch.where(mine, self.slack, other.slack))

    @classmethod
    def total(cls, parts: list[Lower]) -> Lower:
        """The sum of bounds, with what adding them up may round away."""
        bounds, slacks = torch.stack([p.bound for p in parts]), torch.stack([p.slack for p in parts])
        size = torch.where(bounds.isfinite(), bounds.abs() + slacks, 0.0).sum(0)
        return cls(bounds.sum(0), slacks.sum(0) + size * of_sum(2 * len(parts) + 4, bounds.dtype))


def margin_of(scores: Tensor, labels: Tensor) -> Tensor:
    """[N]: z_label minus the largest other score."""
    own = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
    return own - others(scores, labels).amax(1)


def others(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with -inf in place of the label's."""
    return scores.scatter(1, labels.unsqueeze(1), -torch.inf)
