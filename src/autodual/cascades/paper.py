"""The paper's cascade: the first stage that certifies its own label answers. [SPAD Alg. 2]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.cascades.base import Combination, Evaluated, Goal, is_symmetric
from autodual.cascades.records import Answers
from autodual.cascades.stage import Stage
from autodual.certificates.attacks import attack, margin_of
from autodual.engines.results import BoundEngine
from autodual.sets import Perturbation
from autodual.spec import margins


class Cascade(Combination):
    """The first stage that certifies its own predicted label answers; if none does, the last stage's label, not certified.

    **What its certificate does not say.** A certificate at the received input x' says that the answering *stage* gives its label
    everywhere within eps of x', so also to the clean x. It does not say that the *cascade* is robust: if an earlier stage
    mislabels the clean x without certifying there, an attacker looks for an x' in the ball where that stage does certify, and the
    cascade answers wrongly with a certificate (Mangal et al., "On the perils of cascading robust classifiers", ICLR 2023). So the
    paper's metric is called `stage_certified_error` here, `attack` searches for such points, and `certify` reports what is sound:

    - *no wrong label is certified anywhere in the ball* if every stage predicts y at the clean x. Proof: let stage j certify w at x'.
      Then x lies in the ball around x', since the ball is symmetric, so stage j gives w to x: w = y.
    - *the cascade answers y everywhere in the ball* if, in addition, the last stage certifies y at x. Proof: who answers with a
      certificate answers y, by the above; if nobody does, the last stage's label counts, which is y in the whole ball.

    Args:
        models: The stages, in the order in which they are asked; each in evaluation mode, with the same classes.
        ball: What may happen to every input: a norm ball.
        engine: How to bound; `Dual()` if not given.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> cascade = ad.Cascade([ad.load_digits_network(), ad.load_digits_network()], ad.LinfBall(0.05))
        >>> found = cascade.certify(images[:20], labels[:20])
        >>> found.stage_certified_error <= found.sound_certified_error
        True
    """

    kind: ClassVar[str] = "paper"
    attack_follows_bounds: ClassVar[bool] = True

    def __init__(self, models: Sequence[nn.Module], ball: Perturbation, engine: BoundEngine | None = None) -> None:
        super().__init__(models, ball, engine)
        if not is_symmetric(ball):
            raise ArgumentError(
                f"ball: {type(ball).__name__} is not known to be symmetric. A certificate around the received input x' says "
                f"something about the clean x only if x lies in the ball around x' whenever x' lies in the ball around x: use "
                f"LinfBall, L2Ball or L1Ball, or RoutedCascade or SumEnsemble, which do not need it"
            )

    def _answer(self, stages: list[Stage], x: Tensor) -> Answers:
        return self._run(stages, x, [stage.scores(x).argmax(1) for stage in stages])[0]

    def _evaluate(self, stages: list[Stage], x: Tensor, labels: Tensor) -> Evaluated:
        """Who answers with a certificate answers with the label that it gives to x as it runs. So only the last stage, which answers
        without one, must be certified as it runs, too."""
        predicted = [stage.scores(x).argmax(1) for stage in stages]
        agree = (torch.stack(predicted) == labels).all(0)
        answers, last, last_as_run = self._run(stages, x, predicted, agree)
        agree = last & agree | stages[-1].labels_exactly(x, labels, agree & ~last)
        for stage in stages[:-1]:
            agree = stage.labels_exactly(x, labels, agree)
        return Evaluated(answers, agree & last, agree & last_as_run, agree)

    def _run(
        self, stages: list[Stage], x: Tensor, predicted: list[Tensor], asked: Tensor | None = None
    ) -> tuple[Answers, Tensor, Tensor]:
        """Stage after stage on what is still open; and whether the last stage certifies its label, exactly and as it runs [N], known
        where nobody before it has answered, and where `asked`."""
        open_ = torch.ones(len(x), dtype=torch.bool, device=x.device)
        label, stage = predicted[-1].clone(), torch.full_like(predicted[-1], len(stages) - 1)
        proved = as_run = ~open_
        for one in stages:
            some = open_ if asked is None or one is not stages[-1] else open_ | asked
            proved, as_run = torch.zeros_like(open_), torch.zeros_like(open_)
            index = some.nonzero().squeeze(1)
            if len(index) > 0:
                found = one.certify(x[index], predicted[one.number][index])
                proved[index], as_run[index] = found.certified, found.certified_as_run
            answered = open_ & proved
            label = torch.where(answered, predicted[one.number], label)
            stage = torch.where(answered, one.number, stage)
            open_ = open_ & ~proved
        return Answers(label, ~open_, stage), proved, as_run

    def _goals(self, stages: list[Stage], x: Tensor, labels: Tensor, guide: BoundEngine) -> Iterator[Goal]:
        """A stage can certify no other label inside the ball than the one it gives to the clean x (see above). So stage j can be
        made to certify a wrong label only where it mislabels x, and only that label; and an earlier stage stands in the way only
        where it labels x rightly. Without a certificate, the last stage has to err while none that labels x rightly certifies."""
        predicted = [stage.scores(x).argmax(1) for stage in stages]
        violations = partial(self._violations, stages, predicted, labels, guide)
        for j in range(len(stages)):
            yield Goal(predicted[j] != labels, True, partial(violations, j))
        # A cheap look for where the bounds below are worth their cost.
        errs = attack(self.models[-1], x, labels, self.ball).success
        yield Goal(errs, False, partial(violations, None))

    def _violations(
        self,
        stages: list[Stage],
        predicted: list[Tensor],
        labels: Tensor,
        guide: BoundEngine,
        target: int | None,
        points: Tensor,
        some: Tensor,
    ) -> Tensor:
        """Earlier stages must not certify y: the certified margin of y is not positive. Stage `target` must certify its wrong label;
        if there is no target, the last stage must give y no positive margin."""
        region, own = self.ball.around(points), labels[some]

        def certified_margin(stage: Stage) -> Tensor:
            label = predicted[stage.number][some]
            lower = guide.minimum(stage.network, region, margins(label, stage.classes, points.dtype)).lower
            return lower.scatter(1, label.unsqueeze(1), torch.inf).amin(1)

        rightly = [predicted[stage.number][some] == own for stage in stages[:target]]
        before = zip(rightly, stages[:target], strict=True)
        columns = [torch.where(right, certified_margin(stage), -torch.inf) for right, stage in before]
        final = margin_of(stages[-1].scores(points), own) if target is None else -certified_margin(stages[target])
        return torch.stack([*columns, final], dim=1)
