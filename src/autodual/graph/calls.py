"""The calls that a run of `forward` makes, noted one by one, so that two runs can be compared.

A certificate is about one function of one example. A capture runs `forward` once on proxies to record it (tracer.py), and again on
tensors, under other circumstances; record.py compares the calls that both have made. This file notes them: `Calls` knows of every
tensor what made it, `Plain` is a run on tensors, and `Watch` knows what the model has asked for, and why it is refused.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from autodual._errors import CaptureError

# What is known about functions of PyTorch, methods and properties of a tensor, by name.


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FACTS = names("size dim ndimension numel nelement stride is_contiguous is_floating_point get_device")
"""Methods that say something about a tensor without reading its values: answered from the sample, never recorded."""
_OTHER_FACTS = names("__len__ __hash__ __dir__ __sizeof__ storage_offset element_size type")
_ALIKE = names("zeros_like ones_like full_like")
_MAKERS = (
    torch.zeros_like, torch.ones_like, torch.full_like, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor,
)  # fmt: skip
"""Functions that make a tensor after the model of another, and read none of its values: a constant, and no call of the network."""
_TELLS_BATCH = FACTS | _ALIKE | names("shape nbytes __len__ squeeze squeeze_ squeeze_copy")
"""What tells how many examples there are; `squeeze` does, since it drops a batch of one."""
_CIRCUMSTANCES = _ALIKE | names(
    "is_contiguous stride storage_offset requires_grad is_leaf grad_fn _version _base is_inference"
)
"""What tells how a tensor lies in memory, or that gradients are wanted. What is made alike lies alike."""
OUT_OF_SIGHT = names("numpy storage untyped_storage _typed_storage __array__ __dlpack__ apply_ map_ map2_")
"""Methods that hand out a tensor's memory, or write to it without counting: nobody sees who writes there."""
SETTABLE = names("requires_grad grad names")
"""Attributes of a tensor that may be assigned to, since they change no value of it."""
_CHANGE_NO_VALUES = names("requires_grad_ rename_ share_memory_")
_SHOWS = names("__repr__ __str__ __format__")
SHOWN = "tensor(...)"
"""What a model sees of a tensor as text, so that it may print one and cannot read one."""

TAKES_SHAPE = names("view reshape expand broadcast_to repeat tile new_zeros new_ones new_empty new_full")
"""Functions that may be given the size of the batch: only a shape depends on it, or the value is compared."""
_SHAPED_BY_VALUES = names(
    "nonzero nonzero_static argwhere masked_select unique unique_consecutive _unique _unique2 unique_dim _return_output "
    "_return_inverse _return_counts _return_inverse_and_counts bincount repeat_interleave tensor_split one_hot arange range "
    "linspace logspace _pack_padded_sequence"
)
"""Functions whose result has a shape that depends on values: whoever asks for the shape reads them."""
_ARITHMETIC = names(
    "add sub mul div mod floordiv pow eq ne lt le gt ge and or xor where maximum minimum stack cat clamp add_ sub_ mul_ div_ "
    "type_as to"
)
"""Functions to which a whole number in a tensor is a value; to others it may be a size or a place."""
_JOINS = names("cat stack")
"""Functions of a list of tensors, and of a dimension."""
_COPIES = names("contiguous clone to type_as float double detach data pos")
"""Functions that return what they are given, where dtype, shape and device are the same."""
_LIKE_ANOTHER = names("to type_as expand_as view_as reshape_as")
"""Methods that use only the first argument's values: what they make of a constant is a constant."""
_ONE_NAME = {
    "truediv": "div", "rdiv": "rdiv", "rtruediv": "rdiv", "remainder": "mod", "positive": "pos", "and_": "and", "or_": "or",
    "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "idiv": "div_", "ipow": "pow_", "imod": "remainder_",
    "ifloordiv": "floor_divide_", "iand": "and_", "ior": "or_", "ixor": "xor_",
}  # fmt: skip
"""Operators have one name in Python's `operator`, and another among the methods of a tensor."""
_REFLECTED = {f"r{name}": name for name in names("add sub mul div floordiv mod pow matmul and or")}
_EITHER_WAY = names("add mul eq ne and or xor")
_NO_VALUES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, type(None))


