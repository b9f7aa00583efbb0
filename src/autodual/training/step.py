"""What is minimised, and one optimiser step: plain, or captured whole as a CUDA graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual.certificates import RobustCrossEntropy
from autodual.certificates.attacks import worst_inputs
from autodual.engines import BoundEngine, Draws, Projected
from autodual.sets import Perturbation

# PyTorch's global random numbers, which dropout and its like draw from: a function of the step, and the caller's again afterwards.


def kept_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Restores the random state of the CPU and this device at the end, whatever is drawn or seeded inside."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def seed_globally(seed: int, device: torch.device) -> None:
    """Seeds the CPU and this device; other GPUs are left alone. Never called while a CUDA graph is captured."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


# What is minimised: one module for every way of training, which distributed training can wrap as a whole.

ATTACK_STEPS = 10
SUMMARY = ("loss", "robust_error", "error", "robust_loss", "standard_loss")
"""What a step tells about a batch: losses are means, errors are counts. "robust" is under the bound, or the attack trained on."""


class Objective(nn.Module, ABC):
    """(x, labels) -> a summary: the loss that is minimised, and for the record, without gradient, what is in SUMMARY."""

    model: nn.Module

    @abstractmethod
    def forward(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        """The summary of one batch."""

    def draw(self, x: Tensor) -> Draws | None:
        """Memory for the random numbers of steps on batches like x; None if the objective draws none."""
        return None


class StandardObjective(Objective):
    """The usual cross-entropy; with a ball, on the worst examples that an attack finds in it."""

    def __init__(self, model: nn.Module, ball: Perturbation | None = None) -> None:
        super().__init__()
        self.model, self.ball = model, ball

    def forward(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        clean = worst = self.model(x)
        if self.ball is not None:
            training = self.model.training
            self.model.eval()
            found = worst_inputs(self.model, x, labels, self.ball, ATTACK_STEPS)
            self.model.train(training)
            worst = self.model(found)
        loss = F.cross_entropy(worst, labels)
        return _summary(loss, clean, worst, labels, loss)


class RobustObjective(Objective):
    """The robust cross-entropy by an engine's bounds, mixed with the usual one."""

    def __init__(self, model: nn.Module, ball: Perturbation, engine: BoundEngine, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.weight = model, weight
        self.loss = RobustCrossEntropy(model, ball, engine)

    def draw(self, x: Tensor) -> Draws | None:
        return self.loss.draw(x) if isinstance(self.loss.engine, Projected) else None

    def forward(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        clean, worst = self.loss.both_scores(x, labels, draws)
        robust = loss = F.cross_entropy(worst, labels)
        if self.weight < 1:
            loss = self.weight * robust + (1 - self.weight) * F.cross_entropy(clean, labels)
        return _summary(loss, clean, worst, labels, robust)


def _summary(loss: Tensor, clean: Tensor, worst: Tensor, labels: Tensor, robust: Tensor) -> Tensor:
    wrong = [(scores.detach().argmax(1) != labels).sum().to(loss) for scores in (worst, clean)]
    return torch.stack([loss, *wrong, robust.detach(), F.cross_entropy(clean.detach(), labels)])


# One optimiser step: plain, or captured whole as a CUDA graph: random numbers, forward and backward pass, update.

WARM_UP = 3
"""Steps that run plainly before one is captured: kernels compile, libraries load, and the optimiser's state comes into being."""

Prepare = Callable[[Tensor, torch.Generator], Tensor]
"""A batch as it lies in memory -> the network's input; random numbers come from the generator."""


def as_it_is(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


class Step:
    """Minimises an objective, batch by batch.

    Random numbers are drawn from a generator that the caller seeds before each step, and so are the global ones, for modules that
    draw these. Whatever is done only once, at the first step of a process, leaves both as they were, and the model's buffers.
    """

    def __init__(
        self, objective: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator, clip_gradients: float | None,
        prepare: Prepare = as_it_is,
    ) -> None:  # fmt: skip
        self.objective, self.optimiser = objective, optimiser
        self.generator, self.clip_gradients, self.prepare = generator, clip_gradients, prepare
        self.draws: dict[int, Draws | None] = {}

    def __call__(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        """Takes a step; returns what `SUMMARY` lists, on the device. weight: of the gradient, where processes share a batch."""
        self.optimiser.zero_grad(set_to_none=False)
        return self._updated(x, labels, weight)

    def _updated(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        """The step, on top of whatever gradients there are."""
        x = self.prepare(x, self.generator)
        draws = self._drawn(x)
        summary: Tensor = self.objective(x, labels, None if draws is None else draws.renew_(self.generator))
        (summary[0] if weight == 1.0 else weight * summary[0]).backward()
        if self.clip_gradients is not None:
            parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.clip_gradients, foreach=True)
        self.optimiser.step()
        return summary.detach()

    def _drawn(self, x: Tensor) -> Draws | None:
        """Memory for the random numbers of a batch of this size, which is used again."""
        if len(x) not in self.draws:
            with kept_random_state(x.device):  # not from our generator, which belongs to the step
                self.draws[len(x)] = inner(self.objective).draw(x)
        return self.draws[len(x)]


class GraphStep(Step):
    """A `Step` that is captured as one CUDA graph and replayed, for batches of one size, after some plain steps."""

    graph: torch.cuda.CUDAGraph | None = None
    batch: int = 0
    taken: int = 0
    """Plain steps with batches of this size."""

    def __call__(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        draws = self.draws.get(self.batch)
        exact = draws is not None and draws.exact  # such bounds take memory as they find it, which a graph cannot
        if len(x) != self.batch or exact:
            return super().__call__(x, labels, weight)
        if self.graph is None:
            with torch.cuda.device(x.device):
                if self.taken < WARM_UP:
                    return self._aside(x, labels)
                with kept_random_state(x.device):
                    self.graph = self._captured(x, labels)
        self.x.copy_(x)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.summary

    def _aside(self, x: Tensor, labels: Tensor) -> Tensor:
        """A plain step on a stream of its own, as it must be before a capture."""
        self.taken += 1
        here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            summary = super().__call__(x, labels)
        here.wait_stream(stream)
        return summary

    def _captured(self, x: Tensor, labels: Tensor) -> torch.cuda.CUDAGraph:
        """Gradients are made by the graph, in its own memory: there is nothing to add them to."""
        self.x, self.labels = x.clone(), labels.clone()
        self.optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            self.summary = self._updated(self.x, self.labels)
        return graph


def make_step(
    objective: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator, clip_gradients: float | None, batch: int,
    prepare: Prepare = as_it_is,
) -> Step:  # fmt: skip
    """A CUDA graph where the step allows it: projections on a GPU, in one process.

    A captured model draws no random numbers of its own: bounds of a random network, by dropout, say, are refused.
    """
    projected = isinstance(objective, RobustObjective) and isinstance(objective.loss.engine, Projected)
    if generator.device.type != "cuda" or not projected:
        return Step(objective, optimiser, generator, clip_gradients, prepare)
    step = GraphStep(objective, optimiser, generator, clip_gradients, prepare)
    step.batch = batch
    return step


def inner(objective: nn.Module) -> Objective:
    """The objective itself, also where distributed training has wrapped it."""
    found = objective.module if isinstance(objective, nn.parallel.DistributedDataParallel) else objective
    assert isinstance(found, Objective)
    return found
