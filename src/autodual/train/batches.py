"""How an epoch is cut into batches, and the one size that some networks cannot be trained with."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError


def count(examples: int, size: int) -> int:
    """Batches of an epoch; a single example that is left goes with the batch before it, since one has no batch statistics."""
    return max(1, math.ceil((examples - 1) / size)) if size > 1 else examples


def cut(order: Tensor, number: int, size: int) -> Tensor:
    """The batch of this number; the last one holds all that is left."""
    last = number + 1 == count(len(order), size)
    return order[number * size :] if last else order[number * size : (number + 1) * size]


def check_single(model: nn.Module, image: Tensor) -> None:
    """Refuse a network that cannot be trained on one image at a time, [1, *shape]; leaves it and the random state alone."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(model).train()(image)
    except ValueError as error:
        raise ArgumentError(
            f"batch: the network cannot be trained on one image at a time ({' '.join(str(error).split())}); batch normalisation "
            f"needs several: use a larger batch, and at least two images"
        ) from error
