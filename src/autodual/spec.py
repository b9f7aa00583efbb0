"""Specifications: the rows c of the linear functions c'z whose minimum is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual.kernels.margins import margin_rows


@dataclass(frozen=True)
class Spec:
    """`rows` [K, N or 1, C]: K linear functions of the output, for every example (or one set for all)."""

    rows: Tensor

    def __getitem__(self, examples: slice) -> Spec:
        return self if self.rows.shape[1] == 1 else Spec(self.rows[:, examples])


def margins(labels: Tensor, classes: int, dtype: torch.dtype) -> Spec:
    """Row j of example n reads z_label - z_j; the row j = label is zero. [SPAD Eq. 3: c = e_y - e_target]"""
    return Spec(margin_rows(labels, classes, dtype))


def outputs(classes: int, dtype: torch.dtype, device: torch.device) -> Spec:
    """The outputs themselves."""
    return Spec(torch.eye(classes, dtype=dtype, device=device).unsqueeze(1))
