"""One model of several, ready to be bounded; and the checks that all of them share."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError, UnsoundError
from autodual.bounds.base import BoundEngine
from autodual.bounds.memory import COPIES, Budget
from autodual.bounds.prepare import dual_network
from autodual.certify.validate import check_classifier
from autodual.dual import DualNetwork
from autodual.sets import Perturbation
from autodual.spec import Spec, margins


@dataclass(frozen=True)
class Stage:
    """Dual layers at today's parameters. Lives for one call."""

    number: int
    network: DualNetwork

    @property
    def classes(self) -> int:
        return self.network.nodes[self.network.output].shape[0]

    def scores(self, x: Tensor) -> Tensor:
        return self.network.forward(x)

    def certifies(self, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine) -> Tensor:
        """[N] bool: proved that the stage gives every input of the ball this label; the test that `certify` makes."""
        return (self.margins(x, labels, ball, engine) > 0).all(1)

    def margins(self, x: Tensor, labels: Tensor, ball: Perturbation, engine: BoundEngine) -> Tensor:
        """[N, C]: lower bounds on z_label - z_j less their slack; +inf at the label, -inf where nothing is known."""
        with at_stage(self.number):
            lower = proved(self.network, x, ball, engine, margins(labels, self.classes, x.dtype), slacks=1)
        return lower.masked_fill(torch.nn.functional.one_hot(labels, self.classes).bool(), torch.inf)

    def differences(self, x: Tensor, ball: Perturbation, engine: BoundEngine) -> Tensor:
        """[N, C, C]: at [a, b], a lower bound on z_a - z_b less twice its slack; -inf where nothing is known, and on the diagonal.

        Twice: once for the bound itself, and once for the scores that are compared with a threshold at inference.
        """
        identity = torch.eye(self.classes, dtype=x.dtype, device=x.device)
        spec = Spec((identity.unsqueeze(1) - identity.unsqueeze(0)).reshape(-1, 1, self.classes))
        widest = max(math.prod(node.shape) for node in self.network.nodes)
        example = self.classes**2 * widest * x.element_size() * COPIES
        size = max(1, Budget.of(None, x.device).max_bytes // example)  # an engine splits examples, not rows
        with at_stage(self.number):
            parts = [proved(self.network, part, ball, engine, spec, slacks=2) for part in x.split(size)]
        lower = torch.cat(parts).reshape(len(x), self.classes, self.classes)
        return lower.masked_fill(identity.bool(), -torch.inf)


def open_stages(models: Sequence[nn.Module], x: Tensor) -> list[Stage]:
    """The stages for inputs like x, checked to be classifiers with the same classes."""
    stages = []
    for number, model in enumerate(models):
        with at_stage(number):
            network = dual_network(model, x)
            check_classifier(network.nodes[network.output].shape)
        stages.append(Stage(number, network))
    counts = [stage.classes for stage in stages]
    if len(set(counts)) > 1:
        raise ArgumentError(f"models: all stages must have the same classes, but they have {counts} of them")
    if counts[0] < 2:
        raise ArgumentError("models: at least two classes are needed, found 1")
    return stages


def proved(
    network: DualNetwork, x: Tensor, ball: Perturbation, engine: BoundEngine, spec: Spec, slacks: float
) -> Tensor:
    """[N, K]: lower bounds on the rows of `spec` less so many times their slack; -inf where a bound is NaN or infinite."""
    proof = engine.prove(network, ball.around(x), spec)
    if proof.confidence is not None:
        raise ArgumentError(
            f"{engine!r} promises each bound with probability 1 - delta, and every stage needs some: their deltas add up. "
            f"Use Dual(), Crown() or IBP() for several models"
        )
    if not proof.sound:
        raise UnsoundError(f"{engine!r} only estimates bounds: they certify nothing. Use Dual(), Crown() or IBP()")
    lower = proof.lower.detach() - slacks * proof.slack.detach()
    return torch.where(lower.isfinite(), lower, -torch.inf).expand(len(x), -1)


@contextlib.contextmanager
def at_stage(number: int) -> Iterator[None]:
    """Errors inside say which stage they are about."""
    try:
        yield
    except AutodualError as error:
        raise type(error)(f"stage {number}: {error}") from error


def check_models(models: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise ArgumentError(f"models must be a list of modules, got one {type(models).__name__}; write [model]")
    if not isinstance(models, list | tuple | nn.ModuleList):
        raise ArgumentError(f"models must be a list of modules, got {type(models).__name__}")
    if len(models) == 0:
        raise ArgumentError("models: needs at least one model")
    for number, model in enumerate(models):
        if not isinstance(model, nn.Module):
            kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
            raise ArgumentError(f"models[{number}] must be a torch.nn.Module, got {kind}")
    return tuple(models)
