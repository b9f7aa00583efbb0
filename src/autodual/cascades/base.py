"""Several models that answer together: one interface for every way to combine them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import full_precision
from autodual.cascades import folder as folders
from autodual.cascades.records import Answers, CascadeAttack, CascadeCertificate
from autodual.cascades.search import Effort, Goal, check_one_size, check_parts, is_symmetric, search
from autodual.cascades.stage import Stage, check_models, open_stages
from autodual.certificates.arguments import check_ball, check_label_range, check_problem
from autodual.certificates.proof import describe
from autodual.engines.backward.dual import Dual
from autodual.engines.prepare import check_engine, check_input
from autodual.engines.results import BoundEngine
from autodual.sets import Perturbation


class Evaluated(NamedTuple):
    """What is answered to clean inputs, and what is proved about the balls around them; [N] each."""

    answers: Answers
    sound: Tensor
    """Every input of the ball is answered with the label, by exact scores."""
    sound_as_run: Tensor
    """It is so, too, by the scores that the models compute in their own dtype."""
    no_wrong_certificate: Tensor


class Combination(ABC):
    """Models, a ball and an engine. Subclasses say who answers, what is proved about it, and how it could be made to fail."""

    kind: ClassVar[str]
    attack_follows_bounds: ClassVar[bool] = False
    """Whether `attack` needs gradients of bounds, which take memory in the square of the hidden units."""

    kinds: ClassVar[dict[str, type[Combination]]] = {}
    """Every way to combine models, by its `kind`."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            cls.kinds.setdefault(cls.kind, cls)

    def __init__(self, models: Sequence[nn.Module], ball: Perturbation, engine: BoundEngine | None = None) -> None:
        self.models = check_models(models)
        check_one_size(ball)
        self.ball = ball
        self.engine = Dual() if engine is None else engine
        check_engine(self.engine)

    def around(self, ball: Perturbation) -> Self:
        """These models, answering under another perturbation."""
        return self._again(ball, self.engine)

    def with_engine(self, engine: BoundEngine) -> Self:
        """These models, bounded in another way."""
        return self._again(self.ball, engine)

    def _again(self, ball: Perturbation, engine: BoundEngine) -> Self:
        return type(self)(self.models, ball, engine)

    @abstractmethod
    def _answer(self, stages: list[Stage], x: Tensor) -> Answers:
        """Label, certificate and answering stage for every received input."""

    @abstractmethod
    def _goals(self, stages: list[Stage], x: Tensor, labels: Tensor, guide: BoundEngine) -> Iterator[Goal]:
        """All the ways to a wrong answer; those with a certificate first."""

    @abstractmethod
    def _evaluate(self, stages: list[Stage], x: Tensor, labels: Tensor) -> Evaluated:
        """Answers, and what is proved about them."""

    def predict(self, x: Tensor) -> Answers:
        """The answer to every received input, and whether it comes with a certificate."""
        check_input(x, "x")
        check_ball(self.ball, x)
        check_parts(self.ball, x)
        with full_precision(), torch.no_grad():
            return self._answer(open_stages(self.models, x), x)

    def certify(self, x: Tensor, labels: Tensor) -> CascadeCertificate:
        """What is answered to clean inputs, and what is proved about the balls around them."""
        labels = check_problem(x, labels, self.ball)
        check_parts(self.ball, x)
        with full_precision(), torch.no_grad():
            stages = open_stages(self.models, x)
            check_label_range(labels, stages[0].classes)
            found = self._evaluate(stages, x, labels)
        known = (describe(self.ball), repr(self.engine))
        return CascadeCertificate(self.kind, self.answering(), labels, *found, *known)

    def attack(
        self,
        x: Tensor,
        labels: Tensor,
        steps: int = 40,
        restarts: int = 1,
        generator: torch.Generator | None = None,
        guide: BoundEngine | None = None,
        tell: Callable[[float], None] = lambda part: None,
    ) -> CascadeAttack:
        """Search each example's ball for an input that is answered wrongly, if possible with a certificate.

        Every point is answered again by `predict` before it counts. guide: the engine whose bounds lead the search where certificates
        matter (a cheaper one may do); the combination's own when None. Gradients of bounds take memory: give it batches.
        tell: hears after every step which part of the work is done at least, and may end it by an error of its own.
        """
        effort = Effort(steps, restarts, generator)
        guide = self.engine if guide is None else guide
        check_engine(guide)
        labels = check_problem(x, labels, self.ball)
        check_parts(self.ball, x)
        with full_precision(), torch.inference_mode(False), torch.no_grad():
            x, labels = x.detach().clone(), labels.clone()
            stages = open_stages(self.models, x)
            check_label_range(labels, stages[0].classes)
            best = CascadeAttack(x, labels, self._answer(stages, x))
            goals = list(self._goals(stages, x, labels, guide))
            for number, goal in enumerate(goals):
                done = best.certified_wrong if goal.certified else best.found
                some = (goal.relevant & ~done).nonzero().squeeze(1)
                if len(some) > 0:
                    tell_part = partial(_tell_part, tell, number, len(goals))
                    points = search(goal, x, some, self.ball, effort, tell_part)
                    best = _worse(best, some, points, self.predict(points))
        return best

    def save(self, folder: str | Path) -> None:
        """One folder: the weights of every stage as safetensors, everything else as JSON; nothing is pickled."""
        folders.save(Path(folder), self.kind, self.models, self.ball, self.engine, self._options())

    @classmethod
    def load(cls, folder: str | Path, build: Callable[[int], nn.Module]) -> Self:
        """The combination that `save` wrote. build(stage): an untrained module for the weights of that stage."""
        saved = folders.read(Path(folder), cls.kind)
        return cls._rebuild(saved, folders.load_models(saved, build))

    @classmethod
    def _rebuild(cls, saved: folders.Saved, models: list[nn.Module]) -> Self:
        return cls(models, saved.ball, saved.engine)

    def _options(self) -> dict[str, folders.Json]:
        """What `save` must keep beyond models, ball and engine."""
        return {}

    def _details(self) -> str:
        """What `_options` keeps, as a person reads it."""
        return ""

    def answering(self) -> int:
        """How many stages answer one by one."""
        return len(self.models)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.models)} models{self._details()}, {describe(self.ball)}, {self.engine!r})"
        )


