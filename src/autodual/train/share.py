"""Work on all examples, batch by batch; processes take turns with batches, and every process gets every result, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from autodual.train.data import ImageData
from autodual.train.group import Group

T = TypeVar("T")

Tell = Callable[[str, int, int], None]
"""(what, done, of): for a progress bar, and the moment to stop. Every process calls it, at the same points."""


def silent(what: str, done: int, of: int) -> None:
    """Tells nobody."""


def part_of(tell: Tell, before: int, whole: int) -> Tell:
    """For one of several pieces of work that share a progress bar."""
    return lambda what, done, of: tell(what, before + done, whole)


def batch_size(data: ImageData) -> int:
    return 1000 if data.images.is_cuda else 100


def in_turns(
    work: Callable[[slice], T],
    data: ImageData,
    what: str,
    tell: Tell,
    group: Group,
    start: int = 0,
    step: int | None = None,
) -> Iterator[list[T]]:
    """work(part) for all batches from `start` on, of `step` examples if that is given. Each turn yields as many results as there are
    processes, or what is left.

    Batches do not depend on the number of processes, so neither do the results, to the last bit. Tensors arrive on the CPU.
    """
    step = batch_size(data) if step is None else step
    parts = [slice(first, min(len(data), first + step)) for first in range(start, len(data), step)]
    for first in range(0, len(parts), group.size):
        turn = parts[first : first + group.size]
        own = turn[group.rank : group.rank + 1]  # none for those who come too late in the last turn
        found = group.from_all(partial(_results, work, own))
        yield [result for results in found for result in results]
        tell(what, turn[-1].stop, len(data))


def _results(work: Callable[[slice], T], parts: list[slice]) -> list[T]:
    return [on_cpu(work(part)) for part in parts]


def on_all(work: Callable[[Tensor, Tensor], T], data: ImageData, what: str, tell: Tell, group: Group) -> list[T]:
    """work(images, labels) for all batches, in order."""
    turns = in_turns(lambda part: work(data.scaled(part), data.labels[part]), data, what, tell, group)
    return [found for turn in turns for found in turn]


def on_cpu(value: Any) -> Any:
    """Tensors, and records of tensors, where another process can read them."""
    if isinstance(value, Tensor):
        return value.cpu()
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: on_cpu(getattr(value, f.name)) for f in fields(value)})
    return value
