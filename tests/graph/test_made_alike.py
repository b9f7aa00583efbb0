"""Constants that are made after the model of another tensor, by its shape, dtype and device, are constants like any others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import REGISTRY
from autodual.graph import capture_graph
from autodual.graph.registry import Registry

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
    labels = model(x).argmax(1)
    whole = ad.certify(network, x, labels, BALL).margins
    torch.testing.assert_close(ad.certify(network, x[:2], labels[:2], BALL).margins, whole[:2], rtol=0, atol=1e-5)
    double = ad.certify(model.double(), x.double(), labels, BALL).margins
    torch.testing.assert_close(double.float(), whole, rtol=0, atol=1e-5)


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


class Flattened(nn.Module):
    def __init__(self, turn: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.turn, self.hidden = turn, nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.hidden(x.flatten(1))
        return -y if self.turn(x) else y


@pytest.mark.parametrize(
    "turn",
    [
        lambda x: not torch.zeros_like(x).is_contiguous(),
        lambda x: torch.ones_like(x).stride(1) == 1,
        lambda x: torch.full_like(x, 1.0).stride()[0] != 48,
    ],
    ids=["zeros_like", "ones_like", "full_like"],
)
def test_what_is_made_alike_lies_alike(turn: Callable[[Tensor], bool]) -> None:
    """The same numbers, with channels inside, would get other scores."""
    x = torch.rand(4, 3, 4, 4)
    with pytest.raises(ad.CaptureError):
        ad.certify(Flattened(turn).eval(), x, torch.zeros(4, dtype=torch.long), BALL)


def test_an_operator_of_the_same_name_is_another_function() -> None:
    library = torch.library.Library("made_alike", "DEF")
    library.define("ones_like(Tensor x) -> Tensor")
    library.impl("ones_like", lambda x: (x[:, :1] > 0.5).float() * x.new_ones(3), "CompositeExplicitAutograd")
    model, x = net(lambda x, h: h * torch.ops.made_alike.ones_like(x))
    with pytest.raises(ad.UnsupportedOperationError, match="ones_like"):
        ad.certify(model, x, torch.zeros(5, dtype=torch.long), BALL)


def test_a_rewrite_of_ones_own_comes_first() -> None:
    registry = Registry(dict(REGISTRY.builders), dict(REGISTRY.rewrites), dict(REGISTRY.bodies))
    seen = list[float]()

    @registry.rewrite(torch.full_like)
    def _full_like(input: Tensor, fill_value: float) -> Tensor:
        seen.append(fill_value)
        return input * 0 + fill_value

    model, x = net(lambda x, h: h + torch.full_like(h, 2.0))
    capture_graph(model, x, registry)
    assert set(seen) == {2.0}


class Stored(nn.Module):
    """Stores what it makes for the first batch that it sees, and a bump that the corner of no set shows."""

    def __init__(self, make: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.make, self.hidden = make, nn.Linear(4, 3)
        self.stored: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.hidden(x)
        if self.stored is None:
            self.stored = self.make(x, h)
        bump = torch.relu(0.002 - (x[:, :1] - 0.55).abs()) * 5000 * (13 - self.stored[0])
        return h + bump * torch.tensor([1.0, -1.0, 1.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda x, h: torch.ones(len(x), 3).sum(0),
        lambda x, h: torch.ones_like(h).sum(0),
        lambda x, h: x.new_tensor([float(len(x))]),
    ],
    ids=["ones", "ones_like", "new_tensor"],
)
def test_what_is_stored_of_the_first_batch_is_refused(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    """All runs of the capture read what the first of them has stored, and the model itself will store something else."""
    with pytest.raises(ad.CaptureError, match="stored"):
        ad.certify(Stored(make).eval(), torch.full((5, 4), 0.5), torch.zeros(5, dtype=torch.long), BALL)
