"""Some examples of a set: the sets of just these examples, as they are and in float64."""

from __future__ import annotations

import pytest
import torch

import autodual as ad
from small import batch

BALLS = {
    "linf": ad.LinfBall(0.1),
    "linf, clipped": ad.LinfBall(0.1, clip=(0.0, 1.0)),
    "linf, per example": ad.LinfBall(torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "linf, per example, clipped": ad.LinfBall(torch.tensor([0.1, 0.2, 0.3, 0.4]), clip=(0.0, 1.0)),
    "l2": ad.L2Ball(0.1),
    "l1, per example": ad.L1Ball(torch.tensor([0.1, 0.2, 0.3, 0.4])),
}
PARTS = [slice(0, 1), slice(1, 3), slice(3, 4), slice(0, 4)]
X = batch(4, 5, 2, dtype=torch.float32)
ROWS = torch.randn(3, 1, 5, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)
def test_a_part_is_that_of_its_examples(ball: ad.Perturbation, part: slice) -> None:
    whole = ball.around(X)
    assert len(whole[part]) == part.stop - part.start
    torch.testing.assert_close(whole[part].minimise(ROWS), whole.minimise(ROWS)[:, part])


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)
def test_a_part_in_float64_is_a_part_of_the_set_in_float64(ball: ad.Perturbation, part: slice) -> None:
    whole = ball.around(X)
    found, expected = whole[part].double(), whole.double()
    assert found is not None
    assert expected is not None
    assert torch.equal(found.centre, expected.centre[part])
    torch.testing.assert_close(
        found.minimise(ROWS.double()), expected.minimise(ROWS.double())[:, part], rtol=0, atol=1e-15
    )
