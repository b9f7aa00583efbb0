"""One optimiser step: plain, or with its forward and backward pass captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from autodual.bounds import Draws, Projected
from autodual.certify.loss import kept_buffers, uses_batch_statistics
from autodual.train.objective import Objective, RobustObjective
from autodual.train.randomness import kept_random_state

WARM_UP = 3


class Step:
    """Minimises an objective, batch by batch.

    Random numbers are drawn from a generator that the caller seeds before each step, and so are the global ones, for modules that
    draw these. Whatever is done only once, at the first step of a process, leaves both as they were, and the model's buffers.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimiser: torch.optim.Optimizer,
        generator: torch.Generator,
        clip_gradients: float | None,
    ) -> None:
        self.objective, self.optimiser = objective, optimiser
        self.generator, self.clip_gradients = generator, clip_gradients
        self.draws: dict[int, Draws | None] = {}

    def __call__(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        """What `objective.SUMMARY` lists, on the device. weight: of the gradient, where processes share a batch unevenly."""
        self.optimiser.zero_grad(set_to_none=False)
        summary = self.objective(x, labels, self._fresh(x))
        (weight * summary[0]).backward()
        self._update()
        return summary.detach()

    def _fresh(self, x: Tensor) -> Draws | None:
        """Random numbers for a batch of this size, in memory that is used again."""
        draws = self._drawn(x)
        return None if draws is None else draws.renew_(self.generator)

    def _drawn(self, x: Tensor) -> Draws | None:
        if len(x) not in self.draws:
            with kept_random_state(x.device):  # not from our generator, which belongs to the step
                self.draws[len(x)] = inner(self.objective).draw(x)
        return self.draws[len(x)]

    def _update(self) -> None:
        if self.clip_gradients is not None:
            nn.utils.clip_grad_norm_(_parameters(self.optimiser), self.clip_gradients, foreach=True)
        self.optimiser.step()


class GraphStep(Step):
    """The same, replaying a CUDA graph for batches of one size; others run plainly."""

    graph: torch.cuda.CUDAGraph | None = None
    batch: int = 0

    def __call__(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        if len(x) != self.batch or self._exact(x):
            return super().__call__(x, labels, weight)
        if self.graph is None:
            with torch.cuda.device(x.device), kept_random_state(x.device):
                self._capture(x, labels)
        self.x.copy_(x)
        self.labels.copy_(labels)
        self._fresh(x)
        assert self.graph is not None
        self.graph.replay()
        self._update()
        return self.summary.detach()

    def _exact(self, x: Tensor) -> bool:
        """Whether bounds are exact instead: those take memory as they find it, which a graph cannot."""
        draws = self._drawn(x)
        return draws is not None and draws.exact

    def _capture(self, x: Tensor, labels: Tensor) -> None:
        self.x, self.labels = x.clone(), labels.clone()
        draws = self._drawn(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with kept_buffers(self.objective):
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self._gradients(draws)
            torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.summary = self._gradients(draws)

    def _gradients(self, draws: Draws | None) -> Tensor:
        for parameter in _parameters(self.optimiser):
            if parameter.grad is not None:
                parameter.grad.zero_()
        summary: Tensor = self.objective(self.x, self.labels, draws)
        summary[0].backward()
        return summary


def make_step(
    objective: nn.Module,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    clip_gradients: float | None,
    batch: int,
) -> Step:
    """A CUDA graph where the step allows it: projections on a GPU, in one process, and no batch statistics.

    A captured model draws no random numbers of its own: bounds of a random network, by dropout, say, are refused.
    """
    static = (
        generator.device.type == "cuda"
        and isinstance(objective, RobustObjective)
        and isinstance(objective.loss.engine, Projected)
        and not uses_batch_statistics(objective.model)
    )
    if not static:
        return Step(objective, optimiser, generator, clip_gradients)
    step = GraphStep(objective, optimiser, generator, clip_gradients)
    step.batch = batch
    return step


def inner(objective: nn.Module) -> Objective:
    """The objective itself, also where distributed training has wrapped it."""
    found = objective.module if isinstance(objective, nn.parallel.DistributedDataParallel) else objective
    assert isinstance(found, Objective)
    return found


def _parameters(optimiser: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimiser.param_groups for p in group["params"])
