"""Several processes on one run, started by torchrun: who we are, and the little that we tell each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autodual._errors import AutodualError

PATIENCE = timedelta(hours=2)
"""How long the others wait while the first process does something alone."""

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """One of `size` processes; the first one writes the files."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.size == 1

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is true for one of us: one small message, on the CPU, so that no device is waited for."""
        if self.alone:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        return [vote > 0 for vote in votes.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """What every process says, in order."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def by_first(self, act: Callable[[], T]) -> T:
        """What the first process finds or does; all get its result, or fail with its error."""
        if self.alone:
            return act()
        said: list[Any] = [None]
        if self.first:
            try:
                said = [act()]
            except AutodualError as error:
                said = [error]
        dist.broadcast_object_list(said, 0)
        if isinstance(said[0], AutodualError):
            raise said[0]
        found: T = said[0]
        return found

    def same_(self, model: nn.Module) -> None:
        """The first process's weights for all. Gradients keep parameters equal; batch statistics are each process's own."""
        if self.alone:
            return
        for value in model.state_dict().values():
            whole = value.contiguous()
            dist.broadcast(whole, 0)
            value.copy_(whole)

    def add_up_(self, numbers: Tensor) -> Tensor:
        if not self.alone:
            dist.all_reduce(numbers)
        return numbers

    def wait(self) -> None:
        if not self.alone:
            dist.barrier()

    def share(self, index: Tensor) -> tuple[Tensor, float]:
        """Our part of a batch, and its weight in the mean over processes: gradients add up to those of the whole batch.

        A process without an example takes one with weight zero, so that all of them go through the same steps.
        """
        if self.alone:
            return index, 1.0
        own = index[self.rank :: self.size]
        return (own, len(own) * self.size / len(index)) if len(own) > 0 else (index[:1], 0.0)

    def wrap(self, objective: nn.Module) -> nn.Module:
        return objective if self.alone else nn.parallel.DistributedDataParallel(objective)

    def device(self, chosen: torch.device) -> torch.device:
        """One GPU per process."""
        if self.alone or chosen.type != "cuda":
            return chosen
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


ALONE = Group()


def speaks() -> bool:
    """Whether this process talks to the user: the first of those that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(chosen: torch.device) -> Iterator[Group]:
    """The group that torchrun has started, or a group of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = Group(size=size).device(chosen)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if size == 1:
        yield Group()
        return
    if dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size())
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
