"""The published MNIST network on the first 300 test images: the counts do not depend on the precision."""

from __future__ import annotations

import pytest
import torch

import autodual as ad

from .reference import DATA, MNIST_CLIPPED, load

ERRORS = 4
NOT_CERTIFIED = 14
"""Computed in float64. The margin nearest to zero is 0.0385, far outside the slack of either precision."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_counts(dtype: torch.dtype) -> None:
    data = load(DATA, "mnist300")
    x = (data["images"].to(dtype) / 255).unsqueeze(1)
    certificate = ad.certify(MNIST_CLIPPED.model(DATA, dtype), x, data["labels"], MNIST_CLIPPED.ball)
    assert len(x) == 300
    assert int((certificate.predicted != certificate.labels).sum()) == ERRORS
    assert int((~certificate.certified).sum()) == NOT_CERTIFIED
    proved = (certificate.margins > certificate.slack).all(1)
    refuted = (certificate.margins < -certificate.slack).any(1)
    assert bool((proved | refuted).all()), "no verdict depends on rounding"
