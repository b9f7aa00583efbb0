"""Parametrizations that ask for the dtype: what is proved in float64 is about the function that runs in float32."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import autodual as ad

ENGINES = [ad.Dual(), ad.Crown(), ad.IBP()]


class Computed(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, weight: Tensor) -> Tensor:
        return self.compute(weight)


def _model(compute: Callable[[Tensor], Tensor]) -> nn.Module:
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]))
        layer.bias.copy_(torch.tensor([1.0, 0.0]))
    parametrize.register_parametrization(layer, "weight", Computed(compute))
    return nn.Sequential(layer).eval()


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_numbers_that_float64_would_choose_otherwise_stay_those_of_float32(engine: ad.BoundEngine) -> None:
    model = _model(lambda w: w * (torch.finfo(w.dtype).eps * 2.0**23))  # w in float32, and nearly nothing in float64
    x = torch.tensor([[0.95], [0.5]])
    certificate = ad.certify(model, x, torch.zeros(2).long(), ad.LinfBall(0.1), engine)
    assert certificate.certified.tolist() == [False, True]
    assert certificate.certified_as_run.tolist() == [False, True]
    assert ad.attack(model, x, torch.zeros(2).long(), ad.LinfBall(0.1)).success.tolist() == [True, False]


def test_other_calls_in_float64_are_refused() -> None:
    model = _model(lambda w: w * 1 if w.dtype == torch.float32 else w)
    with pytest.raises(ad.CaptureError, match="other calls in float64"):
        ad.certify(model, torch.tensor([[0.5]]), torch.tensor([0]), ad.LinfBall(0.1))
