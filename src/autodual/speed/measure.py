"""What `autodual bench` measures with: seconds, memory, the work that a step does, and the most that the machine can do."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import platform
import statistics
import sys
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from autodual import kernels
from autodual._tensor import free_bytes, tf32_convolutions
from autodual.runs.folder import versions
from autodual.training.loop import StoppedError

LEAST, MOST = 8, 2000
"""Calls that are timed, whatever they take."""

Stop = Callable[[], bool]


def never() -> bool:
    return False


# Seconds and bytes


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of the seconds of many calls."""

    median: float
    low: float
    high: float
    calls: int

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def timed(work: Callable[[], object], device: torch.device, seconds: float, stop: Stop = never) -> Spread:
    """Calls in a row, LEAST at least and then as many as begin within `seconds`; they must be warm.

    On a GPU events divide the time, so that nothing between two calls is left out: what the host does between launches counts as
    soon as the GPU waits for it.
    """
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < LEAST or (len(found) < MOST and time.perf_counter() - begin < seconds):
        if stop() and len(found) > 1:
            break  # with what there is; whoever goes on asks again
        if stop():
            raise StoppedError("stopped as asked")
        found += _seconds_of_some(work, device)
    return Spread.of(found)


def _seconds_of_some(work: Callable[[], object], device: torch.device, calls: int = LEAST) -> list[float]:
    """Seconds of `calls` calls on a GPU, which is not waited for in between; of a single call on a CPU."""
    if device.type != "cuda":
        begin = time.perf_counter()
        work()
        return [time.perf_counter() - begin]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize(device)
    return [one.elapsed_time(other) / 1e3 for one, other in pairwise(marks)]


def once(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, from when the device is idle until it is idle again."""
    synchronise(device)
    begin = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - begin


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Peak:
    """Memory that is taken on top of what is there at the beginning: allocated on a GPU, resident on a CPU.

    None where the system does not tell: the resident set is known on Linux only.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before: int | None = torch.cuda.memory_allocated(device)
            return
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)  # or memory that was freed, but kept for later, would not be seen
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget earlier peaks
        self.before = resident("VmRSS")

    def bytes(self) -> int | None:
        cuda = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if cuda else resident("VmHWM")
        return None if peak is None or self.before is None else peak - self.before


def resident(entry: str) -> int | None:
    """A line of /proc/self/status in bytes: VmRSS is resident now, VmHWM was at most. None where there is no such file."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{entry}:"):
                return int(line.split()[1]) * 1024
    return None


def cpu_seconds_of_others() -> float | None:
    """CPU seconds that everything but this process has used since the machine started: two readings tell who was in the way."""
    with contextlib.suppress(OSError):
        numbers = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
        user, nice, system, _idle, _waiting, irq, softirq, steal = (int(n) / os.sysconf("SC_CLK_TCK") for n in numbers)
        return user + nice + system + irq + softirq + steal - time.process_time()
    return None


# What a step does

FLOAT32, TF32, BFLOAT16 = "float32", "TF32", "bfloat16"


@dataclass
class Work:
    """Floating-point operations of matrix products and convolutions by the arithmetic that they run in, and bytes moved.

    Bytes: every operation of PyTorch reads its operands and writes its results once, whatever a cache holds; a value that is
    broadcast is read once. A kernel of `autodual.kernels` reads its arguments and writes its results; what lies in between is not
    counted. Operations other than products, such as sums and tangents, count as bytes alone.
    """

    operations: Tally[str] = field(default_factory=Tally)
    read: int = 0
    written: int = 0

    @property
    def bytes(self) -> int:
        return self.read + self.written


class Counting(TorchDispatchMode):
    """Adds up what every operation of PyTorch does while this is active."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.work.operations[_arithmetic(func, args)] += formula(*args, **kwargs, out_val=result)
        name, schema = func.overloadpacket.__name__, func._schema
        if name in _MOVES_NOTHING or any(r.alias_info and not r.alias_info.is_write for r in schema.returns):
            return
        given = [*zip(schema.arguments, args, strict=False)]
        given += [(a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs]
        changed = [value for argument, value in given if argument.alias_info and argument.alias_info.is_write]
        results = result if len(schema.returns) > 1 else [result]
        fresh = [value for r, value in zip(schema.returns, results, strict=False) if not r.alias_info]
        self.work.written += size_of(changed) + size_of(fresh)
        if name not in _READS_NOTHING:
            unread = [value for a, value in given if a.is_out or (name == "copy_" and a.name == "self")]
            self.work.read += size_of([value for _, value in given]) - size_of(unread)

    @contextlib.contextmanager
    def with_kernels(self) -> Iterator[Work]:
        """Counts the kernels, too, of modules that have been imported: call what is counted once before."""
        with contextlib.ExitStack() as stack:
            for family in get_args(kernels.Family):
                module = sys.modules.get(f"autodual.kernels.{family}")
                for name, function in list(vars(module).items()) if module is not None else ():
                    if name.startswith("launch_"):
                        stack.enter_context(patch.object(module, name, self._counted(f"{family}.{name}", function)))
            stack.enter_context(self)
            yield self.work

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.work.read += size_of([*args, *kwargs.values()])
            self.work.written += size_of(result)
            if name in _PRODUCTS:
                self.work.operations[TF32] += _PRODUCTS[name](args, result)
            return result

        return counted


_MOVES_NOTHING = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_READS_NOTHING = {
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full",
    "zero_", "fill_", "uniform_", "normal_", "cauchy_", "bernoulli_", "random_", "exponential_",
}  # fmt: skip


_PRODUCTS: dict[str, Callable[[tuple[Any, ...], Tensor], int]] = {
    "narrow.launch_convolve": lambda args, result: 2 * result.numel() * args[1][0].numel(),
    "narrow.launch_spread": lambda args, result: 2 * args[0].numel() * args[1][0].numel(),
    "narrow.launch_on_weight": lambda args, result: 2 * args[0].numel() * result[0].numel(),
}
"""Operations of kernels with products, which run in TF32. Each value [M, F, H', W'] on the filters' side of a convolution or its
transpose meets all weights of its filter."""


def _arithmetic(func: Any, args: tuple[Any, ...]) -> str:
    """The arithmetic in which a product runs."""
    first = next(a for a in args if isinstance(a, Tensor))
    if first.dtype in (torch.bfloat16, torch.float16):
        return BFLOAT16
    if first.device.type != "cuda" or first.dtype != torch.float32:
        return FLOAT32
    convolves = "conv" in func.overloadpacket.__name__
    return TF32 if (tf32_convolutions() if convolves else torch.backends.cuda.matmul.allow_tf32) else FLOAT32


def size_of(value: Any) -> int:
    """Bytes of all tensors in a value; a dimension that only repeats what is there takes none."""
    size = 0
    for tensor in (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)):
        places = zip(tensor.shape, tensor.stride(), strict=True)
        size += tensor.element_size() * math.prod(n for n, stride in places if stride != 0 or n == 0)
    return size


