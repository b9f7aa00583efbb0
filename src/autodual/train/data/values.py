"""Checks on the values of images and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual._errors import ArgumentError


def check_labels(
    labels: Tensor, classes: int, where: str, advice: str = "correct the labels, or name all the classes"
) -> None:
    """Refuses labels outside 0..classes-1 and names the first."""
    outside = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise ArgumentError(
            f"{where}: label {int(labels[first])} of image {first} is outside 0..{classes - 1}, the {classes} classes "
            f"({len(outside)} of {len(labels)} labels are); {advice}"
        )


def check_range(images: Tensor, scale: int, where: str) -> None:
    """Refuses images that would not be in [0, 1] once scaled."""
    if images.dtype == torch.uint8:
        if not 1 <= scale <= 255 or (scale < 255 and int(images.max()) > scale):
            raise ArgumentError(f"{where}: images hold bytes up to {int(images.max())}, but scale is {scale}")
        return
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # so that NaN is refused
        raise ArgumentError(
            f"{where}: images hold floats from {low:g} to {high:g}, but must be in [0, 1]; scale them, or keep them as bytes "
            "(uint8). Normalisation belongs in the network: autodual.models.Normalize"
        )
