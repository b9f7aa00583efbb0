"""How far rounding may have moved a bound.

A sum of n products of floating-point numbers is wrong by at most n u / (1 - n u) times the sum of their absolute values, where u is
half the machine epsilon, in any order and with or without fused multiplication. A node's error reaches the result multiplied by
the coefficient that stands before it; so do those of pulling coefficients back through it. Sizes are taken over the whole
interval of each activation, since relaxations of wide intervals have large offsets even where the centre is small. What is added
up over all features of a node is not its values but how far they can move, or, with two lines per unit, the lines' offsets.

The intervals themselves are computed, too. What enters an activation may lie outside its interval by as much as rounding has moved
that; there, the function may leave its relaxation, and by how much is one more error of the activation. So errors are found
together with intervals, layer by layer, from the same rows: with the coefficients that there are, which cancel, and not with
absolute weights from layer to layer, which would add up to far more than any network computes. A function mostly leaves its
relaxation on one side only, such as ReLU the upper one: half of that counts as an error to both sides, and half as a drift, which
goes forward with its sign, through the same slopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from autodual.dual import AffineDual, DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet

FEW = 16
"""Roundings beside those of sums: of a band's slope and offsets, of differences, of the margin itself."""
OWN = 1.1
"""Errors are rounded as well, by far less than a tenth."""


def of_sum(terms: int, dtype: torch.dtype) -> float:
    """What a sum of so many terms of total size 1 may be wrong by."""
    part = terms * torch.finfo(dtype).eps / 2
    return OWN * part / (1 - part) if part < 1 else math.inf


@dataclass(frozen=True)
class Outside:
    """How far below and above an interval values may lie that it was computed for."""

    below: Tensor
    above: Tensor

    @classmethod
    def both(cls, error: Tensor) -> Outside:
        return cls(error, error)

    def __getitem__(self, examples: slice) -> Outside:
        return Outside(self.below[examples], self.above[examples])

    @property
    def farther(self) -> Tensor:
        return torch.maximum(self.below, self.above)


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
        self.outside: dict[int, Outside] = {}
        """By node, as far as bounds were computed for it."""
        self.errors: dict[int, Tensor] = {}
        """By activation: how far it may leave its relaxation, and what the affine nodes before it add."""
        self._dtype = region.centre.dtype
        box = region.box()
        self._sizes = [_largest(box)]
        self._moves = [self._sizes[0] if pulls_centres or region.dual_norm is None else box.radius]
        self._since = [self.local(0) + self._over_features(0, self._moves[0])]
        self._drift = [torch.zeros_like(self._sizes[0])]
        self._leaning: dict[int, Tensor] = {}

    def local(self, index: int) -> Tensor:
        """What a node adds to the errors of its operands: forward in proportion to values, back to how far they can move."""
        self._go_on(index)
        forward, back = self._grains(index)
        return forward * self._sizes[index] + back * self._moves[index]

    def since(self, index: int) -> Tensor:
        """What a node and the affine ones before it, back to the last activations, add to those activations' errors."""
        self._go_on(index)
        return self._since[index]

    def drift(self, index: int) -> Tensor:
        """What values have on one side because activations leave their relaxations on one side; zero with two lines per unit."""
        self._go_on(index)
        return self._drift[index]

    def note(self, index: int, error: Tensor | None) -> None:
        """A node has been bounded, where the errors of activations add up to `error`."""
        total = OWN * (self.since(index) if error is None else error + self.since(index))
        below, above = total - self.drift(index), total + self.drift(index)
        self.outside[index] = Outside(below.clamp(min=0), above.clamp(min=0))

    def ending(self, index: int) -> Tensor:
        """The same, with what is added where a linear function of the node is computed."""
        return self.since(index) + self._over_features(index, self._sizes[index])

    def enter(self, index: int, interval: Interval, slopes: tuple[Tensor, ...], offset: Tensor) -> None:
        """Activation `index` has been relaxed for an interval, by lines of these slopes; `offset` is what is added up there."""
        self._go_on(index - 1)
        layer = self._activation(index)
        source = self.network.nodes[index].inputs[0]
        outside = self.outside[source]
        self.intervals[index] = interval
        self._sizes.append(
            _largest(layer.image(Interval(interval.lower - outside.below, interval.upper + outside.above)))
        )
        moves = _steepest(slopes) * (interval.radius + outside.farther) + offset
        self._moves.append(self._sizes[index] if self.pulls_centres else moves)
        self._since.append(torch.zeros_like(self._sizes[index]))
        up, down = _strayed(layer, interval, outside, slopes)
        self._leaning[index] = torch.zeros_like(up) if self.pulls_centres else (up - down) / 2
        strayed = torch.maximum(up, down) if self.pulls_centres else (up + down) / 2
        self._drift.append(slopes[0] * self.drift(source) + self._leaning[index])
        self.errors[index] = self._error(index, slopes, offset, strayed)

    def _error(self, index: int, slopes: tuple[Tensor, ...], offset: Tensor, strayed: Tensor) -> Tensor:
        """Of an activation that has been entered."""
        before = _steepest(slopes) * self.since(self.network.nodes[index].inputs[0])
        return OWN * (self.local(index) + before + strayed + self._over_features(index, offset))

    def error_of_image(self, index: int) -> Tensor:
        """Of an activation whose values are bounded by an interval of their own."""
        flat = (torch.zeros_like(self._sizes[index]),)
        outside = self.outside[self.network.nodes[index].inputs[0]]
        strayed = torch.maximum(*_strayed(self._activation(index), self.intervals[index], outside, flat))
        return self._error(index, flat, self._sizes[index], strayed)

    def with_room(self, index: int, reach: Tensor) -> Tensor:
        """How far values may be from a node's centre, whatever rounding did to both, to the errors before it and to this sum."""
        wider = reach if index not in self.errors else reach + self.errors[index] + self._leaning[index].abs()
        return (1 + 2 * self._grains(index)[0]) * wider + 2 * self.local(index)

    def _go_on(self, index: int) -> None:
        """Through affine nodes; activations are entered by whoever relaxes them."""
        for i in range(len(self._sizes), index + 1):
            node = self.network.nodes[i]
            assert isinstance(node.layer, AffineDual)
            before = zip(*((self._sizes[j], self._moves[j], self._since[j]) for j in node.inputs), strict=True)
            size, moves, since = _together(node.layer.absolute, [list(operands) for operands in before])
            bias = node.layer.bias()
            self._sizes.append(size if bias is None else size + bias.abs().to(size))
            self._moves.append(self._sizes[i] if self.pulls_centres else moves)
            since = since + self.local(i)
            if bias is not None and self.pulls_centres:
                since = since + self._over_features(i, bias.abs().to(size))
            self._since.append(since)
            self._drift.append(node.layer.linear(*(self._drift[j] for j in node.inputs)))

    def _activation(self, index: int) -> ElementwiseDual:
        layer = self.network.nodes[index].layer
        assert isinstance(layer, ElementwiseDual)
        return layer

    def _grains(self, index: int) -> tuple[float, float]:
        """What a node's own sums, forward and back, may be wrong by, for terms of total size 1."""
        node, terms = self.network.nodes[index], (0, 0)
        if isinstance(node.layer, AffineDual):
            terms = node.layer.terms(self.network.operand_shapes(index), node.shape)
        return of_sum(terms[0] + FEW, self._dtype), of_sum(terms[1] + FEW, self._dtype)

    def _over_features(self, index: int, values: Tensor) -> Tensor:
        """The same of a sum of coefficients times values over all features of a node, which others are added to."""
        terms = math.prod(self.network.nodes[index].shape) + len(self.network.nodes) + self.more_terms
        return of_sum(terms, self._dtype) * values


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


