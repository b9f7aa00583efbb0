"""The sum of the scores of several models: an ordinary network with branches, whose certificate is sound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from autodual.cascades.base import Combination, Evaluated, together
from autodual.cascades.records import Answers
from autodual.cascades.search import Goal
from autodual.cascades.stage import Lower, Stage
from autodual.certificates.attacks import margin_of
from autodual.engines.prepare import prepare
from autodual.engines.results import BoundEngine


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

    Args:
        models: The networks; each in evaluation mode, with the same classes.
        ball: What may happen to every input.
        engine: How to bound; `Dual()` if not given.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> both = ad.SumEnsemble([ad.load_digits_network(), ad.load_digits_network()], ad.LinfBall(0.05))
        >>> both.predict(images[:3]).label.tolist()
        [7, 9, 4]
    """

    kind: ClassVar[str] = "sum"

    @property
    def model(self) -> nn.Module:
        """The sum as one module, on the models themselves: for training, `certify`, `attack` and `certified_radius`."""
        return SummedScores(self.models)

    def _answer(self, stages: list[Stage], x: Tensor) -> Answers:
        return self._judge(stages, x)[0]

    def _judge(self, stages: list[Stage], x: Tensor) -> tuple[Answers, Tensor]:
        """Answers, and where their certificates hold for the sum as it runs, too."""
        whole = self._whole(stages, x)
        label = whole.scores(x).argmax(1)
        certified, as_run = self._certifies(whole, stages, x, label)
        return Answers(label, certified, torch.zeros_like(label)), as_run

    def _evaluate(self, stages: list[Stage], x: Tensor, labels: Tensor) -> Evaluated:
        def exactly(some: Tensor) -> Tensor:
            return self._whole(stages, x).labels_exactly(x, labels, self.ball, some)

        return together(*self._judge(stages, x), labels, self.ball, exactly)

    def _whole(self, stages: list[Stage], x: Tensor) -> Stage:
        return stages[0] if len(stages) == 1 else Stage(len(stages), prepare(self.model, x))

    def _certifies(self, whole: Stage, stages: list[Stage], x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """[N] bool each: proved, and proved for the sum as it runs. By the bound of the whole, else by the better of both, else by
        both in float64 where float32 could not tell."""
        if len(stages) == 1:
            found = whole.certify(x, label, self.ball, self.engine)
            return found.certified, found.certified_as_run
        joint = whole.margins(x, label, self.ball, self.engine)
        certified, as_run = joint.certified, joint.certified_as_run
        rest = (~as_run).nonzero().squeeze(1)
        if len(rest) == 0:
            return certified, as_run
        ours = (x[rest], label[rest], self.ball, self.engine)
        joint = joint.at(rest)
        apart = Lower.total([stage.margins(*ours) for stage in stages], joint.run_error)
        best = joint.better(apart)
        certified = certified.index_copy(0, rest, certified[rest] | best.certified)
        as_run = as_run.index_copy(0, rest, best.certified_as_run)
        possible = torch.maximum(joint.bound + joint.slack, apart.bound + apart.slack) > 0
        unclear = rest[possible.all(1) & ~best.certified_as_run]
        if len(unclear) == 0 or x.dtype != torch.float32:
            return certified, as_run
        sharper = self._bounds_in_double(whole, stages, x[unclear], label[unclear])
        return (
            certified.index_copy(0, unclear, certified[unclear] | sharper.certified),
            as_run.index_copy(0, unclear, sharper.certified_as_run),
        )

    def _bounds_in_double(self, whole: Stage, stages: list[Stage], x: Tensor, label: Tensor) -> Lower:
        found = [stage.margins_in_double(x, label, self.ball, self.engine) for stage in (whole, *stages)]
        joint, *apart = [Lower.nothing(x, stages[0].classes).beyond(label) if one is None else one for one in found]
        return joint.better(Lower.total(apart, joint.run_error))

    def _goals(self, stages: list[Stage], x: Tensor, labels: Tensor, guide: BoundEngine) -> Iterator[Goal]:
        whole = self._whole(stages, x)

        def violations(points: Tensor, some: Tensor) -> Tensor:
            return margin_of(whole.scores(points), labels[some]).unsqueeze(1)

        yield Goal(torch.ones_like(labels, dtype=torch.bool), False, violations)

    def answering(self) -> int:
        return 1
