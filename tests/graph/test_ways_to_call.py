"""The same operation is understood however it is called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import Net, batch

CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "convolution by keywords": lambda m, x: nn.functional.conv1d(input=x[:, None], weight=m.fc.weight[:1, None, :3])[
        :, 0
    ],
    "module on a constant": lambda m, x: x + m.fc(m.fc.weight[0]),
    "add by keywords": lambda m, x: torch.add(input=m.fc(x), other=x),
    "add with alpha": lambda m, x: torch.add(m.fc(x), x, alpha=-2),
    "sub by keywords": lambda m, x: torch.sub(input=m.fc(x), other=x),
    "mul by keywords": lambda m, x: torch.mul(input=m.fc(x), other=3.0),
    "maximum by keywords": lambda m, x: torch.maximum(input=m.fc(x), other=x),
    "max of two": lambda m, x: torch.max(m.fc(x), x),
    "min of two": lambda m, x: m.fc(x).min(x),
    "max of two by keyword": lambda m, x: torch.max(m.fc(x), other=x),
    "max along a dimension": lambda m, x: m.fc(x).max(dim=1, keepdim=True)[0],
    "max taken apart": lambda m, x: torch.max(m.fc(x), 1, True)[0] - x,
    "min along a dimension": lambda m, x: torch.min(input=m.fc(x), dim=-1).values.unsqueeze(1),
    "max of a weight": lambda m, x: x - m.fc.weight.max(dim=0).values,
    "max of a mask": lambda m, x: x * (m.fc.weight > 0).max(dim=0)[0],
    "amax by keywords": lambda m, x: torch.amax(input=m.fc(x), dim=1, keepdim=True),
    "mean over an axis": lambda m, x: m.fc(x).mean(axis=1, keepdim=True),
    "split by keyword": lambda m, x: torch.cat(m.fc(x).split(split_size=2, dim=1)[::-1], 1),
    "split into sections": lambda m, x: torch.split(m.fc(x), [1, 3], dim=1)[1],
    "chunk": lambda m, x: m.fc(x).chunk(2, dim=1)[0],
    "unbind": lambda m, x: torch.stack(m.fc(x).unbind(1)[1:], 1),
    "abs of the language": lambda m, x: abs(m.fc(x)),
    "reverse subtraction": lambda m, x: 1 - m.fc(x),
    "reverse division is refused, by a constant is not": lambda m, x: m.fc(x) / 2,
}


@pytest.mark.parametrize("compute", CALLS.values(), ids=CALLS.keys())
def test_captured_and_bounded(compute: Callable[[Any, Tensor], Tensor]) -> None:
    model, x = Net(compute, fc=nn.Linear(4, 4)), batch(3, 4)
    region = ad.LinfBall(0.3).around(x)
    found = ad.bounds(model, region).output
    for _ in range(20):
        assert bool(found.contains(model(region.sample()), 1e-9).all())
    torch.testing.assert_close(ad.bounds(model, ad.LinfBall(0.0).around(x)).output.lower, model(x))


def test_dropout_with_its_older_keyword_is_refused() -> None:
    model = Net(lambda m, x: torch.dropout(m.fc(x), p=1e-3, train=True), fc=nn.Linear(4, 4))
    with pytest.raises(ad.AutodualError, match=r"random|dropout"):
        ad.bounds(model, ad.LinfBall(0.1).around(batch(2, 4)))


def test_a_hook_added_after_capture_is_noticed() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).double().eval(), batch(2, 4)
    network = ad.capture(model, x)
    model[0].register_forward_hook(lambda module, args, result: result * 2)
    with pytest.raises(ad.CaptureError, match="capture it again"):
        ad.bounds(network, ad.LinfBall(0.1).around(x))
