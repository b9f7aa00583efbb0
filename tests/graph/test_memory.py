"""A capture leaves nothing in memory: what it has computed goes at once, and does not wait for Python to look for cycles."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, batch

Compute = Callable[[Any, Tensor], Tensor]


def _stored(m: Any, x: Tensor) -> Tensor:
    m.last = m.fc(x)
    return torch.relu(m.last)


MODELS: dict[str, Compute] = {
    "layers": lambda m, x: m.fc(x).relu(),
    "constants": lambda m, x: m.fc(x) * m.fc.weight[:, 0].exp() + torch.zeros(len(x), 3, dtype=DOUBLE),
    "rewrites": lambda m, x: m.fc(x).max(dim=1, keepdim=True).values,
    "stored results": _stored,
    "runs that fail": lambda m, x: m.fc(x if x.is_contiguous() else x.view(-1)),
}


@pytest.mark.parametrize("compute", MODELS.values(), ids=MODELS.keys())
def test_no_tensor_of_a_capture_is_left(compute: Compute) -> None:
    model, x = Net(compute, fc=nn.Linear(4, 3)), batch(3, 4)
    ad.capture(model, x)
    gc.collect()
    gc.disable()
    try:
        before = _tensors()
        ad.capture(model, x)
        assert _tensors() == before
    finally:
        gc.enable()


def _tensors() -> int:
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())
