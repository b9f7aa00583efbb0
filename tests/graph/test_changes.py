"""A network that was captured notices whatever has changed about its model; the robust loss captures again by itself."""

import argparse
import copy
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import build
from autodual.graph import Fingerprint
from small import DOUBLE, Net, batch, mlp

X, LABELS, BALL = batch(2, 4), torch.tensor([0, 1]), ad.LinfBall(0.1)
CAP = 0.5
LIMITS = {"cap": 0.5}


@dataclass
class Config:
    cap: float = 0.5


class ByClass(nn.Module):
    cap = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3, dtype=DOUBLE)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.clamp(max=self.cap))

    @property
    def limit(self) -> float:
        return CAP

    def double_forward(self, x: Tensor) -> Tensor:
        return self.fc(x.clamp(max=self.cap)) * 2


def _net(compute: Callable[[Any, Tensor], Any], **parts: Any) -> Any:
    return Net(compute, fc=nn.Linear(4, 3), **parts)


def _closure() -> tuple[nn.Module, Callable[[], Any]]:
    cap = 0.5

    def change() -> None:
        nonlocal cap
        cap = 0.25

    return _net(lambda m, x: m.fc(x.clamp(max=cap))), change


def _global() -> tuple[nn.Module, Callable[[], Any]]:
    return _net(lambda m, x: m.fc(x.clamp(max=CAP))), lambda: globals().update(CAP=0.25)


def _global_container() -> tuple[nn.Module, Callable[[], Any]]:
    return _net(lambda m, x: m.fc(x.clamp(max=LIMITS["cap"]))), lambda: LIMITS.update(cap=0.25)


def _class() -> tuple[nn.Module, Callable[[], Any]]:
    return ByClass().eval(), lambda: setattr(ByClass, "cap", 0.25)


class ByProperty(ByClass):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.clamp(max=self.limit))


def _property() -> tuple[nn.Module, Callable[[], Any]]:
    return ByProperty().eval(), lambda: globals().update(CAP=0.25)


def _method() -> tuple[nn.Module, Callable[[], Any]]:
    return ByClass().eval(), lambda: setattr(ByClass, "forward", ByClass.double_forward)


def _tied() -> tuple[nn.Module, Callable[[], Any]]:
    pair = {"first": nn.Linear(3, 3, bias=False), "second": nn.Linear(3, 3, bias=False)}
    model = _net(lambda m, x: nn.functional.linear(m.fc(x), m.second.weight), **pair)
    model.second.weight = model.first.weight
    return model, lambda: setattr(model.second, "weight", nn.Parameter(2 * model.first.weight.detach()))


def _of(compute: Callable[[Any, Tensor], Any], change: Callable[[Any], Any], **parts: Any) -> Callable[[], Any]:
    def make() -> tuple[nn.Module, Callable[[], Any]]:
        model = _net(compute, **copy.deepcopy(parts))
        return model, lambda: change(model)

    return make


