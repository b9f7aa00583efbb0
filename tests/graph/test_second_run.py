"""A model is captured only if it computes the same thing when it runs again: with another batch, another moment, another mode."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import autodual as ad
from autodual.graph.record import random_state
from small import DOUBLE, Net, batch

Compute = Callable[[Any, Tensor], Tensor]


def _three(x: Tensor) -> bool:
    """Whether there are three examples, asked by what fails."""
    try:
        x[:, :1] + torch.zeros(3, 1, dtype=DOUBLE)
    except RuntimeError:
        return False
    return True


def _overwritten(m: Any, x: Tensor) -> Tensor:
    limit = m.token.repeat(len(x), 1) * 0 + len(x)
    y = torch.cat([m.fc(x), limit], 1)
    limit.zero_()
    return y


# Every one of them is inactive, or almost so, at the inputs of the test: only the second run of the capture tells.
BATCH_SIZE: dict[str, Compute] = {
    "len as a factor": lambda m, x: m.fc(x) * len(x),
    "shape[0] as a divisor": lambda m, x: m.fc(x) / x.shape[0],
    "bound of a clamp": lambda m, x: m.fc(x).clamp(max=10.0 * len(x)),
    "bound of a clamp by numel": lambda m, x: m.fc(x).clamp(max=1e3 + x.numel()),
    "slope": lambda m, x: F.leaky_relu(m.fc(x) + 100, 1 / x.size(0)),
    "stride": lambda m, x: m.fc(x) + 1e-9 * x.t().contiguous().stride(0),
    "filled constant": lambda m, x: m.fc(x).clamp(max=torch.full((1,), 10.0 * len(x), dtype=DOUBLE)),
    "filled constant per example": lambda m, x: torch.cat(
        [m.fc(x), torch.full((len(x), 1), float(len(x)), dtype=DOUBLE)], 1
    ),
    "tensor of the size": lambda m, x: m.fc(x) + 1e-9 * torch.tensor(x.shape[0]),
    "sum of an expanded parameter": lambda m, x: m.fc(x).clamp(max=100 + m.token.abs().expand(len(x), -1).sum(0)),
    "sum of expanded ones": lambda m, x: m.fc(x).clamp(max=100 + torch.ones(len(x), 3, dtype=DOUBLE).sum(0)),
    "loop over the batch": lambda m, x: sum(
        (m.fc(x).clamp(max=100) for _ in range(len(x))), torch.zeros(3, dtype=DOUBLE)
    ),
    "branch": lambda m, x: m.fc(x).clamp(max=10) if len(x) > 4 else m.fc(x),
    "branch on one": lambda m, x: m.fc(x).clamp(max=10) if len(x) == 1 else m.fc(x),
    "branch on three": lambda m, x: m.fc(x).clamp(max=10) if x.shape[0] == 3 else m.fc(x),
    "branch on more than sixteen": lambda m, x: m.fc(x).clamp(max=10) if len(x) // 17 else m.fc(x),
    "branch on more than a hundred": lambda m, x: m.fc(x).clamp(max=10) if len(x) > 100 else m.fc(x),
    "branch on one more or less": lambda m, x: m.fc(x).clamp(max=10) if len(x) % 2 else m.fc(x),
    "columns": lambda m, x: m.fc(x * torch.ones(4, dtype=DOUBLE))[:, : max(1, 5 - len(x))],
    "number of parts": lambda m, x: m.fc(x).clamp(max=10) if sum(1 for _ in x.unsafe_split(1)) == 3 else m.fc(x),
    "asked by tensors only": lambda m, x: m.fc(x).clamp(max=10) if isinstance(x, Tensor) and len(x) == 3 else m.fc(x),
    "what fails": lambda m, x: m.fc(x).clamp(max=10) if _three(x) else m.fc(x),
    "beside a large number": lambda m, x: m.fc(x).clamp(
        max=torch.tensor([1e18, 1e18, 10.0 * len(x)], dtype=DOUBLE).expand(len(x), -1)
    ),
    "beside a large number that is computed": lambda m, x: m.fc(x).clamp(
        max=torch.cat([m.token[:, :2].abs() + 1e18, 10 + m.token[:, 2:].expand(len(x), 1).sum(0, True)], 1).expand(
            len(x), 3
        )
    ),
    "overwritten afterwards": _overwritten,
    "squeezed away": lambda m, x: m.fc(torch.cat([x.view(-1, 2, 2).squeeze().sum(1)] * 2, -1).reshape(-1, 4)),
}


@pytest.mark.parametrize(("name", "compute"), BATCH_SIZE.items(), ids=BATCH_SIZE.keys())
def test_the_batch_size_is_no_number_of_the_graph(name: str, compute: Compute) -> None:
    model = Net(compute, fc=nn.Linear(4, 3), token=nn.Parameter(torch.rand(1, 3)))
    count = {
        "branch on one": 1,
        "squeezed away": 1,
        "branch on more than sixteen": 20,
        "branch on more than a hundred": 101,
    }.get(name, 3)
    with pytest.raises(ad.CaptureError, match="batch"):
        ad.capture(model, batch(count, 4))


ALONE: dict[str, Compute] = {
    "branch on one": lambda m, x: m.fc(x).clamp(max=10) if len(x) == 1 else m.fc(x),
    "branch on a few": lambda m, x: m.fc(x).clamp(max=10) if x.size(0) < 2 else m.fc(x),
    "squeezed": lambda m, x: m.fc(x.unsqueeze(1).squeeze().flip(-1).reshape(len(x), -1)),
}


@pytest.mark.parametrize("compute", ALONE.values(), ids=ALONE.keys())
@pytest.mark.parametrize("count", [2, 3, 13])
def test_an_example_alone_is_computed_as_beside_others(compute: Compute, count: int) -> None:
    """A certificate of a batch is read for each example by itself."""
    with pytest.raises(ad.CaptureError, match="with a batch of 1 instead of 13"):
        ad.capture(Net(compute, fc=nn.Linear(4, 3)), batch(count, 4))


def test_a_model_that_does_not_take_a_single_example_is_fine_for_several() -> None:
    def refuses(m: Any, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("too few")
        return m.fc(x)  # type: ignore[no-any-return]

    for compute in (refuses, lambda m, x: m.fc(x.unsqueeze(1).squeeze())):
        assert ad.capture(Net(compute, fc=nn.Linear(4, 3)), batch(3, 4)).output_shape == (3,)


ONLY_SHAPES: dict[str, Compute] = {
    "view": lambda m, x: m.fc(x.view(x.size(0), 2, 2).view(len(x), -1)),
    "view of the whole shape": lambda m, x: m.fc(x.view(*x.shape)),
    "reshape to a list": lambda m, x: m.fc(x.reshape([x.shape[0], 2, 2]).reshape((x.shape[0], 4))),
    "flatten": lambda m, x: m.fc(x.unsqueeze(1).flatten(1)),
    "expanded parameter": lambda m, x: torch.cat([m.fc(x), m.token.expand(x.shape[0], -1)], 1),
    "expanded to another's shape": lambda m, x: m.fc(x) + m.token.expand_as(m.fc(x)),
    "repeated parameter": lambda m, x: torch.cat([m.fc(x), m.token.repeat(len(x), 1)], 1),
    "zeros": lambda m, x: m.fc(x) + torch.zeros(len(x), 3, dtype=DOUBLE),
    "full": lambda m, x: m.fc(x) + torch.full((x.size(0), 1), 0.5, dtype=DOUBLE),
    "token times weight": lambda m, x: m.fc(x) + m.token.expand(len(x), -1) @ m.square,
    "other dimensions": lambda m, x: m.fc(x) / x.shape[1] + x.size(-1) * 0.1,
    "numel of one example": lambda m, x: m.fc(x) / x[0].numel(),
    "assertion": lambda m, x: m.fc(x) if x.shape[0] > 0 else x,
}


@pytest.mark.parametrize("compute", ONLY_SHAPES.values(), ids=ONLY_SHAPES.keys())
@pytest.mark.parametrize("count", [1, 3])
def test_the_batch_size_may_be_part_of_shapes(compute: Compute, count: int) -> None:
    parts = {"fc": nn.Linear(4, 3), "token": nn.Parameter(torch.rand(1, 3)), "square": nn.Parameter(torch.rand(3, 3))}
    model, x = Net(compute, **parts), batch(count, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def _count(m: Any) -> int:
    m.calls += 1
    return m.calls


def _count_in_object(m: Any) -> int:
    m.state.calls += 1
    return m.state.calls


def _count_in_list(m: Any) -> int:
    m.seen.append(0)
    return len(m.seen)


def _previous(m: Any, x: Tensor) -> Tensor:
    before, m.last = m.last, m.fc(x).mean(1, keepdim=True) * 0
    return m.fc(x) + before if isinstance(before, float) else m.fc(x) - 1


def _average(m: Any, x: Tensor) -> Tensor:
    m.average = 0.9 * m.average + 0.1
    return m.fc(x).clamp(max=100 * m.average)


def _alternating(m: Any, x: Tensor) -> Tensor:
    m.on = not m.on
    return m.fc(x).clamp(max=100) if m.on else m.fc(x)


def _decay(m: Any) -> None:
    if not torch.is_grad_enabled():
        m.limit.mul_(0.9)


CHANGING: dict[str, Compute] = {
    "counter": lambda m, x: m.fc(x).clamp(max=100 + _count(m)),
    "counter in an object": lambda m, x: m.fc(x).clamp(max=100 + _count_in_object(m)),
    "counter in a list": lambda m, x: m.fc(x).clamp(max=100 + _count_in_list(m)),
    "iterator": lambda m, x: m.fc(x).clamp(max=100 + next(m.iterator)),
    "flag": _alternating,
    "result of the previous run": _previous,
    "average in a buffer": _average,
    "clock": lambda m, x: m.fc(x).clamp(max=100 + time.perf_counter()),
    "gradient mode": lambda m, x: m.fc(x).clamp(max=100) if torch.is_grad_enabled() else m.fc(x),
    "gradient mode as a number": lambda m, x: m.fc(x) * (1 + 1e-12 * torch.is_grad_enabled()),
    "buffer written in place": lambda m, x: m.fc(x).clamp(max=100 + m.average.mul_(0.9)),
    "buffer written after its use": lambda m, x: (m.fc(x).clamp(max=100 + m.average), m.average.mul_(0.9))[0],
    "buffer of a layer": lambda m, x: (m.norm.running_mean.mul_(0.5), m.norm(m.fc(x)))[1],
    "tensor written after its use, without gradients": lambda m, x: (m.fc(x).clamp(max=m.limit), _decay(m))[0],
    "weight clamped by .data": lambda m, x: (m.fc.weight.data.clamp_(min=0), m.fc(x))[1],
}


def _changing(compute: Compute) -> nn.Module:
    parts: dict[str, Any] = {"state": SimpleNamespace(calls=0), "seen": [], "calls": 0, "on": False, "last": 0.0}
    model = Net(compute, fc=nn.Linear(4, 3), norm=nn.BatchNorm1d(3), iterator=itertools.count(), **parts)
    model.register_buffer("average", torch.tensor(1.0, dtype=DOUBLE))
    model.limit = torch.tensor(100.0, dtype=DOUBLE)
    return model


@pytest.mark.parametrize("compute", CHANGING.values(), ids=CHANGING.keys())
def test_a_model_that_changes_from_run_to_run_is_refused(compute: Compute) -> None:
    with pytest.raises(ad.CaptureError, match=r"when it runs again|writes into"):
        ad.capture(_changing(compute), batch(3, 4))


def _statistics(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    m.average = 0.9 * m.average + 0.1 * x.mean()
    m.last = m.fc(x)
    return m.last * 2


KEPT: dict[str, Compute] = {
    "what nothing is computed with": _statistics,
    "in place": lambda m, x: (m.average.mul_(0.9), m.fc(x))[1],
}


@pytest.mark.parametrize("compute", KEPT.values(), ids=KEPT.keys())
def test_a_model_may_store_what_it_does_not_compute_with(compute: Compute) -> None:
    model, x = _changing(compute), batch(3, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


RANDOM: dict[str, Compute] = {
    "randn": lambda m, x: m.fc(x).clamp(max=100 + torch.randn(3, dtype=DOUBLE)),
    "rand of no consequence": lambda m, x: m.fc(x) if torch.rand(()) < 2 else x,
    "rare": lambda m, x: m.fc(x).clamp(max=100) if torch.rand(()) < 1e-6 else m.fc(x),
    "rand_like a parameter": lambda m, x: m.fc(x).clamp(max=100 + torch.rand_like(m.token)),
    "bernoulli of a parameter": lambda m, x: m.fc(x).clamp(max=100 + torch.bernoulli(m.token)),
    "normal_": lambda m, x: m.fc(x).clamp(max=100 + torch.empty(3, dtype=DOUBLE).normal_()),
    "uniform_ by nn.init": lambda m, x: m.fc(x).clamp(max=100 + nn.init.uniform_(torch.empty(3, dtype=DOUBLE))),
    "randperm": lambda m, x: m.fc(x[:, torch.randperm(4)]),
    "randint": lambda m, x: m.fc(x) + 0 * int(torch.randint(3, ())),
    "own generator": lambda m, x: m.fc(x).clamp(max=100 + torch.rand(3, generator=m.generator, dtype=DOUBLE)),
    "own generator, rare": lambda m, x: m.fc(x) if torch.rand((), generator=m.generator) < 2 else x,
    "dropout of a weight": lambda m, x: F.linear(x, F.dropout(m.fc.weight, 0.5)),
    "dropout of a constant": lambda m, x: m.fc(x).clamp(max=100 + F.dropout(torch.ones(64, dtype=DOUBLE)).sum()),
    "distribution": lambda m, x: m.fc(x).clamp(max=100 + float(torch.distributions.Normal(0.0, 1.0).sample())),
    "random.random": lambda m, x: m.fc(x).clamp(max=100 + random.random()),
    "random.Random": lambda m, x: m.fc(x).clamp(max=100 + m.python.random()),
    "rare, by random": lambda m, x: m.fc(x).clamp(max=100 if random.random() < 1e-6 else 101),
    "rare, by numpy": lambda m, x: m.fc(x).clamp(max=100 if np.random.rand() < 1e-6 else 101),
    "rare, by a generator of its own": lambda m, x: m.fc(x).clamp(max=100 if m.numpy.random() < 1e-6 else 101),
    "rare, by random.Random": lambda m, x: m.fc(x).clamp(max=100 if m.python.random() < 1e-6 else 101),
    "coin": lambda m, x: m.fc(x).clamp(max=100 if random.getrandbits(8) < 128 else 101),
    "numpy.random": lambda m, x: m.fc(x).clamp(max=100 + np.random.rand()),
    "numpy.random as a tensor": lambda m, x: m.fc(x).clamp(max=100 + torch.from_numpy(np.random.rand(3))),
    "numpy coin": lambda m, x: m.fc(x).clamp(max=100 if np.random.rand() < 0.5 else 101),
    "numpy generator": lambda m, x: m.fc(x).clamp(max=100 + m.numpy.normal()),
}


@pytest.mark.parametrize("compute", RANDOM.values(), ids=RANDOM.keys())
def test_random_numbers_are_refused(compute: Compute) -> None:
    parts = {
        "generator": torch.Generator().manual_seed(0),
        "python": random.Random(0),
        "numpy": np.random.default_rng(0),
    }
    model = Net(compute, fc=nn.Linear(4, 3), token=nn.Parameter(torch.rand(3)), **parts)
    random.seed(1)
    np.random.seed(1)
    with pytest.raises(ad.CaptureError, match="random"):
        ad.capture(model, batch(3, 4))


class _Noise(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + 1e-12 * torch.randn_like(weight)


def test_random_numbers_in_a_parametrization_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3, dtype=DOUBLE))
    parametrize.register_parametrization(model[0], "weight", _Noise())
    with pytest.raises(ad.CaptureError, match="random"):
        ad.capture(model, batch(3, 4))


def test_random_numbers_that_were_drawn_once_are_fine() -> None:
    model = Net(lambda m, x: m.fc(x) + m.noise + m.number, fc=nn.Linear(4, 3), number=random.random())
    model.register_buffer("noise", torch.randn(3, dtype=DOUBLE))
    model.generator = torch.Generator()
    x = batch(3, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def test_random_numbers_of_others_are_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread draws all the time; here, every question for the state does."""
    capture = sys.modules["autodual.graph.record"]

    def state(device: torch.device, held: list[Any]) -> Any:
        random.random()
        return random_state(device, held)

    monkeypatch.setattr(capture, "random_state", state)
    ad.capture(nn.Linear(4, 3, dtype=DOUBLE), batch(3, 4))


