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
SUMMARY = ("loss", "robust_error", "error", "robust_loss", "standard_loss")
"""Of a batch: losses are means, errors are counted in examples. robust: under the bound, or the attack that is trained on."""


class Objective(nn.Module, ABC):
    """(x, labels) -> a summary: the loss that is minimised, and for the record, without gradient, what is in SUMMARY."""

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
        loss = F.cross_entropy(worst, labels)
        return _summary(loss, clean, worst, labels, loss)

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
        robust = loss = F.cross_entropy(worst, labels)
        if self.weight < 1:
            loss = self.weight * robust + (1 - self.weight) * F.cross_entropy(clean, labels)
        return _summary(loss, clean, worst, labels, robust)


def _summary(loss: Tensor, clean: Tensor, worst: Tensor, labels: Tensor, robust: Tensor) -> Tensor:
    wrong = [(scores.detach().argmax(1) != labels).sum().to(loss) for scores in (worst, clean)]
    return torch.stack([loss, *wrong, robust.detach(), F.cross_entropy(clean.detach(), labels)])
