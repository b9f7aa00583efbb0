"""Does a model compute the same thing twice? A certificate is about one function of one example.

A capture runs `forward` once to record it, and again under other circumstances: with another number of examples, without
gradients, and after whatever the first run has stored in the model. Both runs must make the same calls with the same numbers.
So the size of the batch, a counter, a clock, random numbers or the gradient mode do not become constants of the graph.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from autodual._errors import CaptureError

LEFT_BEHIND = "_left_behind"
"""Stands in the second run for a value of the first one."""

_TAKES_SHAPE = frozenset(
    ("view", "reshape", "expand", "broadcast_to", "repeat", "tile", "new_zeros", "new_ones", "new_empty", "new_full")
)
"""Operations among whose arguments the size of the batch may be: nothing but a shape depends on it, or its value is compared."""

_COPIES = frozenset(("contiguous", "clone", "detach"))

_RANDOM = frozenset(
    (
        *(
            "rand",
            "randn",
            "randint",
            "randperm",
            "rand_like",
            "randn_like",
            "randint_like",
            "normal",
            "bernoulli",
            "poisson",
        ),
        *(
            "multinomial",
            "binomial",
            "normal_",
            "uniform_",
            "random_",
            "exponential_",
            "cauchy_",
            "log_normal_",
            "geometric_",
        ),
        *("bernoulli_", "gumbel_softmax", "trunc_normal_", "_standard_gamma", "_sample_dirichlet"),
    )
)


@dataclass(frozen=True)
class Step:
    """One call of the second run. It has the fields of a `torch.fx.Node` that are compared, and costs less."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return _name(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(frozen=True)
class Run:
    """What one run of a model did: the call that made its output, the values of all calls, and the tensors that it made itself."""

    batch: int
    output: Any
    values: dict[Any, Any]
    constants: dict[str, Tensor]


GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
"""Classes of objects that random numbers come from."""


def random_state(device: torch.device, held: list[Any]) -> tuple[Any, ...]:
    """The states of all global random numbers, and of the generators that the model holds.

    Other threads move them, too: a change is only a reason to look again.
    """
    on_device = torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else None
    torch_state = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), _numpy_state(), torch_state, on_device, [_state_of(generator) for generator in held]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state())


def _numpy_state() -> Any:
    """From the memory of the usual generator, which takes a microsecond; `np.random.get_state` takes 50."""
    generator = _numpy_generator()
    if type(generator) is not np.random.MT19937:
        return repr(generator.state)
    return ctypes.string_at(generator.ctypes.state_address, 625 * 4)  # 624 words and a position


def _numpy_generator() -> Any:
    return np.random.get_bit_generator()  # type: ignore[attr-defined]


@contextmanager
def no_random_numbers(where: Callable[[], str], held: list[Any]) -> Iterator[None]:
    """Refuse random numbers that this thread draws, whatever other threads do. where: the path of the module that is being run."""
    before = [_state_of(generator) for generator in held]
    with _TorchDraws(where), _python_draws(where), _numpy_draws(where):
        yield
    if before != [_state_of(generator) for generator in held]:
        raise _random(where, "from a generator that it holds")


def _random(where: Callable[[], str], how: str) -> CaptureError:
    return CaptureError(
        f"{where() or 'model'}: draws random numbers ({how}), and a certificate is about one function. Draw them once, in "
        f"__init__, and keep them as a buffer; or leave the noise out of the module that you certify"
    )


class _TorchDraws(TorchFunctionMode):
    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self._where = where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _RANDOM:
            raise _random(self._where, name)
        return func(*args, **(kwargs or {}))