def load_combination(folder: str | Path, build: Callable[[int], nn.Module]) -> Combination:
    """Whichever combination is saved in the folder; build(stage) makes an untrained module for each stage."""
    kind, kinds = folders.record_of(Path(folder)).get("kind"), Combination.kinds
    if not isinstance(kind, str) or kind not in kinds:
        raise ArgumentError(f"{Path(folder) / folders.RECORD}: kind must be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind].load(folder, build)


def together(
    answers: Answers, as_run: Tensor, labels: Tensor, ball: Perturbation, exactly: Callable[[Tensor], Tensor]
) -> Evaluated:
    """`_evaluate` where a certificate is about all models together: a right answer with a certificate is sound.

    as_run: [N] bool, where the certificate holds for the models as they run, too.
    And a certificate at x' holds at x, too, if the ball is symmetric; so where x is answered rightly, no wrong label is certified.
    `exactly` says where, of some examples [N], that answer would be the same without any rounding, which is what a proof is about.
    """
    right = answers.label == labels
    sound = right & answers.certified
    silent = sound | exactly(right & ~sound) if is_symmetric(ball) else sound
    return Evaluated(answers, sound, sound & as_run, silent)


def _tell_part(tell: Callable[[float], None], before: int, of: int, part: float) -> None:
    tell((before + part) / of)


def _worse(best: CascadeAttack, some: Tensor, points: Tensor, answers: Answers) -> CascadeAttack:
    """The attack with those points that are worse than what it had: a wrong answer, better yet one with a certificate."""
    found = CascadeAttack(points, best.labels[some], answers)
    now, before = (a.found.long() + a.certified_wrong.long() for a in (found, best))
    chosen = now > before[some]
    index = some[chosen]
    examples = best.examples.index_copy(0, index, points[chosen])
    return CascadeAttack(examples, best.labels, best.answers.put(index, answers.at(chosen)))
