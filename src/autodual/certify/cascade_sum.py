"""The sum of the scores of several models: an ordinary network with branches, whose certificate is sound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from autodual.bounds.base import BoundEngine
from autodual.bounds.prepare import dual_network
from autodual.bounds.rounding import of_sum
from autodual.certify.cascade_base import Combination, together
from autodual.certify.cascade_margin import margin_of
from autodual.certify.cascade_records import Answers
from autodual.certify.cascade_search import Goal
from autodual.certify.cascade_stage import Stage


class SummedScores(nn.Module):
    """x -> the sum of what the models give to x."""

    def __init__(self, models: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(models)

    def train(self, mode: bool = True) -> SummedScores:
        """Stages without anything to train stay as they are: batch normalisation must not move with later stages."""
        super().train(mode)
        for stage in self.stages:
            if not any(p.requires_grad for p in stage.parameters()):
                stage.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        total = self.stages[0](x)
        for stage in list(self.stages)[1:]:
            total = total + stage(x)
        return total


class SumEnsemble(Combination):
    """The label with the largest sum of scores answers.

    Margins of the sum are sums of margins, so both of these bound them from below, and the larger one counts, target by target:

    - the bound of the sum as one network, whose branches share their input: the worst input of one is seldom that of another;
    - the sum of the models' own bounds.
    """

    kind: ClassVar[str] = "sum"

    @property
    def model(self) -> nn.Module:
        """The sum as one module, on the models themselves: for training, `certify`, `attack` and `certified_radius`."""
        return SummedScores(self.models)

    def _answer(self, stages: list[Stage], x: Tensor) -> Answers:
        whole = self._whole(stages, x)
        label = whole.scores(x).argmax(1)
        joint = whole.margins(x, label, self.ball, self.engine)
        certified = (joint > 0).all(1)
        rest = (~certified).nonzero().squeeze(1)
        if len(rest) > 0 and len(stages) > 1:
            apart = self._apart(stages, x[rest], label[rest])
            certified = certified.index_copy(0, rest, (torch.maximum(joint[rest], apart) > 0).all(1))
        return Answers(label, certified, torch.zeros_like(label))

    def _evaluate(self, stages: list[Stage], x: Tensor, labels: Tensor) -> tuple[Answers, Tensor, Tensor]:
        return together(self._answer(stages, x), labels, self.ball)

    def _whole(self, stages: list[Stage], x: Tensor) -> Stage:
        return stages[0] if len(stages) == 1 else Stage(len(stages), dual_network(self.model, x))

    def _apart(self, stages: list[Stage], x: Tensor, labels: Tensor) -> Tensor:
        """[N, C]: the sum of the models' own bounds, less what adding them up may round away."""
        margins = torch.stack([stage.margins(x, labels, self.ball, self.engine) for stage in stages])
        size = torch.where(margins.isfinite(), margins.abs(), 0.0).sum(0)
        return margins.sum(0) - size * of_sum(2 * len(stages) + 2, margins.dtype)

    def _goals(self, stages: list[Stage], x: Tensor, labels: Tensor, guide: BoundEngine) -> Iterator[Goal]:
        whole = self._whole(stages, x)

        def violations(points: Tensor, some: Tensor) -> Tensor:
            return margin_of(whole.scores(points), labels[some]).unsqueeze(1)

        yield Goal(torch.ones_like(labels, dtype=torch.bool), False, violations)

    def _answering(self) -> int:
        return 1
