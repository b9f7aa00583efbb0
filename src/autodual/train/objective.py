"""What is minimised: one module for every way of training, which distributed training can wrap as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual.bounds import BoundEngine, Draws, Projected
from autodual.certify import RobustCrossEntropy, attack
from autodual.sets import Perturbation

ATTACK_STEPS = 10


class Objective(nn.Module, ABC):
    """(x, labels) -> [loss, wrong under the bound, wrong]: the last two count examples, and carry no gradient."""

    model: nn.Module

    @abstractmethod
    def forward(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        """The summary of one batch."""

    def draw(self, x: Tensor) -> Draws | None:
        """Random numbers for steps on such batches, if there are any."""
        return None


class StandardObjective(Objective):
    """The usual cross-entropy; with a ball, on the worst examples that an attack finds in it."""

    def __init__(self, model: nn.Module, ball: Perturbation | None = None) -> None:
        super().__init__()
        self.model, self.ball = model, ball

    def forward(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        clean = self.model(x)
        worst = clean if self.ball is None else self.model(self._attacked(x, labels, self.ball))
        return _summary(F.cross_entropy(worst, labels), clean, worst, labels)

    def _attacked(self, x: Tensor, labels: Tensor, ball: Perturbation) -> Tensor:
        training = self.model.training
        self.model.eval()
        found = attack(self.model, x, labels, ball, steps=ATTACK_STEPS).examples
        self.model.train(training)
        return found


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
        value = F.cross_entropy(worst, labels)
        if self.weight < 1:
            value = self.weight * value + (1 - self.weight) * F.cross_entropy(clean, labels)
        return _summary(value, clean, worst, labels)


def _summary(loss: Tensor, clean: Tensor, worst: Tensor, labels: Tensor) -> Tensor:
    wrong = [(scores.detach().argmax(1) != labels).sum().to(loss) for scores in (worst, clean)]
    return torch.stack([loss, *wrong])
