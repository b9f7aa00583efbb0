"""Margins of scores."""

from __future__ import annotations

import torch
from torch import Tensor


def margin_of(scores: Tensor, labels: Tensor) -> Tensor:
    """[N]: z_label minus the largest other score."""
    own = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
    return own - others(scores, labels).amax(1)


def others(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with -inf in place of the label's."""
    return scores.scatter(1, labels.unsqueeze(1), -torch.inf)
