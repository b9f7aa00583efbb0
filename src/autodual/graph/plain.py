"""Does `forward` do with tensors what it does with proxies?

A model can tell them apart: `type(x) is torch.Tensor`, a cache by type, a library that looks for its backend. Values at one point may
hide it: a clamp that is inactive there, a saturated activation. So a capture runs the model once more on tensors, and both runs must
have made their output by the same calls: of the same functions, with the same numbers, from the same parameters and constants.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from autodual._errors import CaptureError
from autodual.graph.twins import package_of

FACTS = frozenset(
    ("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "get_device")
)
"""Methods that say something about a tensor without reading its values: answered from the sample, never recorded."""
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

_SHAPED_BY_VALUES = frozenset(
    ("nonzero", "nonzero_static", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique", "_unique2", "unique_dim",
     "_return_output", "_return_inverse", "_return_counts", "_return_inverse_and_counts", "bincount", "repeat_interleave",
     "tensor_split", "one_hot", "arange", "range", "linspace", "logspace")
)  # fmt: skip
"""Functions whose result has a shape that depends on values: whoever asks for it reads them."""
_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "mod", "floordiv", "pow", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "where",
     "maximum", "minimum", "stack", "cat", "clamp", "add_", "sub_", "mul_", "div_", "type_as", "to")
)  # fmt: skip
"""Functions to which a whole number in a tensor is a value; to others it may be a size or a place."""
_CHANGE_NO_VALUES = frozenset(("requires_grad_", "rename_", "share_memory_"))

_OTHER_FACTS = frozenset(("__len__", "__hash__", "__dir__", "__sizeof__", "storage_offset", "element_size", "type"))
_NO_VALUES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, type(None), fx.Proxy)
_SHOWS = frozenset(("__repr__", "__str__", "__format__"))
SHOWN = "tensor(...)"
"""What a model sees of a tensor as text, so that it may print one and cannot read one."""
_COPIES = frozenset(("contiguous", "clone", "to", "type_as", "float", "double", "detach", "data", "pos"))
"""Functions that return what they are given, where dtype, shape and device are the same."""
_LIKE_ANOTHER = frozenset(("to", "type_as", "expand_as", "view_as", "reshape_as"))
"""Methods of which only the first argument's values matter: what they make of a constant is one."""
_ONE_NAME = {
    "truediv": "div", "rdiv": "rdiv", "rtruediv": "rdiv", "remainder": "mod", "positive": "pos", "and_": "and", "or_": "or",
    "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "idiv": "div_", "ipow": "pow_", "imod": "remainder_",
    "ifloordiv": "floor_divide_", "iand": "and_", "ior": "or_", "ixor": "xor_",
}  # fmt: skip
"""Operators have one name in Python's `operator`, and another among the methods of a tensor."""
_REFLECTED = {
    f"r{name}": name for name in ("add", "sub", "mul", "div", "floordiv", "mod", "pow", "matmul", "and", "or")
}
_EITHER_WAY = frozenset(("add", "mul", "eq", "ne", "and", "or", "xor"))