CHANGES: dict[str, Callable[[], tuple[nn.Module, Callable[[], Any]]]] = {
    "number": _of(lambda m, x: m.fc(x.clamp(max=m.cap)), lambda m: setattr(m, "cap", 0.25), cap=0.5),
    "sign of zero": _of(lambda m, x: m.fc(x) * m.zero, lambda m: setattr(m, "zero", -0.0), zero=0.0),
    "flag": _of(lambda m, x: m.fc(x) if m.on else m.fc(-x), lambda m: setattr(m, "on", False), on=True),
    "string": _of(lambda m, x: getattr(m.fc(x), m.act)(), lambda m: setattr(m, "act", "tanh"), act="relu"),
    "number in a list": _of(lambda m, x: m.fc(x) * m.a[1][0], lambda m: m.a[1].__setitem__(0, 3.0), a=[1, [2.0]]),
    "number in a dictionary": _of(lambda m, x: m.fc(x) * m.a["b"], lambda m: m.a.update(b=3.0), a={"b": 2.0}),
    "number in an object": _of(lambda m, x: m.fc(x) * m.c.cap, lambda m: setattr(m.c, "cap", 2.0), c=Config()),
    "number in a namespace": _of(
        lambda m, x: m.fc(x) * m.c.cap, lambda m: setattr(m.c, "cap", 2.0), c=argparse.Namespace(cap=1.0)
    ),
    "number in an array": _of(
        lambda m, x: m.fc(x) * float(m.a[0]), lambda m: m.a.__setitem__(0, 3.0), a=np.array([2.0])
    ),
    "tensor, another": _of(
        lambda m, x: m.fc(x) * m.a, lambda m: setattr(m, "a", torch.tensor(3.0)), a=torch.tensor(2.0)
    ),
    "tensor, written to, read by arithmetic": _of(
        lambda m, x: m.fc(x) * (m.a + 1), lambda m: m.a.fill_(3.0), a=torch.tensor(2.0)
    ),
    "number in a closure": _closure,
    "global number": _global,
    "global container": _global_container,
    "global number that a property reads": _property,
    "number of the class": _class,
    "method of the class": _method,
    "function": _of(lambda m, x: m.f(m.fc(x)), lambda m: setattr(m, "f", torch.tanh), f=torch.relu),
    "submodule": _of(lambda m, x: m.fc(x), lambda m: setattr(m, "fc", nn.Linear(4, 3, dtype=DOUBLE))),
    "forward of one object": _of(
        lambda m, x: m.fc(x),
        lambda m: setattr(
            m.fc, "forward", types.MethodType(lambda self, x: nn.functional.linear(x, -self.weight), m.fc)
        ),
    ),
    "hook": _of(lambda m, x: m.fc(x), lambda m: m.fc.register_forward_hook(lambda module, args, output: -output)),
    "hook of the model": _of(lambda m, x: m.fc(x), lambda m: m.register_forward_pre_hook(lambda m, a: (-a[0],))),
    "mode that is asked for": _of(lambda m, x: m.fc(x) * (2 if m.fc.training else 1), lambda m: m.fc.train()),
    "weights that were one": _tied,
}
every_change = pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES.keys())


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module and its class hold comes back after each test."""
    monkeypatch.setitem(globals(), "CAP", 0.5)
    monkeypatch.setitem(LIMITS, "cap", 0.5)
    monkeypatch.setattr(ByClass, "cap", 0.5)
    monkeypatch.setattr(ByClass, "forward", ByClass.forward)


@every_change
@pytest.mark.parametrize("of", [ad.bounds, lambda n, r: ad.certify(n, X, LABELS, BALL)], ids=["bounds", "certify"])
def test_a_captured_network_refuses_to_speak_for_another_function(
    make: Callable[[], tuple[nn.Module, Callable[[], Any]]], of: Callable[..., Any]
) -> None:
    model, change = make()
    network, region = ad.capture(model, X[:1]), BALL.around(X)
    of(network, region)
    change()
    with pytest.raises(ad.CaptureError, match="capture it again"):
        of(network, region)
    of(ad.capture(model, X[:1]), region)


@every_change
def test_the_robust_loss_follows(make: Callable[[], tuple[nn.Module, Callable[[], Any]]]) -> None:
    model, change = make()
    loss = ad.RobustCrossEntropy(model, BALL)
    loss(X, LABELS)
    change()
    assert torch.equal(loss(X, LABELS), ad.RobustCrossEntropy(model, BALL)(X, LABELS))
    torch.testing.assert_close(build(loss._captured_network(X)).forward(X), model(X))


def test_steps_of_training_change_no_fingerprint() -> None:
    """Else the loss would capture the model at every step."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).to(DOUBLE).train()
    loss, optimiser = ad.RobustCrossEntropy(model, BALL), torch.optim.Adam(model.parameters())
    loss(X, LABELS)
    before, captured = Fingerprint(model), loss._captured_network(X)
    for _ in range(2):
        optimiser.zero_grad()
        loss(X, LABELS).backward()
        optimiser.step()
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    model[0].weight = nn.Parameter(torch.ones(5, 4, dtype=DOUBLE))
    assert Fingerprint(model) == before
    assert loss._captured_network(X) is captured


def test_a_model_that_holds_very_much_is_taken_to_have_changed() -> None:
    model = Net(lambda m, x: m.fc(x), fc=nn.Linear(4, 3), table=[float(i) for i in range(200_000)])
    assert Fingerprint(model) != Fingerprint(model)
    assert Fingerprint(mlp(4, 3)) != Fingerprint(mlp(4, 3)), "other modules"
