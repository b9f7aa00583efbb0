"""What a step starts with: the rows of margins. Its plain twin is `autodual.spec.margins`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["classes"])
def _margins(labels, rows, classes, block: tl.constexpr):  # type: ignore[no-untyped-def]
    example, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, block)
    label = tl.load(labels + example)
    value = (column == label).to(tl.float32) - (column == row).to(tl.float32)
    value = tl.where((label >= 0) & (label < classes), value, float("nan"))
    tl.store(rows + (row * tl.num_programs(0) + example) * classes + column, value, mask=column < classes)


def margins(labels: Tensor, classes: int) -> Tensor:
    """[classes, N, classes]: row j of example n is e_label - e_j; NaN for a label outside the classes."""
    rows = torch.empty(classes, len(labels), classes, dtype=torch.float32, device=labels.device)
    block = triton.next_power_of_2(classes)
    _margins[(len(labels), classes)](labels.contiguous(), rows, classes, block, num_warps=1 if block <= 128 else 4)
    return rows
