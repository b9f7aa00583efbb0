"""Has a model changed since it was captured? Two answers: a cheap one for every training step, and a thorough one for proofs."""

from __future__ import annotations

import types
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import CaptureError
from autodual.graph.network import Attribute, Network, Node, Ref
from autodual.graph.twins import MAPPINGS, attributes, is_container, own_classes, package_of, parts

MOST = 100_000
"""Entries of a fingerprint. A model with more is taken to have changed."""

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
        kind = type(value)
        enter = self._entries.append
        if kind in _BY_VALUE:
            self._entries += (kind, value)
        elif kind is float or isinstance(value, np.generic):
            self._entries += (kind, repr(value))  # -0.0 is not 0.0
        elif isinstance(value, Tensor) and id(value) in self._live:
            enter(
                self._live[id(value)]
            )  # live, and so is another in its place; but which attributes share it must stay
        elif id(value) in self._place:
            enter(("seen", self._place[id(value)]))
        else:
            self._place[id(value)] = len(self._place)
            self._held.append(value)
            self._enter_parts(value, kind)

    def _enter_parts(self, value: Any, kind: type) -> None:
        if isinstance(value, np.ndarray):
            self._entries += (value.shape, value.dtype.str, value.tobytes())
        elif is_container(value):
            self._entries += (kind, len(value))
            if kind in MAPPINGS and value:
                self._waiting += [*value.keys(), *value.values()]
            elif value:
                self._waiting += value
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


def check_unchanged(network: Network, now: Network) -> None:
    """Refuse a captured network whose model computes something else by now; `now` is a fresh capture of the same model."""
    for before, after in zip(network.nodes, now.nodes, strict=False):  # their numbers are compared below
        difference = _difference(before, after)
        if difference is not None:
            raise _changed(after.path or after.name, difference)
    if len(network.nodes) != len(now.nodes) or network.output != now.output:
        raise _changed("model", f"{len(now.nodes)} operations instead of {len(network.nodes)}")


def _changed(where: str, how: str) -> CaptureError:
    return CaptureError(
        f"{where}: computes something else than when it was captured ({how}). Numbers, hooks and modules are read when a model is "
        f"captured, and only parameters and buffers are live; capture it again"
    )


def _difference(before: Node, after: Node) -> str | None:
    if (before.name, before.path) != (after.name, after.path):
        return f"{before.name} was there, {after.name} is"
    if not _same_target(before.target, after.target):
        return f"{before.name} is another module, function or tensor"
    if before.shape != after.shape or before.depends != after.depends:
        return f"{before.name} has another shape"
    return _different_argument(before, after)


def _different_argument(before: Node, after: Node) -> str | None:
    old, new = (before.args, before.kwargs), (after.args, after.kwargs)
    return None if _same(old, new) else f"{before.name} has other arguments: {_shown(new)} instead of {_shown(old)}"


def _same_target(a: Any, b: Any) -> bool:
    if not (isinstance(a, Attribute) and isinstance(b, Attribute)):
        return a is b or (not isinstance(a, nn.Module) and type(a) is type(b) and bool(a == b))
    if a.tensor is None or b.tensor is None or a.tensor is b.tensor:
        return a.owner is b.owner and a.name == b.name and a.tensor is b.tensor
    one, other = a.tensor.detach(), b.tensor.detach()  # made inside forward, and so another one each time
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, slice):
        return _same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return repr(a) == repr(b) if isinstance(a, float) else a is b or bool(a == b)


def _shown(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    args, kwargs = arguments
    told = [repr(a) for a in args if not isinstance(a, Ref)] + [f"{k}={v!r}" for k, v in kwargs.items()]
    return f"({', '.join(told)})"