def test_capture_draws_no_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.ReLU()).to(DOUBLE).eval()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    ad.capture(model, batch(3, 4))
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


LEFT: list[Any] = []


def test_a_value_that_an_earlier_capture_has_left_behind_is_refused() -> None:
    """The first capture fails after its model has stored something; the next one finds it."""

    def compute(m: Any, x: Any) -> Any:
        if LEFT:
            return m.fc(x) + LEFT[0]
        LEFT.append(m.fc(x))
        raise ValueError("not yet")

    model = Net(compute, fc=nn.Linear(4, 3))
    try:
        with pytest.raises(ad.CaptureError, match="not yet"):
            ad.capture(model, batch(3, 4))
        with pytest.raises(ad.CaptureError, match="earlier capture has left behind"):
            ad.capture(model, batch(3, 4))
    finally:
        LEFT.clear()


def _kept_by_shape(make: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Any]:
    cache: dict[tuple[int, ...], Any] = {}

    def compute(m: Any, x: Tensor) -> Any:
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = make(m, x)
        return m.fc(x) + cache[key]

    return compute


def test_what_is_kept_by_the_size_of_the_batch_is_refused_if_it_is_made_of_the_input() -> None:
    """The second batch of a size would be answered with what was made of the first."""
    with pytest.raises(ad.CaptureError, match="earlier run has stored"):
        ad.capture(Net(_kept_by_shape(lambda m, x: m.fc(x).detach()), fc=nn.Linear(4, 3)), batch(3, 4))
    masks = Net(_kept_by_shape(lambda m, x: torch.arange(3).to(x.dtype)), fc=nn.Linear(4, 3))
    assert ad.capture(masks, batch(3, 4)).output_shape == (3,)
