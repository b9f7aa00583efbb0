"""Names for the types that cross module borders."""

from __future__ import annotations

from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]
"""Shape of one example: the batch dimension is never part of it."""
