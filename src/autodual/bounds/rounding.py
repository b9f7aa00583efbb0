"""How far rounding may have moved a bound: a proof, whatever order the sums were taken in.

A sum of n products of floating-point numbers is wrong by at most n u / (1 - n u) times the sum of their absolute values, where u is
half the machine epsilon, in any order and with or without fused multiplication. A node's error reaches the result multiplied by
the coefficient that stands before it; so do those of pulling coefficients back through it, and of adding up over its features.
Sizes are taken over the whole interval of each activation, since relaxations of wide intervals have large offsets even where
the centre is small. And the bounds on what enters an activation are widened by their own error before it is relaxed.
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
    """Errors of all nodes, computed as far as asked for; activations are told of by the owner, in order."""

    def __init__(self, network: DualNetwork, region: InputSet, more_terms: int = 0) -> None:
        """more_terms: of sums that are longer than a backward pass has them."""
        self.network, self.more_terms = network, more_terms
        self._dtype = region.centre.dtype
        self.sizes: dict[int, Tensor] = {0: _largest(region.box())}
        """Of the terms whose sum a node is, anywhere in the set."""
        self.local: dict[int, Tensor] = {0: self._grain(0) * self.sizes[0]}
        """Errors that a node adds to those of its operands."""
        self.errors: dict[int, Tensor] = dict(self.local)
        """How far a node's bounds may be off."""

    def settle(self, index: int, interval: Interval) -> Interval:
        """Bounds on what enters activation `index` that hold in spite of rounding, from computed ones."""
        layer, source = self.network.nodes[index].layer, self.network.nodes[index].inputs[0]
        assert isinstance(layer, ElementwiseDual)
        self.up_to(source)
        error = self.errors[source]
        wide = Interval(interval.lower - error, interval.upper + error)
        image, wide_image = layer.image(interval), layer.image(wide)
        moved = torch.maximum(image.lower - wide_image.lower, wide_image.upper - image.upper)
        self.sizes[index] = _largest(wide_image)
        self.local[index] = self._grain(index) * self.sizes[index]
        self.errors[index] = moved + self.local[index]
        return wide

    def relaxed(self, index: int, steepest: Tensor) -> None:
        """Activation `index` was relaxed by lines of at most such slopes, which pass errors on to the bounds of later nodes."""
        passed = steepest.abs() * self.errors[self.network.nodes[index].inputs[0]] + self.local[index]
        self.errors[index] = torch.maximum(self.errors[index], passed)

    def up_to(self, index: int) -> None:
        """Affine nodes, as far as that; activations before have been told of."""
        for i in range(1, index + 1):
            layer = self.network.nodes[i].layer
            if i in self.errors or not isinstance(layer, AffineDual):
                continue
            inputs, bias = self.network.nodes[i].inputs, layer.bias()
            size = layer.absolute(*(self.sizes[j] for j in inputs))
            self.sizes[i] = size if bias is None else size + bias.abs().to(size)
            self.local[i] = self._grain(i) * self.sizes[i]
            self.errors[i] = layer.absolute(*(self.errors[j] for j in inputs)) + self.local[i]

    def _grain(self, index: int) -> float:
        """What all sums at a node may be wrong by, for terms of total size 1."""
        node = self.network.nodes[index]
        terms = math.prod(node.shape) + FEW + self.more_terms
        if isinstance(node.layer, AffineDual):
            terms += node.layer.terms(self.network.operand_shapes(index), node.shape)
        return of_sum(terms, self._dtype)


def prove_rows(solver: Solver, index: int, spec: Spec, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """Bounds from below on the rows and their rounding slack, both [N, K]; all activations are relaxed."""
    rounding.up_to(index)
    rows = solver.rows(index, spec)
    terms: list[Tensor] = []
    lower = solver.lower(
        index, rows, lambda node, a: terms.append(rows.inner(node, a.abs(), solver.narrow(node, rounding.local[node])))
    )
    return lower.T, OWN * sum(terms[1:], terms[0]).T


def steepest_line(layer: ElementwiseDual, interval: Interval) -> Tensor:
    """The largest slope that any engine would relax a layer by."""
    lines = layer.lines(interval)
    slopes = [lines.lower_slope, lines.upper_slope, *([layer.band(interval).slope] if layer.has_band else [])]
    return torch.stack([slope.abs().expand_as(interval.lower) for slope in slopes]).amax(0)


def _largest(interval: Interval) -> Tensor:
    return torch.maximum(interval.lower.abs(), interval.upper.abs())
