"""How far rounding may have moved a bound.

A sum of n products of floating-point numbers is wrong by at most n u / (1 - n u) times the sum of their absolute values, where u is
half the machine epsilon, in any order and with or without fused multiplication. A node's error reaches the result multiplied by
the coefficient that stands before it; so do those of pulling coefficients back through it, and of adding up over its features.
Sizes are taken over the whole interval of each activation, since relaxations of wide intervals have large offsets even where
the centre is small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec

FEW = 32
"""Roundings beside those of sums: of a band's slope and offsets, of differences, of the margin itself."""
OWN = 1.1
"""The slack is rounded as well, by far less than a tenth."""


def of_sum(terms: int, dtype: torch.dtype) -> float:
    """What a sum of so many terms of total size 1 may be wrong by."""
    part = terms * torch.finfo(dtype).eps / 2
    return OWN * part / (1 - part) if part < 1 else math.inf


class Rounding:
    """Sizes of what is added up at every node, for the bounds `intervals` on what enters the activations."""

    def __init__(
        self, network: DualNetwork, region: InputSet, intervals: dict[int, Interval], more_terms: int = 0
    ) -> None:
        """more_terms: of sums that are longer than a backward pass has them."""
        self.network, self.intervals, self.more_terms = network, intervals, more_terms
        self._dtype = region.centre.dtype
        sizes = [_largest(region.box())]
        for index, node in enumerate(network.nodes[1:], start=1):
            if isinstance(node.layer, AffineDual):
                bias, size = node.layer.bias(), node.layer.absolute(*(sizes[i] for i in node.inputs))
                sizes.append(size if bias is None else size + bias.abs().to(size))
            else:
                assert isinstance(node.layer, ElementwiseDual)
                sizes.append(_largest(node.layer.image(intervals[index])))
        self.local = [self._grain(i) * size for i, size in enumerate(sizes)]
        """Errors that a node adds to those of its operands."""

    def accumulated(self) -> list[Tensor]:
        """How far the intervals of all nodes may be off that were computed layer by layer."""
        errors = self.local[:1]
        for index, node in enumerate(self.network.nodes[1:], start=1):
            operands = [errors[i] for i in node.inputs]
            if isinstance(node.layer, AffineDual):
                errors.append(node.layer.absolute(*operands) + self.local[index])
            else:
                assert isinstance(node.layer, ElementwiseDual)
                before = self.intervals[index]
                wider = node.layer.image(Interval(before.lower - operands[0], before.upper + operands[0]))
                image = node.layer.image(before)
                moved = torch.maximum(image.lower - wider.lower, wider.upper - image.upper)
                errors.append(moved + self.local[index])
        return errors

    def _grain(self, index: int) -> float:
        """What all sums at a node may be wrong by, for terms of total size 1."""
        node = self.network.nodes[index]
        terms = math.prod(node.shape) + FEW + self.more_terms
        if isinstance(node.layer, AffineDual):
            terms += node.layer.terms(self.network.operand_shapes(index), node.shape)
        return of_sum(terms, self._dtype)


def prove_rows(solver: Solver, index: int, spec: Spec, errors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Bounds from below on the rows and their rounding slack, both [N, K]; errors of all nodes, in their order."""
    rows = solver.rows(index, spec)
    terms: list[Tensor] = []
    lower = solver.lower(
        index, rows, lambda node, a: terms.append(rows.inner(node, a.abs(), solver.narrow(node, errors[node])))
    )
    return lower.T, OWN * sum(terms[1:], terms[0]).T


def _largest(interval: Interval) -> Tensor:
    return torch.maximum(interval.lower.abs(), interval.upper.abs())
