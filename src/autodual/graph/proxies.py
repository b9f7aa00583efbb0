"""What a model meets in place of tensors while its graph is recorded: proxies that know the values they stand for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx

from autodual.graph.plain import CIRCUMSTANCES, SETTABLE, SHOWN, TELLS_BATCH

if TYPE_CHECKING:
    from autodual.graph.tracer import ConcreteTracer

_ASSIGNED = frozenset(("tracer", "node", "value", "overwritten")) | SETTABLE
"""Attributes of a proxy, and those of a tensor that change no value of it."""


class ConcreteProxy(fx.Proxy):
    """A proxy that answers questions about shape, dtype and device from the sample's value."""

    tracer: ConcreteTracer
    value: Any
    overwritten: str = ""
    """Why it must not be read any more: its tensor was changed through a view, where the graph does not show it."""

    def __getattr__(self, name: str) -> Any:
        """A tensor such as x.T is recorded; x.shape is a plain fact; methods are left to torch.fx."""
        if name == "value":  # not known yet
            raise AttributeError(name)
        self.tracer.told |= name in TELLS_BATCH
        self.tracer.asked |= name in CIRCUMSTANCES
        found = getattr(self.value, name)
        if isinstance(found, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        """`x.data = y` changes what x is, and so do its like; any other name is the user's own."""
        if name not in _ASSIGNED and hasattr(Tensor, name):
            raise self.tracer.refused(
                f"{self.tracer.where or 'model'}: assigns to .{name} of a tensor, which the graph would not show; compute a new tensor"
            )
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise self.tracer.refused(
            f"{self.tracer.where or 'model'}: a tensor that is captured does not support item assignment (x[...] = y), since the "
            f"graph would not show it; put the parts together by torch.cat or torch.stack, or multiply by a constant mask"
        )

    def __repr__(self) -> str:
        return SHOWN

    def __iter__(self) -> Iterator[Any]:
        """A parameter may be unpacked, which a tensor does by `unbind`; iterating over the input would read its batch."""
        if isinstance(self.value, Tensor) and not self.tracer.calls.varies(self.value):
            return iter(self.unbind(0))
        return iter(super().__iter__())

    def __len__(self) -> int:
        self.tracer.told = True
        return len(self.value)

    def _in_place(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})


def _writes_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self._in_place(function, other)


for _operation in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(ConcreteProxy, f"__i{_operation}__", _writes_in_place(getattr(operator, f"__i{_operation}__")))


class Reads(dict[str, Any]):
    """A module's parameters or buffers, as the tracer wants them to be read."""

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


def value_of(a: Any) -> Any:
    return a.value if isinstance(a, ConcreteProxy) else a


def depends(a: Any) -> bool:
    """Whether a value that a rewrite is given is computed from the network's input, and not from parameters alone."""
    if not isinstance(a, fx.Proxy):
        return False
    waiting, known = [a.node], "depends on the input"
    while waiting:
        node = waiting[-1]
        if known in node.meta:
            waiting.pop()
            continue
        before = node.all_input_nodes
        unknown = [n for n in before if known not in n.meta]
        if not unknown:
            node.meta[known] = node.op == "placeholder" or any(n.meta[known] for n in before)
        waiting += unknown
    return bool(a.node.meta[known])
