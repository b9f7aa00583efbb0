"""A box by its ends holds them: centre and radius, which are rounded, contain both ends, and little more."""

from __future__ import annotations

import pytest
import torch

import autodual as ad

SCALES = {"like": 1.0, "far from zero": 1e6, "tiny": 1e-30}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_centre_and_radius_contain_the_ends(scale: float, dtype: torch.dtype) -> None:
    """In exact arithmetic: float64 holds sums of float32 numbers of like size; of float64 numbers, their rounding error is found."""
    generator = torch.Generator().manual_seed(0)
    start, width = (torch.rand(1, 2000, generator=generator, dtype=dtype) for _ in range(2))
    lower, upper = scale * (1 + start), scale * (1 + start) + width
    box = ad.Box(lower, upper)
    for inner, outer in ((upper, box.centre), (box.centre, lower)):
        difference = inner - outer
        part = difference - inner
        error = (inner - (difference - part)) - (outer + part)  # inner - outer is difference + error, exactly
        too_small = (difference > box.radius) | ((difference == box.radius) & (error > 0))
        assert not too_small.any()
    assert (box.radius <= (upper - lower) / 2 + 2 * torch.finfo(dtype).eps * upper).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_end_of_clip_beyond_all_numbers_is_none(dtype: torch.dtype) -> None:
    """float32 ends at 3.4e38, and PyTorch refuses to clamp there at 1e39."""
    x = torch.tensor([[0.25, -3e38]], dtype=dtype)
    plain, clipped = ad.LinfBall(0.5).around(x), ad.LinfBall(0.5, clip=(-1e39, 1e39)).around(x)
    assert torch.equal(clipped.lower, plain.lower)
    assert torch.equal(clipped.upper, plain.upper)
    inside = ad.LinfBall(0.5, clip=(-1e39, 1e39)).within(x)
    assert bool((inside.lower <= x).all() & (inside.upper >= x).all())
