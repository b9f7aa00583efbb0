"""The calls that a run of `forward` makes. A certificate is about one function of one example: does another run make the same?

A capture runs `forward` once on proxies to record it, and again on tensors, under other circumstances: with other numbers of
examples, without gradients, in inference mode, after whatever the first run has stored in the model. All runs must have made their
outputs by the same calls: of the same functions, with the same numbers, from the same parameters and constants. So none of these
becomes a constant of the graph: the size of the batch, a counter, a clock, random numbers, the gradient mode, the type of x.
Comparing outputs would not be enough: a clamp may be inactive at one point, an activation saturated.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from autodual._errors import CaptureError
from autodual.graph.twins import package_of

_TAKES_SHAPE = frozenset(
    ("view", "reshape", "expand", "broadcast_to", "repeat", "tile", "new_zeros", "new_ones", "new_empty", "new_full")
)
"""Functions among whose arguments the size of the batch may be: nothing but a shape depends on it, or its value is compared."""
_SHAPED_BY_VALUES = frozenset(
    ("nonzero", "nonzero_static", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique", "_unique2", "unique_dim",
     "_return_output", "_return_inverse", "_return_counts", "_return_inverse_and_counts", "bincount", "repeat_interleave",
     "tensor_split", "one_hot", "arange", "range", "linspace", "logspace", "_pack_padded_sequence")
)  # fmt: skip
"""Functions whose result has a shape that depends on values: whoever asks for it reads them."""
_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "mod", "floordiv", "pow", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "where",
     "maximum", "minimum", "stack", "cat", "clamp", "add_", "sub_", "mul_", "div_", "type_as", "to")
)  # fmt: skip
"""Functions to which a whole number in a tensor is a value; to others it may be a size or a place."""
_CHANGE_NO_VALUES = frozenset(("requires_grad_", "rename_", "share_memory_"))

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
    """Whether it was made of the input."""
    shape: tuple[int, ...] = ()
    tensor: Tensor | None = None
    """What was made of parameters, buffers and constants alone, unless it was written to afterwards."""

    def __repr__(self) -> str:
        return "..."


@dataclass(eq=False, slots=True)
class Constant:
    """A tensor that was made of neither the input nor a parameter, as it was when it was used."""

    tensor: Tensor
    source: weakref.ref[Tensor]

    def __repr__(self) -> str:
        return "..."

    @property
    def stays(self) -> bool:
        """Whether nobody has written to the tensor since: it may be what the next run begins with."""
        source = self.source()
        return source is None or unchanged(source, self.tensor)


class Calls:
    """The calls of a run, as the user wrote them, with anything of the input or of the model's tensors among their arguments.

    It keeps no tensor alive that was made of the input, so that a run needs no more memory than the model itself.
    """

    def __init__(self, names: dict[int, str], batch: int) -> None:
        """names: the paths of parameters and buffers, by identity. batch: how many examples the input has."""
        self.names, self.batch = names, batch
        self.output: Any = None
        self.written: set[str] = set()
        """Names of parameters and buffers that a call has written to."""
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """What is known of every tensor, and where it lay: `set_` moves it, and nobody is told."""

    def name(self, tensor: Tensor, name: str) -> Tensor:
        """Note that a tensor is the input, or stands for a parameter or buffer."""
        self._keep(tensor, Value(name, 0, name == "x"))
        return tensor

    def _keep(self, tensor: Tensor, value: Value) -> None:
        self._known[tensor] = value, _place(tensor)

    def _made(self, tensor: Tensor, step: Step, position: int) -> None:
        kept = None if step.varies else tensor
        self._keep(tensor, Value(step, position, step.varies, tuple(tensor.shape), kept))

    def begin(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> Step | None:
        """A call that is about to run; None where nothing of the model or of its input is among its arguments.

        target: a function, the name of a tensor's method or property, or, in a tuple, the path of a module.
        """
        given = tuple(t for t in tensors(args) + tensors(kwargs) if t in self._known)
        if not given:
            return None
        function = getattr(Tensor, target, target) if isinstance(target, str) else target
        key = key_of(function)
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
        matter = given[:1] if key in _LIKE_ANOTHER else given
        return Step(key, seen, named, path, any(self._known[t][0].varies for t in matter), given)

    def finish(self, step: Step, made: Any, written: list[Tensor]) -> None:
        """A call has run. written: those of its arguments that it has written to."""
        for tensor in written:
            self._write(step, tensor)
        changed, passed = {id(t) for t in written}, {id(t) for t in step.given}
        found, first = tensors(made), step.args[0] if step.args else None
        if step.key in _COPIES and len(found) == 1 and isinstance(first, Value) and _alike(found[0], step.given[0]):
            if found[0] is not step.given[0]:
                self._keep(found[0], first if first.tensor is None else replace(first, tensor=found[0]))
        else:
            for position, tensor in enumerate(found):
                if id(tensor) in changed or id(tensor) not in passed:  # what is only passed on stays what it was
                    self._made(tensor, step, position)
        step.given = ()

    def varies(self, tensor: Tensor) -> bool:
        """Whether a tensor was made of the input."""
        value, _ = self._known.get(tensor, (None, 0))
        return value is not None and value.varies

    def forget(self, tensor: Tensor) -> None:
        """Nobody can say what the tensor holds from now on, or has held."""
        self._lose(tensor)
        self._keep(tensor, Value(object(), 0, True))

    def _lose(self, tensor: Tensor) -> None:
        """What the tensor held so far has been overwritten."""
        if tensor in self._known:
            self._known[tensor][0].tensor = None

    def seen(self, a: Any) -> Any:
        """An argument, with every tensor in it replaced by what is known about it."""
        if isinstance(a, Tensor):
            value, place = self._known.get(a, (None, 0))
            if value is not None and _place(a) != place:
                self.forget(a)
                return self._known[a][0]
            if value is None and id(a) in self.names:
                value = Value(self.names[id(a)], 0, False)
            return Constant(a.detach().clone(), weakref.ref(a)) if value is None else value
        if isinstance(a, _SEQUENCES):
            return tuple(self.seen(part) for part in a)
        if isinstance(a, dict):
            return {name: self.seen(part) for name, part in a.items()}
        return ("slice", self.seen((a.start, a.stop, a.step))) if isinstance(a, slice) else a

    def _write(self, step: Step, tensor: Tensor) -> None:
        before, _ = self._known.get(tensor, (None, 0))
        if before is not None and isinstance(before.maker, str) and not before.varies:
            self.written.add(before.maker)
        memory = _storage(tensor)
        for other in list(self._known):
            if other is not tensor and _storage(other) == memory:
                self.forget(other)
        self._lose(tensor)
        place = next(i for i, t in enumerate(step.given) if t is tensor)
        self._made(tensor, step, -1 - place)


def shaped_by_values(step: Step | None, made: Any = None) -> bool:
    """Whether the shape of what a call makes depends on values that were made of the input.

    made: what it has made, once it has run. A sparse or nested tensor has as many entries as values say.
    """
    if step is None or not step.varies:
        return False
    if any(t.layout is not torch.strided or t.is_nested for t in tensors(made)):
        return True
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


def key_of(function: Any) -> Any:
    """What a function is known by: its name if it is PyTorch's own or an operator, a property's name; or else itself."""
    name = getattr(function, "__name__", None)
    if name == "__get__":
        owner = function.__self__
        return getattr(owner, "__name__", None) or owner.fget.__name__
    if not isinstance(name, str) or (isinstance(function, FunctionType) and package_of(function) != "torch"):
        return function
    return name


# Whether two runs have made the same calls.


def check_same(first: Calls, second: Calls) -> None:
    """Refuse a model whose second run, on tensors, has made its output otherwise than the first, on proxies."""
    how = _difference(first, second)
    if how is not None:
        raise CaptureError(
            f"{how[0] or 'model'}: computes something else when it runs again, on tensors instead of proxies and with a batch of "
            f"{second.batch} instead of {first.batch} ({how[1]}). It may depend on the batch size, on random numbers, on what an "
            f"earlier run has stored, on the time, on type(x) or isinstance(x, Tensor), on how x lies in memory, or on whether "
            f"gradients are wanted (torch.is_grad_enabled(), inference mode, x.requires_grad), or write into a tensor after it has "
            f"computed with it; certificates need one function per example. What is filled once may be filled in __init__"
        )


def _difference(first: Calls, second: Calls) -> tuple[str, str] | None:
    """Where, and how, the calls differ that the outputs were made by. What a model only stores does not count."""
    if second.written - first.written:
        return "", f"writes into {min(second.written - first.written)}"
    batches = first.batch, second.batch
    compared: set[tuple[int, int, int, int]] = set()
    waiting: list[tuple[Any, Any, tuple[Step, Step] | None]] = [
        (first.seen(first.output), second.seen(second.output), None)
    ]
    while waiting:
        one, other, users = waiting.pop()
        if not (isinstance(one, Value) and isinstance(other, Value)):
            if not _same(one, other, batches, []):
                return _told(users)
            continue
        a, b = one.maker, other.maker
        if not (isinstance(a, Step) and isinstance(b, Step)):
            if not (isinstance(a, str) and a == b):
                return _told(users)
            continue
        if users is not None and users[0].varies and not _same_for_all(one, other, batches):
            return _told(users)
        pair = id(a), one.position, id(b), other.position
        if pair in compared:
            continue
        compared.add(pair)
        inputs: list[tuple[Any, Any]] = []
        sizes = batches if a.key in _TAKES_SHAPE else None
        if (
            one.position != other.position
            or a.key != b.key
            or not _same((a.args, a.kwargs), (b.args, b.kwargs), batches, inputs, sizes)
        ):
            return _told((a, b))
        if one.varies and not _same_shape(one.shape, other.shape, batches):
            return b.path or a.path, f"{b!r} has shape {other.shape} instead of {one.shape}"
        waiting += [(x, y, (a, b)) for x, y in inputs]
    return None


def _told(users: tuple[Step, Step] | None) -> tuple[str, str]:
    """Where and how two calls differ, or what they use."""
    if users is None:
        return "", "another output"
    a, b = users
    return b.path or a.path, f"{b!r} instead of {a!r}" if repr(a) != repr(b) else f"{a!r} of something else"


def _same_shape(one: tuple[int, ...], other: tuple[int, ...], batches: tuple[int, int]) -> bool:
    """Whether both have one entry for each example of their batch, of the same shape."""
    return (one[:1], other[:1]) == (batches[:1], batches[1:]) and one[1:] == other[1:]


def _same_for_all(one: Value, other: Value, batches: tuple[int, int]) -> bool:
    """Whether what was computed of parameters and constants is the same for all examples of both batches."""
    if one.tensor is None or other.tensor is None:
        return one.varies and other.varies
    return _same_tensor(one.tensor, other.tensor, batches, computed=True)


def _same(
    a: Any, b: Any, batches: tuple[int, int], inputs: list[tuple[Any, Any]], sizes: tuple[int, int] | None = None
) -> bool:
    """Whether arguments are equal. inputs: gets the values that calls have made among them, in pairs.

    sizes: whole numbers that stand for one another.
    """
    if isinstance(a, Value) and isinstance(b, Value):
        inputs.append((a, b))
        return True
    if isinstance(a, Constant) and isinstance(b, Constant):
        return b.stays and _same_tensor(a.tensor, b.tensor, batches, computed=False)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y, batches, inputs, sizes) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name], batches, inputs, sizes) for name in a)
    if type(a) is not type(b):
        return False
    if type(a) is int and sizes is not None and (a, b) == sizes:
        return True
    return repr(a) == repr(b) if isinstance(a, float | complex) else a is b or bool(a == b)


def _same_tensor(a: Tensor, b: Tensor, batches: tuple[int, int], computed: bool) -> bool:
    """Whether two constants are one: what either has for each example of its batch must be the same for all of them."""
    a, b = a.detach(), b.detach()
    if a.dtype != b.dtype or a.dim() != b.dim() or a.device != b.device:
        return False
    if a.shape == b.shape:
        return _close(a, b, computed) if a.is_cuda else _equal(a, b)
    for dim, sizes in enumerate(zip(a.shape, b.shape, strict=True)):
        if sizes == batches:
            one, other = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
            if not (_equal(a, one.expand_as(a)) and _equal(b, other.expand_as(b))):
                return False
            a, b = one, other
    return a.shape == b.shape and _close(a, b, computed)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _close(a: Tensor, b: Tensor, computed: bool) -> bool:
    """Equal but for the order in which a sum was computed, which may depend on shapes.

    Each entry by itself, since 13 is not 2, also beside 1e8. computed: whether calls of the run have made it, so that the terms of
    a sum may have cancelled: an entry is then less exact, in proportion to the largest, and still the same to three digits.
    """
    if not a.is_floating_point():
        return _equal(a, b)
    apart, size, room = (a - b).abs(), b.abs(), 16 * torch.finfo(a.dtype).eps
    near = (apart <= room * size) | (a == b) | ((a != a) & (b != b))
    if computed and a.numel():
        near |= (apart <= room * size.nan_to_num(0, 0, 0).amax()) & (apart <= 2**-10 * size)
    return bool(near.all())


def unchanged(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor holds what it held when it was copied."""
    return tensor.shape == copy.shape and _equal(tensor.detach(), copy)


def tensors(a: Any) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(a, Tensor):
        return [a]
    if isinstance(a, dict):
        a = tuple(a.values())
    elif isinstance(a, slice):
        a = a.start, a.stop, a.step
    return [t for part in a for t in tensors(part)] if isinstance(a, _SEQUENCES) else []
