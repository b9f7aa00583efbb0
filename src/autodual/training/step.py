"""One optimiser step on an objective, plain or captured whole as a CUDA graph; and the weights that count after many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual._tensor import values_at_hand
from autodual.data import Examples
from autodual.engines import Draws
from autodual.runs.config import TrainConfig
from autodual.training.objectives import Objective, evaluating

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


# One optimiser step: plain, or captured whole as a CUDA graph: random numbers, forward and backward pass, update.

WARM_UP = 3
"""Steps that run plainly before one is captured: kernels compile, libraries load, and the optimiser's state comes into being."""

AfterStep = Callable[[], None]
"""What follows the update, such as a moving average of the weights: on the device, without waiting for it."""

Prepare = Callable[[Tensor, torch.Generator], Tensor]
"""A batch as it lies in memory -> the network's input; random numbers come from the generator."""


def as_it_is(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


class NotFiniteError(AutodualError):
    """The loss of a step is infinite or NaN; the message says why."""


class Step:
    """Minimises an objective, batch by batch.

    On a CPU, and in one process, a loss that is infinite or NaN ends this before it reaches the weights (NotFiniteError); elsewhere,
    to look at it would wait for the device or leave other processes waiting.

    Random numbers are drawn from a generator that the caller seeds before each step, and so are the global ones, for modules that
    draw these. Whatever is done only once, at the first step of a process, leaves both as they were, and the model's buffers.
    """

    def __init__(
        self, objective: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator, clip_gradients: float | None,
        prepare: Prepare = as_it_is, after: AfterStep | None = None,
    ) -> None:  # fmt: skip
        self.objective, self.optimiser = objective, optimiser
        self.generator, self.clip_gradients, self.prepare, self.after = generator, clip_gradients, prepare, after
        self.draws: dict[int, Draws | None] = {}

    def __call__(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        """Takes a step; returns what `SUMMARY` lists, on the device. weight: of the gradient, where processes share a batch."""
        self.optimiser.zero_grad(set_to_none=False)
        return self._updated(x, labels, weight)

    def _updated(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        """The step, on top of whatever gradients there are."""
        x = self.prepare(x, self.generator)
        draws = self._drawn(x)
        drawn = None if draws is None else draws.renew_(self.generator)
        summary: Tensor = self.objective(x, labels, drawn, self.generator)
        if values_at_hand(summary) and not bool(summary[0].isfinite()) and isinstance(self.objective, Objective):
            raise NotFiniteError(f"the loss is {summary[0].item()}: {self.objective.why_not_finite(x, labels)}")
        (summary[0] if weight == 1.0 else weight * summary[0]).backward()
        if self.clip_gradients is not None:
            parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.clip_gradients, foreach=True)
        self.optimiser.step()
        if self.after is not None:
            self.after()
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
    regularising: bool = False
    """Whether the graph has the terms of the regularisers."""

    def __call__(self, x: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
        draws = self.draws.get(self.batch)
        exact = draws is not None and draws.exact  # such bounds take memory as they find it, which a graph cannot
        if len(x) != self.batch or exact:
            return super().__call__(x, labels, weight)
        if self.graph is not None and inner(self.objective).regularising != self.regularising:
            self.graph, self.taken = None, 0  # the terms have faded out, and need not be computed any more
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
        self.x, self.labels, self.regularising = x.clone(), labels.clone(), inner(self.objective).regularising
        self.optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            self.summary = self._updated(self.x, self.labels)
        return graph


def make_step(
    objective: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator, clip_gradients: float | None, batch: int,
    prepare: Prepare = as_it_is, after: AfterStep | None = None,
) -> Step:  # fmt: skip
    """A CUDA graph where the step allows it: bounds that are cheap, on a GPU, in one process.

    A captured model draws no random numbers of its own: bounds of a random network, by dropout, say, are refused.
    """
    if generator.device.type != "cuda" or not isinstance(objective, Objective) or not objective.capturable:
        return Step(objective, optimiser, generator, clip_gradients, prepare, after)
    step = GraphStep(objective, optimiser, generator, clip_gradients, prepare, after)
    step.batch = batch
    return step


def inner(objective: nn.Module) -> Objective:
    """The objective itself, also where distributed training has wrapped it."""
    found = objective.module if isinstance(objective, nn.parallel.DistributedDataParallel) else objective
    assert isinstance(found, Objective)
    return found


# The weights that count: averages over a training, and statistics of batch normalisation that fit them.


class Average:
    """An average of weights and floating-point buffers: over steps, exponentially (ema), or over the ends of the last epochs (swa).

    ema: after step t, every value moves by 1 - min(decay, (1 + t) / (10 + t)) of the way to its present one, so that the first weights
    are forgotten. swa: the mean of the values at the ends of the last `average_epochs` epochs.
    """

    def __init__(self, config: TrainConfig, model: nn.Module) -> None:
        self.kind, self.decay = config.average, config.average_decay
        self.first = max(0, config.epochs - config.average_epochs) if config.average == "swa" else 0
        self.sources = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        self.values = {name: value.detach().clone() for name, value in self.sources.items()}
        device = next((value.device for value in self.values.values()), None)
        self._pace = torch.ones((), device=device)

    def before_step(self, step: int) -> None:
        """Sets how far the next update moves, for the step of this number, from 0."""
        if self.kind == "ema":
            self._pace.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    def after_step(self) -> None:
        """A moving average follows the weights; it can be part of a captured step."""
        if self.kind == "ema":
            self._move()

    def end_epoch(self, epoch: int) -> None:
        """A mean of epochs takes in the weights of this one."""
        if self.kind == "swa" and epoch >= self.first:
            self._pace.fill_(1 / (epoch - self.first + 1))
            self._move()

    def begun(self, epoch: int) -> bool:
        """Whether there is an average at the end of this epoch."""
        return epoch >= self.first

    @torch.no_grad()
    def _move(self) -> None:
        for value, source in zip(self.values.values(), self.sources.values(), strict=True):
            value.lerp_(source, self._pace.to(value.dtype))

    def load(self, values: Mapping[str, Tensor]) -> None:
        for name, value in self.values.items():
            value.copy_(values[name])

    def apply(self) -> None:
        """Gives the model the averaged values."""
        with torch.no_grad():
            for name, source in self.sources.items():
                source.copy_(self.values[name])


@torch.no_grad()
def take_statistics(model: nn.Module, data: Examples, batch: int) -> None:
    """Sets running statistics of batch normalisation to the means of those of all whole batches of the data, in order. ("precise BN")

    A single batch that is not whole counts; otherwise the rest that is left does not. Other modules are in evaluation mode meanwhile.
    """
    found = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None
    ]
    if not found:
        return
    momenta = [module.momentum for module in found]
    with evaluating(model):
        for module in found:
            module.reset_running_stats()
            module.momentum, module.training = None, True  # None: a plain mean
        for number in range(max(1, len(data) // batch)):
            model(data.scaled(slice(number * batch, (number + 1) * batch)))
    for module, momentum in zip(found, momenta, strict=True):
        module.momentum = momentum


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Gives the model its weights and buffers back at the end, in place."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(before[name])