@contextmanager
def _python_draws(where: Callable[[], str]) -> Iterator[None]:
    """Python tells a thread's own profiler of every call; unless somebody is profiling already."""
    drawn: list[str] = []

    def notice(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and isinstance(getattr(function, "__self__", None), random.Random):
            drawn.append(function.__name__)

    if sys.getprofile() is not None:
        yield
        return
    sys.setprofile(notice)
    try:
        yield
    finally:
        sys.setprofile(None)
    if drawn:
        raise _random(where, f"Python's random, {drawn[0]}")


@contextmanager
def _numpy_draws(where: Callable[[], str]) -> Iterator[None]:
    """While this thread holds the lock of NumPy's generator, nobody else draws from it."""
    lock = _numpy_generator().lock
    if type(lock) is not type(threading.RLock()):  # this thread could not draw, either
        yield
        return
    with lock:
        before = _numpy_state()
        yield
        after = _numpy_state()
    if before != after:
        raise _random(where, "numpy.random")


def check_agreement(first: Run, second: Run, depends: set[fx.Node], paths: dict[fx.Node, str]) -> None:
    """Refuse a model whose runs made other calls, or the same with other numbers, on the way to their outputs."""
    found = _differences(first, second, depends)
    if not found:
        return
    order = {node: i for i, node in enumerate(first.values)}
    node, how = min(found, key=lambda difference: order.get(difference[0], len(order)))
    raise CaptureError(
        f"{paths.get(node, '') or 'model'}: computes something else when it runs again, with a batch of {second.batch} instead of "
        f"{first.batch} ({how}). It may depend on the batch size, on random numbers, on what an earlier run has stored, on the time, "
        f"on how x lies in memory, or on whether gradients are wanted (torch.is_grad_enabled(), inference mode, x.requires_grad); "
        f"certificates need one function per example. What is filled once may be filled in __init__"
    )


def _differences(first: Run, second: Run, depends: set[fx.Node]) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = []
    partner: dict[Any, Any] = {}
    waiting: list[tuple[Any, Any]] = [(first.output, second.output)]
    while waiting:
        one, other = (_behind_copies(a) for a in waiting.pop())
        if one in partner:
            if partner[one] is not other:
                found.append((one, f"{_name(one)} is used where another value was"))
            continue
        partner[one] = other
        inputs: list[tuple[Any, Any]] = []
        how = _different_call(one, other, first, second, inputs)
        if how is None and one in depends:
            how = _different_shape(first.values[one], second.values[other], first.batch, second.batch)
            for a, b in inputs:
                if how is None and a not in depends and not _same_value(a, b, first, second):
                    how = f"{_name(a)} has another value"
        if how is None:
            waiting += inputs
        else:
            found.append((one, f"{_name(one)}: {how}"))
    return found


def _behind_copies(a: Any) -> Any:
    """The call that made a value. Where a tensor lies in memory, `contiguous` and its like may be called or not: they copy."""
    while (
        _is_call(a)
        and a.op in ("call_method", "call_function")
        and _name(a) in _COPIES
        and a.args
        and _is_call(a.args[0])
    ):
        a = a.args[0]
    return a


def _different_call(one: Any, other: Any, first: Run, second: Run, inputs: list[tuple[Any, Any]]) -> str | None:
    """How two calls differ; inputs: gets the calls that they take their arguments from, in pairs."""
    if other.target == LEFT_BEHIND:
        return "uses what its first run has stored"
    if one.op == "get_attr" and other.op == "get_attr":
        a, b = first.constants.get(one.target), second.constants.get(other.target)
        if a is not None and b is not None:
            return None if a is b or _same_tensor(a, b, first.batch, second.batch) else "another value"
    if one.op != other.op or not (one.target is other.target or one.target == other.target):
        return f"{_name(other)} instead"
    batches = (first.batch, second.batch) if _name(one) in _TAKES_SHAPE else None
    if _same(one.args, other.args, batches, inputs) and _same(one.kwargs, other.kwargs, batches, inputs):
        return None
    return f"{_shown(other)} instead of {_shown(one)}"


def _different_shape(a: Any, b: Any, batch: int, other_batch: int) -> str | None:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return None
    expected = (other_batch if a.shape[:1] == (batch,) else None, *a.shape[1:])
    return None if tuple(b.shape) == expected else f"shape {tuple(b.shape)} instead of {tuple(a.shape)}"


def _same_value(one: Any, other: Any, first: Run, second: Run) -> bool:
    """Whether two values that do not depend on the input are one constant for every example."""
    a, b = first.values[one], second.values[other]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (one.op == "get_attr" and one.target not in first.constants) or _same_tensor(
            a, b, first.batch, second.batch
        )
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return True  # its elements are picked by further calls
    return _same(a, b, None, [])


def _same_tensor(a: Tensor, b: Tensor, batch: int, other_batch: int) -> bool:
    """Whether two constants are one: what either has for each example of its batch must be the same for all of them."""
    a, b = a.detach(), b.detach()
    if a.dtype != b.dtype or a.dim() != b.dim() or a.device != b.device:
        return False
    if a.shape == b.shape:
        return _close(a, b) if a.is_cuda else _equal(a, b)
    for dim, sizes in enumerate(zip(a.shape, b.shape, strict=True)):
        if sizes == (batch, other_batch):
            one, other = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
            if not (_equal(a, one.expand_as(a)) and _equal(b, other.expand_as(b))):
                return False
            a, b = one, other
    return a.shape == b.shape and _close(a, b)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal but for the order in which a sum was computed, which may depend on shapes."""
    if not a.is_floating_point():
        return _equal(a, b)
    room = 16 * torch.finfo(a.dtype).eps * float(a.abs().nan_to_num(0, 0, 0).amax()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0, atol=room, equal_nan=True)


def unchanged(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor holds what it held when it was copied."""
    return tensor.shape == copy.shape and _equal(tensor.detach(), copy)


def calls_in(arguments: Any) -> list[Any]:
    """The calls whose results are among arguments."""
    if _is_call(arguments):
        return [arguments]
    if isinstance(arguments, slice):
        return calls_in((arguments.start, arguments.stop, arguments.step))
    parts = arguments.values() if isinstance(arguments, dict) else arguments
    return [call for part in parts for call in calls_in(part)] if isinstance(arguments, tuple | list | dict) else []


def _is_call(a: Any) -> bool:
    return isinstance(a, fx.Node | Step)


def _same(a: Any, b: Any, batches: tuple[int, int] | None, inputs: list[tuple[Any, Any]]) -> bool:
    """Whether arguments are equal. Calls among them go to `inputs`; the batch's sizes stand for one another if they are given."""
    if _is_call(a) or _is_call(b):
        inputs.append((a, b))
        return _is_call(a) and _is_call(b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y, batches, inputs) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_same(a[key], b[key], batches, inputs) for key in a)
    if isinstance(a, slice) and isinstance(b, slice):
        return _same((a.start, a.stop, a.step), (b.start, b.stop, b.step), batches, inputs)
    if type(a) is not type(b):
        return False
    if type(a) is int and batches is not None and (a, b) == batches:
        return True
    return repr(a) == repr(b) if isinstance(a, float | complex) else a is b or bool(a == b)


def _name(node: Any) -> str:
    target = node.target
    if target is getattr and len(node.args) > 1:
        return str(node.args[1])
    return target.removeprefix("model.") if isinstance(target, str) else str(getattr(target, "__name__", target))


def _shown(node: Any) -> str:
    told = [repr(a) for a in node.args if not _is_call(a)] + [
        f"{k}={v!r}" for k, v in node.kwargs.items() if not _is_call(v)
    ]
    return f"{_name(node)}({', '.join(told)})"


def dependents(graph: fx.Graph) -> set[fx.Node]:
    """The calls that depend on the graph's input."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found
