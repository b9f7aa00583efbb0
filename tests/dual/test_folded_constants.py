"""Batch normalisation is folded into a factor and a shift in float64; what that may round away, it says."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
import torch
from torch import nn

from autodual.dual import build
from autodual.dual.arithmetic import DualScale
from autodual.engines import capture

FEATURES = 200


def _exact_shift(norm: nn.BatchNorm1d, place: int) -> Decimal:
    """bias - mean * weight / sqrt(variance + eps), to fifty digits."""
    parts = (norm.bias, norm.running_mean, norm.weight, norm.running_var)
    bias, mean, weight, variance = (Decimal(part[place].item()) for part in parts)
    return bias - mean * weight / (variance + Decimal(norm.eps)).sqrt()


@pytest.mark.parametrize("mean", [1.0, 1e8, 1e15], ids=str)
def test_the_shift_is_wrong_by_no_more_than_it_says(mean: float) -> None:
    """The bias takes back what the mean subtracts, so that the shift is far smaller than its terms."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(FEATURES).double().eval()
    with torch.no_grad():
        norm.running_mean.copy_(mean * (1 + torch.rand(FEATURES, dtype=torch.float64)))
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.uniform_(-2.0, 2.0)
        norm.bias.copy_(norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt())
        x = torch.zeros(2, FEATURES, dtype=torch.float64)
        layer = build(capture(norm, x)).nodes[-1].layer
        assert isinstance(layer, DualScale)
        shift, error = layer.bias(), layer.constant_error(torch.zeros_like(x))
    assert shift is not None
    assert error is not None
    with localcontext() as context:
        context.prec = 50
        off = [abs(float(Decimal(shift[n].item()) - _exact_shift(norm, n))) for n in range(FEATURES)]
    assert (torch.tensor(off) <= error.expand(FEATURES)).all()
    assert max(off) > 0.01 * error.max().item(), "far more than is lost"
