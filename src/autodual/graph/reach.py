"""What Python code can reach from an object: the one walk that copies a model and that notices what has changed about it."""

from __future__ import annotations

import argparse
import dis
import functools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SEQUENCES = (list, tuple, set, frozenset, deque)
MAPPINGS = (dict, OrderedDict, defaultdict)
_PLAIN_ENOUGH = (types.SimpleNamespace, argparse.Namespace)
_NOTHING_INSIDE = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), slice, range, property),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator),
    *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, Tensor, np.ndarray, np.generic),
)


def package_of(value: Any) -> str:
    """The package that a class or function comes from; empty for one that does not say."""
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def is_container(value: Any) -> bool:
    """A list, tuple, set, deque or dictionary; a named tuple too, but no other class that inherits from them."""
    kind = type(value)
    return kind in SEQUENCES or kind in MAPPINGS or (isinstance(value, tuple) and hasattr(value, "_fields"))


def is_object(value: Any) -> bool:
    """An object with attributes of its own, of a class that somebody wrote: not one of the standard library, nor a tensor."""
    kind = type(value)
    if isinstance(value, _PLAIN_ENOUGH):
        return True
    if isinstance(value, _NOTHING_INSIDE) or not hasattr(value, "__dict__") or issubclass(kind, functools.partial):
        return False
    return package_of(kind) not in sys.stdlib_module_names


def attributes(value: Any) -> dict[str, Any]:
    """An object's own attributes, those in slots too."""
    found = dict(vars(value))
    kind: type = type(value)
    found.update((name, getattr(value, name)) for name in _slots(kind) if hasattr(value, name))
    return found


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[str, ...]:
    slots = [vars(cls).get("__slots__", ()) for cls in kind.__mro__]
    names = [name for s in slots for name in ((s,) if isinstance(s, str) else s)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def parts(value: Any) -> Iterator[Any]:
    """What `value` holds: elements, attributes, closures, defaults, a method's object, and globals that a function reads."""
    kind = type(value)
    if kind in (bool, int, float, str, type(None)) or isinstance(value, Tensor):
        return
    if is_container(value):
        if kind in MAPPINGS:
            yield from [*value.keys(), *value.values()]  # at once: another thread may be writing to it
        else:
            yield from list(value)
    elif kind is types.FunctionType:
        yield from cells(value).values()
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        yield from vars(value).values()
        yield from globals_read(value).values()
    elif kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif kind is weakref.ref:
        yield value()
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif is_object(value):
        yield from attributes(value).values()


def cells(function: types.FunctionType) -> dict[str, Any]:
    """The variables of enclosing functions that `function` reads, as far as they have values."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # assigned later, or never
            continue
    return found


def globals_read(function: types.FunctionType) -> dict[str, Any]:
    """The global variables that `function` reads and that may differ from run to run.

    Modules of Python, classes and functions of other files are left out: they hold no part of anybody's model.
    """
    space = function.__globals__
    if package_of(function) in ("", "torch", "numpy", "autodual"):
        return {}
    found = {}
    for name in global_names(function.__code__):
        value = space.get(name)
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType) or value is None:
            continue
        if isinstance(value, types.FunctionType) and value.__globals__ is not space:
            continue
        found[name] = value
    return found


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Names that the code, or a function inside it, looks up among the globals."""
    names = {i.argval: None for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(global_names(constant))
    return tuple(names)


def own_classes(module: nn.Module) -> tuple[type, ...]:
    """The classes of a module that PyTorch has not written."""
    kind: type = type(module)
    return _own_classes(kind)


@functools.lru_cache(maxsize=4096)
def _own_classes(kind: type) -> tuple[type, ...]:
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return tuple(cls for cls in own if package_of(cls) != "torch")
