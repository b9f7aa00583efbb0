"""Models that TorchScript or torch.compile has translated are refused with advice, and are as they were."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import autodual as ad
from small import batch, mlp

X, LABELS, BALL = batch(3, 4), torch.tensor([0, 1, 2]), ad.LinfBall(0.1)


def _compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


SCRIPT, COMPILED = "of TorchScript, .* pass the module itself", "wrapped by torch.compile, .* pass the module itself"
TRANSLATED: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "traced": (lambda m: torch.jit.trace(m, X), SCRIPT),
    "scripted": (torch.jit.script, SCRIPT),
    "compiled": (lambda m: torch.compile(m, backend="eager"), COMPILED),
    "compiled in place": (_compiled_in_place, r"compile\(\) was called, .* pass copy.deepcopy\(model\)"),
}
every_translation = pytest.mark.parametrize(("translate", "message"), TRANSLATED.values(), ids=TRANSLATED.keys())
# PyTorch's own remark that TorchScript is old; people have such models all the same.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is:DeprecationWarning")


@every_translation
def test_the_whole_model(translate: Callable[[nn.Module], nn.Module], message: str) -> None:
    model = translate(mlp(4, 5, 3))
    expected = model(X)
    for work in (ad.certify, ad.certified_radius, lambda m, x, y, b: ad.RobustCrossEntropy(m, b)(x, y)):
        with pytest.raises(ad.CaptureError, match=f"^model: .*{message}"):
            work(model, X, LABELS, BALL)
    assert torch.equal(model(X), expected)


@every_translation
def test_a_part(translate: Callable[[nn.Module], nn.Module], message: str) -> None:
    model = nn.Sequential(mlp(4, 4), translate(mlp(4, 5, 3)))
    with pytest.raises(ad.CaptureError, match=f"^1: .*{message}"):
        ad.certify(model, X, LABELS, BALL)


def test_the_advice_works() -> None:
    model = mlp(4, 5, 3)
    expected = ad.certify(model, X, LABELS, BALL).margins
    torch.compile(model, backend="eager")(X)
    assert torch.equal(ad.certify(model, X, LABELS, BALL).margins, expected)
    assert torch.equal(ad.certify(copy.deepcopy(_compiled_in_place(model)), X, LABELS, BALL).margins, expected)
