"""The rows of margins, with which a step starts: row j of example n is e_label - e_j."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autodual import kernels

if TYPE_CHECKING:
    import triton
    import triton.language as tl


def margin_rows(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Returns the rows, [classes, N, classes]. A label outside the classes is an error, or NaN where the kernel runs."""
    if dtype == torch.float32 and len(labels) > 0 and kernels.ready("margins", labels.device):
        return launch_margins(labels, classes)
    identity = torch.eye(classes, dtype=dtype, device=labels.device)
    return identity[labels].unsqueeze(0) - identity.unsqueeze(1)


# The Triton programs, and what launches them.


@kernels.program(do_not_specialize=["classes"])
def _margins(labels, rows, classes, block: tl.constexpr):  # type: ignore[no-untyped-def]
    example, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, block)
    label = tl.load(labels + example)
    value = (column == label).to(tl.float32) - (column == row).to(tl.float32)
    value = tl.where((label >= 0) & (label < classes), value, float("nan"))
    tl.store(rows + (row * tl.num_programs(0) + example) * classes + column, value, mask=column < classes)


def launch_margins(labels: Tensor, classes: int) -> Tensor:
    rows = torch.empty(classes, len(labels), classes, dtype=torch.float32, device=labels.device)
    block = triton.next_power_of_2(classes)
    _margins[(len(labels), classes)](labels.contiguous(), rows, classes, block, num_warps=1 if block <= 128 else 4)
    return rows


def trial(device: torch.device) -> None:
    """Launches the program on a few numbers."""
    launch_margins(torch.zeros(1, dtype=torch.int64, device=device), 2)
