"""What engines say about the errors of their bounds: values that may lie outside an interval, and who is told on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from autodual.dual import Band, Lines
from autodual.interval import Interval

SAFETY = 1.1
"""Computed errors are rounded as well, by far less than the tenth that they are enlarged by."""


@dataclass(frozen=True)
class Outside:
    """How far below and above an interval values may lie that it was computed for."""

    below: Tensor
    above: Tensor

    @classmethod
    def both(cls, error: Tensor) -> Outside:
        return cls(error, error)

    def __getitem__(self, examples: slice) -> Outside:
        return Outside(self.below[examples], self.above[examples])

    @property
    def farther(self) -> Tensor:
        return self.below if self.below is self.above else torch.maximum(self.below, self.above)

    def around(self, interval: Interval) -> Interval:
        """Where the values lie for certain."""
        return interval.widened(self.below, self.above)


def outside_of_both(interval: Interval, found: list[tuple[Interval, Outside]]) -> Outside:
    """How far values may lie outside an interval that lie in each of the found ones, or not farther outside than they say."""
    lowest = reduce(torch.maximum, (other.lower - outside.below for other, outside in found))
    highest = reduce(torch.minimum, (other.upper + outside.above for other, outside in found))
    return Outside(SAFETY * (interval.lower - lowest).clamp(min=0), SAFETY * (highest - interval.upper).clamp(min=0))


class Errors(ABC):
    """Hears what happens while bounds are computed. `Rounding` finds the errors of all of it; `NoErrors` does not listen."""

    errors: dict[int, Tensor]
    """By activation: how far it may leave its relaxation, and what the affine nodes before it add."""
    run_errors: dict[int, Tensor]
    """By activation: how far it may be from its line as the network runs, and what evaluating the affine nodes before it adds."""

    @abstractmethod
    def note(self, index: int, error: Tensor | None, run_error: Tensor | None = None) -> None:
        """A node has been bounded; the errors of activations before it add up to these."""

    @abstractmethod
    def note_some(self, index: int, units: Tensor, error: Tensor | None, run_error: Tensor | None) -> None:
        """Some units of a node have been bounded, [N or 1, len(units)]; the bounds of the others have room for their errors."""

    @abstractmethod
    def take(self, index: int, interval: Interval, outside: Outside | None) -> None:
        """Somebody else has bounded a node, and says how far outside values may lie; None: not at all."""

    @abstractmethod
    def enter_band(self, index: int, interval: Interval, band: Band) -> None:
        """Activation `index` has been relaxed for an interval, by a band."""

    @abstractmethod
    def enter_lines(self, index: int, interval: Interval, lines: Lines) -> None:
        """Activation `index` has been relaxed for an interval, by two lines."""

    @abstractmethod
    def alive(self, index: int, band: Band) -> tuple[Tensor, ...]:
        """Numbers per unit of an activation; rows need not pass units where all of them are zero."""

    @abstractmethod
    def of_activation(self, index: int, by_image: bool) -> tuple[Tensor, ...]:
        """Error and run error of an activation, bounded by its band or, `by_image`, by its values; empty if not counted."""

    @abstractmethod
    def with_room(self, index: int, reach: Tensor) -> Tensor:
        """How far values may be from a node's centre if they are within `reach` without rounding."""

    @abstractmethod
    def reach(self, index: int, interval: Interval) -> Tensor:
        """How far values may be from the centre of a node that has been bounded."""

    @abstractmethod
    def outside_of(self, activations: Iterable[int]) -> dict[int, Outside]:
        """By activation: how far outside its interval values may enter it; nothing where nobody counts."""


class NoErrors(Errors):
    """For bounds that claim nothing about rounding."""

    def __init__(self) -> None:
        self.errors, self.run_errors = {}, {}

    def note(self, index: int, error: Tensor | None, run_error: Tensor | None = None) -> None:
        pass

    def note_some(self, index: int, units: Tensor, error: Tensor | None, run_error: Tensor | None) -> None:
        pass

    def take(self, index: int, interval: Interval, outside: Outside | None) -> None:
        pass

    def enter_band(self, index: int, interval: Interval, band: Band) -> None:
        pass

    def enter_lines(self, index: int, interval: Interval, lines: Lines) -> None:
        pass

    def alive(self, index: int, band: Band) -> tuple[Tensor, ...]:
        return band.slope, band.radius

    def of_activation(self, index: int, by_image: bool) -> tuple[Tensor, ...]:
        return ()

    def with_room(self, index: int, reach: Tensor) -> Tensor:
        return reach

    def reach(self, index: int, interval: Interval) -> Tensor:
        return interval.radius

    def outside_of(self, activations: Iterable[int]) -> dict[int, Outside]:
        return {}
