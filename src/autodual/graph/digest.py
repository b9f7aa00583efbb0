"""What identifies a network, and whether a model has changed: digests for certificates, fingerprints for training steps.

A certificate names its network and its data by digests, which are equal for equal content, in every process and on every device.
A digest covers what a network computes with: its calls in order, their arguments, the settings and tensors of its modules, and
the code of functions and modules that come from neither PyTorch nor this package. It does not cover where these things lie:
addresses in memory, devices, files. A `Fingerprint` tells whether a model has changed since it was captured; it holds for this process
only, and takes microseconds.
"""

from __future__ import annotations

import enum
import hashlib
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket

from autodual._errors import ArgumentError
from autodual.graph.network import Attribute, Network, Ref
from autodual.graph.registry import parameter_hooks
from autodual.graph.twins import MAPPINGS, attributes, cells, is_container, own_classes, package_of, parts

OURS = "autodual"
LIBRARIES = sys.stdlib_module_names | {OURS, "numpy", "torch", "torchvision"}
"""Code that is known by its name, since the versions of these packages are recorded; all other code is hashed."""

_FIRST_FILE = {
    name: file
    for file, names in {
        "dual.attention": "differences",
        "dual.convex": "log_above power_above",
        "dual.normalising": "limited_product variance_of",
        "interval": "Interval",
        "sets.balls": "L1Ball L2Ball LinfBall Perturbation _NormBall",
        "sets.input_sets": "Box InputSet NormSet",
        "sets.norms": "Norm _L1 _L2 _Linf",
        "spec": "AllOf AnyOf Between Label Positive Specification TopK _Several",
    }.items()
    for name in names.split()
}
"""The files in which these stood when digests still named files. They are written so for ever, wherever they stand today, so that
certificates from that time stay valid. It needs no new entries: what is not listed is written by its qualified name alone."""

BASE = frozenset(vars(nn.Module())) - {"training"}
"""What every module has: hooks, and the tables of its parameters, buffers and submodules, which are written by name instead."""

