"""A model computes one function, however its input lies in memory, with or without gradients, in inference mode or out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import Net, batch

Compute = Callable[[Any, Any], Any]


def capped(m: Any, x: Any) -> Any:
    return m.fc(x).clamp(max=100)


def _later(m: Any, x: Any) -> Any:
    h = m.fc(x)
    return h.clamp(max=100) if h.requires_grad else h


def _after_a_view(m: Any, x: Any) -> Any:
    h = x.view(len(x), 2, 2).view(len(x), 4)
    return m.fc(h) if x.is_contiguous() else capped(m, h)


def _checked_first(m: Any, x: Any) -> Any:
    assert x.is_contiguous()
    return capped(m, x) if x.requires_grad else m.fc(x)


def _number_of_values(m: Any, x: Any) -> Any:
    return m.fc(x) if x.is_contiguous() else m.fc(x) * float(x.sum())


def _swallowed(m: Any, x: Any) -> Any:
    try:
        return m.fc(x) if x.is_contiguous() else m.fc(x) * float(x.sum())
    except TypeError:
        return m.fc(x)


ASKING: dict[str, Compute] = {
    "is_contiguous": lambda m, x: m.fc(x) if x.is_contiguous() else capped(m, x),
    "is_contiguous, after a view": _after_a_view,
    "stride": lambda m, x: m.fc(x).clamp(max=100 + x.stride(-1)),
    "all strides": lambda m, x: m.fc(x) if x.stride()[1] == 1 else capped(m, x),
    "requires_grad": lambda m, x: capped(m, x) if x.requires_grad else m.fc(x),
    "requires_grad of a result": _later,
    "requires_grad, after an assertion": _checked_first,
    "is_leaf": lambda m, x: m.fc(x) if x.is_leaf else capped(m, x),
    "grad_fn": lambda m, x: m.fc(x) if x.grad_fn is None else capped(m, x),
    "inference mode": lambda m, x: capped(m, x) if torch.is_inference_mode_enabled() else m.fc(x),
    "with tensors only": lambda m, x: capped(m, x) if isinstance(x, Tensor) and not x.is_contiguous() else m.fc(x),
    "gradients of tensors only": lambda m, x: capped(m, x) if isinstance(x, Tensor) and x.requires_grad else m.fc(x),
    "values": _number_of_values,
    "values, swallowed": _swallowed,
}


@pytest.mark.parametrize("compute", ASKING.values(), ids=ASKING.keys())
def test_a_model_that_depends_on_circumstances_is_refused(compute: Compute) -> None:
    model = Net(compute, fc=nn.Linear(4, 3))
    with pytest.raises(ad.CaptureError):
        ad.capture(model, batch(3, 4))


def _viewed(m: Any, x: Any) -> Any:
    try:
        x.view(-1)
    except RuntimeError:
        return capped(m, x)
    return m.fc(x)


def test_an_error_that_tells_the_layout_of_the_given_input_is_one() -> None:
    with pytest.raises(ad.CaptureError, match="lies in memory"):
        ad.capture(Net(_viewed, fc=nn.Linear(4, 3)), batch(4, 3).t())


def test_channels_last_is_a_circumstance() -> None:
    def compute(m: Any, x: Any) -> Any:
        h = m.conv(x)
        return (h if h.is_contiguous() else h.clamp(max=100)).flatten(1)

    with pytest.raises(ad.CaptureError, match="how x lies in memory"):
        ad.capture(Net(compute, conv=nn.Conv2d(3, 2, 3)), batch(2, 3, 5, 5))


def _asserted(m: Any, x: Any) -> Any:
    assert x.is_contiguous()
    assert not x.requires_grad
    return m.fc(x)


def _in_place(m: Any, x: Any) -> Any:
    h = m.fc(x).add_(1)
    return h.relu_() if x.is_contiguous() else h.contiguous().relu_()


def _average(m: Any, x: Any) -> Any:
    m.average = 0.9 * m.average + 0.1 * x.mean()
    return m.fc(x if x.is_contiguous() else x.contiguous())


def _mask(m: Any, x: Any) -> Any:
    mask = torch.zeros(3, dtype=x.dtype)
    mask[0] = 1
    return m.fc(x.contiguous() if not x.is_contiguous() else x) * mask


HARMLESS: dict[str, Compute] = {
    "made contiguous": lambda m, x: m.fc(x if x.is_contiguous() else x.contiguous()),
    "made contiguous later": lambda m, x: (h if (h := m.fc(x)).is_contiguous() else h.contiguous()).relu(),
    "detached": lambda m, x: m.fc(x.detach() if x.requires_grad else x),
    "view, or reshape": lambda m, x: m.fc(x.reshape(len(x), 4)) + 0 * x.stride()[0] * 0,
    "asserted": _asserted,
    "in place": _in_place,
    "constants": _mask,
    "stored statistics": _average,
    "printed": lambda m, x: (str(x.stride()), m.fc(x))[1],
    "constant made at the first call": lambda m, x: m.fc(x) + m.table.setdefault(len(x), torch.ones(3, dtype=x.dtype)),
}


@pytest.mark.parametrize("compute", HARMLESS.values(), ids=HARMLESS.keys())
@pytest.mark.parametrize("laid", [lambda x: x, lambda x: x.t().contiguous().t()], ids=["usual", "transposed"])
def test_a_model_may_ask(compute: Compute, laid: Callable[[Tensor], Tensor]) -> None:
    model, x = Net(compute, fc=nn.Linear(4, 3), table={}, average=0.0), laid(batch(3, 4))
    if compute is _asserted and not x.is_contiguous():
        return
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))
