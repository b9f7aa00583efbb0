"""Constants that are made after the model of another tensor, by its shape, dtype and device, are constants like any others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad

BALL = ad.LinfBall(0.05)


class Net(nn.Module):
    """A linear layer whose scores are made into others."""

    def __init__(self, make: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.make, self.hidden = make, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.make(x, torch.relu(self.hidden(x) + 1))


def net(make: Callable[[Tensor, Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Net(make).eval(), torch.rand(5, 4)


WAYS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "new_ones": (lambda x, h: h + x.new_ones(len(x), 3), lambda x, h: h + 1),
    "new_zeros": (lambda x, h: torch.cat([h, x.new_zeros(x.size(0), 2)], 1), lambda x, h: torch.nn.functional.pad(h, (0, 2))),
    "new_full": (lambda x, h: h * x.new_full((1, 3), 2.0), lambda x, h: h * 2),
    "new_tensor": (lambda x, h: h * h.new_tensor([2.0, 2.0, 2.0]), lambda x, h: h * 2),
    "zeros_like": (lambda x, h: torch.cat([h, torch.zeros_like(h)], 1), lambda x, h: torch.nn.functional.pad(h, (0, 3))),
    "ones_like": (lambda x, h: torch.ones_like(h) - h, lambda x, h: 1 - h),
    "full_like": (lambda x, h: h * torch.full_like(input=h, fill_value=2.0), lambda x, h: h * 2),
    "of a parameter's kind": (lambda x, h: h + torch.eye(4).to(x).new_ones(3), lambda x, h: h + 1),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", [ad.Dual(), ad.IBP(), ad.Crown()], ids=repr)
def test_bounds_are_those_of_the_same_numbers(way: str, engine: ad.BoundEngine) -> None:
    made, written_out = WAYS[way]
    model, x = net(made)
    twin, _ = net(written_out)
    outputs = [ad.bounds(m, BALL.around(x), engine).output for m in (model, twin)]
    torch.testing.assert_close(outputs[0].lower, outputs[1].lower)
    torch.testing.assert_close(outputs[0].upper, outputs[1].upper)
    labels = model(x).argmax(1)
    found, expected = (ad.certify(m, x, labels, BALL, engine) for m in (model, twin))
    assert torch.equal(found.certified, expected.certified)


def test_float64_and_another_batch() -> None:
    model, x = net(WAYS["new_zeros"][0])
    network = ad.capture(model, x)
    assert ad.certify(network, x[:2], model(x[:2]).argmax(1), BALL).margins.shape == (2, 5)
    double = model.double()
    assert ad.certify(double, x.double(), double(x.double()).argmax(1), BALL).certified.dtype == torch.bool


@pytest.mark.parametrize(
    "make",
    [
        lambda x, h: h + x.new_ones(len(x), 1).cumsum(0),  # another number for every example
        lambda x, h: h + torch.ones_like(h).sum() / 3,  # the size of the batch
        lambda x, h: h * x.new_full((3,), float(len(x))),
    ],
    ids=["rows differ", "sum over the batch", "size of the batch"],
)
def test_what_depends_on_the_batch_is_refused(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, x = net(make)
    with pytest.raises(ad.AutodualError):
        ad.certify(model, x, torch.zeros(5, dtype=torch.long), BALL)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, h: torch.full_like(h, h.sum()),
        lambda x, h: h + x.new_full((3,), x.sum()),
        lambda x, h: h + x.new_tensor([x.sum(), 1.0, 2.0]),
        lambda x, h: torch.zeros_like(h).add_(h),
    ],
    ids=["full_like", "new_full", "new_tensor", "written into"],
)
def test_values_of_the_input_do_not_become_constants(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, x = net(make)
    with pytest.raises(ad.AutodualError):
        ad.certify(model, x, torch.zeros(5, dtype=torch.long), BALL)