# What the machine can do

COPY = "copy"


def ceilings(device: torch.device, copied: int | None = None, width: int | None = None) -> dict[str, float]:
    """Bytes per second of a large copy (read and written), and operations per second of large products: the best of some calls."""
    cuda = device.type == "cuda"
    copied = min(1 << 30 if cuda else 1 << 28, free_bytes(device) // 8) if copied is None else copied
    width = (8192 if cuda else 1536) if width is None else width
    found = {COPY: _copied_per_second(device, copied)}
    with torch.random.fork_rng([device] if cuda else []):
        a, b = (torch.randn(width, width, device=device) for _ in range(2))
    if not cuda:
        return found | {FLOAT32: 2 * width**3 / _best(lambda: a @ b, device)}
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for name in (FLOAT32, TF32):
            torch.backends.cuda.matmul.allow_tf32 = name == TF32
            found[name] = 2 * width**3 / _best(lambda: a @ b, device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    c, d = a.bfloat16(), b.bfloat16()
    return found | {BFLOAT16: 2 * width**3 / _best(lambda: c @ d, device)}


def _copied_per_second(device: torch.device, copied: int) -> float:
    source = torch.ones(copied // 4, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / _best(lambda: target.copy_(source), device)


def _best(work: Callable[[], object], device: torch.device, calls: int = 10) -> float:
    work()
    return min(min(_seconds_of_some(work, device)) for _ in range(calls))


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """The machine and the versions, as a flat record."""
    own: dict[str, str | int] = {"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return own | {"cpu": cpu_name(), "cores": os.cpu_count() or 0, "threads": torch.get_num_threads(), **versions()}


def cpu_name() -> str:
    """The name of the CPU, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# Where the time goes


Measured = dict[str, Any]


def hottest(
    work: Callable[[], object], device: torch.device, of: str, rows: int = 20, calls: int = 3
) -> list[Measured]:
    """Lists what takes most time in a call, the longest first.

    of: "kernels" of a GPU, or "operations" of PyTorch with the shapes of their operands, whose time is that of the kernels that they
    launch on a GPU, and their own on a CPU.
    """
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if cuda else []
    if of == "operations":
        activities.append(ProfilerActivity.CPU)
    with profile(activities=activities, record_shapes=of == "operations", acc_events=True) as found:
        for _ in range(calls):
            work()
        synchronise(device)
    kind = "CPU" if of == "operations" else "CUDA"
    averages: Any = found.key_averages(group_by_input_shape=of == "operations")
    events = [
        (e.self_device_time_total if cuda else e.self_cpu_time_total, e) for e in averages if e.device_type.name == kind
    ]
    whole = sum(spent for spent, _ in events) or 1.0
    events.sort(key=lambda event: -event[0])
    return [
        {
            "name": e.key, "shapes": [list(s) for s in e.input_shapes or () if s], "calls": e.count / calls,
            "ms": spent / calls / 1e3, "part": spent / whole,
        }
        for spent, e in events[:rows]
        if spent > 0
    ]  # fmt: skip
