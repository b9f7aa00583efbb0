"""Margins that float32 cannot tell from zero, once more in float64, where rounding is half a billion times smaller."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from autodual._errors import AutodualError
from autodual.bounds.base import BoundEngine, Proof
from autodual.bounds.prepare import dual_network
from autodual.dual import DualNetwork
from autodual.graph import Network
from autodual.sets import InputSet, Perturbation
from autodual.spec import Spec, margins

UNLIKELY = 64
"""Rounding moves margins by a far smaller part of what it might: one that is farther below zero than this part stays there."""


class SecondLook:
    """A model's twin in float64, made when it is needed; where that cannot be had, it says so, and nothing becomes clearer."""

    def __init__(self, model: nn.Module | Network, engine: BoundEngine) -> None:
        self.module = model.model if isinstance(model, Network) else model
        self.engine = engine
        self._twin: DualNetwork | None = None
        self._explained = False

    def at(self, proof: Proof, x: Tensor, labels: Tensor, ball: Perturbation, right: Tensor) -> Proof:
        """The proof with sharper margins for those `right` examples that are certified or not depending on what rounding did.

        A proof with a probability is left alone: to try twice would double its delta.
        """
        if x.dtype != torch.float32 or proof.confidence is not None:
            return proof
        own = torch.nn.functional.one_hot(labels, proof.lower.shape[1]).bool()
        lower, slack = proof.lower.expand_as(own), proof.slack.expand_as(own)
        possible, proved = ((lower > -slack / UNLIKELY) | own).all(1), ((lower > slack) | own).all(1)
        unclear = (right & possible & ~proved).nonzero().squeeze(1)
        if len(unclear) == 0:
            return proof
        found = self.look(x, margins(labels[unclear], own.shape[1], torch.float64), ball, unclear)
        if found is None:
            return proof
        return replace(
            proof,
            lower=lower.index_copy(0, unclear, _towards(-torch.inf, found.lower)),
            slack=slack.index_copy(0, unclear, _towards(torch.inf, found.slack)),
        )

    def look(self, x: Tensor, spec: Spec, ball: Perturbation, examples: Tensor) -> Proof | None:
        """The rows of `spec` for some examples, all in float64; None where that cannot be had."""
        try:
            return self._look(x, spec, ball, examples)
        except (AutodualError, RuntimeError, TypeError, AttributeError, copy.Error) as error:
            self._explain(error, len(examples))
            return None

    def _look(self, x: Tensor, spec: Spec, ball: Perturbation, examples: Tensor) -> Proof:
        if self._twin is None:
            self._twin = dual_network(copy.deepcopy(self.module).double(), x[examples].double())
        proofs, done = list[Proof](), 0
        for region in _regions(ball, x.double(), examples):
            proofs.append(self.engine.prove(self._twin, region, spec[slice(done, done + len(region))]))
            done += len(region)
        lower, slack = torch.cat([p.lower for p in proofs]), torch.cat([p.slack for p in proofs])
        return replace(proofs[0], lower=lower, slack=slack)

    def _explain(self, error: Exception, examples: int) -> None:
        """Once: these stay unknown, as they are in float32, whatever a model or the memory has against float64."""
        if not self._explained:
            reason = (str(error).splitlines() or [""])[0]
            warnings.warn(
                f"{examples} examples are certified or not depending on rounding in float32, and could not be looked at in float64 "
                f"({type(error).__name__}: {reason}); they count as not certified",
                stacklevel=5,
            )
        self._explained = True


def _regions(ball: Perturbation, x: Tensor, examples: Tensor) -> Iterator[InputSet]:
    """The sets of some examples: at once where eps allows it, else one by one."""
    eps = ball.eps
    if not isinstance(eps, Tensor) or eps.numel() == 1:
        yield ball.around(x[examples])
    elif eps.dim() == x.dim() and len(eps) == len(x):
        yield ball.with_eps(eps.to(x.device)[examples]).around(x[examples])
    else:
        region = ball.around(x)
        yield from (region[slice(i, i + 1)] for i in examples.tolist())


def _towards(end: float, values: Tensor) -> Tensor:
    """In float32, and not on the wrong side of what it was."""
    single = values.float()
    return torch.nextafter(single, torch.full_like(single, end))
