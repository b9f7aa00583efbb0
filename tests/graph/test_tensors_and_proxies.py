"""A model makes its output of tensors by the calls that it makes of proxies, or it is refused: equal values at one point do not tell.

Every network here has the scores (s + 1, s) with s = x0 + x1, and a branch that only tensors take: from s = 5 on, it changes the
first score. At x = (2, 2) nothing shows; at (3, 3), inside the ball, the label is wrong.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, batch

Compute = Callable[[Any, Tensor], Any]
X = torch.tensor([[2.0, 2.0]], dtype=DOUBLE)


def net(compute: Compute, **parts: Any) -> Net:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.copy_(torch.tensor([1.0, 0.0]))
    return Net(compute, fc=layer, **parts)


def scores(first: Any, second: Any) -> Any:
    return torch.stack([first, second], 1)


def capped(h: Any, most: Any = 5.5) -> Any:
    return scores(h[:, 0].clamp(max=most), h[:, 1])


@functools.singledispatch
def most_of(h: Any) -> float:
    return 50.0


@most_of.register
def _(h: Tensor) -> float:
    return 5.5


def _one_call_more(m: Any, x: Any) -> Any:
    s = m.fc(x)[:, 1]
    first = s.clamp(max=4.5) if isinstance(x, Tensor) else s
    return scores(first + 1, s)


def _other_weight(m: Any, x: Any) -> Any:
    weight = m.fc.weight + m.change if isinstance(m.fc.weight, Tensor) else m.fc.weight
    return F.linear(x, weight, m.fc.bias)


def _written_behind(m: Any, x: Any) -> Any:
    h = m.fc(x)
    if isinstance(h, Tensor):
        h[:, 0].clamp_(max=5.5)
    return h * 1


def _replaced(m: Any, x: Any) -> Any:
    h = m.fc(x)
    if isinstance(h, Tensor):
        h.set_(capped(h))
    return h


def _assigned(m: Any, x: Any) -> Any:
    h = m.fc(x)
    if isinstance(h, Tensor):
        h.data = h.data.clamp(max=5.5)
    return h * 1


def _stored(m: Any, x: Any) -> Any:
    most = m.most.clone()
    if isinstance(x, Tensor):
        most.fill_(5.5)
    return capped(m.fc(x), most)


def _written_afterwards(m: Any, x: Any) -> Any:
    h = m.fc(x) + m.buffer
    if isinstance(x, Tensor):
        m.buffer.add_(1.0)
    return h


def _compared(m: Any, x: Any) -> Any:
    h = m.fc(x)
    return capped(h) if isinstance(h, Tensor) and READS[m.how](h[:, 0]) else h


READS: dict[str, Callable[[Any], Any]] = {
    "bool": lambda h: bool((h > 6).any()),
    "item": lambda h: h.sum().item() > 6,
    "float": lambda h: float(h.sum()) > 600,
    "tolist": lambda h: h.tolist()[0] > 6,
    "numpy": lambda h: h.numpy()[0] > 6,
    "equal": lambda h: torch.equal(h, h + 1),
    "allclose": lambda h: torch.allclose(h, h + 1),
    "is_nonzero": lambda h: (h > 6).any().is_nonzero(),
    "contains": lambda h: 7.0 in h,
    "is_nonzero of aten": lambda h: torch.ops.aten.is_nonzero.default((h > 6).any()),
    "parameter": lambda h: nn.Parameter(h).amax().item() > 6,
    "variable": lambda h: torch.autograd.Variable(h).tolist()[0] > 6,
    "text": lambda h: "7" in f"{h}",
}

BRANCHES: dict[str, Compute] = {
    "number": lambda m, x: capped(m.fc(x), 5.5 if isinstance(x, Tensor) else 50.0),
    "number by singledispatch": lambda m, x: capped(m.fc(x), most_of(m.fc(x))),
    "one call more": _one_call_more,
    "weight": _other_weight,
    "constant": lambda m, x: capped(m.fc(x), torch.tensor(5.5 if isinstance(x, Tensor) else 50.0, dtype=DOUBLE)),
    "buffer": lambda m, x: capped(m.fc(x), m.low if isinstance(x, Tensor) else m.most),
    "constant written to": _stored,
    "buffer written to": _written_afterwards,
    "another function": lambda m, x: (F.relu6 if isinstance(x, Tensor) else F.relu)(m.fc(x)),
    "another module": lambda m, x: (m.low_act if isinstance(x, Tensor) else m.high_act)(m.fc(x)),
    "another result": lambda m, x: m.fc(x).flip(1).chunk(2, 1)[0 if isinstance(x, Tensor) else 1] + m.fc(x) * 0,
    "written through a view": _written_behind,
    "assigned to .data": _assigned,
    "set_": _replaced,
}


@pytest.mark.parametrize("compute", BRANCHES.values(), ids=BRANCHES.keys())
def test_a_call_that_only_tensors_make_is_refused(compute: Compute) -> None:
    change = torch.tensor([[1e-9, 0.0], [0.0, 0.0]])
    model = net(compute, change=change.to(DOUBLE), low_act=nn.Hardtanh(-50, 5.5), high_act=nn.Hardtanh(-50, 50))
    for name, value in {"low": 5.5, "most": 50.0, "buffer": 0.0}.items():
        model.register_buffer(name, torch.tensor(value, dtype=DOUBLE))
    with pytest.raises(ad.CaptureError, match="on tensors instead of proxies"):
        ad.capture(model, X)


@pytest.mark.parametrize("how", READS)
def test_values_that_only_tensors_give_are_refused(how: str) -> None:
    model = net(_compared, how=how)
    if how == "text":  # values are not shown, so the branch is the one that the proxies take
        ad.capture(model, X)
        return
    with pytest.raises(ad.CaptureError, match="reads values"):
        ad.capture(model, X)


def _swallowed(m: Any, x: Any) -> Any:
    with contextlib.suppress(Exception):
        return _compared(m, x)
    return m.fc(x)


def test_a_swallowed_refusal_of_values_counts() -> None:
    with pytest.raises(ad.CaptureError, match="reads values"):
        ad.capture(net(_swallowed, how="bool"), X)


OUT_OF_SIGHT: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda h: torch.vmap(lambda row: row * 1)(h).amax().item() > 6,
    "gradient": lambda h: torch.func.grad(lambda h: (h * h).sum())(h).amax().item() > 12,
    "set_ to it": lambda h: torch.empty(0, dtype=DOUBLE).set_(h).amax().item() > 6,
}


@pytest.mark.parametrize("read", OUT_OF_SIGHT.values(), ids=OUT_OF_SIGHT.keys())
def test_values_behind_transforms_and_shared_memory_are_refused(read: Callable[[Any], Any]) -> None:
    def compute(m: Any, x: Any) -> Any:
        h = m.fc(x)
        with contextlib.suppress(Exception):
            return capped(h) if read(h[:, 0]) else h
        return h

    with pytest.raises(ad.CaptureError, match="out of sight"):
        ad.capture(net(compute), X)


def test_vmap_over_constants_is_fine() -> None:
    model = net(lambda m, x: m.fc(x) * torch.vmap(lambda i: 1 + i)(torch.zeros(2, dtype=DOUBLE)))
    assert ad.capture(model, X).output_shape == (2,)


ALIKE: dict[str, Compute] = {
    "numbers on either side": lambda m, x: m.fc(2 + x) * 3 - (1 - x) / 2 + 4 / (x * 0 + m.w.exp()),
    "reflected on constants": lambda m, x: m.fc(x) * (2 - m.w) + (2 / m.w) + 2**m.w + 7 // m.w + 7 % m.w,
    "operators on constants": lambda m, x: m.fc(x) + m.w // 2 + m.w % 2 + m.w**2 - (-m.w) + (+m.w),
    "comparisons of constants": lambda m, x: m.fc(x) * ((m.w > 0.1) & (m.w <= 0.5) | ~(m.w == 3)).to(x),
    "in place": lambda m, x: m.fc(x.clone().mul_(2)).add_(1),
    "in-place operators": lambda m, x: functools.reduce(lambda a, b: a.__iadd__(b), [1, m.w], m.fc(x)),
    "attributes": lambda m, x: x @ m.square.T + x.to(x.dtype) @ m.square.mT.data,
    "copies": lambda m, x: m.fc(x.contiguous().clone()) + m.fc(x.type_as(m.w)) + m.w.detach(),
    "a constant like the input": lambda m, x: (
        m.fc(x) + torch.tensor([1, 2]).to(x) + torch.ones(1, 2).type_as(x).expand_as(x)
    ),
    "split by keyword": lambda m, x: m.fc(torch.cat(x.split(split_size=1, dim=1), 1)),
    "parts": lambda m, x: scores(*reversed(m.fc(x).unbind(1))),
    "sum of a list": lambda m, x: sum([m.fc(x), x, m.w]),
    "extremes": lambda m, x: m.fc(x) + x.max(1, keepdim=True).values,
    "index": lambda m, x: m.fc(x)[:, m.order] + x[..., 0:1],
    "number of a parameter": lambda m, x: m.fc(x) * m.w.sum().item() if m.w.ndim else x,
    "printed": lambda m, x: (repr(x), f"{x}", m.fc(x))[2],
    "checks": lambda m, x: m.fc(x) if x.dim() == 2 and x.is_floating_point() and not x.is_cuda and len(x) else x,
    "text of a shape": lambda m, x: m.fc(x.view(*x.shape[:1], int(str(x.shape[1])))),
    "far apart": lambda m, x: m.fc(torch.maximum(torch.tensor(-1e9, dtype=DOUBLE), x)),
    "pooled far apart": lambda m, x: m.fc(torch.stack([x - 1e14, x * 1e-2], 1).amax(1)),
}


@pytest.mark.parametrize("compute", ALIKE.values(), ids=ALIKE.keys())
def test_calls_that_are_written_in_many_ways_are_the_same(compute: Compute) -> None:
    model = net(compute, w=nn.Parameter(torch.tensor([0.75, 0.25])), square=nn.Parameter(torch.rand(2, 2)))
    model.register_buffer("order", torch.tensor([1, 0]))
    ad.capture(model, batch(3, 2))


@pytest.mark.parametrize("pool", [lambda h: h.amax(1), lambda h: F.max_pool1d(h.transpose(1, 2), 2)[..., 0]])
def test_rewrites_that_round_otherwise_are_no_reason_to_refuse(pool: Callable[[Any], Any]) -> None:
    """max(a, b) is rewritten as a + relu(b - a), which loses b in float32 where a is much larger."""
    model = net(lambda m, x: m.fc(pool(torch.stack([x - 1e5, x * 1e-2], 1)))).float()
    ad.capture(model, X.float())


def test_padding_by_infinity_is_refused_for_what_it_is() -> None:
    model = net(lambda m, x: m.fc(F.max_pool1d(F.pad(x[:, None], (1, 1), value=-torch.inf), 3, 1)[:, 0]))
    with pytest.raises(ad.AutodualError, match="must be finite"):
        ad.certify(model, X, torch.tensor([0]), ad.LinfBall(1.0))
