"""How much may be held in memory at once."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import ArgumentError, MemoryBudgetError
from autodual._tensor import free_bytes
from autodual.dual import DualNetwork

COPIES = 4
"""Tensors of coefficients that are alive at the same time, at most: before, after, a product, and a work buffer."""
CACHE_BYTES = 24 << 20
"""On a CPU, chunks that stay in the cache are faster than large ones."""
PATCH_BYTES = 8 << 20
"""Chunks of patches are better still smaller: they are many, and what larger ones free goes back to the operating system, which
has to find and clear pages for the next one."""
FEW_PATCHES = 512
"""But a convolution of fewer patches than this takes longer to begin than that saves."""
DEFAULT_SHARE = 0.25
"""Part of the free memory that is taken when nothing is said."""


@dataclass(frozen=True)
class Budget:
    """A limit on the bytes of intermediate results."""

    max_bytes: int
    preferred: int
    cached: bool = False
    """Whether there is a cache that chunks should stay in."""

    @classmethod
    def of(cls, max_bytes: int | None, device: torch.device) -> Budget:
        check_max_bytes(max_bytes)
        limit = int(free_bytes(device) * DEFAULT_SHARE) if max_bytes is None else max_bytes
        cached = device.type == "cpu" and not torch.is_grad_enabled()
        return cls(limit, min(limit, CACHE_BYTES) if cached else limit, cached)

    @classmethod
    def unlimited(cls) -> Budget:
        """For work that is small by construction, and for steps that must not look at the machine."""
        return cls(sys.maxsize, sys.maxsize)

    def rows(self, network: DualNetwork, target: int, like: Tensor) -> int:
        """How many rows for a batch shaped like `like` may be pulled back together."""
        widest = max(math.prod(network.nodes[i].shape) for i in network.ancestors(target))
        row = widest * like.shape[0] * like.element_size() * COPIES
        return max(1, self.preferred // row)

    def patches(self, network: DualNetwork, rows: int, like: Tensor) -> int:
        """How many virtual examples of a cropped network may be treated together."""
        widest = max(math.prod(node.shape) for node in network.nodes)
        example = widest * rows * like.element_size() * COPIES
        small = max(PATCH_BYTES, -(-FEW_PATCHES // rows) * example) if self.cached else self.preferred
        return max(1, min(self.preferred, small) // example)

    def examples(self, network: DualNetwork, like: Tensor) -> int:
        """How many examples may be treated together, so that one row of all of them, and their bounds, fit."""
        units = sum(math.prod(node.shape) for node in network.nodes)
        example = units * like.element_size() * 2 * COPIES
        if example > self.max_bytes:
            raise MemoryBudgetError(
                f"max_bytes = {self.max_bytes:,} is too little: one example of this network ({units:,} values) needs about "
                f"{example:,} bytes. Raise max_bytes, free memory, or use a cheaper engine such as IBP()"
            )
        return max(1, self.max_bytes // example)


def even_split(count: int, limit: int) -> int:
    """A chunk size of at most `limit` that leaves no small rest."""
    return -(-count // -(-count // max(1, limit)))


def check_max_bytes(max_bytes: int | None) -> None:
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0):
        raise ArgumentError(f"max_bytes must be a positive whole number of bytes, or None, got {max_bytes!r}")
