"""One model of several, ready to be bounded: bounds on its margins, and what rounding leaves of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, AutodualError
from autodual.certificates.proof import prove as prove_question
from autodual.certificates.proof import prove_in_double, prove_rows
from autodual.dual import DualNetwork
from autodual.engines.effort import COPIES, Budget
from autodual.engines.ibp import IBP
from autodual.engines.prepare import Prepared, prepare
from autodual.engines.results import BoundEngine, ProbableProof, Proof, exceeds
from autodual.engines.rounding import gamma_of_sum
from autodual.sets import Perturbation
from autodual.spec import Label, Spec, check_classifier, margins

# Margins of scores, and what rounding leaves of bounds on them.


@dataclass(frozen=True)
class Lower:
    """Lower bounds with their errors: -inf where nothing is known, +inf where there is nothing to prove."""

    bound: Tensor
    slack: Tensor
    """How far rounding may have moved each bound."""
    run_error: Tensor
    """How far the network as it runs may be from the exact function."""

    @classmethod
    def of(cls, proof: Proof, x: Tensor) -> Lower:
        """Takes the bounds of a proof, [N, K]; unknown where they or their slack are not finite."""
        found = (proof.lower, proof.slack, proof.run_error)
        bound, slack, run_error = (values.detach().expand(len(x), -1) for values in found)
        known = bound.isfinite() & slack.isfinite()
        return cls(torch.where(known, bound, -torch.inf), torch.where(known, slack, 0.0), run_error)

    @classmethod
    def nothing(cls, x: Tensor, rows: int) -> Lower:
        """Bounds that say nothing, [N, K]."""
        unknown = torch.full((len(x), rows), -torch.inf, dtype=torch.float64, device=x.device)
        return cls(unknown, torch.zeros_like(unknown), torch.full_like(unknown, torch.inf))

    def beyond(self, labels: Tensor) -> Lower:
        """Bounds on margins [N, C], with nothing to prove at the label itself."""
        return Lower(self.bound.scatter(1, labels.unsqueeze(1), torch.inf), self.slack, self.run_error)

    def at(self, some: Tensor) -> Lower:
        return Lower(*(getattr(self, f.name)[some] for f in fields(self)))

    @property
    def certified(self) -> Tensor:
        """[N] bool: all margins are positive, whatever rounding did to their bounds."""
        return self._all(self.slack)

    @property
    def certified_as_run(self) -> Tensor:
        """[N] bool: all margins of the network as it runs are positive, too."""
        return self._all(self.slack, self.run_error)

    def _all(self, *errors: Tensor) -> Tensor:
        return (exceeds(self.bound, *errors) | (self.bound == torch.inf)).all(1)

    def at_least(self, dtype: torch.dtype) -> Tensor:
        """What differences of scores, as they are computed at inference in `dtype`, exceed for certain."""
        exact = self.bound - self.slack - self.run_error
        subtracting = gamma_of_sum(4, dtype) * (self.bound.abs() + self.slack + self.run_error)
        return torch.where(exact.isfinite(), exact - subtracting, -torch.inf)

    def better(self, other: Lower) -> Lower:
        """The bound that is proved to be larger, of two on the same numbers."""
        mine = self.bound - self.slack >= other.bound - other.slack
        bound, slack = torch.where(mine, self.bound, other.bound), torch.where(mine, self.slack, other.slack)
        return Lower(bound, slack, self.run_error)

    @classmethod
    def total(cls, parts: list[Lower], run_error: Tensor) -> Lower:
        """The sum of bounds, with what adding them up may round away; run_error: of the models' sum."""
        bounds, slacks = torch.stack([p.bound for p in parts]), torch.stack([p.slack for p in parts])
        size = torch.where(bounds.isfinite(), bounds.abs() + slacks, 0.0).sum(0)
        slack = slacks.sum(0) + size * gamma_of_sum(2 * len(parts) + 4, bounds.dtype)
        # Infinite at the label alone: any other sum that is infinite has overflowed.
        bound, known = bounds.sum(0), (bounds == torch.inf).all(0)
        return cls(torch.where(known | (bound < torch.inf), bound, -torch.inf), slack, run_error)


# One model of several, ready to be bounded; and the checks that all of them share.


