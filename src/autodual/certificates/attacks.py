"""Projected gradient ascent inside any input set: the other side of the sandwich."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, CaptureError
from autodual._tensor import full_precision
from autodual.certificates.arguments import check_asked
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.prepare import check_evaluation_mode, check_placement, prepare
from autodual.graph import Network
from autodual.sets import InputSet, Perturbation
from autodual.spec import Question, Specification

FIRST_STEP, LAST_STEP = 0.5, 0.02
"""Step sizes, as a part of the set's radius; they fall linearly in between."""


@dataclass(frozen=True)
class Attack:
    """The worst inputs found."""

    examples: Tensor
    """[N, *shape]: inside the set of each example; the one with the smallest margin."""
    margins: Tensor
    """[N]: z_label minus the largest other score there."""

    confirmed: Tensor
    """[N] bool: the exact function, too, gives the example another label (or a tie): evaluated in float64, whatever its error."""

    @property
    def success(self) -> Tensor:
        """[N] bool: a counterexample in real numbers. No example with one can be `certified`."""
        return self.confirmed

    @property
    def success_as_run(self) -> Tensor:
        """[N] bool: the model, as it runs, gives the example another label; perhaps only because of rounding.

        No example with one can be `certified_as_run`.
        """
        return ~(self.margins > 0)


def attack(
    model: nn.Module | Network,
    x: Tensor,
    labels: Tensor | Specification,
    ball: Perturbation | InputSet,
    steps: int = 40,
    restarts: int = 1,
    generator: torch.Generator | None = None,
) -> Attack:
    """Search each example's set for an input that gets another label, by projected gradient ascent (PGD).

    The first start is x itself, the others are random. A counterexample of the model as it runs is evaluated again in float64:
    `success` says whether it holds in real numbers.

    Args:
        model: Any differentiable nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
        x: Clean inputs [N, *shape].
        labels: The labels to attack [N]; or any `Specification`, of which an input that breaks it is sought.
        ball: What may happen to every input, in the units of x; or a set around each x, such as `Box(lower, upper)`.
        steps: Gradient steps from each start.
        restarts: Starts; more of them find a little more.
        generator: Source of the random starts; PyTorch's global one if not given.

    Returns:
        The worst inputs that were found, all inside their sets. No example with a `success` can be `certified`.

    Raises:
        ArgumentError: An argument has a value, shape, dtype or device that cannot be used; the model is in training mode.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> found = ad.attack(ad.load_digits_network(), images[:50], labels[:50], ad.LinfBall(0.3), steps=10)
        >>> found.examples.shape, bool(found.success.any())
        (torch.Size([50, 1, 8, 8]), True)
    """
    module = model.model if isinstance(model, Network) else model
    specification, ball = check_asked(x, labels, ball)
    check_placement(module, x, "x")
    check_evaluation_mode(module)
    if not isinstance(steps, int) or not isinstance(restarts, int) or steps < 0 or restarts < 1:
        raise ArgumentError(f"attack needs whole numbers, steps >= 0 and restarts >= 1, got {steps!r} and {restarts!r}")
    with torch.inference_mode(False):  # gradients are needed
        x = x.detach().clone()
        region = ball.within(x)
        start, scores = _run(module, x)
        question = specification.put(x, tuple(scores.shape[1:]))
        best = Attack(x, question.value(scores.detach()), torch.zeros(len(x), dtype=torch.bool, device=x.device))
        for restart in range(restarts):
            if restart > 0:
                start, scores = _run(module, region.sample(generator))
            best = _ascend(module, start, scores, question, region, steps, best)
        return replace(best, confirmed=_confirm(model, best, question))


def _confirm(model: nn.Module | Network, found: Attack, question: Question) -> Tensor:
    """[N] bool: the captured network, evaluated in float64 with its error, breaks the specification, or is on its border."""
    confirmed = torch.zeros_like(found.success_as_run)
    some = found.success_as_run.nonzero().squeeze(1)
    if len(some) == 0:
        return confirmed
    points, asked = found.examples[some], question.at(some)
    try:
        with full_precision(), torch.no_grad():
            output, error = evaluate_with_error(prepare(model, points).in_double, points.double())
    except CaptureError as reason:
        warnings.warn(
            f"{len(some)} counterexamples could not be confirmed in real numbers, so `success` does not count them; `success_as_run` "
            f"does ({reason})",
            stacklevel=3,
        )
        return confirmed
    rows, rounding = asked.at_output(output)
    doubt = asked.at_error(error) + rounding
    return confirmed.index_copy(0, some, ~asked.rule.holds(~(rows + doubt <= 0) | asked.idle_rows()))


def _run(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs, ready to be differentiated in, and their scores."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return x, module(x.clone())  # a model may write into its input


def _ascend(
    module: nn.Module, x: Tensor, scores: Tensor, question: Question, region: InputSet, steps: int, best: Attack
) -> Attack:
    for step in range(steps):
        with torch.enable_grad():
            margins = question.value(scores)
        best = _better(best, x.detach(), margins.detach())
        (gradient,) = torch.autograd.grad(margins.sum(), x)
        size = FIRST_STEP + (LAST_STEP - FIRST_STEP) * step / steps
        x, scores = _run(module, region.step(x.detach(), -gradient, size))
    return _better(best, x.detach(), question.value(scores.detach()))


def _better(best: Attack, x: Tensor, margins: Tensor) -> Attack:
    improved = margins < best.margins
    spread = improved.reshape(-1, *[1] * (x.dim() - 1))
    return Attack(torch.where(spread, x, best.examples), torch.where(improved, margins, best.margins), best.confirmed)


def margin_of(scores: Tensor, labels: Tensor) -> Tensor:
    """[N]: z_label minus the largest other score."""
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1) - others(scores, labels).amax(1)


def others(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with -inf in place of the label's."""
    return scores.scatter(1, labels.unsqueeze(1), -torch.inf)
