"""The sections of a run's chapter. A function under @section in a file of this folder is on the page: nothing else has to name it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from autodual.report.blocks import Note, Section, Text
from autodual.report.run import RunFiles

Make = Callable[[RunFiles], Section | None]


@dataclass(frozen=True)
class Maker:
    """How a section is made; None where it says nothing about this run."""

    make: Make
    place: int
    """Sections follow each other by this number."""
    first_stage: bool
    """Whether it describes the first stage of a cascade alone, which a reader must not take for the cascade."""


_MAKERS: list[Maker] = []


def section(place: int, *, first_stage: bool = False) -> Callable[[Make], Make]:
    """Put the section that a function makes on the page of every run."""

    def register(make: Make) -> Make:
        _MAKERS.append(Maker(make, place, first_stage))
        return make

    return register


@functools.cache
def makers() -> tuple[Maker, ...]:
    """The makers in every file of this folder, in the order of the page."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(sorted(_MAKERS, key=lambda maker: maker.place))


def absence(run: RunFiles, file: str, consequence: str) -> Text | Note:
    """One sentence instead of a section: quiet where a file or a part of it is not there, a note where it is damaged."""
    problem = run.problems.get(file)
    if problem is None:
        return Text(f"{file} does not hold what is needed here. {consequence}")
    words = f"{problem.sentence} {consequence}"
    return Text(words) if problem.missing else Note(words)
