"""How far rounding may have moved a bound.

A sum of n products of floating-point numbers is wrong by at most n u / (1 - n u) times the sum of their absolute values, where u is
half the machine epsilon, in any order and with or without fused multiplication. A node's error reaches the result multiplied by
the coefficient that stands before it; so do those of pulling coefficients back through it. Sizes are taken over the whole
interval of each activation, since relaxations of wide intervals have large offsets even where the centre is small. What is added
up over all features of a node is not its values but how far they can move, or, with two lines per unit, the lines' offsets.

The intervals themselves are computed, too. What enters an activation may lie outside its interval by as much as rounding has moved
that; there, the function may leave its relaxation, and by how much is one more error of the activation. So errors are found
together with intervals, layer by layer, from the same rows: with the coefficients that there are, which cancel, and not with
absolute weights from layer to layer, which would add up to far more than any network computes.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from autodual.dual import AffineDual, DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet

FEW = 32
"""Roundings beside those of sums: of a band's slope and offsets, of differences, of the margin itself."""
OWN = 1.1
"""Errors are rounded as well, by far less than a tenth."""


def of_sum(terms: int, dtype: torch.dtype) -> float:
    """What a sum of so many terms of total size 1 may be wrong by."""
    part = terms * torch.finfo(dtype).eps / 2
    return OWN * part / (1 - part) if part < 1 else math.inf


class Rounding:
    """The errors of one computation, in the order in which its activations are relaxed."""

    def __init__(
        self, network: DualNetwork, region: InputSet, more_terms: int = 0, pulls_centres: bool = False
    ) -> None:
        """more_terms: of sums over features that are longer than a backward pass has them.

        pulls_centres: whether biases and the input's centre are added up over features, too, and not computed forward.
        """
        self.network, self.more_terms, self.pulls_centres = network, more_terms, pulls_centres
        self.intervals: dict[int, Interval] = {}
        """By activation: what its relaxation was made for."""
        self.outside: dict[int, Tensor] = {}
        """By node: how far its values may lie outside the interval that was computed for it."""
        self.errors: dict[int, Tensor] = {}
        """By activation: how far it may leave its relaxation, and what the affine nodes before it add."""
        self._dtype = region.centre.dtype
        self._sizes = [_largest(region.box())]
        moves = self._sizes[0] if pulls_centres or region.dual_norm is None else region.radius.abs()
        self._since = [self.local(0) + self._over_features(0, moves)]

    def local(self, index: int) -> Tensor:
        """What a node adds to the errors of its operands."""
        self._go_on(index)
        return self._grain(index) * self._sizes[index]

    def since(self, index: int) -> Tensor:
        """What a node and the affine ones before it, back to the last activations, add to those activations' errors."""
        self._go_on(index)
        return self._since[index]

    def ending(self, index: int) -> Tensor:
        """The same, with what is added where a linear function of the node is computed."""
        return self.since(index) + self._over_features(index, self._sizes[index])

    def enter(self, index: int, interval: Interval, slopes: tuple[Tensor, ...], offset: Tensor) -> None:
        """Activation `index` has been relaxed for an interval, by lines of these slopes; `offset` is what is added up there."""
        self._go_on(index - 1)
        layer = self._activation(index)
        beyond = self.outside[self.network.nodes[index].inputs[0]]
        self.intervals[index] = interval
        self._sizes.append(_largest(layer.image(Interval(interval.lower - beyond, interval.upper + beyond))))
        self._since.append(torch.zeros_like(self._sizes[index]))
        self.errors[index] = self._error(index, slopes, offset)

    def _error(self, index: int, slopes: tuple[Tensor, ...], offset: Tensor) -> Tensor:
        """Of an activation that has been entered."""
        source = self.network.nodes[index].inputs[0]
        steepest = reduce(torch.maximum, (slope.abs() for slope in slopes))
        strayed = _strayed(self._activation(index), self.intervals[index], self.outside[source], slopes)
        summed = self._over_features(index, offset)
        return OWN * (self.local(index) + steepest * self.since(source) + strayed + summed)

    def error_of_image(self, index: int) -> Tensor:
        """Of an activation whose values are bounded by an interval of their own."""
        return self._error(index, (torch.zeros_like(self._sizes[index]),), self._sizes[index])

    def with_room(self, index: int, reach: Tensor) -> Tensor:
        """How far values may be from a node's centre, whatever rounding did to both, to the errors before it and to this sum."""
        wider = reach if index not in self.errors else reach + self.errors[index]
        return (1 + 2 * self._grain(index)) * wider + 2 * self.local(index)

    def _go_on(self, index: int) -> None:
        """Through affine nodes; activations are entered by whoever relaxes them."""
        for i in range(len(self._sizes), index + 1):
            node = self.network.nodes[i]
            assert isinstance(node.layer, AffineDual)
            bias, size = node.layer.bias(), node.layer.absolute(*(self._sizes[j] for j in node.inputs))
            self._sizes.append(size if bias is None else size + bias.abs().to(size))
            since = node.layer.absolute(*(self._since[j] for j in node.inputs)) + self.local(i)
            if bias is not None and self.pulls_centres:
                since = since + self._over_features(i, bias.abs().to(size))
            self._since.append(since)

    def _activation(self, index: int) -> ElementwiseDual:
        layer = self.network.nodes[index].layer
        assert isinstance(layer, ElementwiseDual)
        return layer

    def _grain(self, index: int) -> float:
        """What a node's own sums, forward and back, may be wrong by, for terms of total size 1."""
        node, terms = self.network.nodes[index], FEW
        if isinstance(node.layer, AffineDual):
            terms += node.layer.terms(self.network.operand_shapes(index), node.shape)
        return of_sum(terms, self._dtype)

    def _over_features(self, index: int, values: Tensor) -> Tensor:
        """The same of a sum of coefficients times values over all features of a node."""
        return of_sum(math.prod(self.network.nodes[index].shape) + self.more_terms, self._dtype) * values


