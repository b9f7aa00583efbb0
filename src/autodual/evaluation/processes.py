"""Several processes on one run, started by torchrun: what they tell each other, who watches them, and how work is shared."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual.data import Examples
from autodual.runs.lines import Say

PATIENCE = timedelta(hours=2)
"""How long the others wait while the first process does something alone."""

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """What one process does of a batch."""

    index: Tensor
    weight: float
    """Weight of its gradient in the mean over processes, which is then the gradient of the whole batch."""
    counted: int
    """Examples that this process counts. The first process counts those that all of them take."""


@dataclass(frozen=True)
class Group:
    """One of `size` processes; the first one writes the files."""

    rank: int = 0
    size: int = 1
    talk: Any = None
    """The process group for messages on the CPU; PyTorch's default one when None."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.size == 1

    def any(self, *flags: bool) -> list[bool]:
        """Tells for each flag whether it is true in any process. One small message on the CPU, so that no device is waited for."""
        if self.alone:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.talk)
        return [vote > 0 for vote in votes.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in the order of their ranks."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.talk)
        return found

    def from_all(self, act: Callable[[], T]) -> list[T]:
        """Calls `act` in every process, and returns all results in the order of ranks. If one fails, all fail with its error."""
        if self.alone:
            return [act()]
        result, error, fault = _attempt(act, self.rank)
        found = self.gather((result, fault))
        if error is not None:
            raise error
        for _, fault in found:
            if fault is not None:
                raise _told(fault)
        return [value for value, _ in found]

    def by_first(self, act: Callable[[], T]) -> T:
        """Calls `act` in the first process only. All processes get its result, or fail with its error."""
        if self.alone:
            return act()
        result, error, fault = _attempt(act, self.rank) if self.first else (None, None, None)
        said: list[Any] = [result, fault]
        dist.broadcast_object_list(said, 0, group=self.talk)
        if said[1] is not None:
            raise _told(said[1]) if error is None else error
        found: T = said[0]
        return found

    def same_(self, model: nn.Module) -> None:
        """Copies the first process's weights to all. Gradients keep parameters equal; batch statistics are each process's own."""
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

    def share(self, index: Tensor) -> Share:
        """This process's part of a batch. All take the whole of a batch that has fewer than two examples for each: one example has no
        batch statistics."""
        if len(index) < 2 * self.size:
            return Share(index, 1.0, len(index) if self.first else 0)
        own = index[self.rank :: self.size]
        return Share(own, len(own) * self.size / len(index), len(own))

    def wrap(self, objective: nn.Module) -> nn.Module:
        if self.alone:
            return objective
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # a copy, and nobody's fault
        return nn.parallel.DistributedDataParallel(objective)


ALONE = Group()


def _attempt(act: Callable[[], T], rank: int) -> tuple[T | None, Exception | None, AutodualError | None]:
    """The result, or the error, and what others are told of it: whatever it is, they must not wait for the result."""
    try:
        return act(), None, None
    except AutodualError as error:
        return None, error, error
    except Exception as error:
        return None, error, AutodualError(f"process {rank} failed: {type(error).__name__}: {error}")


def _told(error: AutodualError) -> AutodualError:
    error.told = True
    return error


def own_device(chosen: torch.device) -> torch.device:
    """The device of this process: every process that torchrun has started has a GPU of its own."""
    if _world_size() == 1 or chosen.type != "cuda":
        return chosen
    if chosen.index is not None:
        raise ArgumentError(f"device: {chosen} was asked for, but every process has a GPU of its own; use auto or cuda")
    local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= there:
        raise ArgumentError(f"device: there are more processes than GPUs ({there}); use --nproc-per-node {there}")
    return torch.device("cuda", local)


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(chosen: torch.device) -> Iterator[Group]:
    """The group that torchrun has started, or a group of one."""
    if chosen.type == "cuda" and chosen.index is not None:
        torch.cuda.set_device(chosen)
    if _world_size() == 1:
        yield Group()
        return
    if dist.is_initialized():  # by the caller, perhaps for GPUs alone, which carry no messages between hosts
        yield Group(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"))
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
        gc.collect()  # a wrapped module in a cycle keeps the threads of the group alive, which must not outlive Python


# Who watches the work, and may stop it.


class StoppedError(AutodualError):
    """The run was asked to stop, and can be resumed."""


@dataclass
class StepProgress:
    """What an observer is told after every step of a training."""

    stage: int
    epoch: int
    epochs: int
    batch: int
    batches: int
    summary: Tensor
    """What `step.SUMMARY` lists, about the `own` examples of this process."""
    own: int
    examples: int
    """Examples of the whole batch, which processes share."""
    eps: float | None = None
    """Size of the perturbation that this step was trained against; None if there is none."""


@dataclass(frozen=True)
class Watch:
    """What the caller wants to know while work is done, how it stops it, and the processes that share the work."""

    step: Callable[[StepProgress], None] = lambda progress: None
    draw: Callable[[str, int, int], None] = lambda what, done, of: None
    """(what, done, of): how far an evaluation is."""
    say: Say = lambda line: None
    stop: Callable[[], bool] = lambda: False
    group: Group = ALONE

    def within(self, group: Group) -> Watch:
        """The watch of one of several processes: only the first one reports, and they stop together."""
        return replace(self, group=group) if group.first else Watch(stop=self.stop, group=group)

    def part(self, before: int, whole: int) -> Watch:
        """The watch of one of several pieces of work that share a progress bar."""
        return replace(self, draw=lambda what, done, of: self.draw(what, before + done, whole))

    def tell(self, what: str, done: int, of: int) -> None:
        """Draws how far an evaluation is, and ends it if one process was asked to. All processes call this at the same points."""
        if any(self.group.any(self.stop())):
            raise StoppedError("stopped as asked; go on with --resume")
        self.draw(what, done, of)


UNWATCHED = Watch()


# Work on all examples, batch by batch; processes take turns with batches, and every process gets every result, in order.


def batch_size(data: Examples) -> int:
    return 1000 if data.device.type == "cuda" else 100


def in_turns(
    work: Callable[[slice], T], data: Examples, what: str, watch: Watch, start: int = 0, step: int | None = None
) -> Iterator[list[T]]:
    """work(part) for all batches from `start` on, of `step` examples if that is given. Each turn yields as many results as there are
    processes, or what is left.

    Batches do not depend on the number of processes, so neither do the results, to the last bit. Tensors arrive on the CPU.
    """
    step, group = batch_size(data) if step is None else step, watch.group
    parts = [slice(first, min(len(data), first + step)) for first in range(start, len(data), step)]

    def own(turn: list[slice]) -> list[T]:  # nothing for those who come too late in the last turn
        return [on_cpu(work(part)) for part in turn[group.rank : group.rank + 1]]

    for first in range(0, len(parts), group.size):
        turn = parts[first : first + group.size]
        yield [result for results in group.from_all(partial(own, turn)) for result in results]
        watch.tell(what, turn[-1].stop, len(data))


def on_all(work: Callable[[Tensor, Tensor], T], data: Examples, what: str, watch: Watch) -> list[T]:
    """work(images, labels) for all batches, in order."""
    turns = in_turns(lambda part: work(data.scaled(part), data.labels[part]), data, what, watch)
    return [found for turn in turns for found in turn]


def concatenated(parts: list[T]) -> T:
    """One record of tensors from those of all batches, field by field."""
    joined = {f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(parts[0])}  # type: ignore[arg-type]
    return replace(parts[0], **joined)  # type: ignore[type-var]


def on_cpu(value: Any) -> Any:
    """The value with its tensors on the CPU, where another process can read them."""
    if isinstance(value, Tensor):
        return value.cpu()
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: on_cpu(getattr(value, f.name)) for f in fields(value)})
    return value