SIMPLE = (str, int, float, bool, type(None), complex)
PLAIN = (*SIMPLE, bytes, tuple, frozenset)
NAMED = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.GetSetDescriptorType, types.ClassMethodDescriptorType, OpOverload, OpOverloadPacket,
)  # fmt: skip
"""Kinds of functions that are not written in Python."""


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over dtypes, shapes and bytes, in order."""
    writer = _Writer()
    for tensor in tensors:
        writer.write_tensor(tensor)
    return writer.hexdigest()


LARGE = 2**20
"""Bytes that take about a millisecond to hash. As many or more are hashed in a thread."""


@contextmanager
def digesting(tensors: Sequence[Tensor]) -> Iterator[Callable[[], str]]:
    """Computes `digest_tensors` in a thread while the caller is inside; the function that it gives waits for the digest."""
    if sum(tensor.nbytes for tensor in tensors) < LARGE:
        digest = digest_tensors(tensors)
        yield lambda: digest
        return
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    stream = None if device is None else torch.cuda.Stream(device)
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream(device))

    def digest_aside() -> str:
        with torch.cuda.stream(stream):  # does nothing where there is none
            return digest_tensors(tensors)

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(digest_aside).result


def digest_object(value: Any) -> str:
    """SHA-256 over an object of any kind: its class, and what it holds."""
    writer = _Writer()
    writer.write(value)
    return writer.hexdigest()


def digest_network(network: Network) -> str:
    """SHA-256 over the calls of a captured network and everything that they compute with today."""
    writer = _Writer()
    writer.write(("network", network.input_shape, network.output, len(network.nodes)))
    for node in network.nodes:
        writer.write((node.name, node.path, node.depends, node.shape, node.args, sorted(node.kwargs.items())))
        writer.write(node.target)
    return writer.hexdigest()


class _Writer:
    """Feeds values to a hash, each with its kind and length, so that different values never give the same bytes."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._pending: list[bytes] = []
        self._open: list[int] = []
        """Containers that are being written: one that contains itself is named by its place in this list."""
        self._known: dict[int, tuple[int, Any]] = {}
        """Functions and classes that were written: each is written once, and named by its number from then on."""

    def hexdigest(self) -> str:
        self._flush()
        return self._sha.hexdigest()

    def write(self, value: Any) -> None:
        """Writes any value: what is simple here, what consists of parts by `_parts`."""
        kind = type(value)
        if kind in SIMPLE:
            self._token(kind.__name__, value if kind is str else repr(value))
        elif kind is tuple:
            self._all("tuple", value)
        elif isinstance(value, Ref):
            self._token("ref", str(value.index))
        elif isinstance(value, Tensor):
            self.write_tensor(value)
        elif isinstance(value, torch.device):
            self._token("device")  # where a network lies is no part of it
        elif isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            self._token("torch", str(value))
        elif isinstance(value, types.ModuleType):
            self._token("package", value.__name__)
        elif isinstance(value, NAMED):
            self._named_function(value)
        elif isinstance(value, type | types.FunctionType):
            self._once(value)
        elif id(value) in self._open:
            self._token("cycle", str(self._open.index(id(value))))
        else:
            self._open.append(id(value))
            self._parts(value)
            self._open.pop()

    def write_tensor(self, tensor: Tensor) -> None:
        """Writes type, shape and bytes of the values; a sparse or quantised tensor by the values that it stands for."""
        if tensor.is_meta:
            raise ArgumentError(
                "a tensor on the device 'meta' has no values, so it cannot be identified; load its values"
            )
        self._token("tensor", f"{tensor.dtype} {tuple(tensor.shape)}")
        values = tensor.detach()
        if values.is_quantized:
            values = values.dequantize()
        if values.layout != torch.strided:
            values = values.to_dense()
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        values = values.cpu().contiguous().reshape(-1)
        self._flush()
        self._sha.update(values.view(torch.uint8).numpy().data)

    def _parts(self, value: Any) -> None:
        """Writes a value that may hold others, and so itself."""
        if isinstance(value, tuple | list):  # torch.Size, a named tuple
            self._all("tuple" if isinstance(value, tuple) else "list", value)
        elif isinstance(value, dict):
            self._all("dict", value.items())
        elif isinstance(value, slice):
            self._all("slice", (value.start, value.stop, value.step))
        elif isinstance(value, set | frozenset):
            self._all("set", sorted(map(digest_object, value)))
        elif isinstance(value, bytes | bytearray):
            self._token("bytes", value.hex())
        elif isinstance(value, Attribute):
            self._all("attribute", (value.name, value.read()))
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, enum.Enum):
            self._all("enumeration", (type(value).__qualname__, value.name))
        elif isinstance(value, types.MethodType):
            self._all("method", (value.__self__, value.__func__))
        elif isinstance(value, types.CodeType):
            self._all("code", (value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars))
        else:
            self._object(value)

    def _all(self, kind: str, parts: Iterable[Any]) -> None:
        listed = parts if type(parts) is tuple or type(parts) is list else list(parts)
        self._token(kind, str(len(listed)))
        for part in listed:
            if type(part) is str:  # as most are
                self._token("str", part)
            else:
                self.write(part)

    def _module(self, module: nn.Module) -> None:
        """Writes a module that is one call of the network, with all that lies below it (parametrizations, for example)."""
        for path, part in module.named_modules():
            hooks = parameter_hooks(part)
            computed = {hook.name for hook in hooks}  # from parameters and buffers, which are written
            settings = [(k, v) for k, v in vars(part).items() if k not in BASE and k not in computed]
            tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
            self._all("module", (path, type(part), sorted(settings, key=_first), sorted(tensors, key=_first)))
            self._all("hooks", [(type(hook), sorted(vars(hook).items(), key=_first)) for hook in hooks])

    def _once(self, value: Any) -> None:
        """Writes a function or class when it is met first, and its number when it is met again."""
        if id(value) in self._known:
            self._token("known", str(self._known[id(value)][0]))
            return
        self._known[id(value)] = len(self._known), value
        if isinstance(value, type):
            self._class(value)
        elif _is_library(value):
            self._named_function(value)
        else:
            self._python_function(value)

    def _class(self, written: type) -> None:
        """Writes names of a class and of all that it inherits from, and the code of those that no library defines."""
        self._token("class", str(len(written.__mro__)))
        for kind in written.__mro__:
            if _is_library(kind):
                self._token("name", f"{_module_of(kind)}.{kind.__qualname__}")
            else:
                content = sorted(
                    ((k, _unwrapped(v)) for k, v in vars(kind).items() if k not in BOOKKEEPING), key=_first
                )
                self._all(
                    kind.__qualname__, [(k, v) for k, v in content if isinstance(v, (*PLAIN, types.FunctionType))]
                )

    def _named_function(self, function: Any) -> None:
        """Writes all names of a function: those of F.max_pool2d differ from one another."""
        self._all("function", [_module_of(function), _name(function, "__name__"), _name(function, "__qualname__")])
        owner = function.__self__ if isinstance(function, types.BuiltinFunctionType | types.MethodWrapperType) else None
        if not isinstance(owner, type | types.ModuleType | None):  # a method of some object
            self.write(owner)

    def _python_function(self, function: types.FunctionType) -> None:
        """Writes code, defaults, and the values and functions that the code finds around it."""
        code = function.__code__
        self._all("python", (function.__qualname__, code, function.__defaults__, function.__kwdefaults__))
        self._all("closure", [cells(function).get(name) for name in code.co_freevars])
        names = sorted({name for name in _names(code) if name in function.__globals__})
        found = [(name, function.__globals__[name]) for name in names]
        used = (*PLAIN, Tensor, type, types.ModuleType, types.FunctionType, *NAMED)
        self._all("globals", [(name, value) for name, value in found if isinstance(value, used)])

    def _object(self, value: Any) -> None:
        """Writes an object as it would be pickled; one that cannot be pickled (a lock, a stream) by its class alone."""
        try:
            reduced = value.__reduce_ex__(4)
        except TypeError:
            reduced = ()
        parts = (reduced,) if isinstance(reduced, str) else [list(p) if isinstance(p, Iterator) else p for p in reduced]
        self._all("object", (type(value), *parts))

    def _token(self, kind: str, content: str = "") -> None:
        encoded = content.encode("utf-8", "surrogatepass")
        self._pending.append(f"{kind}:{len(encoded)}:".encode() + encoded)

    def _flush(self) -> None:
        self._sha.update(b"".join(self._pending))
        self._pending.clear()


