"""What changes every model of the process from outside is refused by name, and so are bounds of networks captured before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import autodual as ad
from autodual.dual import build
from small import batch, mlp

X, LABELS, BALL = batch(2, 4), torch.tensor([0, 1]), ad.LinfBall(0.1)


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextmanager
def _hook(register: Callable[..., Any], **options: bool) -> Iterator[None]:
    handle = register(lambda *seen: None, **options)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _replaced(owner: Any, name: str) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: original(*args, **kwargs) * 2)
    try:
        yield
    finally:
        setattr(owner, name, original)


CALLS: dict[str, Callable[[nn.Module, ad.Network], Any]] = {
    "capture": lambda m, n: ad.capture(m, X),
    "certify": lambda m, n: ad.certify(m, X, LABELS, BALL),
    "certify a captured network": lambda m, n: ad.certify(n, X, LABELS, BALL),
    "bounds of a captured network": lambda m, n: ad.bounds(n, BALL.around(X)),
    "robust loss": lambda m, n: ad.RobustCrossEntropy(m, BALL)(X, LABELS),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "forward pre-hook": (lambda: _hook(hooks.register_module_forward_pre_hook), "register_module_forward_pre_hook"),
    "forward hook": (lambda: _hook(hooks.register_module_forward_hook), r"lambda> is a hook on every module"),
    "forward hook, always": (lambda: _hook(hooks.register_module_forward_hook, always_call=True), r"handle.remove\(\)"),
    "function mode": (Functions, "the mode Functions is active"),
    "dispatch mode": (Dispatches, "the mode Dispatches is active"),
    "F.relu": (lambda: _replaced(F, "relu"), "torch.nn.functional.relu has been replaced by .*lambda"),
    "torch.relu, which F.relu calls": (lambda: _replaced(torch, "relu"), "torch.relu has been replaced"),
    "F.linear": (lambda: _replaced(F, "linear"), "linear has been replaced"),
    "x + y": (lambda: _replaced(torch.Tensor, "__add__"), "Tensor.__add__ has been replaced"),
    "parametrize.cached": (parametrize.cached, "parametrize.cached"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("outside", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(outside: Callable[[], Any], message: str, call: Callable[..., Any]) -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 3)).double().eval()
    network = ad.capture(model, X)
    with outside(), pytest.raises(ad.CaptureError, match=message):
        call(model, network)
    call(model, network)  # once it is gone


def test_a_loss_that_has_captured_before_notices() -> None:
    loss = ad.RobustCrossEntropy(mlp(4, 5, 3), BALL)
    loss(X, LABELS)
    with _hook(hooks.register_module_forward_hook), pytest.raises(ad.CaptureError, match="hook on every module"):
        loss(X, LABELS)


HARMLESS: dict[str, Callable[[], Any]] = {
    "backward hook": lambda: _hook(hooks.register_module_full_backward_hook),
    "backward pre-hook": lambda: _hook(hooks.register_module_full_backward_pre_hook),
    "registration hook": lambda: _hook(hooks.register_module_parameter_registration_hook),
    "default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("outside", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_changes_no_value_is_fine(outside: Callable[[], Any]) -> None:
    model = mlp(4, 5, 3)
    expected = ad.certify(model, X, LABELS, BALL).margins
    with outside():
        assert torch.equal(ad.certify(model, X, LABELS, BALL).margins, expected)


@pytest.mark.parametrize("kind", [nn.Linear, nn.ReLU], ids=lambda kind: kind.__name__)
def test_a_forward_that_was_replaced_for_a_whole_class_is_followed(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = mlp(4, 5, 3), mlp(4, 5, 3)(X)
    network, original = ad.capture(model, X), kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: original(self, x) * 2 - 0.25)
    assert not torch.allclose(model(X), before)
    torch.testing.assert_close(build(ad.capture(model, X)).forward(X), model(X))
    with pytest.raises(ad.CaptureError, match="capture it again"):
        ad.bounds(network, BALL.around(X))


def test_flushing_of_denormals_is_refused() -> None:
    """A weight of 1e-39 is flushed to zero as an operand, whatever it is multiplied by: no count of lost products covers that."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e-39], [0.0]]))
        model.bias.copy_(torch.tensor([0.0, -1e-10]))
    x, labels = torch.tensor([[-1e30]]), torch.tensor([0])
    assert not ad.certify(model.eval(), x, labels, ad.LinfBall(0.0)).certified.any()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        with pytest.raises(ad.CaptureError, match="flushed to zero"):
            ad.certify(model, x, labels, ad.LinfBall(0.0))
    finally:
        torch.set_flush_denormal(False)
