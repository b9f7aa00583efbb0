"""Hand-written GPU kernels. Each is a faster twin of plain PyTorch code, which is what runs wherever it cannot be used."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

LARGEST_K = 256
"""Values that one program can hold to select their median."""
FEW = 64
"""Up to so many values, their median is selected by comparing them."""


@cache
def _works(device: int | None) -> bool:
    """Whether Triton is installed and compiles the kernels for this GPU: tried once, on a few numbers."""
    if find_spec("triton") is None:
        return False
    try:
        from autodual.kernels.trial import try_all

        try_all(torch.device("cuda") if device is None else torch.device("cuda", device))
    except Exception as error:  # whatever a compiler may raise: there is plain code to fall back on
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"the kernels for NVIDIA GPUs do not work here ({type(error).__name__}: {reason}); plain PyTorch runs instead, slower",
            stacklevel=2,
        )
        return False
    return True


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: float32 on an NVIDIA GPU, and no compiler that would rather fuse the plain code."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 for t in tensors)
        and torch.version.hip is None
        and not torch.compiler.is_compiling()
        and _works(tensors[0].device.index)
    )