BOOKKEEPING = ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__")
"""What Python notes about a class, which its computations do not use."""


def _is_library(value: Any) -> bool:
    return (package_of(value) or "builtins") in LIBRARIES


def _name(value: Any, which: str) -> str:
    """One of a function's names; an operator of torch.ops has only the one that it prints."""
    return str(value) if isinstance(value, OpOverload | OpOverloadPacket) else str(getattr(value, which, None) or "")


def _module_of(value: Any) -> str:
    """The module of a function or class; what this package defines is known by its name, in whichever of our files it stands."""
    module = _name(value, "__module__")
    if module.partition(".")[0] != OURS:
        return module
    return f"{OURS}.{_FIRST_FILE[value.__qualname__]}" if value.__qualname__ in _FIRST_FILE else OURS


def _unwrapped(value: Any) -> Any:
    """The function behind a static method, a class method or a property."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that a function looks up, in functions inside it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


# Has a model changed since it was captured? The cheap answer, for every training step; a proof traces the model again.

MOST = 100_000
"""Most entries of a fingerprint. A model with more is taken to have changed."""

_BY_VALUE = (
    *(bool, int, str, bytes, complex, type(None), type(...), range),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)


class Fingerprint:
    """Everything about a model, except the values of parameters and buffers, that may steer its forward.

    Numbers, strings and containers count by value; functions, modules and other objects by identity and by what they hold;
    tensors that are neither parameters nor buffers by identity and by how often they were written to. A global variable counts
    where a method of the model, a hook, or a function of the same file reads it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._entries: list[Any] = []
        self._held: list[Any] = []  # so that no identity is used twice
        self._place: dict[int, int] = {}
        self._live: dict[int, int] = {}
        for module in model.modules():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                self._live.setdefault(id(tensor), len(self._live))
        self._waiting: list[Any] = [model]
        while self._waiting and len(self._entries) < MOST:
            self._enter(self._waiting.pop())
        self._complete = not self._waiting

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint):
            return NotImplemented
        return self._complete and other._complete and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def _enter(self, value: Any) -> None:
        """Notes one value. What it holds waits for its turn."""
        kind = type(value)
        if kind in _BY_VALUE:
            self._entries += (kind, value)
        elif kind is float or isinstance(value, np.generic):
            self._entries += (kind, repr(value))  # -0.0 is not 0.0
        elif isinstance(value, Tensor) and id(value) in self._live:
            self._entries.append(
                self._live[id(value)]
            )  # its values are live, and it may be replaced; what shares it must stay
        elif id(value) in self._place:
            self._entries.append(("seen", self._place[id(value)]))
        else:
            self._place[id(value)] = len(self._place)
            self._held.append(value)
            self._enter_parts(value, kind)

    def _enter_parts(self, value: Any, kind: type) -> None:
        if isinstance(value, np.ndarray):
            self._entries += (value.shape, value.dtype.str, value.tobytes())
        elif is_container(value):
            self._entries += (kind, len(value))
            if value:  # as `parts` would say, and faster
                self._waiting += [*value.keys(), *value.values()] if kind in MAPPINGS else value
        elif isinstance(value, Tensor):
            self._entries += (id(value), None if value.is_inference() else value._version)
        elif isinstance(value, nn.Module):
            state = attributes(value)
            self._entries += (id(value), kind, tuple(state))
            for part in state.values():  # most of it is small, and need not wait
                small = type(part)
                if small is bool or small is int or small is str or part is None:
                    self._entries += (small, part)
                elif (small is dict or small is OrderedDict or small is set) and not part:
                    self._entries.append(small)
                else:
                    self._waiting.append(part)
            self._waiting += own_classes(value)
        elif isinstance(value, type):
            self._entries.append(value)
            if issubclass(value, nn.Module) and package_of(value) != "torch":
                own = {n: v for n, v in vars(value).items() if not n.startswith("__") or n == "__call__"}
                self._entries.append(tuple(own))
                self._waiting += own.values()
        else:
            inside = list(parts(value))
            self._entries += (id(value), len(inside))
            self._waiting += inside
            if isinstance(value, types.FunctionType):
                self._entries.append(id(value.__code__))
                self._held.append(value.__code__)
