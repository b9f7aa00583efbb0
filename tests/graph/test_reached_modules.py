"""However a model gets at its modules, and whatever it stores, it is captured as what it computes, and is left as it was."""

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import autodual as ad
from autodual.dual import build
from small import DOUBLE, Net, batch, mlp

GLOBAL = nn.Linear(4, 3, dtype=DOUBLE)
GLOBALS = {"layers": [GLOBAL]}


def _helper(x: Tensor) -> Tensor:
    return GLOBAL(x).relu()


class Memo(nn.Module):
    """Keeps what it saw in attributes, lists and dictionaries, and reads it there."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seen, self.cache = mlp(4, 5, 3), list[Tensor](), dict[str, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.cache["last"] = self.last = self.body(self.seen[-1])
        return self.cache["last"]


class Features(nn.Module):
    """Reads in forward what a hook has stored; the hook shares a dictionary with it through a closure."""

    def __init__(self, closure: bool) -> None:
        super().__init__()
        self.net, self.head, self.found = mlp(4, 5, 5), nn.Linear(5, 3), dict[str, Tensor]()
        found = self.found
        self.net[0].register_forward_hook((lambda m, a, o: found.update(a=o)) if closure else self.save)

    def save(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.found["a"] = output

    def forward(self, x: Tensor) -> Tensor:
        self.net(x)
        return self.head(self.found["a"])


class Delegates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Typed(nn.Module):
    """Asks which class and which object it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 3)
        self.chosen, self.names = self.other, {self.layer: 2.0, self.other: 3.0}
        self.ids = {id(self.layer): 4.0}

    def forward(self, x: Tensor) -> Tensor:
        scale = 5.0 if type(self) is Typed and self.__class__ is Typed and isinstance(self.layer, nn.Linear) else 1.0
        x = self.layer(x) * self.names[self.layer] * self.ids.get(id(self.layer), 1.0)
        return self.other(x) * (scale if self.chosen is self.other else 1.0)


class Called(nn.Linear):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 3


class CalledAltogether(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer(x) * 3


class ClassAttribute(nn.Module):
    shared = (GLOBAL,)

    def __init__(self) -> None:
        super().__init__()
        self.layer = GLOBAL

    def forward(self, x: Tensor) -> Tensor:
        return self.shared[0](x)


def _class_closure() -> nn.Module:
    layer = nn.Linear(4, 3)

    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return layer(x)

    return Closed()


def _attribute_closure() -> nn.Module:
    layer = nn.Linear(4, 3)
    return Net(lambda m, x: layer(x), layer=layer)


def _hook_closure() -> nn.Module:
    model = mlp(4, 5, 3)
    model[0].register_forward_hook(lambda m, a, o: o * 2 if m is model[0] else o)
    return model


def _hooks_with_keywords() -> nn.Module:
    model = mlp(4, 5, 3)
    model[0].register_forward_hook(lambda m, a, k, o: o * 2, with_kwargs=True, always_call=True)
    model[2].register_forward_pre_hook(lambda m, a, k: ((a[0] + 1,), k), with_kwargs=True)
    model[2].register_state_dict_pre_hook(lambda *a: None)
    model.register_full_backward_pre_hook(lambda m, g: None)
    return model


def _object() -> nn.Module:
    model = Net(lambda m, x: m.holder.itself.owner.layer(x), layer=nn.Linear(4, 3))
    model.holder = types.SimpleNamespace(owner=model)
    model.holder.itself = model.holder
    return model


def _bound_and_partial() -> nn.Module:
    def scaled(layer: nn.Module, x: Tensor, factor: float) -> Tensor:
        return layer(x) * factor

    model = Net(lambda m, x: m.steps["last"][0](m.steps["first"](x)), a=nn.Linear(4, 4), b=nn.Linear(4, 3))
    model.steps = {"first": functools.partial(scaled, model.a, factor=2.0), "last": [model.b.forward]}
    return model


def _weak() -> nn.Module:
    model = Net(lambda m, x: m.weak()(x), layer=nn.Linear(4, 3))
    model.weak = weakref.ref(model.layer)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "list": lambda: Net(lambda m, x: m.parts[1](m.parts[0](x)), a=(a := mlp(4, 5)), b=(b := mlp(5, 3)), parts=[a, b]),
    "closure of an attribute": _attribute_closure,
    "closure of a class": _class_closure,
    "closure of a hook, by identity": _hook_closure,
    "global": lambda: Net(lambda m, x: GLOBAL(x), layer=GLOBAL),
    "container that is global": lambda: Net(lambda m, x: GLOBALS["layers"][0](x), layer=GLOBAL),
    "global that a helper reads": lambda: Net(lambda m, x: _helper(x), layer=GLOBAL),
    "class attribute": ClassAttribute,
    "object that holds the model": _object,
    "partial and bound method": _bound_and_partial,
    "weak reference": _weak,
    "hooks with keywords": _hooks_with_keywords,
    "features of a hook, closure": lambda: Features(closure=True),
    "features of a hook, method": lambda: Features(closure=False),
    "stores what it saw": Memo,
    "delegates attributes": Delegates,
    "asks who it is": Typed,
    "__call__ around": lambda: nn.Sequential(Called(4, 3)),
    "__call__ instead": lambda: nn.Sequential(CalledAltogether()),
    "sum over its parameters": lambda: Net(
        lambda m, x: m.fc(x) + sum(p.sum() for p in m.parameters()), fc=nn.Linear(4, 3)
    ),
    "graph of torch.fx": lambda: fx.symbolic_trace(mlp(4, 5, 3)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_captured_as_what_it_computes(make: Callable[[], nn.Module]) -> None:
    model, x = make().to(DOUBLE).eval(), batch(5, 4) * 2 - 1
    before = {path: sorted(vars(module)) for path, module in model.named_modules()}
    network = ad.capture(model, x[:1])
    assert {path: sorted(vars(module)) for path, module in model.named_modules()} == before
    assert not any(isinstance(v, fx.Proxy) for m in model.modules() for v in _values(vars(m)))
    torch.testing.assert_close(build(network).forward(x), model(x))


def _values(state: dict[str, Any]) -> list[Any]:
    inner = [v for value in state.values() if isinstance(value, list | dict) for v in _elements(value)]
    return [*state.values(), *inner]


def _elements(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def test_a_part_that_cannot_be_followed_is_refused() -> None:
    model = Net(lambda m, x: m.hidden[0](x), layer=nn.Linear(4, 3))
    model.hidden = (weakref.proxy(model.layer),)
    with pytest.raises(ad.CaptureError, match=r"^model: calls its part layer by a way that the capture cannot follow"):
        ad.capture(model, batch(1, 4))
