"""The table of operators: who reads which, and what readers share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from autodual.interchange.conversion import Reader

READERS: dict[str, Reader] = {}


def reads(*operators: str) -> Callable[[Reader], Reader]:
    def note(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys(operators, reader))
        return reader

    return note


def filled(module: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """A module that was made without memory, with these parameters: no random numbers are drawn for what is overwritten."""
    for name, tensor in tensors.items():
        if name in module._buffers:
            module._buffers[name] = tensor
        else:
            setattr(module, name, None if tensor is None else nn.Parameter(tensor))
    return module
