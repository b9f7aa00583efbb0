"""Operations that write into a tensor change every name of it, or are refused."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.dlpack
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


def _copied_constant(m: Any, x: Tensor) -> Tensor:
    scale = m.first.weight[:, 0].exp()
    kept = scale.clone()
    scale.mul_(2)
    other = kept.clone()
    other.add_(1)
    return m.first(x) * kept + scale - other


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


def _power(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    z = y
    z **= 2
    return y + 1


ALLOWED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "sum under another name": _aliased_sum,
    "input of an in-place ReLU read later": _operand_read_after_relu,
    "chain of writes": _chain,
    "**=": _power,
    "functions with inplace=True": _in_place_function,
    "write through a view that is all that is left": _flattened_then_relu,
    "write into the model's own input": _own_input,
    "plain assignment is no write": _rebound,
    "copies of a constant of parameters": _copied_constant,
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


def _after(write: Callable[[Any, Tensor], Any]) -> Callable[[Any, Tensor], Tensor]:
    """A model that writes, and then computes with what may have been written to. Nothing changes at inputs below 100."""

    def compute(m: Any, x: Tensor) -> Tensor:
        y = m.first(x)
        write(m, y)
        return y * 1

    return compute


def _constant_changed(m: Any, x: Tensor) -> Tensor:
    scale = torch.ones(3, dtype=x.dtype)
    y = m.first(x) * scale
    scale.mul_(2)
    return y + m.second(x) * scale


def _constant_changed_by_numpy(m: Any, x: Tensor) -> Tensor:
    limit = torch.full((3,), 100.0, dtype=x.dtype)
    y = m.first(x).clamp(max=limit)
    limit.numpy()[:] = 2
    return y


def _constant_changed_by_data(m: Any, x: Tensor) -> Tensor:
    y = m.first(x).clamp(max=m.limit[0])
    m.limit[0].data.add_(1)
    return y


def _assigned_data(m: Any, y: Tensor) -> None:
    y.data = y.data.clamp(max=100)


def _storage(m: Any, y: Tensor) -> None:
    y.untyped_storage().fill_(0)


def _numpy_view(m: Any, y: Tensor) -> None:
    y.numpy()[:] = 0


def _dlpack(m: Any, y: Tensor) -> None:
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)).clamp_(max=100)


def _masked(m: Any, y: Tensor) -> None:
    y[y > 100] = 0


OUT_OF_SIGHT: dict[str, Callable[[Any, Tensor], Tensor]] = {
    ".data": _after(lambda m, y: y.data.clamp_(max=100)),
    ".data of a view": _after(lambda m, y: y[:, :2].data.clamp_(max=100)),
    "view of .data": _after(lambda m, y: y.data.view(-1).clamp_(max=100)),
    ".data.copy_": _after(lambda m, y: y.data.copy_(y.clamp(max=100))),
    ".data +=": _after(lambda m, y: operator.iadd(y.data, 0)),
    ".data = ...": _after(_assigned_data),
    ".data = ... by setattr": _after(lambda m, y: setattr(y, "data", y.detach() * 2)),
    ".detach()": _after(lambda m, y: y.detach().clamp_(max=100)),
    ".detach().data": _after(lambda m, y: y.detach().data.clamp_(max=100)),
    "detach_": _after(lambda m, y: y.detach_().data.clamp_(max=100)),
    "set_": _after(lambda m, y: y.set_(m.second.weight)),
    "resize_": _after(lambda m, y: y.resize_(y.shape[0], 2)),
    "numpy": _after(_numpy_view),
    "numpy of .data": _after(lambda m, y: np.clip(y.data.numpy(), 0, 100, out=y.data.numpy())),
    "numpy.asarray": _after(lambda m, y: np.asarray(y).fill(0)),
    "storage": _after(_storage),
    "typed storage": _after(lambda m, y: y.storage().fill_(0)),
    "dlpack": _after(_dlpack),
    "from_dlpack": _after(lambda m, y: torch.from_dlpack(y).clamp_(max=100)),
    "apply_": _after(lambda m, y: y.apply_(lambda v: min(v, 100))),
    "map_": _after(lambda m, y: y.map_(y, lambda v, w: min(v, 100))),
    "copy_": _after(lambda m, y: y.copy_(m.second.weight[:, 0])),
    "index_put_": _after(lambda m, y: y.index_put_((torch.tensor([0]),), y.new_tensor(0.0))),
    "index_fill_": _after(lambda m, y: y.index_fill_(1, torch.tensor([0]), 0)),
    "masked_fill_": _after(lambda m, y: y.masked_fill_(y > 100, 0)),
    "masked item": _after(_masked),
    "scatter_": _after(lambda m, y: y.scatter_(1, torch.zeros(len(y), 1, dtype=torch.long), 0)),
    "zero_ of a part": _after(lambda m, y: y.narrow(1, 0, 1).zero_()),
    "foreach": _after(lambda m, y: torch._foreach_clamp_max_([y], 100)),
    "aten": _after(lambda m, y: torch.ops.aten.clamp_(y.data, max=100)),
    "where with out=": _after(lambda m, y: torch.where(y > 100, y, y, out=y)),
    "clamp with out=": _after(lambda m, y: torch.clamp(y, max=100, out=y)),
    "add with out= .data": _after(lambda m, y: torch.add(y, 0, out=y.data)),
    "out= another": lambda m, x: torch.add(m.first(x), 1, out=m.second(x)),
    "nn.init": _after(lambda m, y: nn.init.zeros_(y.data)),
    "ReLU in place": _after(lambda m, y: m.relu(y.data)),
    "constant changed between two uses": _constant_changed,
    "constant changed by NumPy": _constant_changed_by_numpy,
    "tensor of the user changed by .data": _constant_changed_by_data,
}


@pytest.mark.parametrize("compute", OUT_OF_SIGHT.values(), ids=OUT_OF_SIGHT.keys())
def test_writes_out_of_sight_are_refused(compute: Callable[[Any, Tensor], Tensor]) -> None:
    model = _net(compute)
    model.limit = [torch.full((3,), 100.0, dtype=DOUBLE)]
    with pytest.raises(ad.CaptureError):
        ad.capture(model, batch(3, 4))


def _computed_constant(m: Any, x: Tensor) -> Tensor:
    limit = m.first.weight[:, 0].exp()
    y = torch.relu(m.first(x) - 100 - limit)
    limit.fill_(200.0)
    return y + limit


def _view_of_computed_constant(m: Any, x: Tensor) -> Tensor:
    limit = m.first.weight[:, 0].exp()
    y = torch.relu(m.first(x) - 100 - limit.view(1, -1))
    limit += 200.0
    return y + limit


def _passed_on_constant(m: Any, x: Tensor) -> Tensor:
    limit = m.first.weight[:, 0].exp()
    y = torch.relu(m.first(x) - 100 - limit)
    limit.contiguous()
    limit.fill_(200.0)
    return y + limit


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "y[:, 0] = 0": (_item, "does not support item assignment"),
    "write through a view, base read": (_base_after_view, "through a view"),
    "write into a base, view read": (_view_after_base, "through a view"),
    "write through a view, base returned": (_returned_base, "through a view"),
    "item of a new tensor": (_filled_item, "writes into a tensor that it made itself"),
    "add_ to a new tensor": (_filled_add, "writes into a tensor that it made itself"),
    "out= a new tensor": (_filled_out, "writes into a tensor that it made itself"),
    "view of a new tensor": (_filled_view, "writes into a tensor that it made itself"),
    "constant of parameters, after its use": (_computed_constant, "after it has computed with it"),
    "constant of parameters, after its use and a call that only passes it on": (
        _passed_on_constant,
        "after it has computed with it",
    ),
    "constant of parameters, after its view": (_view_of_computed_constant, "after it has computed with it"),
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
