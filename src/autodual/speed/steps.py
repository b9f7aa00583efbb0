"""Training steps on trial: ours as `autodual train` takes them, and the authors', on one batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor, nn

from autodual.engines import Projected
from autodual.speed.measure import Counting, Work, once
from autodual.speed.problems import Problem, authors_loss
from autodual.training.setup import make_ball, make_engine, make_optimiser
from autodual.training.step import WARM_UP, GraphStep, RobustObjective, Step, inner, make_step

FIRST = WARM_UP + 1
"""Steps after which a CUDA graph has been captured and replayed."""


class Steps(ABC):
    """Training steps on one batch, each with a seed of its own, as in training; call it for the next one."""

    def __init__(self, x: Tensor, labels: Tensor) -> None:
        self.x, self.labels, self.taken = x, labels, 0

    @abstractmethod
    def one(self, seed: int) -> Tensor:
        """One step; the loss comes first in what is returned."""

    def __call__(self) -> Tensor:
        self.taken += 1
        return self.one(self.taken)

    def first(self) -> tuple[float, float | None]:
        """Seconds of the first steps, in which kernels are compiled and a CUDA graph is captured, and their mean loss, if finite."""
        losses: list[Tensor] = []

        def take() -> None:
            losses.extend(self().flatten()[0].clone() for _ in range(FIRST))

        seconds = once(take, self.x.device)
        mean = torch.stack(losses).mean().item()
        return seconds, mean if math.isfinite(mean) else None


class OurSteps(Steps):
    """Steps as `autodual train` takes them, without augmentation."""

    def __init__(self, step: Step, x: Tensor, labels: Tensor) -> None:
        super().__init__(x, labels)
        self.step = step

    @classmethod
    def of(cls, problem: Problem, k: int, x: Tensor, labels: Tensor, half: bool = True) -> OurSteps:
        config = problem.config.with_changes(k=k, batch=len(x), eps=problem.eps)
        model = problem.model().to(x.device).train()
        ball, engine = make_ball(config, torch.tensor(config.eps, device=x.device)), make_engine(config)
        assert isinstance(engine, Projected)
        objective = RobustObjective(model, ball, replace(engine, half=half), config.robust_weight)
        optimiser, generator = make_optimiser(config, model), torch.Generator(x.device)
        return cls(make_step(objective, optimiser, generator, config.clip_gradients, config.batch), x, labels)

    def one(self, seed: int) -> Tensor:
        self.step.generator.manual_seed(seed)
        return self.step(self.x, self.labels)

    def plain(self) -> OurSteps:
        """Steps that do what a CUDA graph does, one operation after the other, beyond the first ones; itself without a graph."""
        graph = self.step
        if not isinstance(graph, GraphStep):
            return self
        graph.optimiser.zero_grad(set_to_none=True)  # they lie in the graph's memory
        plain = Step(graph.objective, graph.optimiser, graph.generator, graph.clip_gradients)
        found = OurSteps(plain, self.x, self.labels)
        found.first()
        return found

    def counted(self) -> Work:
        """What one step does. It must not be the first, which captures the network: no mode may be active then."""
        objective = inner(self.step.objective)
        assert isinstance(objective, RobustObjective)
        network = objective.loss._network(self.x)
        if self.x.is_cuda:  # as in a graph, which makes gradients instead of adding to those that are there
            self.step.optimiser.zero_grad(set_to_none=True)
        with patch.object(objective.loss, "_network", lambda x: network), Counting().with_kernels() as work:
            self()
        return work


class AuthorsSteps(Steps):
    """Steps with the authors' loss, the same optimiser and the same clipping."""

    def __init__(self, problem: Problem, k: int, x: Tensor, labels: Tensor) -> None:
        super().__init__(x, labels)
        self.config, model = problem.config, problem.model().to(x.device).train()
        self.parameters = list(model.parameters())
        self.optimiser = make_optimiser(self.config, model)
        self.authors_loss = authors_loss(model, problem.eps, k, self.config.clip is not None)

    def one(self, seed: int) -> Tensor:
        torch.manual_seed(seed)
        self.optimiser.zero_grad()
        value = self.authors_loss(self.x, self.labels)
        value.backward()
        if self.config.clip_gradients is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip_gradients)
        self.optimiser.step()
        return value.detach()
