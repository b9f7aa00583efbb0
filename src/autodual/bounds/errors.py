"""Errors that are added up along with bounds, by the same coefficients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from autodual.bounds.backward import Observer
from autodual.bounds.rows import Rows


def with_errors(rows: Rows, errors: dict[int, Tensor], work: Callable[[Observer], Tensor]) -> Tensor:
    """Of rows that `work` bounds: its results [R, N, ...], and after them, as [R, 2 N, ...], what errors add up to that are
    multiplied by the coefficients on these nodes."""
    found: list[Tensor] = []

    def observe(node: int, coefficients: Tensor) -> None:
        if node in errors:
            found.append(rows.norm(node, coefficients, errors[node]))

    result = work(observe)
    total = sum(found[1:], found[0]) if found else torch.zeros_like(result)
    return torch.cat(torch.broadcast_tensors(result, total), dim=1)
