"""metrics.jsonl as curves: one axis of epochs through all stages, the last record of an epoch counting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autodual.report.frame import Mark
from autodual.report.lines import Points
from autodual.report.values import Record, number, text, whole


@dataclass(frozen=True)
class History:
    """Records by place on the axis: epochs of later stages go on where the stage before ended."""

    epochs: dict[int, Record]
    validation: dict[int, Record]
    stages: tuple[Mark, ...]
    """Where each stage begins, if there are several."""

    @classmethod
    def of(cls, metrics: Iterable[Record]) -> History:
        placed = {"epoch": {}, "validation": {}}  # type: dict[str, dict[tuple[int, int], Record]]
        for record in metrics:
            kind, epoch = text(record, "kind"), whole(record, "epoch")
            if kind in placed and epoch is not None:
                placed[kind][whole(record, "stage") or 0, epoch] = record  # a resumed run writes an epoch again
        keys = sorted({key for kind in placed.values() for key in kind})
        place = _axis(keys)
        stages = sorted({stage for stage, _ in keys})
        begins = [Mark(min(place[key] for key in keys if key[0] == stage), f"stage {stage}") for stage in stages]
        return cls(
            {place[key]: record for key, record in sorted(placed["epoch"].items())},
            {place[key]: record for key, record in sorted(placed["validation"].items())},
            tuple(begins) if len(begins) > 1 else (),
        )

    def training(self, key: str) -> Points:
        return self._points(self.epochs, key)

    def validated(self, key: str) -> Points:
        return self._points(self.validation, key)

    def _points(self, records: dict[int, Record], key: str) -> Points:
        found = ((float(at), number(record, key)) for at, record in records.items())
        return _split([(at, value) for at, value in found if value is not None], [mark.at for mark in self.stages])

    def seconds(self) -> float:
        return sum(number(record, "seconds") or 0.0 for record in self.epochs.values())


def _axis(keys: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    place: dict[tuple[int, int], int] = {}
    shift, stage = 0, keys[0][0] if keys else 0
    for key in keys:
        if key[0] != stage:
            shift, stage = max(place.values()) + 1 - key[1], key[0]
        place[key] = key[1] + shift
    return place


def _split(points: Points, begins: Sequence[float]) -> Points:
    """A gap (NaN) before each stage, so that no line leads from the end of one stage to the beginning of the next."""
    gaps = [(at - 0.5, math.nan) for at in begins if points and points[0][0] < at <= points[-1][0]]
    return sorted([*points, *gaps])