def outside_of_both(interval: Interval, found: list[tuple[Interval, Outside]]) -> Outside:
    """How far values may lie outside an interval that lie in each of the found ones, or not farther outside than they say."""
    lowest = reduce(torch.maximum, (other.lower - outside.below for other, outside in found))
    highest = reduce(torch.minimum, (other.upper + outside.above for other, outside in found))
    return Outside(OWN * (interval.lower - lowest).clamp(min=0), OWN * (highest - interval.upper).clamp(min=0))


def _strayed(
    layer: ElementwiseDual, interval: Interval, outside: Outside, slopes: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """How far above and below lines of these slopes values may be that lie between such lines on the interval.

    Outside it, the function is another line, or near one: so it goes away from the first at the difference of their slopes.
    """
    right = Interval(interval.upper, interval.upper + outside.above)
    left = Interval(interval.lower - outside.below, interval.lower)
    if not layer.has_band:
        either = reduce(
            torch.maximum, (layer.image(end).width + _steepest(slopes) * end.width for end in (right, left))
        )
        return either, either
    above, below = layer.band(right), layer.band(left)
    rises = [(above.slope - slope) * outside.above for slope in slopes]
    rises += [(slope - below.slope) * outside.below for slope in slopes]
    bent = 2 * torch.maximum(above.radius, below.radius)
    up = reduce(torch.maximum, (rise.clamp(min=0) for rise in rises)) + bent
    down = reduce(torch.maximum, (rise.neg().clamp(min=0) for rise in rises)) + bent
    return up, down


def _together(function: Callable[..., Tensor], calls: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """The results of several calls with a batch each, as one call with all of them."""
    return function(*map(torch.cat, zip(*calls, strict=True))).chunk(len(calls))


def _steepest(slopes: tuple[Tensor, ...]) -> Tensor:
    return reduce(torch.maximum, (slope.abs() for slope in slopes))


def _largest(interval: Interval) -> Tensor:
    return torch.maximum(interval.lower.abs(), interval.upper.abs())
