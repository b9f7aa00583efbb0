"""Hand-written GPU kernels. Each is a faster twin of plain PyTorch code, which is what runs wherever it cannot be used."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

LARGEST_K = 256
"""Values that one program can hold to select their median."""


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: float32 on an NVIDIA GPU, and no compiler that would rather fuse the plain code."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 for t in tensors)
        and torch.version.hip is None
        and not torch.compiler.is_compiling()
        and _has_triton()
    )