class IntervalErrors:
    """How far rounding may have moved the intervals of interval arithmetic, where errors do add up from layer to layer."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding
        self.values: dict[int, Tensor] = {0: rounding.local(0)}

    def at(self, index: int) -> Tensor:
        for i in range(index + 1):
            if i not in self.values:
                layer = self.rounding.network.nodes[i].layer
                if isinstance(layer, AffineDual):
                    operands = [self.values[j] for j in self.rounding.network.nodes[i].inputs]
                    self.values[i] = OWN * (layer.absolute(*operands) + self.rounding.local(i))
                else:
                    self.values[i] = self.rounding.error_of_image(i)
        return self.values[index]

    def narrow(self, index: int, error: Tensor) -> None:
        """Where an interval was narrowed from outside."""
        self.values[index] = error


def outside_of_both(interval: Interval, found: list[tuple[Interval, Tensor]]) -> Tensor:
    """How far values may lie outside an interval that lie in each of the found ones, up to its error."""
    lowest = reduce(torch.maximum, (other.lower - error for other, error in found))
    highest = reduce(torch.minimum, (other.upper + error for other, error in found))
    return OWN * torch.maximum(interval.lower - lowest, highest - interval.upper).clamp(min=0)


def _strayed(layer: ElementwiseDual, interval: Interval, by: Tensor, slopes: tuple[Tensor, ...]) -> Tensor:
    """How far values may be from lines that bound them on an interval, up to `by` outside it.

    There, the function is another line, or near one: so it goes away from the first at the difference of their slopes.
    """
    ends = Interval(interval.upper, interval.upper + by), Interval(interval.lower - by, interval.lower)
    found = []
    for end in ends:
        if layer.has_band:
            band = layer.band(end)
            found += [(band.slope - slope).abs() * by + 2 * band.radius for slope in slopes]
        else:
            found += [layer.image(end).width + slope.abs() * by for slope in slopes]
    return reduce(torch.maximum, found)


def _largest(interval: Interval) -> Tensor:
    return torch.maximum(interval.lower.abs(), interval.upper.abs())
