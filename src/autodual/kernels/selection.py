"""The middle of k numbers, by comparisons, for very many units side by side.

Selecting it takes a fixed list of comparisons, whatever the numbers are: a sorting network without the comparisons that the middle
does not depend on. Each comparison is a minimum and a maximum of whole rows, so units are treated side by side, and nothing depends
on values. On one CPU thread it is about 10 times faster than `Tensor.median` for k = 10, 4 times for 50, twice for 100, and hardly
faster for 300: the list grows faster than k. The Triton programs of median.py use the same list.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

LARGEST_NETWORK = 300
"""Beyond so many values, a network has too many comparisons."""

Comparison = tuple[int, int, bool, bool]
"""(a, b, whether the smaller of both is needed at a, whether the larger is needed at b)."""


def middle_in_plain_operations(samples: Tensor) -> Tensor:
    """The median of the absolute values for a compiler or a function transform: nothing is written in place."""
    sizes = samples.abs()
    if len(sizes) > LARGEST_NETWORK:
        return sizes.median(0).values
    rows = list(sizes.unbind(0))
    for a, b, low, high in selection_network(len(rows)):
        first, second = rows[a], rows[b]
        if low:
            rows[a] = torch.minimum(first, second)
        if high:
            rows[b] = torch.maximum(first, second)
    return rows[(len(rows) - 1) // 2]


def middle_in_place(sizes: Tensor) -> Tensor:
    """The median of sizes [k, units], whose memory is used up: a result goes where one of two values was, or into a spare row."""
    if len(sizes) > LARGEST_NETWORK:
        return sizes.median(0).values
    rows = list(sizes.unbind(0))
    spare = torch.empty_like(rows[0])
    for a, b, low, high in selection_network(len(rows)):
        first, second = rows[a], rows[b]
        if low and high:
            torch.minimum(first, second, out=spare)
            torch.maximum(first, second, out=second)
            rows[a], spare = spare, first
        elif low:
            torch.minimum(first, second, out=first)
        else:
            torch.maximum(first, second, out=second)
    return rows[(len(rows) - 1) // 2]


def selection_network(k: int) -> tuple[Comparison, ...]:
    """Comparisons that leave the lower middle of k values at its place."""
    return _selection_network(k)


# What `torch.compiler.assume_constant_result` does, in every version from 2.6 on: a compiler calls the function instead of tracing it.
# The decorator itself would import the compiler, for a second, wherever this file is imported.
selection_network._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _selection_network(k: int) -> tuple[Comparison, ...]:
    """Goes back through a sorting network and keeps the comparisons that the middle depends on."""
    needed = {(k - 1) // 2}
    kept: list[Comparison] = []
    for a, b in reversed(_sorting_network(k)):
        low, high = a in needed, b in needed
        if low or high:
            kept.append((a, b, low, high))
            needed |= {a, b}
    return tuple(reversed(kept))


def _sorting_network(k: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange: comparators that sort any k numbers."""
    pairs: list[tuple[int, int]] = []
    block = 1
    while block < k:
        step = block
        while step >= 1:
            for start in range(step % block, k - step, 2 * step):
                for a in range(start, min(start + step, k - step)):
                    if a // (2 * block) == (a + step) // (2 * block):
                        pairs.append((a, a + step))
            step //= 2
        block *= 2
    return pairs
