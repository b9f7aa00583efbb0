"""The golden files, the networks they belong to, and the one tolerance they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import autodual as ad

DATA = Path(__file__).parent / "data"
"""Cut-down copies, part of the repository; trim.py makes them."""
FULL = Path(__file__).parents[3] / "shared" / "golden"
"""All 32 examples and whole gradients, where the folder lies beside the checkout."""

RELATIVE = 1e-9
TINY = 1e-15
"""For tensors that are zero throughout, where there is no scale to be relative to."""


@cache
def load(folder: Path, name: str) -> dict[str, Tensor]:
    """All numeric arrays of a file; text and flags are left out."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    return {key: torch.from_numpy(array) for key, array in arrays.items() if array.dtype.kind in "fiu"}


def assert_agrees(found: Tensor, expected: Tensor, what: str) -> None:
    """Equal up to 1e-9 of the largest entry."""
    assert found.shape == expected.shape, what
    error, scale = float((found - expected).abs().max()), float(expected.abs().max())
    assert error <= RELATIVE * scale + TINY, f"{what}: off by {error:.3g} at a scale of {scale:.3g}"


@dataclass(frozen=True)
class Published:
    """A published network, one stage of it, and the set it was evaluated on."""

    name: str
    weights: str
    stage: int
    channels: int
    width: int
    ball: ad.Perturbation

    def __str__(self) -> str:
        return f"{self.name}-{self.stage}"

    def golden(self, folder: Path) -> dict[str, Tensor]:
        return load(folder, f"golden_{self.name}")

    def model(self, folder: Path, dtype: torch.dtype = torch.float64) -> nn.Sequential:
        model = ad.models.small(self.channels, self.width)
        prefix = f"stage{self.stage}."
        weights = load(folder, f"weights_{self.weights}")
        model.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        return model.to(dtype).eval()


MNIST = Published("mnist", "mnist", 0, 1, 28, ad.LinfBall(0.1))
MNIST_CLIPPED = Published("mnist_bounded", "mnist", 0, 1, 28, ad.LinfBall(0.1, clip=(0.0, 1.0)))
MNIST_L2 = Published("mnist_l2", "mnist", 0, 1, 28, ad.L2Ball(1.58))
CIFAR = [Published("cifar_small_8px", "cifar_small_8px", s, 3, 32, ad.LinfBall(0.139)) for s in range(3)]
PUBLISHED = [MNIST, MNIST_CLIPPED, MNIST_L2, *CIFAR]
