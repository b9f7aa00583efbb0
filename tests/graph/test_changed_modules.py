"""A module that is bounded as one call is what it is outside of `forward`: a forward that changes it first is refused."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import REGISTRY
from small import DOUBLE, Net, batch

Compute = Callable[[Any, Tensor], Any]


def _set_back(m: Any, x: Any) -> Any:
    before, m.act.max_val = m.act.max_val, 5.5
    try:
        return m.act(m.fc(x))
    finally:
        m.act.max_val = before


def _hooked(m: Any, x: Any) -> Any:
    handle = m.fc.register_forward_hook(lambda module, given, made: made.clamp(max=100))
    try:
        return m.fc(x)
    finally:
        handle.remove()


def _pre_hooked(m: Any, x: Any) -> Any:
    handle = m.act.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    try:
        return m.act(m.fc(x))
    finally:
        handle.remove()


def _hooked_pool(m: Any, x: Any) -> Any:
    handle = m.pool.register_forward_hook(lambda module, given, made: made.clamp(max=100))
    try:
        return m.pool(m.fc(x)[:, None])[:, 0]
    finally:
        handle.remove()


def _own_forward(m: Any, x: Any) -> Any:
    m.fc.forward = types.MethodType(lambda self, x: F.linear(x, self.weight).clamp(max=100), m.fc)
    try:
        return m.fc(x)
    finally:
        del m.fc.forward


def _other_class(m: Any, x: Any) -> Any:
    m.act.__class__ = nn.ReLU6
    return m.act(m.fc(x))


def _set(name: str, value: Any) -> Compute:
    def compute(m: Any, x: Any) -> Any:
        setattr(m.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], value)
        return m.leaky(m.act(m.fc(x)))

    return compute


def _other_weight(m: Any, x: Any) -> Any:
    m.fc._parameters["weight"] = m.other.weight if isinstance(m.other.weight, Tensor) else m.fc._parameters["weight"]
    return m.fc(x)


def _afterwards(m: Any, x: Any) -> Any:
    made = m.act(m.fc(x))
    m.act.max_val -= 1.0
    return made


def _only_with_tensors(m: Any, x: Any) -> Any:
    m.act.max_val = 5.5 if isinstance(x, Tensor) else 50.0
    return m.act(m.fc(x))


def _below(m: Any, x: Any) -> Any:
    m.pair.first.max_val = 5.5
    return m.pair(m.fc(x))


def _forward_of_its_class(m: Any, x: Any) -> Any:
    before = nn.Hardtanh.forward
    nn.Hardtanh.forward = lambda self, x: F.hardtanh(x, -50.0, 5.5)  # type: ignore[method-assign]
    try:
        return m.act(m.fc(x))
    finally:
        nn.Hardtanh.forward = before  # type: ignore[method-assign]


def _hook_on_all(m: Any, x: Any) -> Any:
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, made: made.clamp(max=100))
    try:
        return m.act(m.fc(x))
    finally:
        handle.remove()


CHANGES: dict[str, Compute] = {
    "forward of its class": _forward_of_its_class,
    "hook on all modules": _hook_on_all,
    "number": _set("act.max_val", 5.5),
    "slope": _set("leaky.negative_slope", 0.5),
    "set back": _set_back,
    "hook": _hooked,
    "hook before": _pre_hooked,
    "hook of a rewritten module": _hooked_pool,
    "forward": _own_forward,
    "class": _other_class,
    "weight": _other_weight,
    "after its call": _afterwards,
    "with tensors only": _only_with_tensors,
    "below a module of one's own": _below,
}


class Pair(nn.Module):
    """One call by `register`, whose dual layer reads a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Hardtanh(-50.0, 50.0)
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()
        return self.first(x)


@pytest.fixture(autouse=True)
def _pair_is_registered() -> Any:
    ad.register(Pair)(
        lambda call: REGISTRY.builders[nn.Hardtanh](ad.Call(call.path, call.shape, call.module.first, call.args))
    )
    yield
    del REGISTRY.builders[Pair]


def _model(compute: Compute) -> nn.Module:
    parts = {
        "fc": nn.Linear(4, 3),
        "other": nn.Linear(4, 3),
        "leaky": nn.LeakyReLU(),
        "pool": nn.MaxPool1d(2),
        "pair": Pair(),
    }
    return Net(compute, act=nn.Hardtanh(-50.0, 50.0), **parts)


@pytest.mark.parametrize("compute", CHANGES.values(), ids=CHANGES.keys())
def test_a_forward_that_changes_a_module_is_refused(compute: Compute) -> None:
    with pytest.raises(ad.CaptureError, match="changed by a forward"):
        ad.capture(_model(compute), batch(2, 4))


def _note(m: Any, x: Any) -> Any:
    m.fc.seen = m.fc(x)
    m.count = 3
    return m.act(m.fc.seen)


UNCHANGED: dict[str, Compute] = {
    "as it was": _set("act.max_val", 50.0),
    "stored on a layer": _note,
    "evaluation mode": lambda m, x: (m.eval(), m.act(m.fc(x)))[1],
    "stored by its own call": lambda m, x: m.pair(m.pair(m.fc(x))),
}


@pytest.mark.parametrize("compute", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_what_changes_nothing_is_fine(compute: Compute) -> None:
    model, x = _model(compute), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_hooks_that_compute_weights_may_write_them(norm: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # weight_norm is an old name
        layer = norm(nn.Linear(4, 4).to(DOUBLE))
    model, x = nn.Sequential(layer, nn.ReLU(), layer).eval(), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))
