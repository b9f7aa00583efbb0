"""How far rounding may have moved a bound, and how far the network as it runs may be from the one that is bounded.

With u half the machine epsilon, a sum of n products, in any order, fused or not, satisfies [Higham, ch. 3]

    |fl(sum) - sum|  <=  gamma_n sum |products| + n tiny,      gamma_n = n u / (1 - n u).

**Bounds.** Node i is z_i = W z_j + b, or z_i = f(z_j) relaxed by f(z) in a z + m +- r on an interval. For every node:

              affine                                 activation
    size_i    |W| size_j + |b|                       max |f| and |c_i|               >= |z_i| and |c_i|
    moves_i   |W| moves_j                            |a| max |z_j - c_j| + r         >= |z_i - c_i|
    local_i   gamma size_i + gamma' moves_i          the same + error of f           what computing the node adds
              + errors of constants
    since_i   |W| since_j + local_i                  0                               errors since the last activations

The input has size_0 = the largest |x|, moves_0 = the radius, and since_0 = local_0 + gamma_n moves_0. What enters an activation
lies in an interval; for local_i, |a| |z_j| and |a| |c_j| take the place of size_i where they are larger.

gamma belongs to the centre c, which goes forward; gamma' to coefficients, which are pulled back and multiplied by how far the node
may be from its centre. That is half the width of an interval around c, and up to |c - middle| more where another bound has cut the
interval. (Engines with two lines per unit pull centres back, too: there, moves_i = size_i, and since_i has gamma_n |b| in addition.
Where columns of generators go forward, gamma' is the larger of both.) What enters an activation was bounded by computed numbers, so
it may lie `outside` its interval by the slack of those bounds, where f may stray from its lines. So an activation is wrong by

    error_i  =  local_i + strayed_i + |a| since_j + gamma_n r,

an error at a node reaches a row of coefficients nu as |nu_i| times the error, and so a lower bound on nu'z is wrong by at most

    slack  =  sum over activations |nu_i| error_i  +  |nu| since  +  gamma_n |nu| size.

The rows are those that are pulled back for the bounds: their coefficients cancel, where absolute weights from layer to layer would
add up to far more than any network computes. A function mostly strays to one side, such as ReLU above its upper line: half of that
counts as an error to both sides, and half as a `drift`, which goes forward with its sign, through the same slopes.

**The network as it runs.** In its own dtype, PyTorch computes fl z_i instead of z_i for the same input. With run_i >= |fl z_i - z_i|,

    run_i  =  |W| run_j + gamma (size_i + |W| run_j) + what the operation's own evaluation adds       affine; run = 0 at the input
    run_i  =  max |f(z) - f(z')| over |z - z'| <= run_j, + error of f                                 activation

These absolute weights add up. For margins, the error is pulled back along the rows: an activation does to an error what its line does,
up to bent_i = max |f(z) - f(z') - a (z - z')|. So a row of the network as it runs differs from that of the exact function by at most

    run error  =  sum over activations |nu_i| (bent_i + error of f + |a| run_since_j)  +  |nu| run_since

where run_since adds up, as `since` does, what evaluating the affine nodes since the last activations has added, and gamma' |W| run_j:
coefficients that are pulled back are rounded, and multiplied by the run errors of nodes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from autodual._tensor import flat, values_at_hand
from autodual.dual import AffineDual, Band, BilinearDual, DualNetwork, ElementwiseDual, Lines, OnDemand, Pass
from autodual.interval import Interval
from autodual.sets import InputSet, norm_of

# What engines say on the way, and who is told: `Rounding`, below, or nobody.

SAFETY = 1.1
"""Computed errors are rounded as well, by far less than the tenth that they are enlarged by."""


@dataclass(frozen=True)
class Outside:
    """How far below and above a computed interval the true values may lie."""

    below: Tensor
    above: Tensor

    @classmethod
    def both(cls, error: Tensor) -> Outside:
        return cls(error, error)

    def __getitem__(self, examples: slice) -> Outside:
        return Outside(self.below[examples], self.above[examples])

    @property
    def farther(self) -> Tensor:
        return self.below if self.below is self.above else torch.maximum(self.below, self.above)

    def around(self, interval: Interval) -> Interval:
        """Where the values lie for certain."""
        return interval.widened(self.below, self.above)


def outside_of_both(interval: Interval, found: list[tuple[Interval, Outside]]) -> Outside:
    """How far values may lie outside `interval`, if they lie in every found interval, each widened by its own `Outside`."""
    lowest = reduce(torch.maximum, (other.lower - outside.below for other, outside in found))
    highest = reduce(torch.minimum, (other.upper + outside.above for other, outside in found))
    return Outside(SAFETY * (interval.lower - lowest).clamp(min=0), SAFETY * (highest - interval.upper).clamp(min=0))


class Errors(ABC):
    """Hears what happens while bounds are computed. `Rounding` finds the errors of all of it; `NoErrors` does not listen.

    A computation goes from activation to activation, in the network's order, and calls for each of them:

    1. one of `note`, `note_some` and `take`, when the node that enters it has been bounded: how far outside may values lie? `take`
       may follow `note`, when the bounds are cut with others. `Settling`, which chooses units to bound, asks `with_room` and
       `with_run_error` before that, and `reach` after it.
    2. `enter_band` or `enter_lines`, when the activation has been relaxed for these bounds: `errors` and `run_errors` have its own.
    3. `alive` and `of_activation`, before rows are pulled back through it.

    A node that enters several activations need be told of only once. In the end, `outside_of` says what 1. has found. Where a step was
    left out, `Rounding` raises an error: it looks up what is not there yet.
    """

    errors: dict[int, Tensor]
    """By activation: how far it may leave its relaxation, and what the affine nodes before it add."""
    run_errors: dict[int, Tensor]
    """By activation: how far it may be from its line as the network runs, and what evaluating the affine nodes before it adds."""

    @abstractmethod
    def note(self, index: int, error: Tensor | None, run_error: Tensor | None = None) -> None:
        """A node has been bounded; the errors of activations before it add up to these."""

    @abstractmethod
    def note_some(self, index: int, chosen: Tensor, error: Tensor | None, run_error: Tensor | None) -> None:
        """Chosen units of a node have been bounded; the bounds of the others have room for their errors."""

    @abstractmethod
    def take(self, index: int, interval: Interval, outside: Outside | None) -> None:
        """A node has bounds from elsewhere, or cut with others; their maker says how far outside values may lie; None: not at all."""

    @abstractmethod
    def enter_band(self, index: int, interval: Interval, band: Band, centre: Tensor) -> None:
        """Activation `index` has been relaxed for an interval, by a band; `centre` goes forward from before it."""

    @abstractmethod
    def enter_lines(self, index: int, interval: Interval, lines: Lines) -> None:
        """Activation `index` has been relaxed for an interval, by two lines."""

    @abstractmethod
    def alive(self, index: int, band: Band) -> tuple[Tensor, ...]:
        """Numbers per unit of an activation; rows need not pass units where all of them are zero."""

    @abstractmethod
    def of_activation(self, index: int, by_image: bool) -> tuple[Tensor, ...]:
        """Error and run error of an activation, bounded by its band or, `by_image`, by its values; empty if not counted."""

    @abstractmethod
    def with_room(self, index: int, reach: Tensor) -> Tensor:
        """How far values may be from a node's centre if they are within `reach` without rounding."""

    @abstractmethod
    def with_run_error(self, index: int, reach: Tensor) -> Tensor:
        """How far values may be from a node's centre as the network runs, if they are within `reach` in exact arithmetic."""

    @abstractmethod
    def reach(self, index: int, interval: Interval) -> Tensor:
        """How far values may be from the centre of a node that has been bounded, by an interval around that centre."""

    @abstractmethod
    def outside_of(self, activations: Iterable[int]) -> dict[int, Outside]:
        """By activation: how far outside its interval values may enter it; nothing where nobody counts."""