class Watch:
    """What is noticed about a model while it runs, on proxies or on tensors."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        """Paths of the modules that are being run."""
        self.batch_seen = False
        """Whether forward has asked for anything that tells the size of the batch."""
        self.layout_seen = False
        """Whether forward has asked for the layout of a tensor, or whether it requires gradients."""
        self.refusal: Exception | None = None
        """The first refusal. A model that catches it is refused all the same."""
        self._failure: tuple[Exception | None, str] = (None, "")

    @property
    def where(self) -> str:
        """Path of the innermost module that is being run; empty for the model itself."""
        return self.stack[-1] if self.stack else ""

    def ask(self, name: str) -> None:
        """Note that the model uses a method or property of a tensor."""
        self.batch_seen |= name in _TELLS_BATCH
        self.layout_seen |= name in _CIRCUMSTANCES

    def refused(self, why: str, where: str | None = None) -> CaptureError:
        """The error to raise. The model may catch it: the capture remembers. where: the module, if it is not the one that runs."""
        error = CaptureError(f"{(self.where if where is None else where) or 'model'}: {why}")
        self.refusal = self.refusal or error
        return error

    def fail(self, error: Exception) -> None:
        """Note where an error was raised, if it is not known yet."""
        if self._failure[0] is not error:
            self._failure = error, self.where

    def place_of(self, error: Exception) -> str:
        """Path of the innermost module that raised an error."""
        return (self._failure[1] if self._failure[0] is error else self.where) or "model"

    def forget(self) -> None:
        """Let go of the last error: its traceback holds the model's twins."""
        self._failure = None, ""


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
        key = self.key[0] or "model" if isinstance(self.key, tuple) else getattr(self.key, "__name__", self.key)
        return f"{key}({', '.join(told)})"


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
        return source is None or equal(source, self.tensor)


