"""Twins of a model's modules, which run in their place while it is captured.

`torch.fx` traces by replacing `nn.Module.__call__` and `nn.Module.__getattr__` for the whole process. Here each module gets a
twin instead, a private copy: no other thread sees what is done to it, and the model stays as it was. A twin is an object of the
same class with the same attributes, so `type(self)`, `isinstance` and `super()` mean what they mean in the model. The modules that
it holds are twins, too: as submodules, in lists and dictionaries, in closures and global variables of its functions and hooks, in
objects. Lists and dictionaries are copied with the module, so that whatever `forward` stores, it stores in the twin. Parameters,
buffers and all other tensors are shared.
"""

from __future__ import annotations

import argparse
import dis
import functools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

# What Python code can reach from an object: the one walk that copies a model and that notices what has changed about it.

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


MOST = 200_000
"""Most objects that are looked through. A module behind more of them is not found, and a call of it is refused."""

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class Twins:
    """One twin for every module of `root`, by the identity of the original."""

    def __init__(self, root: nn.Module) -> None:
        self.originals = {id(m): m for m in root.modules()}
        self._memo: dict[int, Any] = {i: object.__new__(type(m)) for i, m in self.originals.items()}
        self._kept: list[Any] = []  # so that no identity is used twice
        self.of: dict[int, nn.Module] = dict(self._memo)
        self._private = self._find_private()
        for i, original in self.originals.items():
            state = vars(self.of[i])
            for name, value in attributes(original).items():
                if name not in _OF_EVERY_MODULE:
                    object.__setattr__(self.of[i], name, self._copied(value))
                elif isinstance(value, dict):
                    state[name] = type(value)({k: self._copied(v) for k, v in list(value.items())} if value else ())
                else:
                    state[name] = set(value) if type(value) is set else value
            for name, value in self._of_classes(original):
                if id(value) in self._private:
                    copy = self._copied(value)
                    state.setdefault(
                        name, types.MethodType(copy, self.of[i]) if isinstance(copy, types.FunctionType) else copy
                    )

    def dissolve(self) -> None:
        """Forgets all copies, so that no cycle of references keeps anything in memory."""
        for twin in self.of.values():
            vars(twin).clear()
        self._memo.clear()
        self._private.clear()
        self._kept.clear()

    def holding(self, kinds: tuple[type, ...]) -> list[Any]:
        """Objects of these classes that the model holds."""
        return [value for value in self._kept if isinstance(value, kinds)]

    def _of_classes(self, original: nn.Module) -> Iterator[tuple[str, Any]]:
        """What the module finds in classes of its own: functions, and values that may lead to a module."""
        seen: set[str] = set()
        for cls in own_classes(original):
            for name, value in vars(cls).items():
                known = isinstance(value, types.FunctionType | types.MethodType | functools.partial | nn.Module)
                if name not in seen and not name.startswith("__") and (known or is_container(value)):
                    yield name, value
                seen.add(name)

    def _find_private(self) -> set[int]:
        """Identities of what must be copied: containers that `forward` may write to, and whatever leads to them or to a module.

        Objects, and what only global variables hold, are shared unless they lead to a module: code may ask which one they are.
        """
        private = set(self.originals)
        holders: dict[int, list[int]] = {}
        own: list[Any] = []
        shared: list[Any] = []
        seen: set[int] = set(self.originals)

        def meet(owner: int, values: Iterable[Any], waiting: list[Any]) -> None:
            for value in values:
                kind = type(value)
                if kind is int and value in self.originals:  # somebody keeps the id() of a module
                    private.add(owner)
                if kind is str or kind is int or kind is float or kind is bool or value is None:
                    continue
                holders.setdefault(id(value), []).append(owner)
                if id(value) not in seen:
                    seen.add(id(value))
                    waiting.append(value)

        for i, module in self.originals.items():
            for name, value in attributes(module).items():
                if name not in _OF_EVERY_MODULE:
                    meet(i, (value,), own)
                elif name.endswith("hooks") and value:
                    meet(i, value.values(), own)
        while own and len(seen) < MOST:
            value = own.pop()
            self._kept.append(value)
            if is_container(value):
                private.add(id(value))
                meet(id(value), parts(value), own)
            elif type(value) is types.FunctionType:
                meet(id(value), cells(value).values(), own)
                shared.append(value)
            elif not isinstance(value, nn.Module):  # a module of somebody else's: a call of it is refused
                meet(id(value), parts(value), own if type(value) is types.MethodType else shared)
        for i, module in self.originals.items():
            meet(i, (value for _, value in self._of_classes(module)), shared)
        while shared and len(seen) < MOST:
            value = shared.pop()
            self._kept.append(value)
            if not isinstance(value, nn.Module):
                meet(id(value), parts(value), shared)
        below = list(private)
        while below:
            for owner in holders.get(below.pop(), ()):
                if owner not in private:
                    private.add(owner)
                    below.append(owner)
        return private

    def _copied(self, value: Any) -> Any:
        """The private copy of `value`, or `value` itself where nothing in it is private."""
        if type(value) is int:
            return id(self.of[value]) if value in self.originals else value
        if id(value) in self._memo:
            return self._memo[id(value)]
        if id(value) not in self._private:
            return value
        kind = type(value)
        copy: Any
        if kind in MAPPINGS:
            copy = defaultdict(value.default_factory) if isinstance(value, defaultdict) else kind()
            self._memo[id(value)] = copy
            copy.update((self._copied(k), self._copied(v)) for k, v in list(value.items()))
        elif kind is list:
            copy = self._memo[id(value)] = []  # it may contain itself
            copy.extend(self._copied(v) for v in list(value))
        elif kind in SEQUENCES or isinstance(value, tuple):
            elements = [self._copied(v) for v in list(value)]
            copy = kind(*elements) if hasattr(value, "_fields") else kind(elements)
        elif kind is types.FunctionType:
            copy = self._function(value)
        elif kind is types.MethodType:
            copy = types.MethodType(self._copied(value.__func__), self._copied(value.__self__))
        elif isinstance(value, functools.partial):
            keywords = {name: self._copied(v) for name, v in value.keywords.items()}
            copy = kind(self._copied(value.func), *(self._copied(v) for v in value.args), **keywords)
        elif kind is weakref.ref:
            copy = weakref.ref(self._copied(value()))
        else:
            copy = self._object(value)
        self._memo[id(value)] = copy
        return copy

    def _object(self, value: Any) -> Any:
        """A copy of an object, whose attributes are copied where they lead to modules."""
        try:
            copy = type(value)() if isinstance(value, types.SimpleNamespace) else object.__new__(type(value))
        except TypeError:  # a class that is written in C
            return value
        self._memo[id(value)] = copy
        for name, part in attributes(value).items():
            object.__setattr__(copy, name, self._copied(part))
        return copy

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        """A function with the same code, which finds twins in its closure, its defaults and its global variables."""
        private = {n: v for n, v in globals_read(value).items() if id(v) in self._private}
        space = {**value.__globals__} if private else value.__globals__
        closure = tuple(types.CellType() for _ in value.__closure__ or ())
        copy = types.FunctionType(value.__code__, space, value.__name__, None, closure)
        self._memo[id(value)] = copy  # a function may read itself
        space.update({name: self._copied(v) for name, v in private.items()})
        known = cells(value)
        for name, cell in zip(value.__code__.co_freevars, closure, strict=True):
            if name in known:
                cell.cell_contents = self._copied(known[name])
        if value.__defaults__:
            copy.__defaults__ = tuple(self._copied(v) for v in value.__defaults__)
        if value.__kwdefaults__:
            copy.__kwdefaults__ = {name: self._copied(v) for name, v in value.__kwdefaults__.items()}
        copy.__dict__.update({name: self._copied(v) for name, v in vars(value).items()})
        copy.__qualname__, copy.__module__ = value.__qualname__, value.__module__
        return copy


