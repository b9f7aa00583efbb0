"""Random crops and mirror images, drawn for each image, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual._errors import ArgumentError


def augment(
    images: Tensor,
    generator: torch.Generator | None = None,
    crop: int = 0,
    flip: bool = False,
    *,
    noise: Tensor | None = None,
) -> Tensor:
    """Each image [N, C, H, W] padded by `crop` black pixels and cut back to its size anywhere, and mirrored half of the time.

    Shapes are static and nothing waits for the device, so that it can be part of a compiled or captured step. `noise`
    [N, 3], uniform in [0, 1), takes the place of the generator: for the way down, the way right and the mirror. A
    generator on the CPU gives the same crops on every device.
    """
    if images.dim() != 4:
        raise ArgumentError(f"augment: images must be [N, C, H, W], got {tuple(images.shape)}")
    if crop < 0:
        raise ArgumentError(f"augment: crop is {crop}, but it is a number of pixels; pass 0 or more")
    if crop == 0 and not flip:
        return images
    noise = _noise(images, generator) if noise is None else noise
    if noise.shape != (len(images), 3):
        raise ArgumentError(f"augment: noise must be [{len(images)}, 3], got {tuple(noise.shape)}")
    height, width = images.shape[2:]
    row = torch.arange(height, device=images.device).expand(len(images), -1)
    column = torch.arange(width, device=images.device).expand(len(images), -1)
    if flip:
        column = torch.where(noise[:, 2:] < 0.5, column, width - 1 - column)
    return _pick(images, row + _shift(noise[:, 0:1], crop), column + _shift(noise[:, 1:2], crop))


def _noise(images: Tensor, generator: torch.Generator | None) -> Tensor:
    device = images.device if generator is None else generator.device
    noise = torch.rand(len(images), 3, generator=generator, device=device)
    return noise.to(images.device, non_blocking=True)


def _shift(noise: Tensor, crop: int) -> Tensor:
    """Uniform over -crop..crop. An odd number times a float below 1 never rounds up to that number, the excluded end."""
    return (noise * (2 * crop + 1)).long() - crop


def _pick(images: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Pixels at row [N, H] and column [N, W] of each image; black outside of it."""
    height, width = images.shape[2:]
    inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
    position = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None, :]
    index = position.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view_as(images).masked_fill(~inside[:, None], 0)
