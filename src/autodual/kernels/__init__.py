"""Hand-written GPU kernels. Each is a faster twin of plain PyTorch code, which is what runs wherever it cannot be used."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

LARGEST_K = 256
"""Values that one program can hold to select their median."""
FEW = 64
"""Up to so many values, their median is selected by comparing them."""


tried: dict[int, bool] = {}
"""By the number of a GPU: whether the kernels work there."""


def _works(device: int) -> bool:
    """Whether Triton is installed and compiles the kernels for this GPU: tried once, and not while a CUDA graph is captured."""
    if device not in tried:
        if torch.cuda.is_current_stream_capturing():
            return False
        tried[device] = _try(device)
    return tried[device]


def _try(device: int) -> bool:
    if find_spec("triton") is None:
        return False
    try:
        from autodual.kernels.trial import try_all

        try_all(torch.device("cuda", device))
    except torch.OutOfMemoryError:  # says nothing about the kernels
        raise
    except Exception as error:  # whatever a compiler may raise: there is plain code to fall back on
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"the kernels for NVIDIA GPUs do not work here ({type(error).__name__}: {reason}); plain PyTorch runs instead, slower",
            stacklevel=2,
        )
        return False
    return True


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: float32 on the current NVIDIA GPU, and no compiler that would rather fuse plain code.

    Triton launches on the current GPU, whatever the tensors': on another one, plain code runs.
    """
    if torch.compiler.is_compiling() or torch.version.hip is not None:
        return False
    if not all(t.is_cuda and t.dtype == torch.float32 and t.numel() > 0 for t in tensors):
        return False
    current = torch.cuda.current_device()
    return all(t.device.index == current for t in tensors) and _works(current)
