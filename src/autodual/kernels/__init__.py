"""Operations that have hand-written GPU kernels, one file each: the plain PyTorch code, when to use the kernels, and gradients.

The kernels themselves are Triton programs, in `gpu/`. Plain code runs wherever they cannot be used.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

LARGEST_K = 256
"""Values that one program can hold to select their median."""
MOST_COMPARED = 64
"""Up to so many values, their median is selected by comparing them."""

ENOUGH = 1024
"""Programs that fill a GPU."""

Family = Literal["median", "stream", "chord", "narrow", "weigh", "starting"]
"""A module of Triton programs."""

HALVES: frozenset[Family] = frozenset({"median", "stream"})
"""Families whose samples and streams may be bfloat16; they compute in float32 all the same."""

tried: dict[tuple[Family, int], bool] = {}
"""By family and the number of a GPU: whether these kernels work there."""


def _works(family: Family, device: int) -> bool:
    """Whether Triton is installed and compiles the kernels for this GPU: tried once, and not while a CUDA graph is captured."""
    if (family, device) not in tried:
        if torch.cuda.is_current_stream_capturing():
            return False
        tried[family, device] = _try(family, device)
    return tried[family, device]


def _try(family: Family, device: int) -> bool:
    if find_spec("triton") is None:
        return False
    try:
        from autodual.kernels.trial import attempt

        attempt(family, torch.device("cuda", device))
    except torch.OutOfMemoryError:  # says nothing about the kernels
        raise
    except Exception as error:  # whatever a compiler may raise: there is plain code to fall back on
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"the kernels `{family}` for NVIDIA GPUs do not work here ({type(error).__name__}: {reason}); plain PyTorch runs "
            f"instead, slower",
            stacklevel=2,
        )
        return False
    return True


def ready(family: Family, device: torch.device) -> bool:
    """Whether these kernels run there: on the current NVIDIA GPU, under no compiler that would rather fuse plain code, and under no
    function transform (`torch.func`, forward-mode derivatives), whose tensors have no memory to work on.

    Triton launches on the current GPU, whatever the tensors': on another one, plain code runs.
    """
    if device.type != "cuda" or torch.compiler.is_compiling() or torch.version.hip is not None:
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    current = torch.cuda.current_device()
    return device.index == current and _works(family, current)


def programs(family: Family) -> Any:
    """The Triton programs of a family, where they are `ready`."""
    return import_module(f"autodual.kernels.gpu.{family}")


def usable(family: Family, *tensors: Tensor) -> bool:
    """Whether these kernels can take these tensors: float32 (see HALVES), not empty, and where the kernels are ready."""
    dtypes = (torch.float32, torch.bfloat16) if family in HALVES else (torch.float32,)
    if not all(t.is_cuda and t.dtype in dtypes and t.numel() > 0 for t in tensors):
        return False
    return all(ready(family, device) for device in {t.device for t in tensors})
