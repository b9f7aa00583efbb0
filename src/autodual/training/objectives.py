"""What training minimises: one objective with three free choices, of which the known methods are points.

*Where* the bound is taken: over the whole ball, or over a small box around an adversarial point. *Which* bound: any engine. *How*
it is mixed with a usual loss, of natural or of adversarial examples: by losses, by scores, or by powers of losses. L is the
cross-entropy of the worst scores that a bound allows, CE that of scores at one point x':

    losses     w L + (1 - w) CE(x')                           natural: kappa = 1 - w; adversarial: MTL-IBP [De Palma et al. 2024]
    scores     cross-entropy of w worst + (1 - w) z(x')       CC-IBP [De Palma et al. 2024]
    geometric  L^w CE(x')^(1 - w)                             Exp-IBP [De Palma et al. 2024]

All of a step can be captured as a CUDA graph: shapes are static, loops have fixed lengths, and nothing waits for the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.certificates import RobustCrossEntropy
from autodual.certificates.attacks import worst_inputs
from autodual.certificates.loss import cross_entropy_of
from autodual.dual import DualNetwork
from autodual.dual.arithmetic import DualScale
from autodual.dual.piecewise import DualReLU
from autodual.engines import IBP, BoundEngine, Crown, Draws, Dual, Projected
from autodual.engines.ibp import IntervalBounds
from autodual.engines.results import Preactivations
from autodual.runs.config import BatchStatistics, Mix, MixedWith
from autodual.sets import InputSet, Perturbation

# Attacks inside a step. Batch normalisation is in evaluation mode while they search.


class TrainingAttack(ABC):
    """Finds adversarial examples [N, *shape] in a ball around x."""

    capturable: bool
    """Whether it can be part of a CUDA graph."""

    @abstractmethod
    def search(
        self, model: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation, generator: torch.Generator | None
    ) -> Tensor:
        """The points found, for a model in evaluation mode."""

    def __call__(
        self, model: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation, generator: torch.Generator | None = None
    ) -> Tensor:
        with evaluating(model):
            return self.search(model, x, labels, ball, generator).detach()


@dataclass(frozen=True)
class Descent(TrainingAttack):
    """Auto-PGD on the margin from x itself, as `attack` has it."""

    steps: int = 10
    capturable = False

    def search(
        self, model: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation, generator: torch.Generator | None
    ) -> Tensor:
        return worst_inputs(model, x, labels, ball, self.steps)


@dataclass(frozen=True)
class PGD(TrainingAttack):
    """Steps of one size on the cross-entropy, from random points; all restarts side by side, and the worst point of each example.

    size: of a step, as a part of the set's radius; may exceed 1. half: computes in bfloat16, where that is faster.
    """

    steps: int
    size: float = 0.25
    restarts: int = 1
    half: bool = False
    capturable = True

    def search(
        self, model: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation, generator: torch.Generator | None
    ) -> Tensor:
        with torch.enable_grad():
            several = x.detach().repeat(self.restarts, *[1] * (x.dim() - 1))
            aims = labels.repeat(self.restarts)
            region = ball.around(several)
            points = region.sample(generator).detach()
            for _ in range(self.steps):
                points.requires_grad_()
                loss = F.cross_entropy(self._scores(model, points), aims, reduction="sum")
                (slope,) = torch.autograd.grad(loss, points)
                points = region.step(points.detach(), slope, self.size)
        if self.restarts == 1:
            return points
        with torch.no_grad():
            losses = F.cross_entropy(self._scores(model, points), aims, reduction="none").reshape(self.restarts, -1)
            chosen = losses.argmax(0) * len(x) + torch.arange(len(x), device=x.device)
        return points.index_select(0, chosen)

    def _scores(self, model: nn.Module, points: Tensor) -> Tensor:
        # Without a cache, since a captured graph must cast the weights anew whenever it is replayed.
        with torch.autocast(points.device.type, torch.bfloat16, enabled=self.half, cache_enabled=False):
            scores: Tensor = model(points)
        return scores.to(points.dtype)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and every module back into its own mode at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


# How a bound and a usual loss are mixed.

LEAST_LOSS = 1e-12
"""A smaller loss has no power worth a gradient."""


def mixed(mix: Mix, worst: Tensor, other: Tensor, labels: Tensor, weight: float | Tensor) -> Tensor:
    """The mixed loss. worst: upper bounds on z_j - z_label, other: scores at a point; [N, C] each. weight: of the bound.

    Powers are those of the batch's mean losses, as the authors' code has them.
    """
    if mix == "scores":
        differences = other - other.gather(1, labels[:, None])
        return cross_entropy_of(weight * worst + (1 - weight) * differences, labels)
    robust = cross_entropy_of(worst, labels)
    if not isinstance(weight, Tensor) and weight >= 1:
        return robust
    usual = F.cross_entropy(other, labels)
    if mix == "geometric":
        return robust.clamp(min=LEAST_LOSS) ** weight * usual.clamp(min=LEAST_LOSS) ** (1 - weight)
    return weight * robust + (1 - weight) * usual


# Terms that are added to the loss.

TOLERANCE = 0.5
"""The tolerance of both regularisers."""
EMPTY = 1e-12
"""A sum over units that is smaller is one over none."""


def interval_regularisers(network: DualNetwork, intervals: IntervalBounds) -> Tensor:
    """R_tight + R_relu over the inputs [l, u] of all ReLUs: interval bounds should not grow, and units be active as often as not.

    With c = (l + u) / 2, D = (u - l) / 2, D0 the mean of D at the (normalised) input, and tol = 1/2, the mean over layers of

        relu(tol - D0 / mean(D)) / tol  +  [relu(tol - r_mean) + relu(tol - r_var)] / tol

    where r = min(a / b, b / a) for a over active units (l > 0) and b over inactive ones (u < 0): means of |c|, and sums of
    (c - mean c)^2. A ratio without units of both kinds is left out. [Shi et al. 2021, Fast Certified Robust Training, sec. 4.3]
    """
    layers = [i for i in network.activations if isinstance(network.nodes[i].layer, DualReLU)]
    width = intervals.at(_behind_scales(network)).radius.mean()
    if not layers:
        return torch.zeros_like(width)
    total = []
    for index in layers:
        found = intervals.at(network.source(index))
        centre, active, inactive = found.centre, (found.lower > 0).to(width), (found.upper < 0).to(width)
        spread = (centre - centre.mean()) ** 2
        tight = F.relu(TOLERANCE - width / found.radius.mean().clamp(min=EMPTY))
        means = _balance((centre * active).mean(), -(centre * inactive).mean())
        total.append(tight + means + _balance((spread * active).sum(), (spread * inactive).sum()))
    return torch.stack(total).mean() / TOLERANCE


def _balance(a: Tensor, b: Tensor) -> Tensor:
    """relu(tol - min(a/b, b/a)); zero, also its gradient, where one of the two is empty."""
    both = (a > EMPTY) & (b > EMPTY)
    a, b = torch.where(both, a, 1.0), torch.where(both, b, 1.0)
    return torch.where(both, F.relu(TOLERANCE - torch.minimum(a / b, b / a)), 0.0)


def _behind_scales(network: DualNetwork) -> int:
    """The node with the normalised input: behind all scalings with which the network begins."""
    index = 0
    while len(network.readers[index]) == 1 and isinstance(network.nodes[network.readers[index][0]].layer, DualScale):
        index = network.readers[index][0]
    return index


def absolute_weights(model: nn.Module) -> Tensor:
    """The sum of |w| over the trained weights of all convolutions and linear layers; biases and normalisation do not count."""
    kinds = nn.Linear, nn.modules.conv._ConvNd
    weights = [m.weight for m in model.modules() if isinstance(m, kinds) and m.weight.requires_grad]
    return torch.stack([w.abs().sum() for w in weights]).sum()


# The objective: one module for every way of training, which distributed training can wrap as a whole.

SUMMARY = ("loss", "robust_error", "error", "robust_loss", "standard_loss")
"""What a step tells about a batch: losses are means, errors are counts. "robust" is under the bound, or the attack trained on."""


@dataclass(frozen=True, repr=False)
class _Found(IBP):
    """Interval bounds that were found before."""

    found: Preactivations

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return self.found


class Objective(nn.Module):
    """(x, labels) -> a summary: the loss that is minimised, and for the record, without gradient, what is in SUMMARY.

    Numbers that a schedule changes may be tensors, which it fills in place.

    Args:
        model: What is trained.
        ball: What may happen to inputs; None for standard training.
        engine: Which bound; None for standard training, or, with an attack, for adversarial training.
        weight: Of the robust loss; the rest is that of the usual one.
        mix: How both are mixed.
        mix_with: Whether the usual loss is that of natural or of adversarial examples.
        attack: How adversarial examples are found.
        attack_ball: Where they are searched; the ball if not given.
        small_ball: Where the bound is taken, around the adversarial points: moved into the ball, whose eps is larger. None: in the
            ball.
        crown_weight: Weight of the engine's bounds, beside interval bounds; None: these are not used.
        batch_statistics: Which batch batch normalisation takes its statistics from.
        regularise: Weight of `interval_regularisers`; None: they are not used.
        l1: Weight of `absolute_weights`.
    """

    def __init__(
        self, model: nn.Module, ball: Perturbation | None = None, engine: BoundEngine | None = None, *,
        weight: float | Tensor = 1.0, mix: Mix = "losses", mix_with: MixedWith = "natural", attack: TrainingAttack | None = None,
        attack_ball: Perturbation | None = None, small_ball: Perturbation | None = None, crown_weight: Tensor | None = None,
        batch_statistics: BatchStatistics = "clean", regularise: float | Tensor | None = None, l1: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if attack is None and (
            mix_with == "adversarial" or small_ball is not None or batch_statistics == "adversarial"
        ):
            raise ArgumentError("the objective needs adversarial examples; give it an attack, such as PGD(8)")
        if ball is None and (engine is not None or attack is not None):
            raise ArgumentError("bounds and attacks need a ball; give one, such as LinfBall(0.1)")
        self.model, self.ball, self.weight, self.mix, self.mix_with = model, ball, weight, mix, mix_with
        self.attack, self.attack_ball, self.small_ball = attack, attack_ball or ball, small_ball
        self.crown_weight, self.batch_statistics, self.regularise, self.l1 = (
            crown_weight,
            batch_statistics,
            regularise,
            l1,
        )
        self.loss = None if engine is None or ball is None else RobustCrossEntropy(model, ball, engine)
        self.regularising = regularise is not None
        """Whether the regularisers count at present; a schedule that has faded them out turns them off. A captured step is captured
        anew when this changes."""

    @classmethod
    def standard(cls, model: nn.Module, ball: Perturbation | None = None) -> Objective:
        """The usual cross-entropy; with a ball, on the worst examples that an attack finds in it."""
        return cls(model, ball, attack=None if ball is None else Descent())

    @classmethod
    def robust(cls, model: nn.Module, ball: Perturbation, engine: BoundEngine, weight: float = 1.0) -> Objective:
        """The robust cross-entropy by an engine's bounds, mixed with the usual one."""
        return cls(model, ball, engine, weight=weight)

    @property
    def bounded(self) -> RobustCrossEntropy:
        """The robust loss, whose bounds are used."""
        assert self.loss is not None
        return self.loss

    @property
    def capturable(self) -> bool:
        """Whether a step can be one CUDA graph: the engine looks at no memory, and the attack takes a fixed number of steps."""
        if self.loss is None or not (self.attack is None or self.attack.capturable):
            return False
        engine = self.loss.engine
        if isinstance(engine, Crown | Dual):
            return isinstance(engine.intermediate, IBP) and engine.max_bytes is not None
        return isinstance(engine, Projected | IBP)

    def why_not_finite(self, x: Tensor, labels: Tensor) -> str:
        """A sentence about what makes the loss of a batch infinite or NaN, as far as the bounds over the ball tell, and what to do."""
        found = None if self.loss is None or self.small_ball is not None else self.loss.why_not_finite(x, labels)
        return found or "Try a smaller lr, clip_gradients, or a slower eps schedule"

    def draw(self, x: Tensor) -> Draws | None:
        """Memory for the projections of steps on batches like x; None if the objective uses none."""
        return self.loss.draw(x) if self.loss is not None and isinstance(self.loss.engine, Projected) else None

    def forward(
        self, x: Tensor, labels: Tensor, draws: Draws | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The summary of one batch. generator: of the attack's random starts; PyTorch's global one if not given."""
        if self.loss is None:
            clean = worst = self.model(x)
            if self.attack is not None:
                worst = self.model(self._attacked(x, labels, generator))
            loss = robust = F.cross_entropy(worst, labels)
        elif self.attack is None and self.crown_weight is None and not self.regularising:
            clean, worst = self.loss.both_scores(x, labels, draws)
            loss, robust = mixed(self.mix, worst, clean, labels, self.weight), cross_entropy_of(worst.detach(), labels)
        else:
            clean, worst, other, terms = self._bounds(x, labels, draws, generator)
            loss = mixed(self.mix, worst, other, labels, self.weight)
            loss, robust = loss if terms is None else loss + terms, cross_entropy_of(worst.detach(), labels)
        if self.l1 > 0:
            loss = loss + self.l1 * absolute_weights(self.model)
        wrong = [(scores.detach().argmax(1) != labels).sum().to(loss) for scores in (worst, clean)]
        return torch.stack([loss, *wrong, robust.detach(), F.cross_entropy(clean.detach(), labels)])

    def _attacked(self, x: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        assert self.attack is not None
        assert self.attack_ball is not None
        return self.attack(self.model, x, labels, self.attack_ball, generator)

    def _bounds(
        self, x: Tensor, labels: Tensor, draws: Draws | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Clean scores, worst scores, scores to mix in, and terms to add. Batch normalisation sees one batch, once."""
        network, labels = self.bounded.checked_network(x, labels)
        found = None
        if self.batch_statistics == "adversarial":
            found = self._attacked(x, labels, generator)
            dual, at_found = self.bounded.dual_and_scores(network, found)
            if self.mix_with == "natural":
                clean = dual.forward(x)
            else:
                with torch.no_grad():  # for the record
                    clean = dual.forward(x)
        else:
            dual, clean = self.bounded.dual_and_scores(network, x)
            if self.attack is not None:
                found = self._attacked(x, labels, generator)
            at_found = dual.forward(found) if found is not None and self.mix_with == "adversarial" else clean
        other = at_found if self.mix_with == "adversarial" else clean
        worst, terms = self._worst(dual, self._region(x, found), labels, draws)
        return clean, worst, other, terms

    def _region(self, x: Tensor, found: Tensor | None) -> InputSet:
        """The ball, or the small ball around the point of it that is nearest to the adversarial one and has room for it."""
        assert self.ball is not None
        if self.small_ball is None or found is None:
            return self.ball.around(x)
        room = self.ball.eps - self.small_ball.eps
        return self.small_ball.around(torch.minimum(torch.maximum(found, x - room), x + room))

    def _worst(
        self, dual: DualNetwork, region: InputSet, labels: Tensor, draws: Draws | None
    ) -> tuple[Tensor, Tensor | None]:
        """Worst scores over a set, and the terms that keep interval bounds small; interval bounds are computed once for both."""
        loss, terms = self.bounded, None
        if self.crown_weight is None and not self.regularising:
            return loss.worst_over(dual, region, labels, draws), None
        intervals = IntervalBounds(dual, region)
        found = _Found(Preactivations({i: intervals.at(dual.source(i)) for i in dual.activations}))
        engine: BoundEngine | None = None
        if isinstance(loss.engine, IBP):
            engine = found
        elif isinstance(loss.engine, Crown | Dual) and isinstance(loss.engine.intermediate, IBP):
            engine = replace(loss.engine, intermediate=found)
        worst = loss.worst_over(dual, region, labels, draws, engine)
        if self.crown_weight is not None:
            plain = loss.worst_over(dual, region, labels, engine=found)
            worst = self.crown_weight * worst + (1 - self.crown_weight) * plain
        if self.regularising and self.regularise is not None:
            terms = self.regularise * interval_regularisers(dual, intervals)
        return worst, terms
