"""What stops a capture before it begins: models that PyTorch has translated, and whatever changes what every model computes."""

from __future__ import annotations

import functools
import operator
import sys
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autodual._errors import CaptureError

# Models that PyTorch has translated already: what they compute cannot be seen from Python any more.


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


# Modules and tensors that are more than their classes: a call of them runs code that no graph shows.

_HARMLESS = frozenset(
    (
        *(
            "__module__",
            "__qualname__",
            "__doc__",
            "__annotations__",
            "__dict__",
            "__weakref__",
            "__slots__",
            "__orig_bases__",
        ),
        *("__new__", "__init__", "__init_subclass__", "__class_getitem__", "__instancecheck__", "__parameters__"),
        *(
            "__repr__",
            "__str__",
            "__copy__",
            "__deepcopy__",
            "__reduce__",
            "__reduce_ex__",
            "__setstate__",
            "__getstate__",
        ),
        *("__firstlineno__", "__static_attributes__"),
    )
)
"""What a class of tensors may define without changing what is computed with them."""


def check_no_more_than_its_class(model: nn.Module, example: Tensor) -> None:
    """Refuse modules with a way of their own to be called, and tensors of classes that change what functions of PyTorch do."""
    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values())
        usual = type(module)._call_impl is nn.Module._call_impl and "_call_impl" not in vars(module)
        if not usual or any(type(t) not in _KNOWN for t in held):
            path = next(path for path, m in model.named_modules() if m is module)
            _check_module(module, path, usual)
    why = odd_tensor(example, "x")
    if why is not None:
        raise CaptureError(why)


_KNOWN = (Tensor, nn.Parameter, type(None))


def _check_module(module: nn.Module, path: str, usual: bool) -> None:
    if not usual:
        raise CaptureError(
            f"{path or 'model'}: its class {type(module).__name__} overrides _call_impl, which a capture does not run; put what it "
            f"does into forward, or into a hook"
        )
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        why = None if tensor is None else odd_tensor(tensor, f"{path}.{name}" if path else name)
        if why is not None:
            raise CaptureError(why)


def odd_tensor(tensor: Tensor, name: str) -> str | None:
    """Why a tensor is refused whose class defines operations of its own, as quantised tensors and annotated images do."""
    kind = type(tensor)
    what = None if kind in _KNOWN else _overridden(kind)
    if what is None:
        return None
    return (
        f"{name}: is a {kind.__name__}, a class of tensors that overrides {what}, so that functions of PyTorch may compute "
        f"something else with it; pass plain tensors (tensor.as_subclass(torch.Tensor), or tensor.dequantize())"
    )


@functools.lru_cache(maxsize=512)
def _overridden(kind: type) -> str | None:
    """The name of something that a class of tensors does otherwise than `Tensor`."""
    own = [cls for cls in kind.__mro__ if issubclass(cls, Tensor) and cls not in _KNOWN and cls is not Tensor.__base__]
    mixed = [
        cls for cls in kind.__mro__ if not issubclass(cls, Tensor) and cls is not object and not issubclass(Tensor, cls)
    ]
    names = [name for cls in (*own, *mixed) for name in vars(cls)]
    return next((name for name in names if name not in _HARMLESS and hasattr(Tensor, name)), None)


# What lies outside a model and changes what it computes: refused, since no graph of the model would show it.

_GLOBAL_HOOKS = {
    "register_module_forward_pre_hook": module_hooks._global_forward_pre_hooks,
    "register_module_forward_hook": module_hooks._global_forward_hooks,
}
_ARITHMETIC = [f"__{r}{name}__" for name in ("add", "sub", "mul", "truediv", "matmul", "pow") for r in ("", "r", "i")]
_METHODS = [
    *_ARITHMETIC,
    "__neg__",
    "__getitem__",
    "relu",
    "clamp",
    "flatten",
    "reshape",
    "view",
    "abs",
    "exp",
    "mean",
    "sum",
]


def _names_read(function: Any) -> tuple[str, ...]:
    return function.__code__.co_names if isinstance(function, FunctionType) else ()


_FUNCTIONAL = [n for n, f in vars(F).items() if callable(f) and not n.startswith("__") and not isinstance(f, type)]
_BEHIND = {name for f in _FUNCTIONAL for name in _names_read(getattr(F, f))}
_OWNERS: list[tuple[Any, list[str]]] = [
    (F, _FUNCTIONAL),
    (torch, sorted(name for name in _BEHIND if isinstance(vars(torch).get(name), BuiltinFunctionType))),
    (torch.Tensor, [name for name in _METHODS if hasattr(torch.Tensor, name)]),
]
_FUNCTIONS = [[getattr(owner, name) for name in names] for owner, names in _OWNERS]
"""Functions of PyTorch that models, and the bounds themselves, are computed with, as they were when this library was imported."""


def hooks_on_all_modules() -> bool:
    return any(_GLOBAL_HOOKS.values())


def check_surroundings(model: nn.Module) -> None:
    """Refuse hooks on all modules, modes, replaced functions of PyTorch, and cached parametrizations."""
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
    for (owner, names), functions in zip(_OWNERS, _FUNCTIONS, strict=True):
        now = [getattr(owner, name, None) for name in names]
        if any(map(operator.is_not, now, functions)):
            name, other = next((n, o) for n, o, f in zip(names, now, functions, strict=True) if o is not f)
            raise CaptureError(
                f"model: {owner.__name__}.{name} has been replaced by {_called(other)} since autodual was imported, and models "
                f"and bounds are computed with it; put the original back"
            )
    if parametrize._cache_enabled and any(parametrize.is_parametrized(m) for m in model.modules()):
        raise CaptureError(
            "model: has parametrizations, and torch.nn.utils.parametrize.cached() is active, so its weights may be out of date; "
            "leave it before you bound a model"
        )
    if _denormals_are_flushed():
        raise CaptureError(
            "model: numbers below the smallest normal one are flushed to zero (torch.set_flush_denormal(True), or a library compiled "
            "with fast-math), so that a weight of 1e-39 counts as nothing however large its factor is; call "
            "torch.set_flush_denormal(False) before PyTorch starts its threads"
        )


def _denormals_are_flushed() -> bool:
    """In this thread; threads that were started while it was so keep the setting, which is not asked here."""
    return not bool(torch.tensor(2.0**-140) * 2)


def _called(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or 'unknown'}.{name}"
