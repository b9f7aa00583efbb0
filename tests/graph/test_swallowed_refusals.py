"""A refusal counts, also where the model catches it and goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import Net, batch

Act = Callable[[Any, Any], Any]


def _assign_item(m: Any, h: Any) -> Any:
    h[:, 0] = h[:, 0].clamp(max=100)
    return h


def _assign_data(m: Any, h: Any) -> Any:
    h.data = h.clamp(max=100)
    return h


def _loop(m: Any, h: Any) -> Any:
    return torch.stack([row.clamp(max=100) for row in h])


def _read_again(m: Any, h: Any) -> Any:
    h[:, 0].mul_(2)
    return h + 1


ACTS: dict[str, Act] = {
    "branch": lambda m, h: h.clamp(max=100) if (h > 6).any() else h,
    "not": lambda m, h: h.clamp(max=100) if not h.sum() else h,
    "loop": _loop,
    "item assignment": _assign_item,
    "data": _assign_data,
    "numpy": lambda m, h: torch.from_numpy(h.numpy()).clamp(max=100),
    "float": lambda m, h: h * float(h.sum()),
    "item": lambda m, h: h.clamp(max=h.sum().item()),
    "tolist": lambda m, h: h.clamp(max=h.tolist()[0][0]),
    "read after a write through a view": _read_again,
    "foreign module": lambda m, h: m.foreign[0](h),
}


class Foreign:
    """Somebody else's module, behind a class that the capture does not look into."""

    def __getitem__(self, place: int) -> Any:
        return nn.Hardtanh(-100.0, 100.0)


def _tried(act: Act) -> Act:
    def forward(m: Any, x: Any) -> Any:
        h = m.fc(x)
        try:
            return act(m, h)
        except Exception:
            return m.fc(x)

    return forward


def _suppressed(act: Act) -> Act:
    def forward(m: Any, x: Any) -> Any:
        with contextlib.suppress(Exception):
            return act(m, m.fc(x))
        return m.fc(x)

    return forward


@pytest.mark.parametrize("way", [_tried, _suppressed])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
def test_a_refusal_that_the_model_catches_counts(act: Act, way: Callable[[Act], Act]) -> None:
    model = Net(way(act), fc=nn.Linear(4, 3), foreign=Foreign())
    with pytest.raises(ad.CaptureError):
        ad.capture(model, batch(2, 4))


@pytest.mark.parametrize("act", [ACTS["branch"], ACTS["item assignment"]])
def test_it_counts_in_training_too(act: Act) -> None:
    model = Net(_tried(act), fc=nn.Linear(4, 3)).train()
    with pytest.raises(ad.CaptureError):
        ad.RobustCrossEntropy(model, ad.LinfBall(0.1))(batch(2, 4), torch.tensor([0, 1]))


def test_the_path_of_the_first_refusal_is_told() -> None:
    model = nn.Sequential(nn.Identity(), Net(_tried(ACTS["branch"]), fc=nn.Linear(4, 3)))
    with pytest.raises(ad.CaptureError, match=r"^1: control flow"):
        ad.capture(model, batch(2, 4))


def _own_error(m: Any, x: Tensor) -> Tensor:
    try:
        return m.fc(x.view(len(x), 5))
    except RuntimeError:
        return m.fc(x)


OWN: dict[str, Callable[[Any, Any], Any]] = {
    "error of an operation": _own_error,
    "missing attribute": lambda m, x: m.fc(x) if getattr(x, "no_such_thing", None) is None else x,
}


@pytest.mark.parametrize("compute", OWN.values(), ids=OWN.keys())
def test_errors_that_tensors_raise_too_may_be_caught(compute: Callable[[Any, Any], Any]) -> None:
    model, x = Net(compute, fc=nn.Linear(4, 3)), batch(2, 4)
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))
