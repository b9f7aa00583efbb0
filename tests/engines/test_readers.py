"""A value that is read many times adds up a coefficient from every reader: those roundings count, too."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import autodual as ad

READERS = 1 << 15


class ReadOften(nn.Module):
    """The scores 0 and relu(z - 0.4) - 0.3, where z is proportional to x, and 1 at x = 1.

    What is left of the coefficient of x in z is what adding it up, once for every reader, loses: nearly half a unit in the last
    place at each addition of the second half.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        u = torch.finfo(dtype).eps / 2
        self.factor = 1 + READERS // 2 * u - 2 * u
        total = torch.zeros((), dtype=dtype)
        for _ in range(READERS):
            total += torch.tensor(self.factor, dtype=dtype)
        self.added = total.item()
        self.largest = float(Fraction(self.factor) * READERS - Fraction(self.added))

    def forward(self, x: Tensor) -> Tensor:
        apart = torch.cat([x.unsqueeze(1)] * READERS, 2) * self.factor
        while apart.shape[2] > 1:  # adding pairs loses nothing
            half = apart.shape[2] // 2
            apart = apart[:, :, :half] + apart[:, :, half:]
        z = apart.flatten(1) - x * self.added
        above = torch.relu(z - 0.4 * self.largest) - 0.3 * self.largest
        return torch.cat([0 * above, above], 1)


@pytest.mark.parametrize(
    ("engine", "dtype"), [(ad.Dual(), torch.float32), (ad.Dual(), torch.float64), (ad.Crown(), torch.float64)], ids=str
)
def test_a_label_that_changes_is_not_certified(engine: ad.BoundEngine, dtype: torch.dtype) -> None:
    model, x = ReadOften(dtype).eval(), torch.zeros(1, 1, dtype=dtype)
    assert model(torch.ones(1, 1, dtype=dtype)).argmax() == 1
    assert not ad.certify(model, x, torch.tensor([0]), ad.LinfBall(1.0), engine).certified.any()
