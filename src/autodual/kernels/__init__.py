"""Operations that have GPU kernels, one file each: plain PyTorch code, gradients, Triton programs, and when which of them runs.

A file marks its Triton programs with `@program` and launches them in functions called `launch_...`. They become programs when they are
to run on a GPU for the first time: nothing else imports Triton, which most machines do not have. Its function `trial` launches each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

LARGEST_K = 256
"""Values that one program can hold to select their median."""
ENOUGH = 1024
"""Programs that fill a GPU."""

Family = Literal["median", "stream", "chord", "narrow", "thin", "weigh"]
"""The name of a file with Triton programs."""

HALVES: frozenset[Family] = frozenset({"median", "stream", "thin"})
"""Families whose samples and streams may be bfloat16; they compute, or at least add up, in float32 all the same."""

tried: dict[tuple[Family, int], bool] = {}
"""Whether the kernels of a family work on the GPU of a number; what was not tried is not there."""


def usable(family: Family, *tensors: Tensor) -> bool:
    """Whether these kernels can take these tensors: float32 (see HALVES), not empty, and where the kernels are ready."""
    dtypes = (torch.float32, torch.bfloat16) if family in HALVES else (torch.float32,)
    if not all(t.is_cuda and t.dtype in dtypes and t.numel() > 0 for t in tensors):
        return False
    return all(ready(family, device) for device in {t.device for t in tensors})


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


def _works(family: Family, device: int) -> bool:
    """Whether Triton is installed and compiles the kernels for this GPU: tried once, and not while a CUDA graph is captured."""
    if (family, device) not in tried:
        if torch.cuda.is_current_stream_capturing():
            return False
        tried[family, device] = find_spec("triton") is not None and _try(family, device)
    return tried[family, device]


def _try(family: Family, device: int) -> bool:
    """Launches all programs of a family once; warns, and answers False, if that fails."""
    try:
        start(family).trial(torch.device("cuda", device))
        torch.cuda.synchronize(device)  # what fails on the device is told late
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


def program(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Marks a function as a Triton program, to be compiled with these options of `triton.jit`."""

    def mark(function: Callable[..., Any]) -> Any:
        function.triton_options = options  # type: ignore[attr-defined]
        return function

    return mark


class ProgramConstant(float):
    """A number that Triton programs of its file read."""


def start(family: Family) -> Any:
    """Imports Triton into the module of a family, makes Triton programs of its marked functions, and returns the module.

    Triton looks for whatever a program calls among the globals of its file, so that is where programs and constants must be.
    """
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    module = import_module(f"autodual.kernels.{family}")
    names = vars(module)
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and hasattr(value, "triton_options"):
            names[name] = triton.jit(value, **value.triton_options)
        elif isinstance(value, ProgramConstant):
            names[name] = tl.constexpr(float(value))
    names |= {"triton": triton, "tl": tl, "libdevice": libdevice}
    return module