class NoErrors(Errors):
    """For bounds that claim nothing about rounding."""

    def __init__(self) -> None:
        self.errors, self.run_errors = {}, {}

    def note(self, index: int, error: Tensor | None, run_error: Tensor | None = None) -> None:
        pass

    def note_some(self, index: int, chosen: Tensor, error: Tensor | None, run_error: Tensor | None) -> None:
        pass

    def take(self, index: int, interval: Interval, outside: Outside | None) -> None:
        pass

    def enter_band(self, index: int, interval: Interval, band: Band, centre: Tensor) -> None:
        pass

    def enter_lines(self, index: int, interval: Interval, lines: Lines) -> None:
        pass

    def alive(self, index: int, band: Band) -> tuple[Tensor, ...]:
        return band.slope, band.radius

    def of_activation(self, index: int, by_image: bool) -> tuple[Tensor, ...]:
        return ()

    def with_room(self, index: int, reach: Tensor) -> Tensor:
        return reach

    def with_run_error(self, index: int, reach: Tensor) -> Tensor:
        return reach

    def reach(self, index: int, interval: Interval) -> Tensor:
        return interval.radius

    def outside_of(self, activations: Iterable[int]) -> dict[int, Outside]:
        return {}


# Errors of the input and of affine nodes.

MORE_ROUNDINGS = 16
"""Roundings beside those of sums: of a band's slope and offsets, of differences, of the margin itself, of a function of PyTorch."""
COMPUTED = 2.0**-25
"""Error of constants that a model computes in float64, as a part of what they differ by if it computes them in float32: rounding is
2^-29 of that, and this leaves room for 16 times as much."""
LOST = 1024
"""Smallest normal numbers that a function may lose where it underflows (silu(-89) does, by a few of them)."""