INPUT = "the input"
"""What the input is called among the names of parameters."""


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
        self._keep(tensor, Value(name, 0, name == INPUT))
        return tensor

    def _keep(self, tensor: Tensor, value: Value) -> None:
        self._known[tensor] = value, _place(tensor)

    def begin(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> Step | None:
        """A call that is about to run; None where nothing of the model or of its input is among its arguments.

        target: a function, the name of a tensor's method or property, or, in a tuple, the path of a module.
        """
        given = tuple(t for t in tensors(args) + tensors(kwargs) if t in self._known)
        if not given:
            return None
        function = getattr(Tensor, target, target) if isinstance(target, str) else target
        key = key_of(function)
        if makes_alike(function, args, kwargs):
            return None
        if type(function) is FunctionType and vars(Tensor).get(key) is function:  # it may hand them on by other names
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
        """Note that a call has run. written: those of its arguments that it has written to."""
        for tensor in written:
            self._write(step, tensor)
        changed, passed = {id(t) for t in written}, {id(t) for t in step.given}
        found, first, like = tensors(made), step.args[0] if step.args else None, step.given[0]
        copied = step.key in _COPIES and len(found) == 1
        alike = copied and (found[0].dtype, found[0].shape, found[0].device) == (like.dtype, like.shape, like.device)
        if alike and isinstance(first, Value):
            if found[0] is not like:
                self._keep(found[0], first if first.tensor is None else replace(first, tensor=found[0]))
        else:
            for position, tensor in enumerate(found):
                if id(tensor) in changed or id(tensor) not in passed:  # what is only passed on stays what it was
                    self._made(tensor, step, position)
        step.given = ()

    def _made(self, tensor: Tensor, step: Step, position: int) -> None:
        kept = None if step.varies else tensor
        self._keep(tensor, Value(step, position, step.varies, tuple(tensor.shape), kept))

    def _write(self, step: Step, tensor: Tensor) -> None:
        """Notes that a call has overwritten a tensor: it is a new value, and what shares its memory is forgotten."""
        before, _ = self._known.get(tensor, (None, 0))
        if before is not None and isinstance(before.maker, str) and not before.varies:
            self.written.add(before.maker)
        shared = memory(tensor)
        for other in list(self._known):
            if other is not tensor and memory(other) == shared:
                self.forget(other)
        self._lose(tensor)
        place = next(i for i, t in enumerate(step.given) if t is tensor)
        self._made(tensor, step, -1 - place)

    def _lose(self, tensor: Tensor) -> None:
        """Note that the tensor's values have been overwritten."""
        if tensor in self._known:
            self._known[tensor][0].tensor = None

    def forget(self, tensor: Tensor) -> None:
        """Note that nobody can say what the tensor holds from now on, or has held."""
        self._lose(tensor)
        self._keep(tensor, Value(object(), 0, True))

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor is the input, a parameter, a buffer, or was made of them."""
        return tensor in self._known or id(tensor) in self.names

    def is_alias(self, tensor: Tensor) -> bool:
        """Whether a tensor that no call has made lies in the memory of what was made of the input, as `nn.Parameter(x)` does."""
        if self.knows(tensor):
            return False
        shared = memory(tensor)
        return shared != 0 and any(self._known[t][0].varies and memory(t) == shared for t in list(self._known))

    def varies(self, tensor: Tensor) -> bool:
        """Whether a tensor was made of the input."""
        value, _ = self._known.get(tensor, (None, 0))
        return value is not None and value.varies

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
        if isinstance(a, tuple | list):
            return tuple(self.seen(part) for part in a)
        if isinstance(a, dict):
            return {name: self.seen(part) for name, part in a.items()}
        return ("slice", self.seen((a.start, a.stop, a.step))) if isinstance(a, slice) else a


def is_maker(function: Any) -> bool:
    """By identity: an operator of somebody else's may have the name of one of PyTorch's."""
    return any(function is maker for maker in _MAKERS)


def makes_alike(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function makes a tensor after the model of the only one that it is given, whose values it does not read."""
    if not is_maker(function):
        return False
    return len(tensors(args) + tensors(kwargs)) == 1 and isinstance(args[0] if args else kwargs.get("input"), Tensor)


def key_of(function: Any) -> Any:
    """What a function is known by: its name if it is an operator or PyTorch's own, a property's name, or else itself."""
    name = getattr(function, "__name__", None)
    if name == "__get__":
        owner = function.__self__
        return getattr(owner, "__name__", None) or owner.fget.__name__
    own = isinstance(function, FunctionType) and (function.__module__ or "").partition(".")[0] != "torch"
    return name.partition(".")[0] if isinstance(name, str) and not own else function  # torch.ops.aten.nonzero.default


def _usual(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The usual name and order of arguments of an operator, whichever way it was written."""
    name = name[2:-2] if name.startswith("__") else name
    name = _ONE_NAME.get(name, name)
    if name in _REFLECTED:
        return _REFLECTED[name], args[::-1]
    if name in _EITHER_WAY and len(args) == 2 and not isinstance(args[0], Value | Constant):
        args = args[::-1]
    return name, args


_signature = functools.lru_cache(maxsize=512)(inspect.signature)


def shaped_by_values(step: Step | None, batch: int, made: Any = None) -> bool:
    """Whether the shape of what a call makes depends on values that were made of the input.

    batch: how many examples the run has. made: what the call has made, once it has run. A sparse or nested tensor has as many entries
    as values say.
    """
    if step is None or not step.varies:
        return False
    if any(t.layout is not torch.strided or t.is_nested for t in tensors(made)):
        return True
    if step.key in _SHAPED_BY_VALUES or (step.key == "where" and len(step.args) + len(step.kwargs) == 1):
        return True
    others = step.given[1:] if step.args and isinstance(step.args[0], Value) and _is_method(step.key) else step.given
    if step.key in _JOINS and any(isinstance(a, Value) for a in (*step.args[1:], *step.kwargs.values())):
        return True
    if step.key in ("getitem", "index") and any(t.dtype in (torch.bool, torch.uint8) for t in others):
        return True
    whole = [t for t in others if not t.is_floating_point() and t.dtype is not torch.bool]
    sizes = any(t.dim() == 0 or (t.numel() == 1 and batch > 1) for t in whole)  # PyTorch takes both for a number
    return sizes and step.key not in _ARITHMETIC and not isinstance(step.key, tuple)


def _is_method(key: Any) -> bool:
    """Whether a function works on its first argument, as a tensor's methods do; `torch.ones(n)` takes a size there."""
    return isinstance(key, str) and (hasattr(Tensor, key) or hasattr(Tensor, f"__{key}__"))


def written_to(name: str, given: Iterable[tuple[Tensor, int]], first: Any) -> list[Tensor]:
    """The tensors that a call has written to. given: tensors, and how often each was written to before; `set_` does not count.

    first: the call's first argument.
    """
    by_name = name.endswith("_") and not name.endswith("__") and name not in _CHANGE_NO_VALUES
    return [t for t, version in given if t._version != version or (by_name and t is first)]


def tensors(a: Any) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(a, Tensor):
        return [a]
    if isinstance(a, dict):
        a = tuple(a.values())
    elif isinstance(a, slice):
        a = a.start, a.stop, a.step
    return [t for part in a for t in tensors(part)] if isinstance(a, tuple | list) else []


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same values; NaN is the same as NaN."""
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def memory(tensor: Tensor) -> int:
    """Address of the memory that a tensor shares with its views."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _place(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


# A run on tensors.


class NormalTensors(torch.inference_mode):
    """Leaves inference mode and switches gradients off; the guard of the mode brings both back."""

    def __init__(self) -> None:
        super().__init__(False)

    def __enter__(self) -> None:
        super().__enter__()
        torch._C._set_grad_enabled(False)


def outside_inference_mode() -> AbstractContextManager[None]:
    """Leaves inference mode, if it is on, for an operation: tensors that are made in it do not count writes."""
    return NormalTensors() if torch.is_inference_mode_enabled() else nullcontext()


class Plain(TorchFunctionMode):
    """While it is entered, notes the calls that a model makes with tensors, and refuses it the values of what is made of x."""

    def __init__(self, x: Tensor, names: dict[int, str], watch: Watch) -> None:
        super().__init__()
        self.calls = Calls(names, len(x))
        self.calls.name(x, INPUT)
        self._watch = watch
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._within = False

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
        """Runs and notes a module's call as one, whatever it calls in turn."""
        with self.one_call():
            return self._kept((path,), function, args, kwargs)

    @contextmanager
    def one_call(self) -> Iterator[None]:
        """Calls inside are not noted."""
        before, self._within = self._within, True
        try:
            yield
        finally:
            self._within = before

    def unknown(self, made: Any) -> Any:
        """Tensors that were made of a proxy which an earlier run has stored: nobody can say what they hold."""
        with torch._C.DisableTorchFunction():
            for tensor in tensors(made):
                self.calls.forget(tensor)
        return made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__set__" and getattr(func.__self__, "__name__", "") not in SETTABLE:
            self.calls.forget(args[0])
        return self._kept(func, func, args, kwargs)

    def _kept(self, target: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Makes one call and notes it; refuses one that reads values which depend on the input."""
        with torch._C.DisableTorchFunction():  # what is asked here is no question of the model's
            self._check_aliases(tensors(args) + tensors(kwargs))
            step = self.calls.begin(target, args, kwargs, self._watch.where)
            try:
                versions = [t._version for t in step.given] if step is not None else []
            except RuntimeError:  # an inference tensor that is made of the input by no call
                raise self._out_of_sight() from None
        if step is None:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if step.varies and name in _SHOWS:
            return SHOWN
        self._watch.ask(key_of(function) if name == "__get__" else name)
        try:
            with outside_inference_mode():
                made = function(*args, **kwargs)
        except Exception:
            self._watch.batch_seen = True  # for another number of examples, it may not fail, and the model may catch it
            raise
        with torch._C.DisableTorchFunction():
            if any(_unwrapped(t) is not t for t in tensors(made)):
                raise self._out_of_sight()
            self._watch.batch_seen |= isinstance(made, tuple | list)
            shaped = shaped_by_values(step, self.calls.batch, made)
            if step.varies and (name in OUT_OF_SIGHT or _reads_values(name, made) or shaped):
                raise self._watch.refused(
                    f"reads values of what it has made of its input ({name}), when it runs on tensors; what it does with them cannot "
                    f"be bounded as one network. Replace it by operations on tensors (torch.maximum, clamp, a mask that is a "
                    f"constant), or move it out of the module that you certify"
                )
            written = written_to(name, zip(step.given, versions, strict=True), args[0] if args else None)
            self.calls.finish(step, made, written)
        return made

    def _check_aliases(self, given: list[Tensor]) -> None:
        """Notes tensors that lie in the memory of others, and refuses those of torch.func, which a run on proxies has not."""
        for tensor in given:
            inner = _unwrapped(tensor)
            if self.calls.is_alias(inner):
                self.calls.forget(inner)
            if inner is not tensor and self.calls.knows(inner):
                raise self._out_of_sight()

    def _out_of_sight(self) -> CaptureError:
        return self._watch.refused(
            "computes with tensors out of sight of the capture, inside a transform of torch.func (vmap, grad, jvp) or through "
            "memory that they share with others; write it for a whole batch, by operations that return new tensors"
        )


def _unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that stands behind those of torch.func."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _reads_values(name: str, made: Any) -> bool:
    """Whether a call returns anything but tensors and facts that are the same for all values."""
    if isinstance(made, _NO_VALUES) or tensors(made):
        return False
    name = name.partition(".")[0]  # torch.ops.aten.is_nonzero.default
    facts = name in FACTS or name in _OTHER_FACTS or name == "__get__"
    return not (facts or (name.startswith("is_") and name != "is_nonzero"))
