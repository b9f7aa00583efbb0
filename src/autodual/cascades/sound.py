"""Two combinations whose certificate is sound: a cascade routed by margins, and the sum of scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.cascades.base import Combination, Evaluated, Goal, together
from autodual.cascades.records import RECORD, Answers, Json, Saved
from autodual.cascades.stage import Lower, Stage, check_models
from autodual.certificates.attacks import margin_of, others
from autodual.engines.arguments import check_problem
from autodual.engines.prepare import prepare
from autodual.engines.results import BoundEngine
from autodual.sets import Perturbation


class RoutedCascade(Combination):
    """Stage j answers when its top margin exceeds a threshold t_j >= 0, else it passes on; the last stage always answers.

    No certificate is needed to answer, so who answers is itself a function that can be bounded. Over a ball, with sound bounds:

    - stage j *answers y everywhere* if lower(z_y - z_w) > t_j for all w != y;
    - it *nowhere answers another label* if every a != y has some b != a with upper(z_a - z_b) <= t_j, since a answers only where its
      margin over all others exceeds t_j. With b = y for all a that reads lower(z_y - z_a) >= -t_j; a stage that passes everywhere
      is another case; and different a may have different b.

    Recursion: ok(j) = nowhere another label, and (y everywhere, or ok(j + 1)); ok(last) = certified y. Proof that ok(0) is sound: at
    any point of the ball, the first stage j that does not pass answers. No stage before j was ok by "y everywhere", since it passed
    here; so ok(j) holds, and with it j's answer is y.

    Args:
        models: The stages, in the order in which they are asked.
        thresholds: One for each stage but the last; infinity means that the stage never answers. `fit` chooses them on validation
            data.
        ball: What may happen to every input.
        engine: How to bound; `Dual()` if not given.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> stages = [ad.load_digits_network(), ad.load_digits_network()]
        >>> cascade = ad.RoutedCascade(stages, [2.0], ad.LinfBall(0.05))
        >>> round(cascade.certify(images[:20], labels[:20]).sound_certified_error, 2)
        0.05
    """

    kind: ClassVar[str] = "routed"

    def __init__(
        self,
        models: Sequence[nn.Module],
        thresholds: Sequence[float],
        ball: Perturbation,
        engine: BoundEngine | None = None,
    ) -> None:
        super().__init__(models, ball, engine)
        self.thresholds = _check_thresholds(thresholds, len(self.models))

    def _own(self) -> dict[str, Any]:
        """The thresholds: sound under any perturbation, if not the best for another one."""
        return {"thresholds": self.thresholds}

    @classmethod
    def fit(
        cls,
        models: Sequence[nn.Module],
        x: Tensor,
        labels: Tensor,
        ball: Perturbation,
        engine: BoundEngine | None = None,
        candidates: int = 200,
    ) -> Self:
        """Thresholds that leave the fewest of these examples uncertified; of equals, those with the fewest clean errors.

        x, labels: validation data, neither trained nor tested on. candidates: values tried per threshold and sweep.
        """
        if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
            raise ArgumentError(f"candidates must be a whole number, at least 1, got {candidates!r}")
        free = cls(models, [math.inf] * (len(check_models(models)) - 1), ball, engine)
        labels = check_problem(x, labels, ball)
        with free._opened(x, labels) as stages:
            thresholds = Validation.of(stages, x, labels).thresholds(candidates)
        return cls(models, thresholds, ball, engine)

    def _answer(self, stages: list[Stage], x: Tensor) -> Answers:
        label, stage = self._route([s.scores(x) for s in stages])
        return Answers(label, self._prove(stages, x, label)[0], stage)

    def _evaluate(self, stages: list[Stage], x: Tensor, labels: Tensor) -> Evaluated:
        def exactly(some: Tensor) -> Tensor:
            early = answers.stage < len(stages) - 1  # proved for scores as they are rounded
            return some & early | stages[-1].labels_exactly(x, labels, some & ~early)

        label, stage = self._route([s.scores(x) for s in stages])
        proved, as_run = self._prove(stages, x, label)
        answers = Answers(label, proved, stage)
        return together(answers, as_run, labels, self.ball, exactly)

    def _route(self, scores: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Label and answering stage, [N] each, from the scores of all stages."""
        label = scores[-1].argmax(1)
        stage = torch.full_like(label, len(scores) - 1)
        for j in reversed(range(len(scores) - 1)):
            top = scores[j].argmax(1)
            answers = margin_of(scores[j], top) > self.thresholds[j]  # a tie passes, and so does NaN
            label, stage = torch.where(answers, top, label), torch.where(answers, j, stage)
        return label, stage

    def _prove(self, stages: list[Stage], x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[N] bool each: ok(0), from the first stage to the last on what is still undecided; by exact scores of the last stage, and
        as it runs. Thresholds are compared with scores as they are computed, in both."""
        proved = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        as_run = proved.clone()
        open_ = torch.arange(len(x), device=x.device)
        for stage, threshold in zip(stages[:-1], self.thresholds, strict=True):
            if threshold == math.inf:
                continue  # never answers: nothing to prove
            if len(open_) == 0:
                return proved, as_run
            silent, answers = does(stage, threshold, x[open_], labels[open_])
            proved[open_[silent & answers]] = as_run[open_[silent & answers]] = True
            open_ = open_[silent & ~answers]
        if len(open_) > 0:
            last = stages[-1].certify(x[open_], labels[open_])
            proved[open_], as_run[open_] = last.certified, last.certified_as_run
        return proved, as_run

    def _goals(self, stages: list[Stage], x: Tensor, labels: Tensor, guide: BoundEngine) -> Iterator[Goal]:
        """Stage j answers wrongly, for every j. (With a certificate only where the clean x is wrong: nothing to search for.)"""
        everywhere = torch.ones_like(labels, dtype=torch.bool)
        for j in range(len(stages)):
            yield Goal(everywhere, False, partial(self._violations, stages, labels, j))

    def _violations(self, stages: list[Stage], labels: Tensor, target: int, points: Tensor, some: Tensor) -> Tensor:
        """No stage before `target` answers y (another wrong answer is just as good), and `target` answers something else."""
        own = labels[some]
        before = zip(stages[:target], self.thresholds[:target], strict=True)
        columns = [margin_of(stage.scores(points), own) - threshold for stage, threshold in before]
        scores = stages[target].scores(points)
        if target == len(stages) - 1:
            return torch.stack([*columns, margin_of(scores, own)], dim=1)
        wrong = others(scores, own).argmax(1)
        return torch.stack([*columns, self.thresholds[target] - margin_of(scores, wrong)], dim=1)

    def _options(self) -> dict[str, Json]:
        return {"thresholds": [None if t == math.inf else t for t in self.thresholds]}  # JSON has no infinity

    @classmethod
    def _own_of(cls, saved: Saved) -> dict[str, Any]:
        values = saved.record.get("thresholds")
        if not isinstance(values, list):
            raise ArgumentError(f"{saved.folder / RECORD}: thresholds must be a list, got {values!r}")
        return {"thresholds": [math.inf if v is None else v for v in values]}


def _check_thresholds(thresholds: Sequence[float], models: int) -> tuple[float, ...]:
    if not isinstance(thresholds, list | tuple):
        raise ArgumentError(f"thresholds must be a list of numbers, got {type(thresholds).__name__}")
    if len(thresholds) != models - 1:
        raise ArgumentError(
            f"thresholds: {models} models need {models - 1}, one for each but the last, which always answers; got {len(thresholds)}"
        )
    for j, value in enumerate(thresholds):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ArgumentError(
                f"thresholds[{j}] must be a number, not negative (infinity: never answers), got {value!r}"
            )
    return tuple(float(t) for t in thresholds)


# What a stage does over a whole ball, for every threshold at once; and the choice of thresholds.

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
        """Reads both numbers off lower bounds on the differences of all pairs of scores, [N, C, C]. What is unknown helps nobody."""
        classes = lower.shape[1]
        own = torch.nn.functional.one_hot(labels, classes).bool()
        from_label = lower.gather(1, labels.reshape(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)
        answers_below = from_label.masked_fill(own, torch.inf).amin(1)
        smallest_upper = -lower.amax(1)  # of z_a - z_b over b != a: upper(z_a - z_b) = -lower(z_b - z_a)
        return cls(answers_below, smallest_upper.masked_fill(own, -torch.inf).amax(1))

    def with_threshold(self, threshold: float) -> tuple[Tensor, Tensor]:
        """[N] bool each: it nowhere answers another label; it answers y everywhere."""
        return self.silent_from <= threshold, self.answers_below > threshold


def reach(stage: Stage, x: Tensor, labels: Tensor) -> Reach:
    """What a stage does, by bounds on the scores as they are computed at inference, where they are compared with a threshold."""
    return Reach.of(stage.differences(x).at_least(x.dtype), labels)


def does(stage: Stage, threshold: float, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What a stage does with a threshold, as `Reach.with_threshold` says it, also where only bounds in float64 can tell.

    The scores at inference stay in the dtype of the network, and keep their error.
    """
    found = stage.differences(x)
    silent, answers = Reach.of(found.at_least(x.dtype), labels).with_threshold(threshold)
    if x.dtype != torch.float32:
        return silent, answers
    may_be_silent, may_answer = Reach.of(found.bound, labels).with_threshold(threshold)
    unclear = (may_be_silent & ((may_be_silent != silent) | (may_answer != answers))).nonzero().squeeze(1)
    if len(unclear) == 0:
        return silent, answers
    exact = stage.differences_in_double(x[unclear])
    if exact is None:
        return silent, answers
    sharper = Reach.of(exact.at_least(x.dtype), labels[unclear])
    silent[unclear], answers[unclear] = sharper.with_threshold(threshold)
    return silent, answers


@dataclass(frozen=True)
class Validation:
    """All that the choice of thresholds rests on."""

    reaches: list[Reach]
    """What every stage but the last does."""
    margins: list[Tensor]
    """[N] each: top margins at the clean inputs, of every stage but the last."""
    right: list[Tensor]
    """[N] bool each: the clean label is right, of every stage."""
    last: Tensor
    """[N] bool: the last stage certifies the label."""

    @classmethod
    def of(cls, stages: list[Stage], x: Tensor, labels: Tensor) -> Validation:
        scores = [stage.scores(x) for stage in stages]
        return cls(
            [reach(stage, x, labels) for stage in stages[:-1]],
            [margin_of(s, s.argmax(1)) for s in scores[:-1]],
            [s.argmax(1) == labels for s in scores],
            stages[-1].certify(x, labels).certified,
        )

    def thresholds(self, count: int) -> list[float]:
        """Chooses thresholds: a good choice, not always the best. count: values tried per threshold and sweep.

        One threshold is improved after the other, from the last to the first, since what a stage is worth depends on those behind it;
        again until nothing gets better.
        """
        thresholds = [math.inf] * len(self.reaches)
        best = self.value(thresholds)
        for _ in range(SWEEPS):
            before = best
            for j in reversed(range(len(thresholds))):
                for candidate in self.candidates(j, count):
                    tried = [*thresholds[:j], candidate, *thresholds[j + 1 :]]
                    value = self.value(tried)
                    if value > best:
                        thresholds, best = tried, value
            if best == before:
                break
        return thresholds

    def value(self, thresholds: list[float]) -> tuple[int, int]:
        """How many examples are certified, and how many are answered rightly."""
        proved, right = self.last, self.right[-1]
        for j in reversed(range(len(thresholds))):
            silent, answers = self.reaches[j].with_threshold(thresholds[j])
            proved = silent & (answers | proved)
            right = torch.where(self.margins[j] > thresholds[j], self.right[j], right)
        return int(proved.sum()), int(right.sum())

    def candidates(self, stage: int, count: int) -> list[float]:
        """Thresholds to try: middles between neighbouring numbers of `Reach`. Counts of certified examples change only at those."""
        found = self.reaches[stage]
        points = torch.cat([found.answers_below, found.silent_from])
        points = points[points.isfinite() & (points >= 0)].unique()
        middles = (points[1:] + points[:-1]) / 2
        if len(middles) > count:
            middles = middles[torch.linspace(0, len(middles) - 1, count, device=middles.device).round().long()]
        return [0.0, *middles.tolist(), *(points[-1:] * 1.5).tolist(), math.inf]


# The sum of the scores of several models: an ordinary network with branches.


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
            return self._whole(stages, x).labels_exactly(x, labels, some)

        return together(*self._judge(stages, x), labels, self.ball, exactly)

    def _whole(self, stages: list[Stage], x: Tensor) -> Stage:
        for stage in stages[:-1]:
            _check_leaves_input(stage, x)
        return stages[0] if len(stages) == 1 else Stage(len(stages), prepare(self.model, x), self.ball, self.engine)

    def _certifies(self, whole: Stage, stages: list[Stage], x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """[N] bool each: proved, and proved for the sum as it runs. By the bound of the whole, else by the better of both, else by
        both in float64 where float32 could not tell."""
        if len(stages) == 1:
            found = whole.certify(x, label)
            return found.certified, found.certified_as_run
        joint = whole.margins(x, label)
        certified, as_run = joint.certified, joint.certified_as_run
        rest = (~as_run).nonzero().squeeze(1)
        if len(rest) == 0:
            return certified, as_run
        joint = joint.at(rest)
        apart = Lower.total([stage.margins(x[rest], label[rest]) for stage in stages], joint.run_error)
        best = joint.better(apart)
        certified[rest], as_run[rest] = certified[rest] | best.certified, best.certified_as_run
        possible = torch.maximum(joint.bound + joint.slack, apart.bound + apart.slack) > 0
        unclear = rest[possible.all(1) & ~best.certified_as_run]
        if len(unclear) > 0 and x.dtype == torch.float32:
            sharper = [stage.margins_in_double(x[unclear], label[unclear]) for stage in (whole, *stages)]
            nothing = Lower.nothing(x[unclear], whole.classes).beyond(label[unclear])
            joint, *parts = [nothing if one is None else one for one in sharper]
            best = joint.better(Lower.total(parts, joint.run_error))
            certified[unclear], as_run[unclear] = certified[unclear] | best.certified, best.certified_as_run
        return certified, as_run

    def _goals(self, stages: list[Stage], x: Tensor, labels: Tensor, guide: BoundEngine) -> Iterator[Goal]:
        whole = self._whole(stages, x)

        def violations(points: Tensor, some: Tensor) -> Tensor:
            return margin_of(whole.scores(points), labels[some]).unsqueeze(1)

        yield Goal(torch.ones_like(labels, dtype=torch.bool), False, violations)

    def answering(self) -> int:
        return 1


def _check_leaves_input(stage: Stage, x: Tensor) -> None:
    """Refuse a model that writes into its input: the next one would read something else than it reads alone."""
    with torch.inference_mode(False):  # where writes count
        given = x[:1].clone()
        stage.prepared.graph.model(given)
    if given._version > 0:
        raise ArgumentError(
            f"stage {stage.number}: writes into its input, which the models behind it would read; let its forward begin with "
            f"x = x.clone()"
        )


class SummedScores(nn.Module):
    """The sum of the scores that models give to an input, as one module."""

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