def gamma_of_sum(terms: int, dtype: torch.dtype) -> float:
    """gamma_n of a dtype, enlarged for the rounding of a sum of so many errors; infinite where SAFETY does not cover n u any more."""
    part = terms * torch.finfo(dtype).eps / 2
    return SAFETY * part / (1 - 2 * part) if part < 1 - 1 / SAFETY else math.inf


def gammas_of_sums(terms: Tensor, most: int, dtype: torch.dtype) -> Tensor:
    """At least `gamma_of_sum` of each number of terms, of which there are `most` at most: gamma_n / n grows with n.

    A larger number, as where a convolution has groups, says more than needed: gamma of `most` and more.
    """
    if gamma_of_sum(most, dtype) < math.inf:
        return terms * (gamma_of_sum(most, dtype) / most)
    part = terms * (torch.finfo(dtype).eps / 2)
    return torch.where(part < 1 - 1 / SAFETY, SAFETY * part / (1 - 2 * part), torch.inf)


def underflow_of_sum(terms: int, dtype: torch.dtype) -> float:
    """n tiny: what a sum of n products may lose where they are smaller than normal numbers, and a function where it underflows."""
    return (terms + LOST) * torch.finfo(dtype).tiny


@dataclass(frozen=True)
class NodeErrors:
    """What is known of one node, for every unit of it, in the notation at the top of this file; [N or 1, *shape] each."""

    size: Tensor
    """size_i: at least the largest |z_i|, and |c_i|."""
    moves: Tensor
    """moves_i: at least |z_i - c_i|, how far the node may be from its centre; `size` where centres are pulled back, too."""
    local: Tensor
    """local_i: the error that computing this node adds, whatever its operands' errors are."""
    since: Tensor
    """since_i: what the affine nodes since the last activations add up to, this one included; zero for an activation."""
    drift: Tensor
    """How far activations that stray to one side have moved the node, with its sign: values lie around the bounds plus this."""
    run: Tensor
    """run_i: at least |fl z_i - z_i|, the error of the node as the network runs."""
    run_since: Tensor
    """What affine nodes since the last activations have added to `run`, and what rounds where the rest of it, which comes from
    activations, is pulled back along rows. Zero for an activation."""


