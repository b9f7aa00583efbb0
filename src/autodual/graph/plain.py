"""Does `forward` do with tensors what it does with proxies?

A model can tell them apart: `type(x) is torch.Tensor`, a cache by type, a library that looks for its backend. Outputs alone may hide
it, behind a saturated activation for example. So a capture runs the model once more on tensors, and what every call has made of the
input must be what the same call made when it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autodual._errors import CaptureError

ROOM = 2.0**-6
"""Values may differ by this part of the largest: a rewrite rounds otherwise than what it stands for."""


class Made:
    """What the calls of a run, as the user wrote them, have made of its input."""

    def __init__(self, x: Tensor) -> None:
        self.output: Any = None
        self._values: list[Tensor] = []
        self._made_of: dict[int, set[int]] = {id(x): set()}
        """By the identity of a tensor that was made of the input: those that it was made of."""
        self._kept: list[Tensor] = [x]  # so that no identity is used twice

    def keep(self, made: Any, args: Any, kwargs: Any) -> None:
        """The result of one call; only if anything of the input was among its arguments."""
        found = tensors(made)
        of = {id(a) for a in tensors(args) + tensors(kwargs) if id(a) in self._made_of} if found else set()
        if of:
            self._kept += found
            self._values += [a for a in found if a.is_floating_point()]
            for a in found:
                self._made_of.setdefault(id(a), set()).update(of)

    def on_the_way(self) -> list[Tensor]:
        """The values that the output was made of, in the order of their calls. What a model only stores is not among them."""
        reached: set[int] = set()
        waiting = [id(a) for a in tensors(self.output)]
        while waiting:
            one = waiting.pop()
            if one not in reached:
                reached.add(one)
                waiting += self._made_of.get(one, ())
        return [a for a in self._values if id(a) in reached]


class Plain(TorchFunctionMode):
    """While it is entered, keeps what calls of torch functions make of x."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.made = Made(x)
        self._own: dict[int, Tensor] = {}
        self._within = False

    def own(self, tensor: Tensor) -> Tensor:
        """A copy of one of the model's tensors, always the same, so that a write cannot reach the model."""
        if id(tensor) not in self._own:
            copy = tensor.detach().clone()
            self._own[id(tensor)] = (
                nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
            )
        return self._own[id(tensor)]

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that is kept as one, whatever it calls in turn."""
        before, self._within = self._within, True
        try:
            made = function(*args, **kwargs)
        finally:
            self._within = before
        self.made.keep(made, args, kwargs)
        return made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not self._within:
            self.made.keep(made, args, kwargs or {})
        return made


def check_same(by_proxies: Made, by_tensors: Made) -> None:
    """Refuse a model that has made other values of tensors than of proxies."""
    recorded, plain = by_proxies.on_the_way(), by_tensors.on_the_way()
    if len(recorded) == len(plain) and all(_same(a, b) for a, b in zip(recorded, plain, strict=True)):
        return
    if all(any(_same(a, b) for b in plain) for a in recorded) and all(
        any(_same(a, b) for b in recorded) for a in plain
    ):
        return
    raise CaptureError(
        "model: computes something else with tensors than with the proxies that record its graph; it may branch on type(x), on "
        "isinstance(x, Tensor) or on an attribute of x. Certificates need one function: leave the branch out"
    )


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if a.numel() == 0 or torch.equal(a, b):
        return True
    room = ROOM * float(a.detach().abs().nan_to_num(0, 0, 0).amax())
    return torch.allclose(a, b.to(a.dtype), rtol=0, atol=room, equal_nan=True)


def tensors(a: Any) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(a, Tensor):
        return [a]
    if isinstance(a, dict):
        a = tuple(a.values())
    return [t for part in a for t in tensors(part)] if isinstance(a, tuple | list) else []
