"""Small tensor helpers shared by all layers of the library."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor

from autodual._errors import ArgumentError, UnsoundError

# Names for the types that cross module borders.

Shape: TypeAlias = tuple[int, ...]
"""Shape of one example: the batch dimension is never part of it."""


def check_dense(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that has no values, or not one for each of its entries in memory."""
    if tensor.device.type == "meta":
        raise ArgumentError(f"{name} is on the device 'meta', so it has a shape but no values")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ArgumentError(f"{name} is a tensor of the layout {kind!r}; give a plain one, as {name}.to_dense() is")


def merge_leading(a: Tensor) -> Tensor:
    """[R, N, *shape] -> [R * N, *shape]."""
    return a.flatten(0, 1)


def split_leading(a: Tensor, rows: int) -> Tensor:
    """[R * N, *shape] -> [R, N, *shape]."""
    return a.unflatten(0, (rows, -1))


def channels_inside(a: Tensor) -> Tensor:
    """Lays out [N, C, H, W] with the channels of a position next to each other in memory, if that convolves faster.

    It does on a CPU, and on a GPU's tensor cores, which certificates must not use.
    """
    if a.dim() != 4 or not _convolves_channels_inside(a):
        return a
    if a.shape[1] == 1 and a.is_contiguous():  # only the strides tell, and a convolution passes them on
        return a.squeeze(1).unsqueeze(-1).movedim(-1, 1)
    return a.contiguous(memory_format=torch.channels_last)


def _convolves_channels_inside(a: Tensor) -> bool:
    if a.device.type == "cuda":
        return a.shape[1] > 1 and not torch.compiler.is_compiling() and tf32_convolutions()
    return a.device.type == "cpu"


def channels_lie_inside(a: Tensor) -> bool:
    """Whether the channels of a position of a [N, C, *space] lie next to each other in memory."""
    return a.dim() > 2 and a.stride(1) == 1 and a.shape[1] > 1


def has_channels_inside(a: Tensor) -> bool:
    """Whether the channels of a position of a [R, N, C, H, W] lie next to each other in memory."""
    return a.dim() == 5 and a.stride(2) == 1 and a.shape[2] > 1


def laid_out_like(rows: Tensor, values: Tensor) -> Tensor:
    """Lays out rows [R, 1, *shape] that all examples share as values [N, *shape] lie in memory.

    A CPU multiplies tensors of two orders several times slower, and the shared rows are the small ones. Other rows stay as they are.
    """
    if rows.dim() != 5 or rows.shape[1] != 1 or rows.device.type != "cpu":
        return rows
    return rows.contiguous() if values.is_contiguous() else channels_inside(rows.squeeze(1)).unsqueeze(1)


def values_at_hand(a: Tensor) -> bool:
    """Whether looking at the values costs nothing: not on a device that would have to be waited for, nor in a compiled step."""
    return a.device.type == "cpu" and not torch.compiler.is_compiling()


def is_being_captured(a: Tensor) -> bool:
    """Whether a CUDA graph is captured where this tensor is, so that nothing there has a value yet."""
    return a.is_cuda and torch.cuda.is_current_stream_capturing()


def stacked(like: Tensor, k: int) -> Tensor:
    """Memory for k tensors with the shape and the layout of `like` [N, *shape]."""
    if like.dim() == 4 and like.stride(1) == 1 and like.shape[1] > 1:
        batch, channels, height, width = like.shape
        return like.new_empty(k, batch, height, width, channels).movedim(-1, 2)
    return like.new_empty(k, *like.shape)


def in_memory_order(a: Tensor) -> Tensor:
    """[k, N, C, H, W] as [k, N, H, W, C] where it lies so in memory."""
    return a.movedim(2, -1) if has_channels_inside(a) else a


