"""Rows of a specification may be of any size: products that underflow count to the slack."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines.prepare import prepare
from autodual.spec import Spec

ENGINES = (ad.Dual(), ad.Crown(), ad.IBP(), ad.ForwardDual(), ad.Dual(intersect=True))
SIZES = {torch.float32: (1e-40, 1e-45, 1e-38, 1e30), torch.float64: (5e-324, 1e-310, 1e-300, 1e300)}


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_a_bound_less_its_slack_holds_at_the_centre(engine: ad.BoundEngine, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3).to(dtype).eval()
    x = torch.rand(1, 2, dtype=dtype)
    scores = [
        sum((Fraction(w) * Fraction(v) for w, v in zip(row, x[0].tolist(), strict=True)), Fraction(bias))
        for row, bias in zip(model.weight.tolist(), model.bias.tolist(), strict=True)
    ]
    for size in SIZES[dtype]:
        rows = (
            torch.tensor([[0.7, -0.3, 0.11], [-0.7, 0.3, -0.11], [0.4, 0.4, 0.4], [-1.0, -1.0, 3.0]], dtype=dtype)
            * size
        )
        proof = engine.prove(prepare(model, x).network, ad.LinfBall(0.0).around(x), Spec(rows.unsqueeze(1)))
        for row, lower, slack in zip(rows.tolist(), proof.lower[0].tolist(), proof.slack[0].tolist(), strict=True):
            exact = sum((Fraction(c) * z for c, z in zip(row, scores, strict=True)), Fraction(0))
            assert Fraction(lower) - Fraction(slack) <= exact
