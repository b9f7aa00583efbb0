"""What stops a capture: models that PyTorch has translated, odd classes, what changes every model, and random numbers."""

from __future__ import annotations

import ctypes
import functools
import operator
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autodual._errors import CaptureError
from autodual.graph.calls import Watch, names

# Models that PyTorch has translated, and modules and tensors that are more than their classes: they run code that no graph shows.


def check_model(model: nn.Module, example: Tensor) -> None:
    """Refuse what torch.jit or torch.compile has made of a module, modules with a way of their own to be called, and odd tensors."""
    for path, module in model.named_modules():
        where = path or "model"
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{where}: is a {type(module).__name__} of TorchScript, whose operations cannot be captured; pass the "
                f"module itself, as it was before torch.jit.script or torch.jit.trace"
            )
        if _is_compiled(module):
            raise CaptureError(
                f"{where}: is wrapped by torch.compile, which cannot be captured; pass the module itself, as it was before "
                f"(it shares its parameters with the compiled one)"
            )
        if module._compiled_call_impl is not None:
            raise CaptureError(
                f"{where}: its compile() was called, and a compiled module cannot be captured; pass "
                f"copy.deepcopy(model), which is not compiled"
            )
        if type(module)._call_impl is not nn.Module._call_impl or "_call_impl" in vars(module):
            raise CaptureError(
                f"{where}: its class {type(module).__name__} overrides _call_impl, which a capture does not run; put what it "
                f"does into forward, or into a hook"
            )
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            _check_tensor(tensor, f"{path}.{name}" if path else name)
    _check_tensor(example, "x")