class _AffineErrors(Pass[NodeErrors]):
    """Errors of the input and of affine nodes. Those of an activation are put there by whoever relaxes it."""

    def __init__(self, network: DualNetwork, region: InputSet, columns: int, pulls_centres: bool) -> None:
        self.network, self.region = network, region
        self.columns, self.pulls_centres = columns, pulls_centres
        self.dtype = region.centre.dtype
        self.run_dtype = network.run_dtype or self.dtype
        products = underflow_of_sum(sum(math.prod(node.shape) for node in network.nodes), self.dtype)
        self.lost = region.centre.new_full((len(region.centre),), products)
        """[N]: what underflow may add to the error of any row: of its products with values, and of its coefficients, on the nodes that
        were visited so far."""
        self._counted: dict[int, tuple[int, int]] = {}
        self._chains: dict[int, int] = {}
        self._zeros: dict[int, Tensor] = {}
        """Errors that are zero everywhere, by identity: |W| 0 = 0 need not be computed."""

    def input(self) -> NodeErrors:
        box = self.region.box()
        norm = norm_of(self.region)
        # A set of another kind tells its minimum, from which the value at its centre, a second sum, is subtracted.
        moves, summed = (box.radius, box.radius) if norm is not None else (self._farthest(box), 2 * box.largest)
        if self.pulls_centres:
            moves = summed = box.largest
        local = self.error_of_sums(0, box.largest, moves)
        self.lose(0, moves)
        underflow = underflow_of_sum(math.prod(self.network.nodes[0].shape), self.dtype)
        support = 0.0 if norm is None else norm.lost(underflow)
        if support > 0:
            self.lost = self.lost + support
        zero = self.zero_like(box.largest)
        return NodeErrors(box.largest, moves, local, local + self.gamma_of_features(0) * summed, zero, zero, zero)

    def _farthest(self, box: Interval) -> Tensor:
        centre = self.region.centre
        return torch.maximum(box.upper - centre, centre - box.lower)

    def affine(self, index: int, layer: AffineDual, operands: Sequence[NodeErrors]) -> NodeErrors:
        known = [[getattr(o, name) for o in operands] for name in ("size", "moves", "since", "run", "run_since")]
        size, moves, since, run, run_since = self._pushed(layer, known)
        bias = layer.bias()
        size = size if bias is None else size + bias.abs().to(size)
        moves = size if self.pulls_centres else moves
        local = self._local_error(index, layer, operands, self.error_of_sums(index, size, moves))
        since = self._sum(since, local)
        if bias is not None and self.pulls_centres:
            since = since + self.gamma_of_features(index) * bias.abs().to(size)
        drifts = [o.drift for o in operands]
        drift = self.zero_like(size) if self.are_zero(drifts) else layer.linear(*drifts)
        self.lose(index, moves)
        evaluating, (forward, back) = self._evaluation_error(index, layer, operands, size, run), self.gammas(index)
        own = 1 + 2 * forward + back  # these sums are rounded, too
        new_run = self._scaled(own, self._sum(run, evaluating))
        new_since = new_run if run is run_since else self._scaled(own, self._sum(run_since, evaluating))
        if new_since is not new_run and not self.are_zero([run]):  # what pulls this error back is rounded, too
            new_since = torch.add(new_since, run, alpha=own * back)
        return NodeErrors(size, moves, local, since, drift, new_run, new_since)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[NodeErrors]) -> NodeErrors:
        raise AssertionError(f"{self.network.nodes[index].name} has not been relaxed yet")

    def _pushed(self, layer: AffineDual, known: list[list[Tensor]]) -> list[Tensor]:
        """|W| times several vectors: equal ones are multiplied once, and zeros not at all."""
        different = {tuple(map(id, operands)): operands for operands in known if not self.are_zero(operands)}
        if layer.exact:  # entries change places only, which is no more work in several calls
            found = {key: layer.absolute(*operands) for key, operands in different.items()}
        else:
            batches = map(torch.cat, zip(*different.values(), strict=True))
            found = dict(zip(different, layer.absolute(*batches).chunk(len(different)), strict=True))
        zero = self.zero_like(next(iter(found.values())))
        return [found.get(tuple(map(id, operands)), zero) for operands in known]

    def _local_error(self, index: int, layer: AffineDual, operands: Sequence[NodeErrors], sums: Tensor) -> Tensor:
        """local_i: the errors of both sums, and of constants that the layer or the model computed."""
        if type(layer).constant_error is AffineDual.constant_error and self.network.nodes[index].apart is None:
            return sums
        sizes = [o.size + o.moves for o in operands]
        constants, computed = layer.constant_error(*sizes), self._constants_apart(index, sizes)
        sums = sums if constants is None else sums + constants
        return sums if computed is None else sums + COMPUTED * computed

    def _constants_apart(self, index: int, operands: list[Tensor]) -> Tensor | None:
        """How far the node may move if the model computes its constants in float32 instead of float64."""
        apart = self.network.nodes[index].apart
        if apart is None:
            return None
        moved, bias = apart.absolute(*operands), apart.bias()
        return moved if bias is None else moved + bias.abs().to(moved)

    def _evaluation_error(
        self, index: int, layer: AffineDual, operands: Sequence[NodeErrors], size: Tensor, before: Tensor
    ) -> Tensor:
        """What evaluating an affine node in the network's own dtype adds to `before`, which its operands' errors have become."""
        if layer.exact and self.network.nodes[index].apart is None:
            return self.zero_like(before)
        dtype = self.run_dtype
        clean = self.are_zero([o.run for o in operands])
        sizes = [o.size if clean else o.size + o.run for o in operands]
        terms, counted = self.terms(index)[0] + MORE_ROUNDINGS, layer.nonzero_terms(*sizes)
        total = size + before
        share = (
            gamma_of_sum(terms, dtype)
            if counted is None
            else gammas_of_sums(counted.to(before) + MORE_ROUNDINGS, terms, dtype)
        )
        error = total * share + underflow_of_sum(terms, dtype)
        more = layer.run_error(gamma_of_sum(MORE_ROUNDINGS, dtype), *sizes)
        error = error if more is None else error + more
        computed = self._constants_apart(index, sizes)
        if computed is not None:
            error = error + (SAFETY if dtype == torch.float32 else COMPUTED) * computed
        # An average is divided after it was summed.
        summed = 1 if counted is not None or layer.one_to_one(self.network.operand_shapes(index)) else terms
        return self.unless_overflowing(error, total, max(summed, layer.on_the_way))

    def unless_overflowing(self, error: Tensor, size: Tensor, times: float = 1) -> Tensor:
        """Infinite where values of this size, or sums `times` as large, may be too large for the network's own dtype."""
        largest = torch.finfo(self.run_dtype).max
        if values_at_hand(size) and SAFETY * times * size.amax().item() <= largest:  # as good as always
            return error
        return torch.where(SAFETY * times * size <= largest, error, torch.inf)

    def error_of_sums(self, index: int, size: Tensor, moves: Tensor) -> Tensor:
        """gamma size_i + gamma' moves_i, and what underflows: the error of the sums that compute a node and pull through it."""
        forward, back = self.gammas(index)
        lost = (1 + self.columns) * underflow_of_sum(self.terms(index)[0], self.dtype)
        return torch.add(forward * size + lost, moves, alpha=max(forward, back) if self.columns else back)

    def lose(self, index: int, moves: Tensor) -> None:
        """Counts coefficients on a node that underflow, times how far it moves, over all its features."""
        lost = self.underflow_of_coefficients(index)
        self.lost = torch.add(self.lost, flat(moves, 1).sum(1), alpha=lost)

    def underflow_of_coefficients(self, index: int) -> float:
        """What a coefficient on a node may lose where its readers' coefficients are pulled back."""
        most = max((self.terms(reader)[1] for reader in self.network.readers[index]), default=0)
        return underflow_of_sum(most, self.dtype)

    def terms(self, index: int) -> tuple[int, int]:
        """The most terms of a sum that computes the node, and of one that pulls a coefficient back through it.

        A node that is read more than once adds up the coefficients that come from all of its readers.
        """
        if index not in self._counted:
            node, shapes = self.network.nodes[index], self.network.operand_shapes(index)
            forward, back = (0, 0) if node.layer is None else node.layer.terms(shapes, node.shape)
            others = max((len(self.network.readers[source]) - 1 for source in node.inputs), default=0)
            self._counted[index] = forward, back + others
        return self._counted[index]

    def gammas(self, index: int) -> tuple[float, float]:
        """gamma and gamma' of a node: of the sums that compute it, and of those that pull coefficients back through it.

        Sizes and errors are pushed through |W| from node to node, and rounded as well: SAFETY has to cover the whole chain of sums
        since the last activations.
        """
        if gamma_of_sum(self._chain(index), self.dtype) == math.inf:
            return math.inf, math.inf
        forward, back = self.terms(index)
        return gamma_of_sum(forward + MORE_ROUNDINGS, self.dtype), gamma_of_sum(back + MORE_ROUNDINGS, self.dtype)

    def _chain(self, index: int) -> int:
        """How many terms the sums have, one after the other, that lead to a node from the last activations or the input."""
        if index not in self._chains:
            node = self.network.nodes[index]
            before = node.inputs if isinstance(node.layer, AffineDual) else ()
            self._chains[index] = self.terms(index)[0] + 1 + max(map(self._chain, before), default=0)
        return self._chains[index]

    def gamma_of_features(self, index: int) -> float:
        """gamma_n of a sum of coefficients times values over all features of a node, which other such sums are added to: two for an
        activation with two lines, one for a bias."""
        terms = math.prod(self.network.nodes[index].shape) + 2 * len(self.network.nodes) + self.columns
        return gamma_of_sum(terms, self.dtype)

    def zero_like(self, values: Tensor) -> Tensor:
        zero = torch.zeros_like(values)
        self._zeros[id(zero)] = zero
        return zero

    def are_zero(self, values: list[Tensor]) -> bool:
        return all(id(v) in self._zeros for v in values)

    def _sum(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, without work where one of them is known to be zero."""
        if self.are_zero([a]):
            return b
        return a if self.are_zero([b]) else a + b

    def _scaled(self, factor: float, values: Tensor) -> Tensor:
        return values if self.are_zero([values]) else factor * values


# All errors of one computation.


class Rounding(Errors):
    """The errors of one computation, in the order in which its activations are relaxed."""

    def __init__(self, network: DualNetwork, region: InputSet, columns: int = 0, pulls_centres: bool = False) -> None:
        """columns: how many columns of generators, at most, go forward instead of rows back.

        pulls_centres: whether biases and the input's centre are added up over features, too, and not computed forward.
        """
        self.network, self.pulls_centres = network, pulls_centres
        self.intervals: dict[int, Interval] = {}
        """By activation: what its relaxation was made for."""
        self.outside: dict[int, Outside] = {}
        """By node: how far values may lie outside the bounds that were computed for it."""
        self.errors, self.run_errors = {}, {}
        self._leaning: dict[int, Tensor] = {}
        """By activation: what straying to one side more than to the other adds to its drift."""
        self._pass = _AffineErrors(network, region, columns, pulls_centres)
        self._nodes = OnDemand(network, self._pass)
        self._nodes.at(0)
        self._run_lost = self._pass.lost.clone()

    def at(self, index: int) -> NodeErrors:
        """What is known of a node; all activations before it must have been entered."""
        return self._nodes.at(index)

    @property
    def lost(self) -> Tensor:
        """[N]: what coefficients that underflow on their way back may add to the error of any row."""
        return self._pass.lost

    @property
    def run_lost(self) -> Tensor:
        """[N]: what they may add to the run error of any row."""
        return self._run_lost

    def note(self, index: int, error: Tensor | None, run_error: Tensor | None = None) -> None:
        if run_error is not None:
            self._note_run(index, run_error)
        node = self.at(index)
        total = node.since if error is None else error + node.since
        total = SAFETY * (total + self.lost.reshape(-1, *[1] * (total.dim() - 1)))
        if self._pass.are_zero([node.drift]):
            self.outside[index] = Outside.both(total)
            return
        self.outside[index] = Outside((total - node.drift).clamp(min=0), (total + node.drift).clamp(min=0))

    def of_columns(self, index: int, radius: Tensor, before: Tensor) -> Tensor:
        """How far the centre of a node and the sum of its columns may be wrong together.

        before: [N], the l2 norm of what the errors of earlier activations make of the node; no entry of that is larger.
        """
        total = self.at(index).since + self._pass.gamma_of_features(index) * radius
        return SAFETY * (total + (before + self.lost).reshape(-1, *[1] * (total.dim() - 1)))

    def note_some(self, index: int, chosen: Tensor, error: Tensor | None, run_error: Tensor | None) -> None:
        self.note(index, error, None if run_error is None else torch.where(chosen, run_error, torch.inf))
        found = self.outside[index]
        below = torch.where(chosen, found.below, 0.0)
        self.outside[index] = Outside(
            below, below if found.above is found.below else torch.where(chosen, found.above, 0.0)
        )

    def take(self, index: int, interval: Interval, outside: Outside | None) -> None:
        self.outside[index] = Outside.both(torch.zeros_like(interval.lower)) if outside is None else outside

    def _note_run(self, index: int, error: Tensor) -> None:
        """Replaces the run error of a node where the one that was pulled back is smaller than what absolute weights add up to."""
        node = self.at(index)
        found = error + node.run_since
        found = SAFETY * (found + self._run_lost.reshape(-1, *[1] * (found.dim() - 1)))
        self._nodes.put(index, replace(node, run=torch.fmin(node.run, found)))

    def ending(self, index: int) -> Tensor:
        """Error bound for a linear function of a node, in proportion to its coefficients: since + gamma_features size."""
        node = self.at(index)
        return node.since + self._pass.gamma_of_features(index) * node.size

    def enter_band(self, index: int, interval: Interval, band: Band, centre: Tensor) -> None:
        after = self.network.activation(index).along(band.slope, centre) + band.centre
        self.enter(index, interval, (band.slope,), band.radius, (centre, after))

    def enter_lines(self, index: int, interval: Interval, lines: Lines) -> None:
        offset = torch.maximum(lines.lower_offset.abs(), lines.upper_offset.abs())
        self.enter(index, interval, (lines.lower_slope, lines.upper_slope), offset)

    def alive(self, index: int, band: Band) -> tuple[Tensor, ...]:
        """A unit whose band is not zero has an error that is not zero, if only for underflow."""
        return self.errors[index], self.run_errors[index]

    def of_activation(self, index: int, by_image: bool) -> tuple[Tensor, ...]:
        if by_image:
            return self.error_of_image(index), self.at(index).run
        return self.errors[index], self.run_errors[index]

    def enter(
        self,
        index: int,
        interval: Interval,
        slopes: tuple[Tensor, ...],
        offset: Tensor,
        centres: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Finds the errors of an activation that has been relaxed by lines of these slopes.

        offset: what its row adds up: the radius of a band, or the larger offset of two lines.
        centres: the centres that go forward before and after it, which may lie outside of its intervals; none when not given, which
            is enough where no such centre is multiplied with slopes that are not zero.
        """
        layer, operand = self.network.activation(index), self._operand(index)
        outside = self.outside[self.network.source(index)]
        wide, steepest = outside.around(interval), _steepest(slopes)
        size, largest, farthest = layer.largest_value(wide), wide.largest, interval.radius
        if centres is not None:
            before, after = centres
            size, largest = torch.maximum(size, after.abs()), torch.maximum(largest, before.abs())
            farthest = torch.maximum(interval.upper - before, before - interval.lower)
        reach = farthest + outside.farther
        up, down = _strayed(layer, interval, outside, slopes)
        moves = size
        if not self.pulls_centres:
            moves = layer.along(steepest, reach, plus=offset + torch.maximum(up, down))
        self.intervals[index] = interval
        local = self._pass.error_of_sums(index, torch.maximum(size, layer.along(steepest, largest)), moves)
        if not layer.exact:
            local = local + layer.error(wide, size, gamma_of_sum(MORE_ROUNDINGS, self._pass.dtype))
        else:  # zero times anything is zero, so a unit that is dead on the whole set loses nothing to underflow, either
            local = local * (size + steepest + offset).sign()
        self._pass.lose(index, moves)
        zero = self._pass.zero_like(size)
        run = self._enter_run(index, wide, size, slopes, steepest)
        self._leaning[index] = torch.zeros_like(up) if self.pulls_centres else (up - down) / 2
        strayed = torch.maximum(up, down) if self.pulls_centres else (up + down) / 2
        drift = layer.along(slopes[0], operand.drift, plus=self._leaning[index])
        self._nodes.put(index, NodeErrors(size, moves, local, zero, drift, run, zero))
        self.errors[index] = self._error(index, steepest, offset, strayed)

    def enter_at(self, index: int, operand: Tensor) -> None:
        """Finds the run error of an activation at single points, for which `operand` was computed; nothing else is known there."""
        known = self._operand(index)
        reach = torch.add(known.run + known.since, operand.abs(), alpha=gamma_of_sum(MORE_ROUNDINGS, self._pass.dtype))
        near = Interval.around(operand, reach)
        layer = self.network.activation(index)
        size = layer.largest_value(near)
        zero = self._pass.zero_like(size)
        zero_slope = zero if layer.elementwise else torch.zeros_like(operand)  # as slopes are shaped
        run = self._enter_run(index, near, size, (), zero_slope)
        self._nodes.put(index, NodeErrors(size, zero, zero, zero, zero, run, zero))

    def _enter_run(
        self, index: int, wide: Interval, size: Tensor, slopes: tuple[Tensor, ...], steepest: Tensor
    ) -> Tensor:
        """run_i of an activation. Its run error is kept: how far it may be from its line, if it has any, as the network runs."""
        layer, operand, dtype = self.network.activation(index), self._operand(index), self._pass.run_dtype
        wider = wide.widened(operand.run, operand.run)
        moved = layer.swing(wider, operand.run)
        off_lines = [layer.moved(wider, operand.run, slope) for slope in slopes] or [moved]
        bent = reduce(torch.maximum, off_lines)
        back = self._pass.gammas(index)[1]
        off_line = layer.along(steepest, torch.add(operand.run_since, operand.run, alpha=back), plus=bent)
        if not layer.exact:
            gamma = gamma_of_sum(MORE_ROUNDINGS, dtype)
            evaluating = layer.error(wider, size + moved, gamma) + underflow_of_sum(0, dtype)
            evaluating = self._pass.unless_overflowing(evaluating, size + moved, layer.on_the_way)
            moved, off_line = moved + evaluating, off_line + evaluating
        own = 1 + gamma_of_sum(MORE_ROUNDINGS, self._pass.dtype)  # these sums are rounded, too
        self.run_errors[index] = own * off_line
        lost = self._pass.underflow_of_coefficients(index)
        self._run_lost = torch.add(self._run_lost, flat(self.run_errors[index], 1).sum(1), alpha=lost)
        return own * moved

    def _error(self, index: int, steepest: Tensor, offset: Tensor, strayed: Tensor) -> Tensor:
        """error_i = local_i + strayed_i + |a| since_j + gamma_n r."""
        layer = self.network.activation(index)
        total = layer.along(steepest, self._operand(index).since, plus=self.at(index).local + strayed)
        return SAFETY * torch.add(total, offset, alpha=self._pass.gamma_of_features(index))

    def error_of_image(self, index: int) -> Tensor:
        """Error of an activation whose values are bounded by an interval of their own."""
        size = self.at(index).size
        zero_slope = torch.zeros_like(self.intervals[index].lower)
        outside = self.outside[self.network.source(index)]
        strayed = torch.maximum(
            *_strayed(self.network.activation(index), self.intervals[index], outside, (zero_slope,))
        )
        return self._error(index, zero_slope, size, strayed)

    def with_run_error(self, index: int, reach: Tensor) -> Tensor:
        return reach + self.at(index).run

    def reach(self, index: int, interval: Interval) -> Tensor:
        return self.with_room(index, interval.radius + self.outside[index].farther)

    def outside_of(self, activations: Iterable[int]) -> dict[int, Outside]:
        return {i: self.outside[self.network.source(i)] for i in activations}

    def with_room(self, index: int, reach: Tensor) -> Tensor:
        """Adds the errors of the centre and of `reach` itself: those before the node, the node's own, and those of this sum."""
        wider = reach if index not in self.errors else reach + self.errors[index] + self._leaning[index].abs()
        return torch.add((1 + 2 * self._pass.gammas(index)[0]) * wider, self.at(index).local, alpha=2)

    def _operand(self, index: int) -> NodeErrors:
        return self.at(self.network.source(index))


def _strayed(
    layer: ElementwiseDual, interval: Interval, outside: Outside, slopes: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """How far above and below its lines the function may be outside the interval that they were made for.

    Outside it, the function is another line, or near one: so it leaves the first at the difference of their slopes.
    """
    if isinstance(layer, BilinearDual):
        either = layer.strayed(interval, outside.below, outside.above, slopes)
        return either, either
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
    bent = torch.maximum(above.radius, below.radius)
    up, down = reduce(torch.maximum, rises).clamp(min=0), reduce(torch.minimum, rises).clamp(max=0).neg()
    return torch.add(up, bent, alpha=2), torch.add(down, bent, alpha=2)


def _steepest(slopes: tuple[Tensor, ...]) -> Tensor:
    return reduce(torch.maximum, (slope.abs() for slope in slopes))