@dataclass(frozen=True)
class Stage:
    """One model with the parameters that it has now, to be bounded in a ball by an engine. It lives for one call."""

    number: int
    prepared: Prepared
    ball: Perturbation
    engine: BoundEngine

    @property
    def network(self) -> DualNetwork:
        return self.prepared.network

    @property
    def classes(self) -> int:
        return self.prepared.graph.output_shape[0]

    def scores(self, x: Tensor) -> Tensor:
        return self.network.forward(x)

    def certify(self, x: Tensor, labels: Tensor) -> Lower:
        """[N, C]: bounds on the margins of a label, as sharp as `ad.certify` finds them; +inf at the label."""
        with at_stage(self.number):
            everyone = torch.ones_like(labels, dtype=torch.bool)
            asked = Label(labels).put(x, (self.classes,))
            proof = prove_question(self.prepared, x, asked, self.ball, self.engine, everyone)
            return self._checked(proof, x).beyond(labels)

    def labels_exactly(self, x: Tensor, labels: Tensor, some: Tensor) -> Tensor:
        """[N] bool: those of `some` [N] to which the stage would give this label without any rounding, too. Certificates are about
        that label: who certifies another one nearby would give that one to x."""
        index = some.nonzero().squeeze(1)
        if len(index) == 0:
            return some
        alone = replace(self, ball=self.ball.with_eps(0.0), engine=IBP())
        return some.index_copy(0, index, alone.certify(x[index], labels[index]).certified)

    def margins(self, x: Tensor, labels: Tensor) -> Lower:
        """[N, C]: lower bounds on z_label - z_j in the dtype of x; +inf at the label."""
        with at_stage(self.number):
            return self._lower(x, margins(labels, self.classes, x.dtype)).beyond(labels)

    def margins_in_double(self, x: Tensor, labels: Tensor) -> Lower | None:
        """Bounds in float64, where float32 could not tell; None where they cannot be had."""
        every, spec = torch.arange(len(x), device=x.device), margins(labels, self.classes, torch.float64)
        found = self._lower_in_double(x, spec, every)
        return None if found is None else found.beyond(labels)

    def differences(self, x: Tensor) -> Lower:
        """[N, C, C]: at [a, b], a lower bound on z_a - z_b; -inf on the diagonal."""
        spec = self._pairs(x)
        with at_stage(self.number):
            parts = [self._lower(part, spec) for part in x.split(self._examples_at_once(x))]
        return self._square(parts)

    def differences_in_double(self, x: Tensor) -> Lower | None:
        """Bounds in float64, where float32 could not tell; None where they cannot be had."""
        spec, parts = self._pairs(x.double()), list[Lower]()
        for part in torch.arange(len(x), device=x.device).split(self._examples_at_once(x.double())):
            found = self._lower_in_double(x, spec, part)
            if found is None:
                return None
            parts.append(found)
        return self._square(parts)

    def _lower(self, x: Tensor, spec: Spec) -> Lower:
        """Bounds on the rows of `spec`."""
        return self._checked(prove_rows(self.prepared, x, spec, self.ball, self.engine), x)

    def _lower_in_double(self, x: Tensor, spec: Spec, some: Tensor) -> Lower | None:
        """Bounds on the rows of `spec` for some examples, in float64; None where they cannot be had."""
        proof = prove_in_double(self.prepared, x, spec, self.ball, self.engine, some)
        return None if proof is None else self._checked(proof, x[some])

    def _checked(self, proof: Proof | ProbableProof, x: Tensor) -> Lower:
        """The bounds of a proof, which must hold for certain."""
        if isinstance(proof, ProbableProof):
            raise ArgumentError(
                f"{self.engine!r} promises each bound with probability 1 - delta, and every stage needs some: their deltas add up. "
                f"Use Dual(), Crown() or IBP() for several models"
            )
        return Lower.of(proof, x)

    def _pairs(self, x: Tensor) -> Spec:
        identity = torch.eye(self.classes, dtype=x.dtype, device=x.device)
        return Spec((identity.unsqueeze(1) - identity.unsqueeze(0)).reshape(-1, 1, self.classes))

    def _examples_at_once(self, x: Tensor) -> int:
        """How many examples to bound at once, so that all pairs of classes fit into memory: an engine splits examples, not rows."""
        widest = max(math.prod(node.shape) for node in self.network.nodes)
        example = self.classes**2 * widest * x.element_size() * COPIES
        return max(1, Budget.of(None, x.device).max_bytes // example)

    def _square(self, parts: list[Lower]) -> Lower:
        kinds = zip(*((p.bound, p.slack, p.run_error) for p in parts), strict=True)
        bound, slack, run_error = (torch.cat(kind).reshape(-1, self.classes, self.classes) for kind in kinds)
        diagonal = torch.eye(self.classes, dtype=torch.bool, device=bound.device)
        return Lower(bound.masked_fill(diagonal, -torch.inf), slack, run_error)


def open_stages(models: Sequence[nn.Module], x: Tensor, ball: Perturbation, engine: BoundEngine) -> list[Stage]:
    """The stages for inputs like x, checked to be classifiers with the same classes."""
    stages = []
    for number, model in enumerate(models):
        with at_stage(number):
            prepared = prepare(model, x)
            check_classifier(prepared.graph.output_shape)
        stages.append(Stage(number, prepared, ball, engine))
    counts = [stage.classes for stage in stages]
    if len(set(counts)) > 1:
        raise ArgumentError(f"models: all stages must have the same classes, but they have {counts} of them")
    return stages


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
