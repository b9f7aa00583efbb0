"""What a stage does over a whole ball, for every threshold at once; and the choice of thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual.bounds.base import BoundEngine
from autodual.certify.cascade_margin import margin_of
from autodual.certify.cascade_stage import Stage
from autodual.sets import Perturbation

SWEEPS = 20
"""Sweeps over all thresholds at most; each but the last improves something."""


@dataclass(frozen=True)
class Reach:
    """Two numbers per example [N] that say what a stage does over the ball with threshold t."""

    answers_below: Tensor
    """t < this: it answers y everywhere. The smallest lower(z_y - z_w)."""
    silent_from: Tensor
    """t >= this: it nowhere answers another label. max over a != y of min over b != a of upper(z_a - z_b)."""

    @classmethod
    def of(cls, lower: Tensor, labels: Tensor) -> Reach:
        """From lower bounds on the differences of all pairs of scores, [N, C, C]; what is unknown helps nobody."""
        classes = lower.shape[1]
        own = torch.nn.functional.one_hot(labels, classes).bool()
        from_label = lower.gather(1, labels.reshape(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)
        answers_below = from_label.masked_fill(own, torch.inf).amin(1)
        smallest_upper = -lower.amax(1)  # of z_a - z_b over b != a: upper(z_a - z_b) = -lower(z_b - z_a)
        return cls(answers_below, smallest_upper.masked_fill(own, -torch.inf).amax(1))

    def with_threshold(self, threshold: float) -> tuple[Tensor, Tensor]:
        """[N] bool each: it nowhere answers another label; it answers y everywhere."""
        return self.silent_from <= threshold, self.answers_below > threshold


def reach(stage: Stage, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine) -> Reach:
    """Bounds on the scores as they are computed at inference, where they are compared with a threshold."""
    return Reach.of(stage.differences(x, ball, engine).at_least(x.dtype), labels)


def does(
    stage: Stage, threshold: float, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine
) -> tuple[Tensor, Tensor]:
    """What `Reach` says with a threshold, also where only bounds in float64 can tell. The scores at inference stay in the dtype of the
    network, and keep their error."""
    found = stage.differences(x, ball, engine)
    silent, answers = Reach.of(found.at_least(x.dtype), labels).with_threshold(threshold)
    if x.dtype != torch.float32:
        return silent, answers
    may_be_silent, may_answer = Reach.of(found.bound, labels).with_threshold(threshold)
    unclear = (may_be_silent & ((may_be_silent != silent) | (may_answer != answers))).nonzero().squeeze(1)
    if len(unclear) == 0:
        return silent, answers
    exact = stage.differences_in_double(x[unclear], ball, engine)
    if exact is None:
        return silent, answers
    sharper = Reach.of(exact.at_least(x.dtype), labels[unclear])
    silent[unclear], answers[unclear] = sharper.with_threshold(threshold)
    return silent, answers


@dataclass(frozen=True)
class Validation:
    """All that the choice of thresholds rests on."""

    reaches: list[Reach]
    """Of every stage but the last."""
    margins: list[Tensor]
    """[N] each: top margins at the clean inputs, of every stage but the last."""
    right: list[Tensor]
    """[N] bool each: the clean label is right, of every stage."""
    last: Tensor
    """[N] bool: the last stage certifies the label."""

    def value(self, thresholds: list[float]) -> tuple[int, int]:
        """How many examples are certified, and how many are answered rightly."""
        proved, right = self.last, self.right[-1]
        for j in reversed(range(len(thresholds))):
            t, found = thresholds[j], self.reaches[j]
            proved = (found.silent_from <= t) & ((found.answers_below > t) | proved)
            right = torch.where(self.margins[j] > t, self.right[j], right)
        return int(proved.sum()), int(right.sum())

    def candidates(self, stage: int, count: int) -> list[float]:
        """Numbers of certified examples change only at the numbers in `Reach`: the middles between neighbours say it all."""
        found = self.reaches[stage]
        points = torch.cat([found.answers_below, found.silent_from])
        points = points[points.isfinite() & (points >= 0)].unique()
        middles = (points[1:] + points[:-1]) / 2
        if len(middles) > count:
            middles = middles[torch.linspace(0, len(middles) - 1, count, device=middles.device).round().long()]
        return [0.0, *middles.tolist(), *(points[-1:] * 1.5).tolist(), math.inf]


def validation(stages: list[Stage], x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine) -> Validation:
    scores = [stage.scores(x) for stage in stages]
    return Validation(
        [reach(stage, x, labels, ball, engine) for stage in stages[:-1]],
        [margin_of(s, s.argmax(1)) for s in scores[:-1]],
        [s.argmax(1) == labels for s in scores],
        stages[-1].certifies(x, labels, ball, engine),
    )


def choose_thresholds(data: Validation, count: int) -> list[float]:
    """One threshold after the other, from the last to the first, since what a stage is worth depends on those behind it; again until
    nothing gets better. A good choice, not always the best."""
    thresholds = [math.inf] * len(data.reaches)
    best = data.value(thresholds)
    for _ in range(SWEEPS):
        before = best
        for j in reversed(range(len(thresholds))):
            for candidate in data.candidates(j, count):
                tried = [*thresholds[:j], candidate, *thresholds[j + 1 :]]
                value = data.value(tried)
                if value > best:
                    thresholds, best = tried, value
        if best == before:
            break
    return thresholds
