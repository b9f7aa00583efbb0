"""Certificates are per example: a model whose examples influence one another is refused, whatever the shapes happen to be."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import Net, batch

# Widths include 13 and 11, the batches that capture tries: a feature dimension must not be taken for the batch.
WIDTHS = (2, 4, 7, 11, 13)

MIXING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mean over the batch": lambda m, x: m.fc(x - x.mean(0)),
    "mean over the batch, kept": lambda m, x: m.fc(x - x.mean(dim=0, keepdim=True)),
    "sum of everything": lambda m, x: m.fc(x) + x.sum(),
    "x.T": lambda m, x: (x.T @ torch.ones(x.shape[0], x.shape[0], dtype=x.dtype)).T,
    "x.t()": lambda m, x: m.fc(x.t().t()),
    "transpose": lambda m, x: m.fc(x.transpose(0, 1).transpose(0, 1)),
    "permute": lambda m, x: m.fc(x.permute(1, 0).permute(1, 0)),
    "flatten(0)": lambda m, x: m.fc(x.flatten(0).view(x.shape)),
    "reshape by width": lambda m, x: m.fc(x.reshape(x.shape[1], -1).reshape(x.shape)),
    "flip": lambda m, x: m.fc(x.flip(0)),
    "roll of everything": lambda m, x: m.fc(x.roll(1, [])),
    "first example": lambda m, x: m.fc(x - x[0]),
    "other examples": lambda m, x: m.fc(x[torch.arange(x.shape[0]).roll(1)]),
    "every second example": lambda m, x: m.fc(x[::2]),
    "forgotten keepdim": lambda m, x: m.fc(x).sum(1, keepdim=True) - x.sum(1),
    "outer sum": lambda m, x: (m.fc(x) + m.fc(x).unsqueeze(1)).mean(1),
    "concatenation": lambda m, x: torch.cat([m.fc(x), m.fc(x)]),
    "stack": lambda m, x: torch.stack([m.fc(x), m.fc(x)]),
    "split": lambda m, x: m.fc(x.split(1)[0]),
    "softmax over the batch": lambda m, x: m.fc(x).softmax(0),
    "batch statistics": lambda m, x: m.fc(torch.nn.functional.batch_norm(x, None, None, training=True)),
    "one constant per example": lambda m, x: m.fc(x) + torch.arange(x.shape[0]).unsqueeze(1),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("compute", MIXING.values(), ids=MIXING.keys())
def test_examples_that_influence_one_another_are_refused(compute: Callable[[Any, Tensor], Tensor], width: int) -> None:
    model = Net(compute, fc=nn.Linear(width, width))
    for count in (1, 2, 13):
        with pytest.raises(ad.AutodualError):
            ad.bounds(model, ad.LinfBall(0.1).around(batch(count, width)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("compute", MIXING.values(), ids=MIXING.keys())
def test_the_robust_loss_refuses_them_too(compute: Callable[[Any, Tensor], Tensor], width: int) -> None:
    model = Net(compute, fc=nn.Linear(width, width))
    with pytest.raises(ad.AutodualError):
        ad.RobustCrossEntropy(model, ad.LinfBall(0.1))(batch(13, width), torch.zeros(13, dtype=torch.long))


BRANCHING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "more than six": lambda m, x: m.fc(x) if x.shape[0] > 6 else -m.fc(x),
    "more than two": lambda m, x: m.fc(x) if len(x) > 2 else -m.fc(x),
    "one": lambda m, x: m.fc(x) * (2 if x.size(0) == 1 else 1),
    "more than sixteen": lambda m, x: m.fc(x) if len(x) > 16 else -m.fc(x),
    "as a factor": lambda m, x: m.fc(x) / x.shape[0],
}


@pytest.mark.parametrize(("name", "compute"), BRANCHING.items(), ids=BRANCHING.keys())
def test_a_model_that_depends_on_the_batch_size_is_refused(name: str, compute: Callable[[Any, Tensor], Tensor]) -> None:
    """Unless it does so for sizes that neither capture nor the caller uses."""
    count = 20 if "sixteen" in name else 1
    with pytest.raises(ad.CaptureError, match="batch size"):
        ad.bounds(Net(compute, fc=nn.Linear(4, 3)), ad.LinfBall(0.1).around(batch(count, 4)))


RANDOM: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "noise like the input": lambda m, x: m.fc(x + torch.randn_like(x)),
    "noise of its shape": lambda m, x: m.fc(x + torch.randn(x.shape, dtype=x.dtype)),
    "noise of an example's shape": lambda m, x: m.fc(x + torch.randn(x.shape[1:], dtype=x.dtype)),
    "one random number": lambda m, x: m.fc(x) * torch.rand(1, dtype=x.dtype),
    "random columns": lambda m, x: m.fc(x[:, torch.randperm(4)]),
    "dropout that never sleeps": lambda m, x: m.fc(torch.nn.functional.dropout(x, 0.5)),
    "randomised ReLU": lambda m, x: torch.nn.functional.rrelu(m.fc(x), training=True),
}


@pytest.mark.parametrize("compute", RANDOM.values(), ids=RANDOM.keys())
def test_a_random_model_is_refused(compute: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(ad.AutodualError):
        ad.bounds(Net(compute, fc=nn.Linear(4, 3)), ad.LinfBall(0.1).around(batch(3, 4)))


HARMLESS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "batch size in view": lambda m, x: m.fc(x.view(x.size(0), 2, 2).reshape(x.shape[0], -1)),
    "constant expanded to the batch": lambda m, x: torch.cat([m.fc(x), m.token.expand(x.shape[0], -1)], 1),
    "zeros for the batch": lambda m, x: m.fc(x) + torch.zeros(x.shape[0], 3, dtype=x.dtype),
    "column of ones": lambda m, x: torch.cat([torch.ones(len(x), 1, dtype=x.dtype), m.fc(x)], dim=1),
    "square matrices": lambda m, x: (m.square @ m.fc(x).unsqueeze(2)).squeeze(2),
    "in place": lambda m, x: m.fc(x).view(len(x), 3).mul_(2).relu_().add_(torch.ones(len(x), 3, dtype=x.dtype)),
    "unpacked": lambda m, x: torch.cat(m.fc(x.view(len(x), 4)).chunk(3, dim=1)[::-1], 1),
}


@pytest.mark.parametrize("compute", HARMLESS.values(), ids=HARMLESS.keys())
def test_use_of_the_batch_size_in_shapes_is_fine(compute: Callable[[Any, Tensor], Tensor]) -> None:
    parts: dict[str, Any] = {
        "fc": nn.Linear(4, 3),
        "token": nn.Parameter(torch.rand(1, 2)),
        "square": nn.Parameter(torch.rand(3, 3)),
    }
    model, x = Net(compute, **parts), batch(3, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


BY_PLACE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mask": lambda m, x: m.fc(x * (1 + 9 * (torch.arange(len(x)) >= 14).to(x)[:, None])),
    "bound": lambda m, x: m.fc(x).clamp(max=100 - (torch.arange(x.shape[0]) > 17).to(x)[:, None]),
    "counted from the end": lambda m, x: m.fc(x) + (torch.arange(len(x)).flip(0) >= 14).to(x)[:, None],
    "computed from a parameter": lambda m, x: (
        m.fc(x) + m.token.expand(len(x), -1) * (torch.arange(len(x)) > 14)[:, None]
    ),
}


@pytest.mark.parametrize("compute", BY_PLACE.values(), ids=BY_PLACE.keys())
def test_a_constant_that_differs_beyond_the_traced_batch_is_refused(compute: Callable[[Any, Tensor], Tensor]) -> None:
    """The first 13 examples have one constant, and a later one of the given 20 another."""
    model = Net(compute, fc=nn.Linear(4, 3), token=nn.Parameter(torch.rand(1, 3)))
    ad.capture(model, batch(13, 4))
    with pytest.raises(ad.CaptureError, match="with a batch of 20 instead of 13"):
        ad.capture(model, batch(20, 4))


def test_a_large_batch_is_traced_in_the_memory_that_the_model_needs() -> None:
    """200 layers of 8 MB each: kept, they would be 1.6 GB."""
    alive, most = 0, 0

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal alive, most
            made = x + 1
            value = getattr(made, "value", made)
            if value.numel() == 2**20:
                alive += 1
                most = max(most, alive)
                weakref.finalize(value, left)
            return made

    def left() -> None:
        nonlocal alive
        alive -= 1

    layers = nn.Sequential(*(Watched() for _ in range(200)))
    ad.capture(Net(lambda m, x: m.layers(x.view(len(x), -1)), layers=layers), batch(2**10, 2**10))
    assert 1 < most < 5


def test_a_builder_gets_no_constant_that_differs_between_examples() -> None:
    """A builder that is asked by hand has no second run that would have noticed."""
    call = ad.Call("layer", (3,), None, (), batch=2)
    assert torch.equal(call.constant(torch.ones(2, 3), (3,)), torch.ones(3))
    assert torch.equal(call.constant(torch.ones(1, 3), (3,)), torch.ones(3))
    with pytest.raises(
        ad.ArgumentError, match=r"layer: a constant of shape .* differs between the examples of a batch"
    ):
        call.constant(torch.arange(6.0).reshape(2, 3), (3,))
