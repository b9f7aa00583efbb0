"""Normalisation as the first layer of a network, so that a perturbation is measured in pixels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """(x - mean) / std, with one value for all channels or one for each.

    Mean and std are buffers: they move with the network and are saved with its weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        mean_values, std_values = _per_channel("mean", mean), _per_channel("std", std)
        if not bool((std_values > 0).all()):
            raise ValueError(f"Normalize: std is {std}, but images are divided by it; pass values greater than zero.")
        lengths = {len(mean_values), len(std_values)} - {1}
        if len(lengths) > 1:
            raise ValueError(
                f"Normalize: mean has {len(mean_values)} values and std has {len(std_values)}, but both "
                "describe the same channels; pass one value for all channels or one for each."
            )
        self.register_buffer("mean", mean_values)
        self.register_buffer("std", std_values)

    @property
    def channels(self) -> int | None:
        """How many channels an image must have; None when one value serves any number."""
        widest = max(len(self.mean), len(self.std))
        return None if widest == 1 else widest

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def _per_channel(name: str, values: float | Sequence[float]) -> Tensor:
    """Values as a [channels, 1, 1] tensor, which lines up with [batch, channels, height, width]."""
    tensor = torch.as_tensor(values, dtype=torch.get_default_dtype())
    if tensor.ndim > 1 or tensor.numel() == 0 or not bool(tensor.isfinite().all()):
        raise ValueError(
            f"Normalize: {name} is {values}, but the shift and scale of a channel are finite numbers; "
            "pass one number, or a flat list with one for each channel."
        )
    return tensor.clone().reshape(-1, 1, 1)
