"""Forward hooks are part of what a model computes, wherever they sit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import build
from small import Net, batch, bounds_of, mlp


def _model() -> nn.Module:
    return Net(lambda m, x: m.head(m.body(x)), body=mlp(4, 5, 5), head=nn.Linear(5, 3))


PLACES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a leaf that has a dual layer": lambda m: m.get_submodule("head"),
    "an activation": lambda m: m.get_submodule("body.1"),
    "an inner module": lambda m: m.get_submodule("body"),
    "the model itself": lambda m: m,
}
every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())


def _reproduced(model: nn.Module) -> None:
    x = batch(5, 4)
    torch.testing.assert_close(build(ad.capture(model, x[:2])).forward(x), model(x))


@every_place
def test_a_hook_that_changes_the_output_is_followed(place: Callable[[nn.Module], nn.Module]) -> None:
    model = _model()
    plain = model(batch(5, 4))
    place(model).register_forward_hook(lambda module, args, output: output * 2 + 0.5)
    assert not torch.allclose(model(batch(5, 4)), plain)
    _reproduced(model)


@every_place
def test_a_hook_that_changes_the_input_is_followed(place: Callable[[nn.Module], nn.Module]) -> None:
    model = _model()
    place(model).register_forward_pre_hook(lambda module, args: (args[0] * 2 - 0.5,))
    _reproduced(model)


@every_place
def test_a_hook_that_only_looks_changes_nothing(place: Callable[[nn.Module], nn.Module]) -> None:
    model, region = _model(), ad.LinfBall(0.1).around(batch(2, 4))
    before = bounds_of(model, region)
    seen: list[Any] = []

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((output.detach().argmax(1), output.norm()))

    place(model).register_forward_hook(look)
    for a, b in zip(before, bounds_of(model, region), strict=True):
        assert torch.equal(a, b)
    assert seen


@every_place
def test_backward_hooks_do_not_disturb(place: Callable[[nn.Module], nn.Module]) -> None:
    model = _model()
    place(model).register_full_backward_hook(lambda module, grad_input, grad_output: None)
    _reproduced(model)


def test_hooks_that_were_removed_are_gone() -> None:
    model, region = _model(), ad.LinfBall(0.1).around(batch(2, 4))
    before = bounds_of(model, region)
    handle = model.get_submodule("head").register_forward_hook(lambda module, args, output: -output)
    assert not torch.equal(before[-1], bounds_of(model, region)[-1])
    handle.remove()
    assert torch.equal(before[-1], bounds_of(model, region)[-1])


def test_a_hook_added_after_the_capture_is_noticed() -> None:
    model = _model()
    network = ad.capture(model, batch(1, 4))
    model.register_forward_hook(lambda module, args, output: -output)
    with pytest.raises(ad.CaptureError, match="capture it again"):
        ad.bounds(network, ad.LinfBall(0.1).around(batch(2, 4)))
