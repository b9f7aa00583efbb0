"""The one place that decides: bounds and their errors go in, a verdict comes out."""

from __future__ import annotations

import torch
from torch import Tensor

UNLIKELY = 64
"""A margin below -slack / 64 cannot be rounding, which moves margins by a far smaller part of what it might."""


def exceeds(lower: Tensor, *errors: Tensor) -> Tensor:
    """Whether lower bounds exceed all their errors together, elementwise. NaN and infinities never do."""
    total = sum(errors[1:], errors[0])
    return (lower > total) & lower.isfinite() & total.isfinite()


def all_exceed(lower: Tensor, labels: Tensor, *errors: Tensor) -> Tensor:
    """[N] bool: every margin [N, C] but the label's own exceeds its errors, so the label is proved."""
    return (exceeds(lower, *errors) | own(labels, lower.shape[1])).all(1)


def worth_another_look(lower: Tensor, labels: Tensor, slack: Tensor, run_error: Tensor) -> Tensor:
    """[N] bool: some statement about an example is open, and more exact arithmetic may settle it.

    That is so if no margin is clearly negative and the exact function is not proved, or if the network as it runs is not, although
    every margin would allow it without its slack. What overflowed may be finite in a wider format.
    """
    mine = own(labels, lower.shape[1])
    hopeful = ((lower > -slack / UNLIKELY) | ~(lower.isfinite() & slack.isfinite()) | mine).all(1)
    possible_as_run = ((lower + slack > run_error) | ~run_error.isfinite() | mine).all(1)
    proved, proved_as_run = all_exceed(lower, labels, slack), all_exceed(lower, labels, slack, run_error)
    return hopeful & (~proved | (possible_as_run & ~proved_as_run))


def own(labels: Tensor, classes: int) -> Tensor:
    """[N, C] bool: the place of the label, where there is nothing to prove."""
    return torch.nn.functional.one_hot(labels, classes).bool()
