"""Search inside any input set for a counterexample: what a proof excludes, an attack looks for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError, CaptureError
from autodual._tensor import full_precision
from autodual.certificates.descent import Seen, descend
from autodual.engines.arguments import check_asked, check_evaluation_mode, check_placement
from autodual.engines.effort import Budget, current
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.prepare import prepare
from autodual.graph import Network
from autodual.sets import Box, InputSet, Perturbation
from autodual.spec import Label, Question, Specification

Loss = Literal["margin", "cross-entropy", "dlr", "targeted"]
"""What a run makes smaller: the margin; minus the cross-entropy; the margin as a part of the difference of the largest and the third
largest score [Croce and Hein 2020, Eq. 6]; or the margin over one other class (one way to break a specification)."""
LOSSES: tuple[Loss, ...] = get_args(Loss)
MIXED: tuple[Loss, ...] = ("margin", "targeted", "targeted", "cross-entropy", "targeted", "margin", "targeted", "dlr")
"""The losses of the first starts, and of all later ones in turn, if none is asked for."""


@dataclass(frozen=True)
class Attack:
    """The worst inputs found."""

    examples: Tensor
    """[N, *shape]: inside the set of each example; the one with the smallest margin that was seen."""
    margins: Tensor
    """[N]: z_label minus the largest other score there; for any specification, a number that is positive where it holds."""

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
    restarts: int = 4,
    generator: torch.Generator | None = None,
    loss: Loss | None = None,
) -> Attack:
    """Search each example's set for an input that gets another label, by projected gradient descent (Auto-PGD).

    The first start is x itself; the others are random corners and random points of the set. All starts of all examples are searched
    side by side, as many as fit into the memory. An example leaves the search once it is clearly broken. Counterexamples
    of the model as it runs are evaluated again in float64: `success` says whether they hold in real numbers.

    Args:
        model: Any differentiable nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
        x: Clean inputs [N, *shape].
        labels: The labels to attack [N]; or any `Specification`, of which an input that breaks it is sought.
        ball: What may happen to every input, in the units of x; or a set around each x, such as `Box(lower, upper)`.
        steps: Gradient steps from each start. An attack costs at most steps * restarts passes forwards and backwards.
        restarts: Starts for each example.
        generator: Source of the random starts; if not given, one with the same seed in every call. Starts of an example do not
            depend on the others in its batch.
        loss: "margin", "cross-entropy", "dlr" or "targeted", which aims at one of the nearest other classes, each start at the
            next one. If not given, starts take turns, and the first one makes the margin smaller.

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
    whole = all(isinstance(v, int) and not isinstance(v, bool) for v in (steps, restarts))
    if not whole or steps < 0 or restarts < 1:
        raise ArgumentError(f"attack needs whole numbers, steps >= 0 and restarts >= 1, got {steps!r} and {restarts!r}")
    if loss is not None and loss not in LOSSES:
        raise ArgumentError(f"loss must be one of {', '.join(LOSSES)}, or None for all of them in turn, got {loss!r}")
    if not isinstance(generator, torch.Generator | None):
        raise ArgumentError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
    losses = MIXED if loss is None else (loss,)
    with torch.inference_mode(False):  # gradients are needed
        x = x.detach().clone()
        output, bytes_each = _first_look(module, x)
        question = specification.put(x, tuple(output.shape[1:]))
        search = _Search(module, question, output, ball.within(x), x, steps, losses, generator or _seeded())
        best, margins = search.run(restarts, bytes_each)
        return Attack(best, margins, _confirm(model, best, margins, question))


