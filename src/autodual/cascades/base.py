"""Several models that answer together: one interface for every way to combine them, and the search for inputs that break it."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import full_precision
from autodual.cascades.records import NORMS, Answers, CascadeAttack, CascadeCertificate, Json, Saved, read_record, save
from autodual.cascades.stage import Stage, check_models, open_stages
from autodual.certificates.certificate import describe
from autodual.certificates.descent import Seen, descend
from autodual.engines.arguments import check_ball, check_input, check_perturbation, check_problem, require_engine
from autodual.engines.results import BoundEngine
from autodual.sets import LinfBall, Perturbation
from autodual.spec import check_label_range

ORDERS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}
"""The norms of NORMS by the number that PyTorch knows them by."""
ROUNDING = 4.0
"""So many units in the last place of x and eps may separate a point of the ball from the ball."""


@dataclass(frozen=True)
class Goal:
    """One way in which the models together can be made to answer wrongly."""

    relevant: Tensor
    """[N] bool: the examples for which it is possible at all."""
    certified: bool
    """Whether the wrong answer would come with a certificate."""
    violations: Callable[[Tensor, Tensor], Tensor]
    """(points [M, *shape], which examples they belong to [M]) -> [M, V]: the goal is reached where all V are below zero;
    -inf is a condition that does not matter to the example."""


@dataclass(frozen=True)
class SearchEffort:
    """How hard to search. The first start is the clean input, the others are random."""

    steps: int
    restarts: int
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        whole = all(isinstance(v, int) and not isinstance(v, bool) for v in (self.steps, self.restarts))
        if not whole or self.steps < 0 or self.restarts < 1:
            raise ArgumentError(
                f"attack needs whole numbers, steps >= 0 and restarts >= 1, got {self.steps!r} and {self.restarts!r}"
            )


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
        check_perturbation(ball)
        if isinstance(ball.eps, Tensor) and ball.eps.numel() != 1:  # stages see different parts of a batch
            raise ArgumentError(
                f"ball.eps must be one number for all inputs of a combination of models, got shape {tuple(ball.eps.shape)}"
            )
        self.ball = ball
        self.engine = require_engine(engine)

    def around(self, ball: Perturbation) -> Self:
        """The combination of the same models under another perturbation."""
        return type(self)(self.models, ball=ball, engine=self.engine, **self._own())

    def with_engine(self, engine: BoundEngine) -> Self:
        """The combination of the same models by another engine."""
        return type(self)(self.models, ball=self.ball, engine=engine, **self._own())

    def _own(self) -> dict[str, Any]:
        """What the constructor takes beyond models, ball and engine."""
        return {}

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
        with self._opened(x) as stages:
            return self._answer(stages, x)

    def certify(self, x: Tensor, labels: Tensor) -> CascadeCertificate:
        """What is answered to clean inputs, and what is proved about the balls around them."""
        labels = check_problem(x, labels, self.ball)
        with self._opened(x, labels) as stages:
            found = self._evaluate(stages, x, labels)
        known = (describe(self.ball), repr(self.engine))
        return CascadeCertificate(self.kind, self.answering(), labels, *found, *known)

    @contextlib.contextmanager
    def _opened(self, x: Tensor, labels: Tensor | None = None) -> Iterator[list[Stage]]:
        """Yields the stages for inputs like x; inside, products have full precision and nothing has gradients."""
        _check_parts(self.ball, x)
        with full_precision(), torch.no_grad():
            stages = open_stages(self.models, x, self.ball, self.engine)
            if labels is not None:
                check_label_range(labels, stages[0].classes)
            yield stages

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
        effort = SearchEffort(steps, restarts, generator)
        guide = require_engine(self.engine if guide is None else guide)
        labels = check_problem(x, labels, self.ball)
        with torch.inference_mode(False):
            x, labels = x.detach().clone(), labels.clone()
            with self._opened(x, labels) as stages:
                best = CascadeAttack(x, labels, self._answer(stages, x))
                goals = list(self._goals(stages, x, labels, guide))
                for number, goal in enumerate(goals):
                    done = best.certified_wrong if goal.certified else best.found
                    some = (goal.relevant & ~done).nonzero().squeeze(1)
                    if len(some) > 0:

                        def told(part: float, before: int = number) -> None:
                            tell((before + part) / len(goals))

                        points = search(goal, x, some, self.ball, effort, told)
                        best = best.worse(some, points, self.predict(points))
        return best

    def save(self, folder: str | Path) -> None:
        """Writes one folder: the weights of every stage as safetensors, everything else as JSON. Nothing is pickled."""
        save(Path(folder), self.models, self.ball, self.engine, kind=self.kind, **self._options())

    @classmethod
    def load(cls, folder: str | Path, build: Callable[[int], nn.Module]) -> Self:
        """Reads the combination that `save` wrote. build(stage): an untrained module for the weights of that stage."""
        saved = Saved.read(Path(folder), cls.kind)
        return cls(saved.models(build), ball=saved.ball, engine=saved.engine, **cls._own_of(saved))

    def _options(self) -> dict[str, Json]:
        """What `save` must keep beyond models, ball and engine."""
        return {}

    @classmethod
    def _own_of(cls, saved: Saved) -> dict[str, Any]:
        """What `_options` kept, as `_own` has it."""
        return {}

    def answering(self) -> int:
        """How many stages answer one by one."""
        return len(self.models)

    def __repr__(self) -> str:
        own = "".join(f", {name}={list(values)}" for name, values in self._own().items())
        return f"{type(self).__name__}({len(self.models)} models{own}, {describe(self.ball)}, {self.engine!r})"


def load_combination(folder: str | Path, build: Callable[[int], nn.Module]) -> Combination:
    """Loads the combination that a folder holds, of whatever kind; build(stage) makes an untrained module for each stage."""
    place, record = read_record(Path(folder))
    kind, kinds = record.get("kind"), Combination.kinds
    if not isinstance(kind, str) or kind not in kinds:
        raise ArgumentError(f"{place}: kind must be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind].load(folder, build)


def together(
    answers: Answers, as_run: Tensor, labels: Tensor, ball: Perturbation, exactly: Callable[[Tensor], Tensor]
) -> Evaluated:
    """Evaluates answers whose certificates are about all models together: a right answer with a certificate is sound.

    as_run: [N] bool, where the certificate holds for the models as they run, too.
    And a certificate at x' holds at x, too, if the ball is symmetric; so where x is answered rightly, no wrong label is certified.
    `exactly` says where, of some examples [N], that answer would be the same without any rounding, which is what a proof is about.
    """
    right = answers.label == labels
    sound = right & answers.certified
    silent = sound | exactly(right & ~sound) if is_symmetric(ball) else sound
    return Evaluated(answers, sound, sound & as_run, silent)


# Balls that several models can share: which ones are symmetric, and what lies inside them.


def is_symmetric(ball: Perturbation) -> bool:
    """Whether x lies in the ball around x' whenever x' lies in the ball around x: balls of a norm, also clipped ones if x and x' are
    in range (inputs that are not are refused). A subclass may do anything, so it does not count."""
    return type(ball) in NORMS


def _check_parts(ball: Perturbation, x: Tensor) -> None:
    """Refuse a perturbation of the user's own whose sets depend on the place of an example in its batch: stages see parts of it."""
    if type(ball) in NORMS or len(x) == 1:
        return
    rows = torch.randn(4, 1, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    forwards, backwards = ball.around(x).minimise(rows), ball.around(x.flip(0)).minimise(rows).flip(1)
    if not torch.allclose(forwards, backwards, rtol=1e-4, atol=1e-4 * float(forwards.abs().max())):
        raise ArgumentError(
            f"ball: {type(ball).__name__} gives an example another set at another place of the batch, but the stages of a combination "
            f"see parts of a batch; let `around` look at nothing but x and eps"
        )


def into_range(ball: Perturbation, points: Tensor) -> Tensor:
    """Puts points back into the range of a clipped ball: rounding may carry them out by one unit in the last place."""
    return points.clamp(*ball.clip) if isinstance(ball, LinfBall) and ball.clip is not None else points


def inside(ball: Perturbation, x: Tensor, points: Tensor) -> Tensor:
    """[N] bool: each point is in the ball around its x, from the definition and up to rounding; NaN is not.

    For a perturbation of another kind: no farther than the set reaches in the direction of the point, seen from the centre. (That is
    necessary, not sufficient; its own `step` and `sample` are trusted for the rest.)
    """
    if type(ball) not in NORMS or (isinstance(ball, LinfBall) and ball.scale is not None):
        region = ball.around(x)
        away = region.centre - points
        room = 64 * torch.finfo(x.dtype).eps * (1 + (away * points).flatten(1).abs().sum(1))
        return (away * points).flatten(1).sum(1) >= region.minimise(away.unsqueeze(0)).squeeze(0) - room
    eps, order = float(ball.eps), ORDERS[NORMS[type(ball)]]
    rounding = ROUNDING * torch.finfo(x.dtype).eps * (x.double().abs() + eps)
    distance, room = (t.flatten(1).norm(order, dim=1) for t in (points.double() - x.double(), rounding))
    near = distance <= eps + room
    return near & (into_range(ball, points) == points).flatten(1).all(1)


# Gradient search for a point of a set at which several conditions hold at once.


def search(
    goal: Goal, x: Tensor, some: Tensor, ball: Perturbation, effort: SearchEffort, tell: Callable[[float], None]
) -> Tensor:
    """Searches the balls of the M examples `some` for points [M, *shape] whose largest violation is smallest.

    tell: hears after every step which part of all steps is done, and may end the search by an error of its own.
    """
    clean = x[some]
    region = ball.within(clean)

    def objective(points: Tensor, numbers: Tensor) -> Seen:
        worst = goal.violations(points, some[numbers]).amax(
            1
        )  # one condition pushes at a time: two would block each other
        return Seen(worst, worst)

    best, least = clean, clean.new_full((len(clean),), torch.inf)
    for restart in range(effort.restarts):  # one after the other: gradients of bounds take memory
        start = clean if restart == 0 else into_range(ball, region.sample(effort.generator))
        found, merits = descend(
            objective, region, start, effort.steps, tell=partial(_tell_part, tell, restart, effort.restarts)
        )
        better = merits < least
        best, least = torch.where(_spread(better, found), found, best), torch.where(better, merits, least)
    best = into_range(ball, best)
    return torch.where(_spread(inside(ball, clean, best), best), best, clean)


def _tell_part(tell: Callable[[float], None], restart: int, restarts: int, part: float) -> None:
    tell((restart + part) / restarts)


def _spread(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (like.dim() - 1))
