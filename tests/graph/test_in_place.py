"""Operations that write into a tensor change every name of it, or are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from autodual.dual import build
from small import DOUBLE, Net, batch


def _aliased_sum(m: Any, x: Tensor) -> Tensor:
    a = m.first(x)
    b = a
    a += m.second(x)
    return b * 2


def _operand_read_after_relu(m: Any, x: Tensor) -> Tensor:
    a = m.first(x)
    b = m.relu(a)  # writes into a, too
    return a - 0.5 * b


def _chain(m: Any, x: Tensor) -> Tensor:
    a = m.first(x)
    a -= 0.25
    a *= 3
    a /= 2
    a.add_(m.second(x)).mul_(0.5).relu_()
    return a


def _in_place_function(m: Any, x: Tensor) -> Tensor:
    a = m.first(x)
    F.relu(a, inplace=True)
    b = 2 * a - 1
    F.leaky_relu_(b, 0.1)
    c = a + b
    torch.clamp_(c, -1, 1)
    return c + a


def _flattened_then_relu(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.first(x).flatten(1)) + 1


def _own_input(m: Any, x: Tensor) -> Tensor:
    x -= 0.5
    return m.first(m.relu(x))


def _rebound(m: Any, x: Tensor) -> Tensor:
    a = m.first(x)
    b = a
    a = a + m.second(x)
    return a - b


ALLOWED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "sum under another name": _aliased_sum,
    "input of an in-place ReLU read later": _operand_read_after_relu,
    "chain of writes": _chain,
    "functions with inplace=True": _in_place_function,
    "write through a view that is all that is left": _flattened_then_relu,
    "write into the model's own input": _own_input,
    "plain assignment is no write": _rebound,
}


def _net(compute: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return Net(compute, first=nn.Linear(4, 3), second=nn.Linear(4, 3), relu=nn.ReLU(inplace=True))


@pytest.mark.parametrize("compute", ALLOWED.values(), ids=ALLOWED.keys())
def test_every_name_of_a_written_tensor_means_the_new_value(compute: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = _net(compute), batch(5, 4) * 4 - 2
    network = build(ad.capture(model, x[:2]))
    torch.testing.assert_close(network.forward(x), model(x.clone()))


@pytest.mark.parametrize("compute", ALLOWED.values(), ids=ALLOWED.keys())
def test_inputs_of_the_user_are_not_written_to(compute: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = _net(compute), batch(3, 4) * 4 - 2
    kept, labels, ball = x.clone(), torch.zeros(3, dtype=torch.long), ad.LinfBall(0.1)
    certificate = ad.certify(model, x, labels, ball)
    ad.bounds(model, ball.around(x))
    found = ad.attack(model, x, labels, ball, steps=3, restarts=2)
    ad.certified_radius(model, x, labels, ball, tol=0.05)
    ad.RobustCrossEntropy(model, ball)(x, labels)
    assert torch.equal(x, kept)
    assert not (certificate.certified & found.success).any()


def _item(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    y[:, 0] = 0
    return y


def _base_after_view(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    part = y[:, :2]
    part += 1
    return y


def _view_after_base(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    part = y[:, :2]
    y.relu_()
    return part + 0 * m.second(x)[:, :2]


def _returned_base(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    y.view(-1).mul_(2)
    return y


def _filled_item(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], 3, dtype=x.dtype)
    y[:, :2] = m.first(x)[:, :2]
    return y + 0 * m.second(x)


def _filled_add(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], 3, dtype=x.dtype)
    y.add_(m.first(x))
    return y + 0 * m.second(x)


def _filled_out(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], 3, dtype=x.dtype)
    torch.add(m.first(x), 1, out=y)
    return y + 0 * m.second(x)


def _filled_view(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], 3, dtype=x.dtype)
    y[:, :2].copy_(m.first(x)[:, :2])
    return y + 0 * m.second(x)


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "y[:, 0] = 0": (_item, "does not support item assignment"),
    "write through a view, base read": (_base_after_view, "through a view"),
    "write into a base, view read": (_view_after_base, "through a view"),
    "write through a view, base returned": (_returned_base, "through a view"),
    "item of a new tensor": (_filled_item, "writes into a tensor that it made itself"),
    "add_ to a new tensor": (_filled_add, "writes into a tensor that it made itself"),
    "out= a new tensor": (_filled_out, "writes into a tensor that it made itself"),
    "view of a new tensor": (_filled_view, "writes into a tensor that it made itself"),
}


@pytest.mark.parametrize(("compute", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_writes_that_the_graph_cannot_show_are_refused(compute: Callable[[Any, Tensor], Tensor], message: str) -> None:
    """One example only: a constant that holds the example's own values would pass every comparison with the model."""
    with pytest.raises(ad.CaptureError, match=message):
        ad.bounds(_net(compute), ad.LinfBall(0.1).around(batch(1, 4)))


def test_refused_writes_name_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=DOUBLE), _net(_base_after_view))
    with pytest.raises(ad.CaptureError, match=r"^1: writes in place"):
        ad.capture(model, batch(1, 4))


def test_a_tensor_of_the_user_is_not_written_to_when_it_is_refused() -> None:
    model = Net(lambda m, x: m.cache.add_(m.fc(x)), fc=nn.Linear(4, 3), cache=torch.zeros(1, 3, dtype=DOUBLE))
    model.cache = torch.zeros(13, 3, dtype=DOUBLE)
    with pytest.raises(ad.CaptureError, match="writes into a tensor"):
        ad.capture(model, batch(1, 4))
    assert not model.cache.any()