def flat_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a [R, N, *shape] and b [N, *shape] as [R, N, F] and [N, F], in the order in which `a` lies in memory."""
    if has_channels_inside(a):
        a, b = a.movedim(2, -1), b.movedim(1, -1)
    return flat(a, 2), flat(b, 1)


def flat(a: Tensor, leading: int) -> Tensor:
    """Flattens all but the leading dimensions. There may be no others: an example may be a single number."""
    if a.dim() == leading + 1:
        return a
    return a.flatten(leading) if a.dim() > leading else a.unsqueeze(-1)


def added(terms: list[Tensor]) -> Tensor:
    """Adds up one or more terms, from the first to the last."""
    return sum(terms[1:], terms[0])


def select(values: Tensor, examples: Tensor) -> Tensor:
    """Some examples of values [N, *shape], in the order in which those lie in memory."""
    if not channels_lie_inside(values):
        return values.index_select(0, examples)
    return values.movedim(1, -1).index_select(0, examples).movedim(-1, 1)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Switches TF32, bf16 products and autocast off inside: certificates rest on the rounding of the dtype they state.

    Autocast belongs to a thread, but PyTorch has one set of TF32 switches for the whole process. So they are strict while any
    thread is inside, and what was said before the first one came holds again when the last one leaves. If somebody sets one in
    between, what is computed in that time is refused, and the last one out sets it as that somebody wished.
    """
    start = _PRECISION.enter()
    inside = _STRICT.set(True)
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        _STRICT.reset(inside)
        kept = _PRECISION.leave() == start
    if not kept:
        raise UnsoundError(
            "TF32 or another reduced precision was switched on while bounds were computed, so they may be rounded more than they "
            "state; set torch.backends.*.allow_tf32, fp32_precision and set_float32_matmul_precision outside of certificates (in "
            "other threads, too), and compute them again"
        )


class _Precision:
    """The process's precision of float32 products, strict as long as anybody is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._broken = 0
        """How often it was found not to be strict while it should have been."""
        self._wished: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        """What to set when the last one leaves."""

    def enter(self) -> int:
        with self._lock:
            self._make_strict()
            self._inside += 1
            return self._broken

    def leave(self) -> int:
        """Returns how often strictness was broken so far. If `enter` returned another number, it was broken in between."""
        with self._lock:
            self._make_strict()
            self._inside -= 1
            if self._inside == 0:
                for owner, name, value in self._wished.values():
                    setattr(owner, name, value)
                self._wished.clear()
            return self._broken

    def _make_strict(self) -> None:
        lax = [(owner, name, strict) for owner, name, strict in _precision_settings() if getattr(owner, name) != strict]
        self._wished.update({(id(owner), name): (owner, name, getattr(owner, name)) for owner, name, _ in lax})
        for owner, name, strict in lax:
            setattr(owner, name, strict)
        self._broken += bool(lax and self._inside)


_PRECISION = _Precision()
_STRICT: ContextVar[bool] = ContextVar("inside full_precision", default=False)


def tf32_convolutions() -> bool:
    """Whether a GPU may round the factors of float32 convolutions to TF32."""
    if _STRICT.get():
        return False
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # somebody has used the newer switches, since when the older ones do not answer
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


def products_are_half() -> bool:
    """Whether a GPU is to round the factors of products to bfloat16."""
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


class _MatmulPrecision:
    """`torch.set_float32_matmul_precision` as an attribute, like all other switches."""

    @property
    def precision(self) -> str:
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


_MATMUL = _MatmulPrecision()


def _precision_settings() -> list[tuple[Any, str, Any]]:
    """Where PyTorch keeps the precision of float32 products, and the strict values.

    Version 2.9 brought new switches. The older ones answer only as long as they agree with the new ones, and what they set is
    "whatever is said for all": so where less is said there, or they do not answer, the new ones are needed.
    """
    cuda, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    new = [getattr(mkldnn, part) for part in ("conv", "rnn", "matmul") if hasattr(mkldnn, part)]
    older: list[tuple[Any, str, Any]] = [(cuda, "allow_tf32", False), (cudnn, "allow_tf32", False)]
    said = [getattr(owner, "fp32_precision", "none") for owner in (torch.backends, cudnn)]
    try:
        if torch.get_float32_matmul_precision() == "medium":  # bf16 on a CPU, which allow_tf32 would not bring back
            older[0] = (_MATMUL, "precision", "highest")
        for owner, name, _ in older:
            getattr(owner, name)
    except RuntimeError:
        older = []
    if not older or not set(said) <= {"none", "ieee"}:
        new += [cuda, cudnn.conv, cudnn.rnn]  # type: ignore[attr-defined]
    return older + [(owner, "fp32_precision", "ieee") for owner in new]


HELD = ("reserved_bytes", "allocated_bytes")
"""What PyTorch has taken of a GPU's memory, and what of that is in use."""


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken on `device`."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_stats_as_nested_dict(device)  # `memory_reserved` and its like take ten times as long
        reserved, allocated = (held.get(kind, {}).get("all", {}).get("current", 0) for kind in HELD)
        return int(free + reserved - allocated)
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 << 30