def _is_compiled(module: nn.Module) -> bool:
    """Without importing the compiler, which takes a while: where nobody has, there are no compiled modules."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def _check_tensor(tensor: Tensor | None, name: str) -> None:
    why = odd_tensor(tensor)
    if why is not None:
        raise CaptureError(f"{name}: {why}")


def odd_tensor(tensor: Tensor | None) -> str | None:
    """Why a tensor is refused whose class defines operations of its own, as quantised tensors and annotated images do."""
    kind: type = type(tensor)
    what = None if kind in _KNOWN else _overridden(kind)
    if what is None:
        return None
    return (
        f"is a {kind.__name__}, a class of tensors that overrides {what}, so that functions of PyTorch may compute "
        f"something else with it; pass plain tensors (tensor.as_subclass(torch.Tensor), or tensor.dequantize())"
    )


_KNOWN = (Tensor, nn.Parameter, type(None))
_HARMLESS = names(
    "__module__ __qualname__ __doc__ __annotations__ __dict__ __weakref__ __slots__ __orig_bases__ __new__ __init__ "
    "__init_subclass__ __class_getitem__ __instancecheck__ __parameters__ __repr__ __str__ __copy__ __deepcopy__ __reduce__ "
    "__reduce_ex__ __setstate__ __getstate__ __firstlineno__ __static_attributes__"
)
"""What a class of tensors may define without changing what is computed with them."""


@functools.lru_cache(maxsize=512)
def _overridden(kind: type) -> str | None:
    """The name of something that a class of tensors does otherwise than `Tensor`."""
    own = [cls for cls in kind.__mro__ if issubclass(cls, Tensor) and cls not in _KNOWN and cls is not Tensor.__base__]
    mixed = [cls for cls in kind.__mro__ if not issubclass(cls, Tensor) and not issubclass(Tensor, cls)]
    defined = [name for cls in (*own, *mixed) for name in vars(cls)]
    return next((name for name in defined if name not in _HARMLESS and hasattr(Tensor, name)), None)


# What lies outside a model and changes what it computes: refused, since no graph of the model would show it.

_GLOBAL_HOOKS = {
    "register_module_forward_pre_hook": module_hooks._global_forward_pre_hooks,
    "register_module_forward_hook": module_hooks._global_forward_hooks,
}
_FUNCTIONAL = [n for n, f in vars(F).items() if callable(f) and not n.startswith("__") and not isinstance(f, type)]
_BEHIND = {n for f in _FUNCTIONAL if isinstance(vars(F)[f], FunctionType) for n in vars(F)[f].__code__.co_names}
_OPERATORS = [f"__{r}{name}__" for name in names("add sub mul truediv matmul pow") for r in ("", "r", "i")]
_METHODS = (*_OPERATORS, *names("__neg__ __getitem__ relu clamp flatten reshape view abs exp mean sum"))
_OWNERS: list[tuple[Any, list[str]]] = [
    (F, _FUNCTIONAL),
    (torch, sorted(name for name in _BEHIND if isinstance(vars(torch).get(name), BuiltinFunctionType))),
    (torch.Tensor, sorted(name for name in _METHODS if hasattr(torch.Tensor, name))),
]
_FUNCTIONS = [[getattr(owner, name) for name in found] for owner, found in _OWNERS]
"""Functions of PyTorch that models, and the bounds themselves, are computed with, as they were when this library was imported."""


def hooks_on_all_modules() -> bool:
    return any(_GLOBAL_HOOKS.values())


def check_surroundings(model: nn.Module) -> None:
    """Refuse hooks on all modules, modes, replaced functions of PyTorch, cached parametrizations, and flushed denormals."""
    for registered_by, hooks in _GLOBAL_HOOKS.items():
        for hook in hooks.values():
            raise CaptureError(
                f"model: {_called(hook)} is a hook on every module of the process ({registered_by}), which may change what "
                f"each of them computes; remove it (handle.remove()) before you bound a model, or register it on the modules it is for"
            )
    modes = [m for m in _get_current_function_mode_stack() if not isinstance(m, DeviceContext)]
    for mode in (*modes, *_get_current_dispatch_mode_stack()):
        raise CaptureError(
            f"model: the mode {type(mode).__name__} is active, which may change what every function of PyTorch computes; leave it "
            f"before you bound a model"
        )
    for (owner, found), functions in zip(_OWNERS, _FUNCTIONS, strict=True):
        now = [getattr(owner, name, None) for name in found]
        if any(map(operator.is_not, now, functions)):
            name, other = next((n, o) for n, o, f in zip(found, now, functions, strict=True) if o is not f)
            raise CaptureError(
                f"model: {owner.__name__}.{name} has been replaced by {_called(other)} since autodual was imported, and models "
                f"and bounds are computed with it; put the original back"
            )
    if parametrize._cache_enabled and any(parametrize.is_parametrized(m) for m in model.modules()):
        raise CaptureError(
            "model: has parametrizations, and torch.nn.utils.parametrize.cached() is active, so its weights may be out of date; "
            "leave it before you bound a model"
        )
    # In this thread; threads that were started while it was so keep the setting, which is not asked here.
    if not bool(torch.tensor(2.0**-140) * 2):
        raise CaptureError(
            "model: numbers below the smallest normal one are flushed to zero (torch.set_flush_denormal(True), or a library compiled "
            "with fast-math), so that a weight of 1e-39 counts as nothing however large its factor is; call "
            "torch.set_flush_denormal(False) before PyTorch starts its threads"
        )


def _called(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or 'unknown'}.{name}"


# Random numbers: a certificate is about one function.

_RANDOM = names(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli poisson multinomial binomial normal_ uniform_ "
    "random_ exponential_ cauchy_ log_normal_ geometric_ bernoulli_ gumbel_softmax trunc_normal_ _standard_gamma _sample_dirichlet"
)
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
def no_random_numbers(watch: Watch, held: list[Any]) -> Iterator[None]:
    """Refuse random numbers that this thread draws, whatever other threads do."""
    drawn: list[str] = []

    def notice(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and isinstance(getattr(function, "__self__", None), random.Random):
            drawn.append(f"Python's random, {function.__name__}")

    # Python tells a thread's own profiler of every call; unless somebody is profiling already. While this thread holds the lock of
    # NumPy's generator, nobody else draws from it; a lock of another kind would stop this thread, too.
    lock = _numpy_generator().lock
    reentrant, free = type(lock) is type(threading.RLock()), sys.getprofile() is None
    with _TorchDraws(watch), lock if reentrant else nullcontext():
        numpy_before, before = _numpy_state(), [_state_of(generator) for generator in held]
        if free:
            sys.setprofile(notice)
        try:
            yield
        finally:
            if free:
                sys.setprofile(None)
        if reentrant and numpy_before != _numpy_state():
            drawn.append("numpy.random")
    if before != [_state_of(generator) for generator in held]:
        drawn.append("from a generator that it holds")
    if drawn:
        raise _drawn(watch, drawn[0])


class _TorchDraws(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _RANDOM:
            raise _drawn(self._watch, name)
        return func(*args, **(kwargs or {}))


def _drawn(watch: Watch, how: str) -> CaptureError:
    return watch.refused(
        f"draws random numbers ({how}), and a certificate is about one function. Draw them once, in __init__, and keep them as a "
        f"buffer; or leave the noise out of the module that you certify"
    )
