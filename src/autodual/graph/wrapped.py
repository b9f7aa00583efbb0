"""Models that PyTorch has translated already: what they compute cannot be seen from Python any more."""

from __future__ import annotations

import sys

import torch
from torch import nn

from autodual._errors import CaptureError


def check_not_translated(model: nn.Module) -> None:
    """Refuse what torch.jit or torch.compile has made of a module, or of a part of it, and say what to pass instead."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{path or 'model'}: is a {type(module).__name__} of TorchScript, whose operations cannot be captured; pass the "
                f"module itself, as it was before torch.jit.script or torch.jit.trace"
            )
        if _is_compiled(module):
            raise CaptureError(
                f"{path or 'model'}: is wrapped by torch.compile, which cannot be captured; pass the module itself, as it was before "
                f"(it shares its parameters with the compiled one)"
            )
        if module._compiled_call_impl is not None:
            raise CaptureError(
                f"{path or 'model'}: its compile() was called, and a compiled module cannot be captured; pass "
                f"copy.deepcopy(model), which is not compiled"
            )


def _is_compiled(module: nn.Module) -> bool:
    """Without importing the compiler, which takes a while: where nobody has, there are no compiled modules."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)
