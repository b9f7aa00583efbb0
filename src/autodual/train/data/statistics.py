"""What images are normalised by."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from autodual.train.data.images import ImageData
from autodual.train.data.known import KNOWN

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...] | float]
"""Mean and deviation, for each channel or, of the deviation, for all."""

PUBLISHED: dict[str, Statistics] = {name: data.mean_std for name, data in KNOWN.items() if data.mean_std is not None}
CONSTANT = 1e-6  # a channel that varies less than this is only shifted
PIECE = 1000  # images


def mean_std(name: str, data: ImageData) -> Statistics:
    """Mean and standard deviation per channel of these images; for cifar10 the constants of the papers, whatever the images.

    Weights hold them, so that whoever loads weights needs values of the right shape only: those of any images will do.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    of_channel = _of_bytes if data.images.dtype == torch.uint8 else _of_floats
    moments = [of_channel(data.images[:, channel].cpu(), data.scale) for channel in range(data.shape[0])]
    return tuple(mean for mean, _ in moments), tuple(std if std > CONSTANT else 1.0 for _, std in moments)


def any_mean_std(name: str, channels: int) -> Statistics:
    """Values of the right shape, for a network whose weights are loaded: without images."""
    return PUBLISHED.get(name, ((0.0,) * channels, (1.0,) * channels))


def _of_bytes(images: Tensor, scale: int) -> tuple[float, float]:
    """From how often each of them occurs, which is exact."""
    counts, values = images.flatten().bincount(minlength=256).numpy(), np.arange(256) / scale
    mean = math.fsum(counts * values) / images.numel()
    return mean, math.sqrt(math.fsum(counts * np.square(values - mean)) / images.numel())


def _of_floats(images: Tensor, scale: int) -> tuple[float, float]:
    """By numpy, whose sums do not depend on the number of threads."""
    pieces = [piece.numpy() for piece in images.split(PIECE)]
    mean = math.fsum(float(piece.sum(dtype=np.float64)) for piece in pieces) / images.numel()
    squares = math.fsum(float(np.square(piece.astype(np.float64) - mean).sum()) for piece in pieces)
    return mean, math.sqrt(squares / images.numel())
