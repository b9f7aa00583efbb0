"""A proof that was found in float64 is told in float32, rounded to the safe side: never a larger bound, nor a smaller error."""

from __future__ import annotations

import pytest
import torch

from autodual.certificates.proof import _to_single
from autodual.engines.results import Proof

SCALES = {"usual": 1.0, "large": 1e30, "tiny": 1e-30, "beyond float32": 1e39}


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_proof_is_rounded_to_the_safe_side(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    bounds = scale * torch.randn(50, 10, generator=generator, dtype=torch.float64)
    errors = bounds.abs() * torch.rand(50, 10, generator=generator, dtype=torch.float64)
    found = _to_single(Proof(bounds, errors, 2 * errors))
    assert {part.dtype for part in (found.lower, found.slack, found.run_error)} == {torch.float32}
    assert (found.lower.double() <= bounds).all()
    assert (found.slack.double() >= errors).all()
    assert (found.run_error.double() >= 2 * errors).all()
    if scale < 1e38:
        torch.testing.assert_close(found.lower.double(), bounds, rtol=3e-7, atol=1e-44)


def test_what_is_unknown_stays_so() -> None:
    unknown = torch.tensor([[-torch.inf, torch.nan, torch.inf]], dtype=torch.float64)
    found = _to_single(Proof(unknown, -unknown, -unknown))
    assert not torch.cat([found.lower, found.slack, found.run_error]).isfinite().any()