@dataclass(eq=False, slots=True)
class Step:
    """One call: its function or the path of its module, and its arguments, in which tensors are a `Value` or a `Constant`."""

    key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: str
    varies: bool
    """Whether anything among the arguments was made of the input."""
    given: tuple[Tensor, ...]

    def __repr__(self) -> str:
        tensors = (Value, Constant)
        told = [repr(a) for a in self.args if not isinstance(a, tensors)]
        told += [f"{name}={a!r}" for name, a in self.kwargs.items() if not isinstance(a, tensors)]
        return f"{getattr(self.key, '__name__', self.key)}({', '.join(told)})"


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of a run: what made it, and which of its results it is. A parameter, a buffer and the input have a name instead."""

    maker: Any
    position: int
    varies: bool

    def __repr__(self) -> str:
        return "..."


@dataclass(eq=False, slots=True)
class Constant:
    """A tensor that was made of neither the input nor a parameter, as it was when it was used."""

    tensor: Tensor

    def __repr__(self) -> str:
        return "..."


@dataclass
class Calls:
    """The calls of a run, as the user wrote them, with anything of the input or of the model's tensors among their arguments."""

    names: dict[int, str]
    """By the identity of a parameter or buffer: its path."""
    output: Any = None
    written: set[str] = field(default_factory=set)
    """Names of parameters and buffers that a call has written to."""
    _values: dict[int, Value] = field(default_factory=dict)
    _kept: list[Tensor] = field(default_factory=list)  # so that no identity is used twice
    _memory: dict[int, int] = field(default_factory=dict)
    """Where a tensor lay when it was kept. `set_` moves it, and nobody is told."""

    def name(self, tensor: Tensor, name: str) -> Tensor:
        """Note that a tensor is the input, or stands for a parameter or buffer."""
        self._keep(tensor, Value(name, 0, name == "x"))
        return tensor

    def _keep(self, tensor: Tensor, value: Value) -> None:
        self._values[id(tensor)], self._memory[id(tensor)] = value, _place(tensor)
        self._kept.append(tensor)

    def begin(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> Step | None:
        """A call that is about to run; None where nothing of the model or of its input is among its arguments.

        target: a function, the name of a tensor's method or property, or, in a tuple, the path of a module.
        """
        given = tuple(t for t in tensors(args) + tensors(kwargs) if id(t) in self._values)
        if not given:
            return None
        function = getattr(Tensor, target, target) if isinstance(target, str) else target
        key = _key_of(function)
        if (
            type(function) is FunctionType and vars(Tensor).get(key) is function
        ):  # it may hand its arguments on by other names
            bound = _signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        seen, named = tuple(self.seen(a) for a in args), {name: self.seen(a) for name, a in kwargs.items()}
        if key in _LIKE_ANOTHER and isinstance(seen[0], Constant):
            return None
        if isinstance(key, str):
            key, seen = _usual(key, seen)
        return Step(key, seen, named, path, any(self._values[id(t)].varies for t in given), given)

    def finish(self, step: Step, made: Any, written: list[Tensor]) -> None:
        """A call has run. written: those of its arguments that it has written to."""
        for tensor in written:
            self._write(step, tensor)
        changed, passed = {id(t) for t in written}, {id(t) for t in step.given}
        found = tensors(made)
        if (
            step.key in _COPIES
            and len(found) == 1
            and isinstance(step.args[0], Value)
            and _alike(found[0], step.given[0])
        ):
            self._keep(found[0], step.args[0])
            return
        for position, tensor in enumerate(found):
            if id(tensor) in changed or id(tensor) not in passed:  # what is only passed on stays what it was
                self._keep(tensor, Value(step, position, step.varies))

    def forget(self, tensor: Tensor) -> None:
        """Nobody can say what the tensor holds from now on."""
        self._keep(tensor, Value(object(), 0, True))

    def seen(self, a: Any) -> Any:
        """An argument, with every tensor in it replaced by what is known about it."""
        if isinstance(a, Tensor):
            value = self._values.get(id(a))
            if value is not None and _place(a) != self._memory[id(a)]:
                self.forget(a)
                return self._values[id(a)]
            if value is None and id(a) in self.names:
                value = Value(self.names[id(a)], 0, False)
            return Constant(a.detach().clone()) if value is None else value
        if isinstance(a, _SEQUENCES):
            return tuple(self.seen(part) for part in a)
        if isinstance(a, dict):
            return {name: self.seen(part) for name, part in a.items()}
        return ("slice", self.seen((a.start, a.stop, a.step))) if isinstance(a, slice) else a

    def _write(self, step: Step, tensor: Tensor) -> None:
        before = self._values.get(id(tensor))
        if before is not None and isinstance(before.maker, str) and not before.varies:
            self.written.add(before.maker)
        memory = _storage(tensor)
        for other in list(self._kept):
            if other is not tensor and _storage(other) == memory:
                self.forget(other)
        place = next(i for i, t in enumerate(step.given) if t is tensor)
        self._keep(tensor, Value(step, -1 - place, step.varies))


def shaped_by_values(step: Step | None) -> bool:
    """Whether the shape of what a call makes depends on values that were made of the input."""
    if step is None or not step.varies:
        return False
    if step.key in _SHAPED_BY_VALUES or (step.key == "where" and len(step.args) + len(step.kwargs) == 1):
        return True
    others = step.given[1:] if step.args and isinstance(step.args[0], Value) else step.given
    if step.key == "getitem" and any(t.dtype in (torch.bool, torch.uint8) for t in others):
        return True
    sizes = any(t.dim() == 0 and not t.is_floating_point() and t.dtype is not torch.bool for t in others)
    return sizes and step.key not in _ARITHMETIC and not isinstance(step.key, tuple)


def written_to(name: str, given: Iterable[tuple[Tensor, int]], first: Any) -> list[Tensor]:
    """The tensors that a call has written to. given: with what they counted before; `set_` and its like do not count.

    first: the call's first argument.
    """
    by_name = name.endswith("_") and not name.endswith("__") and name not in _CHANGE_NO_VALUES
    return [t for t, version in given if t._version != version or (by_name and t is first)]


def _usual(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """A call of an operator, whichever way it was written."""
    name = name[2:-2] if name.startswith("__") else name
    name = _ONE_NAME.get(name, name)
    if name in _REFLECTED:
        return _REFLECTED[name], args[::-1]
    if name in _EITHER_WAY and len(args) == 2 and not isinstance(args[0], Value | Constant):
        args = args[::-1]
    return name, args


def _place(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.device == b.device


_SEQUENCES = (tuple, list)
_signature = functools.lru_cache(maxsize=512)(inspect.signature)


def _key_of(function: Any) -> Any:
    """What a function is known by: its name if it is PyTorch's own or an operator, a property's name; or else itself."""
    name = getattr(function, "__name__", None)
    if name == "__get__":
        owner = function.__self__
        return getattr(owner, "__name__", None) or owner.fget.__name__
    if not isinstance(name, str) or (isinstance(function, FunctionType) and package_of(function) != "torch"):
        return function
    return name


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
        self.calls = Calls(names)
        self.calls.name(x, "x")
        self.refusal: CaptureError | None = None
        self.asked = False
        """Whether the model has asked for circumstances of a tensor."""
        self._where = where
        self._own: dict[int, Tensor] = {}
        self.within = False

    def own(self, tensor: Tensor) -> Tensor:
        """A copy of one of the model's tensors, always the same, so that a write cannot reach the model."""
        if id(tensor) not in self._own:
            with torch._C.DisableTorchFunction(), outside_inference_mode():
                copy = tensor.detach().clone()
                copy = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
            name = self.calls.names.get(id(tensor))
            self._own[id(tensor)] = copy if name is None else self.calls.name(copy, name)
        return self._own[id(tensor)]

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
        self.asked |= name in CIRCUMSTANCES or (name == "__get__" and _key_of(function) in CIRCUMSTANCES)
        with outside_inference_mode():
            made = function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if step.varies and (name in OUT_OF_SIGHT or _reads_values(name, made) or shaped_by_values(step)):
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


def check_same(by_proxies: Calls, by_tensors: Calls) -> None:
    """Refuse a model that has made its output otherwise of tensors than of proxies."""
    how = _difference(by_proxies, by_tensors)
    if how is not None:
        raise CaptureError(
            f"{how[0] or 'model'}: computes something else with tensors than with the proxies that record its graph ({how[1]}); it "
            f"may branch on type(x), on isinstance(x, Tensor) or on an attribute of x. Certificates need one function: leave the "
            f"branch out"
        )


def _difference(by_proxies: Calls, by_tensors: Calls) -> tuple[str, str] | None:
    """Where, and how, the calls differ that the outputs were made by. What a model only stores does not count."""
    if by_tensors.written - by_proxies.written:
        return "", f"writes into {min(by_tensors.written - by_proxies.written)}"
    compared: set[tuple[Any, ...]] = set()
    waiting: list[tuple[Any, Any, Any]] = [
        (by_proxies.seen(by_proxies.output), by_tensors.seen(by_tensors.output), None)
    ]
    while waiting:
        one, other, users = waiting.pop()
        if not (isinstance(one, Value) and isinstance(other, Value)):
            if not _same(one, other, []):
                return _told(users)
            continue
        a, b = one.maker, other.maker
        if not (isinstance(a, Step) and isinstance(b, Step)):
            if not (isinstance(a, str) and a == b):
                return _told(users)
            continue
        pair = id(a), one.position, id(b), other.position
        if pair in compared:
            continue
        compared.add(pair)
        inputs: list[tuple[Any, Any]] = []
        if (
            one.position != other.position
            or a.key != b.key
            or not _same((a.args, a.kwargs), (b.args, b.kwargs), inputs)
        ):
            return _told((a, b))
        waiting += [(x, y, (a, b)) for x, y in inputs]
    return None


def _told(users: tuple[Step, Step] | None) -> tuple[str, str]:
    """Where and how two calls differ, or what they use."""
    if users is None:
        return "", "another output"
    a, b = users
    return b.path or a.path, f"{b!r} instead of {a!r}" if repr(a) != repr(b) else f"{a!r} of something else"


def _same(a: Any, b: Any, inputs: list[tuple[Any, Any]]) -> bool:
    """Whether arguments are equal. inputs: gets the values that calls have made among them, in pairs."""
    if isinstance(a, Value) and isinstance(b, Value):
        inputs.append((a, b))
        return True
    if isinstance(a, Constant) and isinstance(b, Constant):
        return _equal(a.tensor, b.tensor)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y, inputs) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name], inputs) for name in a)
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) if isinstance(a, float | complex) else a is b or bool(a == b)


def _equal(a: Tensor, b: Tensor) -> bool:
    if not _alike(a, b):
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def tensors(a: Any) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(a, Tensor):
        return [a]
    if isinstance(a, dict):
        a = tuple(a.values())
    elif isinstance(a, slice):
        a = a.start, a.stop, a.step
    return [t for part in a for t in tensors(part)] if isinstance(a, _SEQUENCES) else []
