"""The robust loss: cross-entropy of the worst scores that the bounds allow."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import values_at_hand
from autodual.dual import REGISTRY, DualNetwork, build
from autodual.dual.convex import DualExp
from autodual.dual.network import build_and_evaluate
from autodual.engines.arguments import check_finite, check_perturbation, check_placement, require_engine
from autodual.engines.ibp import IBP
from autodual.engines.projected import Projected
from autodual.engines.results import BoundEngine
from autodual.engines.streams import Draws
from autodual.graph import Fingerprint, Network, capture_graph, check_surroundings, private_copy
from autodual.interval import Interval
from autodual.sets import InputSet, Perturbation
from autodual.sets.balls import warn_of_raw_pixels
from autodual.spec import check_classifier, check_label_range, check_labels, margins


class RobustCrossEntropy(nn.Module):
    """An upper bound on the cross-entropy under any perturbation that `ball` allows. [SPAD Sec. 3.1]

    Call it with (x, labels) for a scalar to minimise. Where bounds overflow, it is +inf, which has no gradient to follow: on a CPU, a
    warning says once what overflows, and `why_not_finite` says it anywhere. It is a module that contains the model, so it can be
    wrapped as a whole for distributed training. The model may be in training mode: batch normalisation then uses the statistics of
    the clean batch, held fixed over the perturbation, and moves its running statistics as usual.

    Args:
        model: Any nn.Module that maps [N, *shape] to scores [N, C].
        ball: What may happen to every input, in the units of x. Its eps may be a tensor, which a schedule changes in place.
        engine: How to bound; `Dual()`, the exact bound, if not given. `Projected(k)` costs as little as k + 1 forward passes.

    Raises:
        ArgumentError: An argument is of the wrong kind.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("train")
        >>> model = ad.load_digits_network()
        >>> loss = ad.RobustCrossEntropy(model, ad.LinfBall(0.1, clip=(0.0, 1.0)), ad.Projected(k=10))
        >>> loss(images[:50], labels[:50]).backward()
        >>> bool(model[0].weight.grad.isfinite().all())
        True
    """

    def __init__(self, model: nn.Module, ball: Perturbation, engine: BoundEngine | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.engine = require_engine(engine)
        check_perturbation(ball)
        self.model, self.ball = model, ball
        self._captured: _Captured | None = None
        self._told_of_units = self._told_of_infinity = False

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and files, without the captured graph, which belongs to this object's model and is captured anew."""
        return {**vars(self), "_captured": None}

    def forward(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        found = cross_entropy_of(self.worst_scores(x, labels, draws), labels.long())
        if values_at_hand(found) and not self._told_of_infinity and not bool(found.isfinite()):
            self._told_of_infinity = True
            warnings.warn(f"the robust loss is infinite: {self.why_not_finite(x, labels)}", stacklevel=4)
        return found

    def worst_scores(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> Tensor:
        """[N, C]: upper bounds on z_j - z_label; zero at the label."""
        dual, labels = self._checked_dual(x, labels)
        return self.worst_over(dual, self.ball.around(x), labels, draws)

    def both_scores(self, x: Tensor, labels: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """The model's scores at x itself, and the worst ones; batch normalisation sees the batch once."""
        dual, labels = self._checked_dual(x, labels)
        return dual.forward(x), self.worst_over(dual, self.ball.around(x), labels, draws)

    def _checked_dual(self, x: Tensor, labels: Tensor) -> tuple[DualNetwork, Tensor]:
        """Dual layers, with the statistics of x where batch normalisation uses some, and the labels; all arguments are checked."""
        network, labels = self.checked_network(x, labels)
        self._check_units(x)
        return build(network, x if uses_batch_statistics(self.model) else None), labels

    def checked_network(self, x: Tensor, labels: Tensor) -> tuple[Network, Tensor]:
        """The captured model, and the labels [N] as whole numbers; refuses what cannot be bounded."""
        labels = check_labels(labels, x)
        network = self._captured_network(x)
        classes = check_classifier(network.output_shape)
        if values_at_hand(labels):
            check_label_range(labels, classes)
        if values_at_hand(x):
            check_finite(x, "x")
        return network, labels

    def _captured_network(self, x: Tensor) -> Network:
        """The captured model, captured anew if the model or the kind of inputs has changed."""
        captured = self._captured  # read once: another thread may replace it
        if torch.compiler.is_compiling():
            if captured is None:
                raise ArgumentError(
                    "call loss.draw(x), or the loss itself, once before compiling: that captures the model"
                )
            return captured.network
        _check_batch(x)
        check_surroundings(self.model)
        inputs, now = (tuple(x.shape[1:]), x.dtype, x.device), Fingerprint(self.model)
        if captured is None or captured.inputs != inputs or captured.fingerprint != now:
            check_placement(self.model, x, "x")
            captured = self._captured = _Captured(capture_graph(self.model, x, REGISTRY, may_draw=True), inputs, now)
        return captured.network

    def _check_units(self, x: Tensor) -> None:
        """Say once where x seems to be raw pixels, as far as that can be seen without waiting for a device."""
        eps_at_hand = not isinstance(self.ball.eps, Tensor) or values_at_hand(self.ball.eps)
        if values_at_hand(x) and eps_at_hand and not self._told_of_units:
            self._told_of_units = warn_of_raw_pixels(x, self.ball, stacklevel=7)

    def dual_and_scores(self, network: Network, x: Tensor) -> tuple[DualNetwork, Tensor]:
        """Dual layers, with the statistics of x where batch normalisation uses some, and the scores at x, computed once."""
        if uses_batch_statistics(self.model):
            return build_and_evaluate(network, x)
        dual = build(network)
        return dual, dual.forward(x)

    def worst_over(
        self, dual: DualNetwork, region: InputSet, labels: Tensor, draws: Draws | None = None, engine: BoundEngine | None = None
    ) -> Tensor:  # fmt: skip
        """[N, C]: upper bounds on z_j - z_label over a set, by this loss's engine if no other is given."""
        if engine is None:
            engine = self.engine if draws is None else self._projected().with_draws(draws)
        spec = margins(labels, dual.nodes[dual.output].shape[0], region.centre.dtype)
        return -engine.minimum(dual, region, spec).lower

    def _projected(self) -> Projected:
        if not isinstance(self.engine, Projected):
            raise ArgumentError(f"draws are for the engine Projected(); this loss uses {self.engine!r}")
        return self.engine

    def draw(self, x: Tensor) -> Draws:
        """Random numbers for one step on inputs like x, to pass in: a compiled step or a CUDA graph cannot draw its own.

        Call it before compiling: it also captures the model. `draws.renew_()` fills them anew in place. The model stays as it
        was, batch normalisation's running statistics included.
        """
        _check_batch(x)
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            self._captured_network(x)
            dual = self._dual_of_copy(x)
        return self._projected().draw(dual, self.ball.around(x))

    def why_not_finite(self, x: Tensor, labels: Tensor) -> str | None:
        """A sentence about what overflows in the bounds of a batch, and what to do; None if they are finite.

        The model stays as it was, batch normalisation's running statistics included. With `Projected`, random numbers are drawn anew.
        """
        self.checked_network(x, labels)
        faulty = [name for name, value in self.model.named_parameters() if not bool(value.isfinite().all())]
        if faulty:
            return f"the parameter {faulty[0]} is not finite. An earlier step has spoilt it: begin again, with a smaller lr"
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            dual = self._dual_of_copy(x)
            region = self.ball.around(x)
            found = self.engine.preactivations(dual, region).intervals
            if bool(self.worst_over(dual, region, labels).isfinite().all()):
                return None
        return f"{_first_overflow(dual, found)}. {_advice(dual, self.engine)}"

    def _dual_of_copy(self, x: Tensor) -> DualNetwork:
        """Dual layers of a copy of the model, whose statistics move instead of the model's."""
        model = private_copy(self.model)
        network = capture_graph(model, x, REGISTRY, may_draw=True)
        return build(network, x if uses_batch_statistics(model) else None)


def cross_entropy_of(worst: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of upper bounds on scores, on average: +inf, which bounds everything, if some are infinite or NaN."""
    found = F.cross_entropy(worst, labels)
    return torch.where(found.isnan(), torch.inf, found)


def uses_batch_statistics(model: nn.Module) -> bool:
    """Whether batch normalisation in the model uses the statistics of the batch, and not stored ones."""
    return any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) and (m.training or m.running_mean is None)
        for m in model.modules()
    )


@dataclass(frozen=True)
class _Captured:
    """A graph, and what it is the graph of: inputs of one kind, and the model as it was."""

    network: Network
    inputs: tuple[object, ...]
    fingerprint: Fingerprint


def _check_batch(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or len(x) == 0:
        raise ArgumentError("x must be a floating-point batch [N, *shape] with at least one example")


def _first_overflow(network: DualNetwork, found: dict[int, Interval]) -> str:
    """What the bounds on activations' inputs say about where they stop being finite."""
    before: int | None = None
    for index, interval in found.items():
        if not bool(interval.finite().all()):
            name = network.nodes[index].name
            if before is None:
                return f"what enters {name} has no finite bounds"
            known = found[before]
            lower, upper = known.lower.min().item(), known.upper.max().item()
            told = f"what enters {network.nodes[before].name} lies between {lower:.3g} and {upper:.3g}"
            return f"what enters {name} has no finite bounds; before it, {told}"
        before = index
    return "all activations have inputs with finite bounds, but the scores have not"


def _advice(network: DualNetwork, engine: BoundEngine) -> str:
    """What helps against bounds that overflow."""
    over_intervals = isinstance(engine, IBP) or isinstance(getattr(engine, "intermediate", None), IBP)
    tighter = "; or a tighter engine, such as Dual()" if over_intervals else ""
    exponentials = any(isinstance(node.layer, DualExp) for node in network.nodes)
    smaller = ". Exponentials, as in softmax, overflow in float32 from 89 on: smaller weights before them help, too"
    return f"Use a smaller eps, or let it grow more slowly from zero{tighter}{smaller if exponentials else ''}"