def private_copy(model: nn.Module) -> nn.Module:
    """The model with buffers of its own, whose values may move without the model's; parameters are shared."""
    twins = Twins(model)
    buffers = {id(b): b.clone() for m in model.modules() for b in m._buffers.values() if b is not None}
    for twin in twins.of.values():
        twin._buffers = {name: None if b is None else buffers[id(b)] for name, b in twin._buffers.items()}
    return twins.of[id(model)]


# How twins are read and called while they are traced.


class Reads(dict[str, Any]):
    """A table of a twin's parameters or buffers. Whoever reads one gets what `read` makes of it."""

    def __init__(self, tensors: dict[str, Any], read: Callable[[Any], Any]) -> None:
        super().__init__(tensors)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        return self._read(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._read(super().get(name, default))

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def forward_with_hooks(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a module's forward between its hooks, as nn.Module does."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if key in module._forward_pre_hooks_with_kwargs:
            changed = hook(module, args, kwargs)
            args, kwargs = (args, kwargs) if changed is None else changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for key, hook in list(module._forward_hooks.items()):
        with_kwargs = key in module._forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        result = result if changed is None else changed
    return result


# Has `forward` changed a module? The tracer asks at every call of one that has a dual layer.


class ModuleState:
    """All attributes of a module and of those below it: hooks, methods of their own, submodules, which parameters, and the rest.

    A dual layer is built from the module as it is outside of `forward`. A `forward` that changes the module calls another function.
    """

    def __init__(self, module: nn.Module, ignored: frozenset[str]) -> None:
        """ignored: attributes that calls of the module set, as the older weight_norm does."""
        self._module, self._ignored = module, ignored
        self.keep()

    def keep(self) -> None:
        """Take the module for what it is now."""
        modules = self._module.modules() if self._module._modules else (self._module,)
        self._kept = [(m, type(m), type(m).forward, _frozen(self._attributes(m))) for m in modules]

    def _attributes(self, module: nn.Module) -> dict[str, Any]:
        now = vars(module)
        return {name: now[name] for name in now if name not in self._ignored} if self._ignored else now

    def changed(self) -> str | None:
        """The name of an attribute that is not what it was when it was kept."""
        for module, kind, forward, kept in self._kept:
            if type(module) is not kind:
                return "__class__"
            if kind.forward is not forward:
                return "forward"
            now = self._attributes(module)
            if not _equal(now, kept):
                pairs = ((n, now.get(n, _MISSING), old) for n, old in kept.items())
                name = next((n for n, a, b in pairs if a is not b and not _equal(a, b)), None)
                own = package_of(kind) != "torch"  # whose methods may look for any name
                new = (n for n in sorted(now.keys() - kept.keys()) if own or hasattr(kind, n))
                name = name or next(new, None)
                if name is not None:
                    return name
        return "hooks, those on every module," if _global_forward_hooks or _global_forward_pre_hooks else None


_MISSING, _ARRAYS = object(), (Tensor, np.ndarray)
_PLAIN = {str, int, float, bool, tuple, type(None)}
"""Types of most settings of a module, which are as they are."""


def _frozen(value: Any) -> Any:
    """A copy of a container, with those inside it; anything else as it is."""
    if isinstance(value, dict):
        return {k: v if type(v) in _PLAIN else _frozen(v) for k, v in dict.items(value)}
    if isinstance(value, list | deque | set):
        return (list if isinstance(value, list) else type(value))(_frozen(v) for v in value)
    return value


def _equal(a: Any, b: Any) -> bool:
    """Equality of numbers, texts and containers of them; anything else is equal to itself only."""
    if isinstance(a, _ARRAYS) or isinstance(b, _ARRAYS):
        return a is b
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):  # tensors or arrays inside, which differ
        return False
