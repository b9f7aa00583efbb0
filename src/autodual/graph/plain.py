"""A run of `forward` on tensors: its calls are noted, values of what is made of the input are kept from it, and random numbers."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autodual._errors import CaptureError
from autodual.graph.calls import Calls, Step, key_of, shaped_by_values, tensors, written_to

FACTS = frozenset(
    ("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "get_device")
)
"""Methods that say something about a tensor without reading its values: answered from the sample, never recorded."""
TELLS_BATCH = FACTS | {"shape", "nbytes", "__len__", "squeeze", "squeeze_", "squeeze_copy"}
"""Methods and properties that tell how many examples there are; `squeeze` does, since it drops a batch of one."""
OUT_OF_SIGHT = frozenset(
    ("numpy", "storage", "untyped_storage", "_typed_storage", "__array__", "__dlpack__", "apply_", "map_", "map2_")
)
"""Methods that hand out a tensor's memory, or write to it without counting: whoever writes there, nobody sees it."""
SETTABLE = frozenset(("requires_grad", "grad", "names"))
"""Attributes of a tensor that may be assigned to, since they change no value of it."""

CIRCUMSTANCES = frozenset(
    (
        "is_contiguous",
        "stride",
        "storage_offset",
        "requires_grad",
        "is_leaf",
        "grad_fn",
        "_version",
        "_base",
        "is_inference",
    )
)
"""Methods and properties that tell how a tensor lies in memory, or that gradients are wanted."""

_OTHER_FACTS = frozenset(("__len__", "__hash__", "__dir__", "__sizeof__", "storage_offset", "element_size", "type"))
_NO_VALUES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, type(None))
_SHOWS = frozenset(("__repr__", "__str__", "__format__"))
SHOWN = "tensor(...)"
"""What a model sees of a tensor as text, so that it may print one and cannot read one."""


class _NormalTensors:
    """Neither inference mode nor gradients; the state before comes back with the one guard."""

    def __enter__(self) -> None:
        self._guard = torch.inference_mode(False)
        self._guard.__enter__()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: Any) -> None:
        self._guard.__exit__(*error)


def outside_inference_mode() -> AbstractContextManager[None]:
    """Where a model runs in inference mode, its operations do not: tensors made there do not tell who writes to them."""
    return _NormalTensors() if torch.is_inference_mode_enabled() else nullcontext()


class Plain(TorchFunctionMode):
    """While it is entered, keeps the calls that a model makes with tensors, and refuses it the values of what is made of x."""

    def __init__(self, x: Tensor, names: dict[int, str], where: Callable[[], str]) -> None:
        super().__init__()
        self.calls = Calls(names, len(x))
        self.calls.name(x, "x")
        self.refusal: CaptureError | None = None
        self.asked = False
        """Whether the model has asked for circumstances of a tensor."""
        self._where = where
        self.told = False
        """Whether it has asked for anything that tells the size of the batch."""
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self.within = False

    def own(self, tensor: Tensor) -> Tensor:
        """A copy of one of the model's tensors, always the same, so that a write cannot reach the model."""
        if id(tensor) not in self._own:  # both are kept, so that no identity is used twice
            with torch._C.DisableTorchFunction(), outside_inference_mode():
                copy = tensor.detach().clone()
                copy = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
            name = self.calls.names.get(id(tensor))
            self._own[id(tensor)] = copy if name is None else self.calls.name(copy, name), tensor
        return self._own[id(tensor)][0]

    def call(self, path: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call of a module that is kept as one, whatever it calls in turn."""
        with self.one_call():
            return self._kept((path,), self._where(), function, args, kwargs)

    @contextmanager
    def one_call(self) -> Iterator[None]:
        """What is called inside is not kept."""
        before, self.within = self.within, True
        try:
            yield
        finally:
            self.within = before

    def unknown(self, made: Any) -> Any:
        """What was made of a proxy that an earlier run has stored: nobody can say what it holds."""
        with torch._C.DisableTorchFunction():
            for tensor in tensors(made):
                self.calls.forget(tensor)
        return made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.within:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__set__" and getattr(func.__self__, "__name__", "") not in SETTABLE:
            self.calls.forget(args[0])
        return self._kept(func, self._where(), func, args, kwargs)

    def _kept(self, target: Any, path: str, function: Any, args: Any, kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # what is asked here is no question of the model's
            step = self.calls.begin(target, args, kwargs, path)
            versions = [t._version for t in step.given] if step is not None else []
        if step is None:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if step.varies and name in _SHOWS:
            return SHOWN
        fact = key_of(function) if name == "__get__" else name
        self.asked |= fact in CIRCUMSTANCES
        self.told |= fact in TELLS_BATCH
        try:
            with outside_inference_mode():
                made = function(*args, **kwargs)
        except Exception:
            self.told = True  # for another number of examples, it may not fail, and the model may catch it
            raise
        with torch._C.DisableTorchFunction():
            self.told |= isinstance(made, tuple | list)
            if step.varies and (name in OUT_OF_SIGHT or _reads_values(name, made) or shaped_by_values(step, made)):
                raise self._refused(step, name)
            written = written_to(name, zip(step.given, versions, strict=True), args[0] if args else None)
            self.calls.finish(step, made, written)
        return made

    def _refused(self, step: Step, name: str) -> CaptureError:
        error = CaptureError(
            f"{step.path or 'model'}: reads values of what it has made of its input ({name}), when it runs on tensors; what it does "
            f"with them cannot be bounded as one network. Replace it by operations on tensors (torch.maximum, clamp, a mask that is "
            f"a constant), or move it out of the module that you certify"
        )
        self.refusal = self.refusal or error
        return error


def _reads_values(name: str, made: Any) -> bool:
    """Whether a call returns anything but tensors and facts that are the same for all values."""
    if isinstance(made, _NO_VALUES) or tensors(made):
        return False
    return not (
        name in FACTS or name in _OTHER_FACTS or name == "__get__" or (name.startswith("is_") and name != "is_nonzero")
    )


# Random numbers: a certificate is about one function.

_RANDOM = frozenset(
    ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
     "poisson", "multinomial", "binomial", "normal_", "uniform_", "random_", "exponential_", "cauchy_",
     "log_normal_", "geometric_", "bernoulli_", "gumbel_softmax", "trunc_normal_", "_standard_gamma",
     "_sample_dirichlet")
)  # fmt: skip
"""Functions that draw random numbers."""

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