def worst_inputs(module: nn.Module, x: Tensor, labels: Tensor, ball: Perturbation, steps: int) -> Tensor:
    """[N, *shape]: where the margin was smallest, from one start, x itself; for training, where broken examples go on, too."""
    with torch.inference_mode(False):
        x = x.detach().clone()
        with torch.no_grad():
            question = Label(labels).put(x, tuple(module(x.clone()).shape[1:]))

        def objective(points: Tensor, numbers: Tensor) -> Seen:
            value = question.value(module(points.clone()))
            return Seen(value, value)

        return descend(objective, ball.within(x), x, steps)[0]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _first_look(module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """The clean output, and how many bytes per example a pass forwards keeps for the pass backwards."""
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes if tensor.dim() > 0 and len(tensor) == len(x) else 0
        return tensor

    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = module(x.clone().requires_grad_().clone())  # a model may write into its input
    except (AutodualError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ArgumentError(
            f"model: cannot be run on x of shape {tuple(x.shape)}, of which the first dimension is the batch: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise ArgumentError(
            f"model: must return one tensor, got {type(output).__name__}; wrap it in a module that returns one"
        )
    return output.detach(), max(1, kept // len(x))


ROOM = 1000
"""An example is clearly broken if its margin is below zero by so many roundings of the largest output."""
STATE = 12
"""Tensors of the shape of x that each run holds."""


@dataclass(frozen=True)
class _Search:
    """All that the runs of one attack share."""

    module: nn.Module
    question: Question
    output: Tensor
    """For the clean inputs."""
    region: InputSet
    x: Tensor
    steps: int
    losses: tuple[Loss, ...]
    generator: torch.Generator

    def run(self, restarts: int, bytes_each: int) -> tuple[Tensor, Tensor]:
        """The best points, [N, *shape], and their margins [N]; a group of restarts at a time, on examples that are not broken yet."""
        best, margins = self.x.clone(), self.question.value(self.output)
        todo = list(range(restarts))
        starts = self._starts(restarts)
        while todo:
            open_ = (~self._broken(margins, slice(None))).nonzero().squeeze(1)
            if len(open_) == 0:
                break
            apart = self.region.take(open_[:0]) is not None
            if not apart:
                open_ = torch.arange(len(self.x), device=self.x.device)
            # The first start alone: most of what can be broken breaks from there.
            limit = 1 if todo[0] == 0 or not apart else max(1, self._runs_at_once(bytes_each) // len(open_))
            now, todo = todo[:limit], todo[limit:]
            points = torch.cat([next(starts)[open_] for _ in now])
            examples = open_.repeat(len(now))
            ranks = torch.tensor(now, device=self.x.device).repeat_interleave(len(open_))
            for part in torch.arange(len(examples), device=self.x.device).split(self._runs_at_once(bytes_each)):
                best, margins = self._search(points[part], examples[part], ranks[part], apart, best, margins)
        return best, margins

    def _runs_at_once(self, bytes_each: int) -> int:
        """How many runs fit into the memory; at least one."""
        run = bytes_each * 2 + STATE * self.x[0].nbytes
        return max(1, Budget.of(None, self.x.device).max_bytes // run)

    def _starts(self, restarts: int) -> Iterator[Tensor]:
        """x itself, then random corners and random points in turn. The random numbers are the same for every example."""
        yield self.x
        for restart in range(1, restarts):
            noise = self._noise(torch.randn)
            corner = self.region.vertex(noise.expand_as(self.x).contiguous())
            if restart % 2 == 1:
                weight = noise.new_ones(())
            elif isinstance(self.region, Box):
                weight = 2 * self._noise(torch.rand) - 1
                corner = self.region.centre + self.region.radius
            else:
                weight = self._noise(torch.rand).flatten()[0]
            point = self.region.centre + weight * (corner - self.region.centre)
            inside = self.region.project(point)
            yield point if inside is None else inside

    def _noise(self, kind: Callable[..., Tensor]) -> Tensor:
        """One example's random numbers, drawn where the generator lies."""
        shape, device = (1, *self.x.shape[1:]), self.generator.device
        return kind(shape, dtype=torch.float64, device=device, generator=self.generator).to(self.x)

    def _run(self, points: Tensor) -> Tensor:
        """The model's output where the search has come to, which it must have."""
        try:
            output: Tensor = self.module(points.clone())
        except (AutodualError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ArgumentError(
                f"model: raises {type(error).__name__} for an input of the set: {error}. Make the set smaller (clip=), or leave the "
                f"check out of the module"
            ) from error
        return output

    def _broken(self, margins: Tensor, some: Tensor | slice) -> Tensor:
        """[M] bool: clearly broken, so that float64 will confirm it."""
        size = self.output[some].detach().flatten(1) if self.output.dim() > 1 else self.output[some].unsqueeze(1)
        return margins < -ROOM * torch.finfo(self.x.dtype).eps * size.abs().amax(1)

    def _search(
        self, points: Tensor, examples: Tensor, ranks: Tensor, apart: bool, best: Tensor, margins: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What some runs find, if it is better than what is known."""
        region = self.region.take(examples) if apart else self.region
        assert region is not None
        question, broken = self.question.at(examples), torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        wanted = self._wanted(examples, ranks)

        def objective(at: Tensor, numbers: Tensor) -> Seen:
            asked, output = question.at(numbers), self._run(at)
            return Seen(self._loss(asked, output, ranks[numbers], wanted[numbers]), asked.value(output.detach()))

        def finished(numbers: Tensor, merits: Tensor) -> Tensor:
            """All runs of an example end when one of them has broken it."""
            mine = examples[numbers]
            broken[mine[self._broken(merits, mine)]] = True
            return broken[mine]

        found, merits = descend(objective, region, points, self.steps, finished, _check_time)
        for number in ranks.unique().tolist():  # one start at a time: then every example comes once
            which = ranks == number
            mine, its = examples[which], merits[which]
            better = its < margins[mine]
            margins = margins.index_copy(0, mine[better], its[better].to(margins))
            best = best.index_copy(0, mine[better], found[which][better])
        return best, margins

    def _wanted(self, examples: Tensor, ranks: Tensor) -> Tensor:
        """[M, R] bool: the rows that each run is to break, if it aims at some: the next nearest ones for every start that does."""
        values = self.question.values(self.output)
        aims = [r for r in range(int(ranks.max()) + 1) if self.losses[r % len(self.losses)] == "targeted"]
        wanted = torch.zeros(len(examples), values.shape[1], dtype=torch.bool, device=values.device)
        for aim, rank in enumerate(aims):
            which = ranks == rank
            if bool(which.any()):
                wanted[which] = self.question.rule.failing(values, aim)[examples[which]]
        return wanted

    def _loss(self, question: Question, output: Tensor, ranks: Tensor, wanted: Tensor) -> Tensor:
        """What each run makes smaller, [M]."""
        rows = question.values(output)
        found = rows.new_zeros(len(rows))
        for number, loss in enumerate(self.losses):
            which = (ranks % len(self.losses) == number).nonzero().squeeze(1)
            if len(which) > 0:
                found = found.index_add(
                    0, which, self._one_loss(loss, question, rows[which], output[which], wanted[which])
                )
        return found

    def _one_loss(self, loss: Loss, question: Question, rows: Tensor, output: Tensor, wanted: Tensor) -> Tensor:
        """What runs with one loss make smaller, [M]; the margin where a loss is not made for the specification."""
        rule, scores = question.rule, question.linear is None
        if loss == "targeted":
            return rows.masked_fill(~wanted, -torch.inf).max(1).values
        value = rule.value(rows)
        if loss == "cross-entropy" and rule.needed == rows.shape[1] and all(isinstance(p, int) for p in rule.parts):
            return -torch.cat([-rows, torch.zeros_like(rows[:, :1])], 1).logsumexp(1)
        if loss == "dlr" and scores and output.shape[1] > 2:
            ranked = output.topk(3, 1).values
            return value / (ranked[:, 0] - ranked[:, 2]).clamp(min=torch.finfo(output.dtype).tiny)
        return value


def _check_time(part: float) -> None:
    """Ends the search if it is part of a work whose time is up."""
    effort = current()
    if effort is not None:
        effort.check()


def _confirm(model: nn.Module | Network, points: Tensor, margins: Tensor, question: Question) -> Tensor:
    """[N] bool: the captured network, evaluated in float64 with its error, breaks the specification, or is on its border."""
    confirmed = torch.zeros_like(margins, dtype=torch.bool)
    some = (~(margins > 0)).nonzero().squeeze(1)
    if len(some) == 0:
        return confirmed
    points, asked = points[some], question.at(some)
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


def margin_of(scores: Tensor, labels: Tensor) -> Tensor:
    """[N]: z_label minus the largest other score."""
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1) - others(scores, labels).amax(1)


def others(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with -inf in place of the label's."""
    return scores.scatter(1, labels.unsqueeze(1), -torch.inf)
