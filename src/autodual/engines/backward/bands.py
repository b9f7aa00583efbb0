"""Bounds from bands, two parallel lines per unit: a centre that goes forward, and a radius that rows are pulled back for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autodual._tensor import added, channels_inside, flat, flat_pair, has_channels_inside, laid_out_like, select
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, OnDemand, Pass
from autodual.engines.backward.pulling import operations_of_row, over_chunks, pull_back, started
from autodual.engines.backward.rows import (
    DensePlan,
    DenseRows,
    Patches,
    Plan,
    Rows,
    SomeUnitsPlan,
    alive_channels,
    crop,
    features,
    local_windows,
    plan_for,
    prune,
)
from autodual.engines.backward.settling import Settling, blocks
from autodual.engines.effort import Budget, even_split, report_progress
from autodual.engines.rounding import SAFETY, Errors, Rounding, underflow_of_sum
from autodual.interval import Interval
from autodual.kernels.weigh import weigh, weighable, weighted_l1
from autodual.sets import InputSet, NormSet, norm_of
from autodual.spec import Spec

# The radius of rows and of all units of a node.

FEW_UNSTABLE = 0.3
"""Unstable units are gathered if at most this part of all units is unstable in some example."""
MOST_CUT = 1 << 30
"""Bytes of patches that are cut out of bands and errors at once, at most."""


class UnitRadii(NamedTuple):
    """How far below and above its centre every unit of a node can be, and the errors of that, where they are counted."""

    below: Tensor
    above: Tensor
    error: Tensor | None = None
    run_error: Tensor | None = None


@dataclass(frozen=True)
class PulledRadii:
    """How far rows, which are linear functions of a node, may be from their values at the centres. [SPAD Thm 1]

    Every activation before the node has a band, slope z + centre +- r. Let nu be the coefficients that a row has on the result of an
    activation, and nu_0 those that it has on the input, once it has been pulled back to them. The row's radius is

        max |nu_0'(x - centre)| over the set of inputs  +  sum over activations |nu|'r.

    1. `plan` decides how all units of a node become rows: one each, several that share a row (cells), or rows of a network that is
       cropped to what one unit sees (patches). `of_units` and `of_some_units` follow it; `of_rows` is given its rows.
    2. Rows are pulled back in chunks that fit into the budget, from the node to the input (`pull_back`).
    3. At every activation on the way, |nu|'r is added to the radius; in a proof, |nu|'errors and |nu|'run errors are added up beside
       it. The slope then turns nu into the coefficients on the activation's operand.
    4. At the input, the dual norm of nu_0 is added.
    5. The chunks' results are put together, one number for every row.

    Bands are read, never chosen: a `DualSolver` makes a new one of these for every node, with the bands that it knows by then.
    """

    network: DualNetwork
    region: InputSet
    bands: dict[int, Band]
    budget: Budget
    constant: frozenset[int] = field(default_factory=frozenset)
    """Activations whose band does not depend on their input: nothing is pulled back through them."""
    unstable: dict[tuple[int, bool], Tensor] = field(default_factory=dict)
    """Units of an activation that are unstable in some example, per order in memory, once they have been looked for."""

    plans: dict[int, Plan | Patches] = field(default_factory=dict)
    """How all units of a node are treated, by node, once that has been planned."""

    static: bool = False
    """Whether shapes must not depend on values, nor the host wait for them."""
    errors: dict[int, Tensor] = field(default_factory=dict)
    """Errors of activations, for a proof: see `Rounding`."""
    run_errors: dict[int, Tensor] = field(default_factory=dict)
    """Run errors of activations, if they are asked for."""

    def of_rows(self, index: int, rows: Rows) -> Tensor:
        """The dual norm of the input's coefficients plus the l1 norm of those of all unstable units. [SPAD Thm 1]"""
        return added(self._terms(index, rows)[0])

    def of_rows_with_errors(self, index: int, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The radius of rows, and sums over activations of |coefficients| times errors and times run errors."""
        radius, errors, run_errors = self._terms(index, rows)
        total = added(radius)
        none = [torch.zeros_like(total)]
        return total, added(errors or none), added(run_errors or none)

    def _terms(self, index: int, rows: Rows) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """What the input and every activation add to the radius of rows, to their error and to their run error."""
        total: list[Tensor] = []  # not list[Tensor](), which a compiler does not understand
        errors: list[Tensor] = []
        run_errors: list[Tensor] = []
        kinds = [(terms, known) for terms, known in ((errors, self.errors), (run_errors, self.run_errors)) if known]

        def through(activation: int, coefficients: Tensor) -> Tensor | None:
            slope, radius = self.bands[activation].slope, self.bands[activation].radius
            layer = self.network.activation(activation)
            coefficients = laid_out_like(coefficients, slope)
            fused = activation not in self.constant and layer.elementwise
            if fused and self._kernels_apply(rows, coefficients, radius, slope):
                passed, size = weigh(coefficients, slope, radius)
                total.append(size)
                for terms, known in kinds:
                    terms.append(rows.norm(activation, coefficients, known[activation]))
                return passed
            if kinds:
                sizes = rows.norms(activation, coefficients, radius, *(known[activation] for _, known in kinds))
                for terms, size in zip([total, *(terms for terms, _ in kinds)], sizes, strict=True):
                    terms.append(size)
            else:
                total.append(self._unstable_units(rows, activation, coefficients))
            return None if activation in self.constant else layer.back(slope, coefficients)

        on_input = pull_back(self.network, index, rows, through)
        if on_input is not None:
            total.append(self._support(rows, on_input))
        return total, errors, run_errors

    def _unstable_units(self, rows: Rows, activation: int, coefficients: Tensor) -> Tensor:
        """The l1 norm of the coefficients on the unstable units, weighted by their radius; few units are gathered first."""
        radius = self.bands[activation].radius
        if coefficients.shape[1] > 1 and isinstance(rows, DenseRows) and not (self.static or torch.is_grad_enabled()):
            key = (activation, has_channels_inside(coefficients))
            if key not in self.unstable:
                self.unstable[key] = flat_pair(coefficients, radius)[1].any(0).nonzero().squeeze(1)
            units = self.unstable[key]
            if len(units) < FEW_UNSTABLE * math.prod(radius.shape[1:]):
                some, size = (v.index_select(-1, units) for v in flat_pair(coefficients, radius))
                return rows.inner(activation, some.abs(), size)
        return rows.norm(activation, coefficients, radius)

    def _kernels_apply(self, rows: Rows, coefficients: Tensor, radius: Tensor, *slope: Tensor) -> bool:
        """Whether the kernels of `weigh` can take these rows and are worth a launch: see `weighable`."""
        return isinstance(rows, DenseRows) and weighable(coefficients, radius, *slope, in_graph=self.static)

    def _support(self, rows: Rows, coefficients: Tensor) -> Tensor:
        region, norm = self.region, norm_of(self.region)
        if norm is None:
            return rows.inner(0, coefficients, region.centre) - region.minimise(coefficients)
        if norm.separable and self._kernels_apply(rows, coefficients, region.radius):
            return weighted_l1(coefficients, region.radius)
        return rows.support(0, laid_out_like(coefficients, region.radius), norm, region.radius)

    def plan(self, index: int) -> Plan | Patches:
        """The cheapest way to treat all units of a node, by counting values."""
        if index not in self.plans:
            self.plans[index] = self._plan(index)
        return self.plans[index]

    def _plan(self, index: int) -> Plan | Patches:
        windows = local_windows(self.network, index, self.region)
        plan = plan_for(self.network, index, windows)
        patches = None if windows is None else crop(self.network, index, windows)
        if patches is None:
            return plan
        return patches if patches.cost * patches.channels < plan.count * features(self.network, index) else plan

    def operations(self, index: int) -> float:
        """Multiplications, about, that bounding all units of a node takes for one example."""
        plan = self.plan(index)
        if isinstance(plan, Patches):
            small = plan.network
            return math.prod(plan.space) * plan.channels * operations_of_row(small, small.output)
        return plan.count * operations_of_row(self.network, index)

    def of_some_units(self, index: int, chosen: Tensor) -> UnitRadii:
        """Radii of chosen units of a node, [N or 1, *shape], by patches or rows; the others stay without a bound."""
        plan = self.plan(index)
        if isinstance(plan, Patches):
            radius, *errors = self._of_patches(index, plan, chosen)
        else:
            limit = self.budget.rows(self.network, index, self.region.centre[:1])
            found = self._of_chosen_units(index, flat(chosen, 1), limit, step=index)
            radius, *errors = (values.reshape(-1, *chosen.shape[1:]) for values in found)
        return UnitRadii(radius, radius, *errors)

    def _of_chosen_units(self, index: int, chosen: Tensor, limit: int, step: int | None = None) -> tuple[Tensor, ...]:
        """Radius and errors, [N, units] each, of chosen units [N or 1, units], at most `limit` rows at a time; infinite elsewhere.

        step: the node that this is all the work on, for whoever watches.
        """
        whole = self.region.centre.new_full((self._results, len(self.region), chosen.shape[1]), torch.inf)
        if len(chosen) == 1:  # all examples have the same ones, and share their rows
            units = chosen[0].nonzero().squeeze(1)
            if len(units) > 0:
                found = self._of_plan(index, SomeUnitsPlan(self.network.nodes[index].shape, units))
                whole[:, :, units] = torch.stack(torch.broadcast_tensors(whole[0, :, units], *found)[1:])
            return whole.unbind()
        done, total = 0, max(1, int(chosen.sum()))
        for block in blocks(chosen, limit):
            some = self._for_examples(block.examples)
            values = some._with_errors(index, started(self.network, index, block.units, self.region.centre))
            block.put(values.unflatten(1, (self._results, -1)), whole)
            done += len(block.rank)
            if step is not None:
                report_progress(step, done / total)
        return whole.unbind()

    def _for_examples(self, examples: Tensor) -> PulledRadii:
        """These radii for some examples only, of a set around zero: a radius does not depend on centres."""
        norm, size = norm_of(self.region), (len(examples), *self.region.centre.shape[1:])
        assert norm is not None
        radius = self.region.radius if len(self.region.radius) == 1 else select(self.region.radius, examples)
        return replace(
            self,
            region=NormSet(torch.zeros_like(radius[:1]).expand(size), radius, norm),
            bands={
                i: Band(select(b.slope, examples), b.centre, select(b.radius, examples)) for i, b in self.bands.items()
            },
            errors={i: select(e, examples) for i, e in self.errors.items()},
            run_errors={i: select(e, examples) for i, e in self.run_errors.items()},
            unstable={},
        )

    def of_units(self, index: int) -> UnitRadii:
        """Radii of all units of a node, in the cheapest way: by patches, cells or rows."""
        plan = self.plan(index)
        if isinstance(plan, Patches):
            radius, *errors = self._of_patches(index, plan)
            return UnitRadii(radius, radius, *errors)
        below, *errors = self._of_plan(index, plan)
        above = below if norm_of(self.region) is not None else self._in_chunks(index, plan, _flipped(self.of_rows))
        return UnitRadii(below, above, *errors)

    def _of_plan(self, index: int, plan: Plan) -> tuple[Tensor, ...]:
        """Radius and errors of the units of a plan."""
        if not self.errors:
            return (self._in_chunks(index, plan, self.of_rows),)
        return self._in_chunks(index, plan, self._with_errors).chunk(self._results)

    @property
    def _results(self) -> int:
        """How many numbers are found for every row: its radius, and the errors that are counted."""
        return 1 + bool(self.errors) + bool(self.run_errors)

    def _in_chunks(self, index: int, plan: Plan, work: Callable[[int, Rows], Tensor]) -> Tensor:
        """Results of `work` for all rows of a plan, as many rows at a time as the budget allows."""
        return over_chunks(self.network, index, plan, self.budget, self.region.centre, lambda rows: work(index, rows))

    def _with_errors(self, index: int, rows: Rows) -> Tensor:
        """[R, N or 2 N or 3 N, ...]: radii and, after them, the errors that are counted."""
        return torch.cat(torch.broadcast_tensors(*self.of_rows_with_errors(index, rows)[: self._results]), dim=1)

    def _of_patches(self, index: int, patches: Patches, chosen: Tensor | None = None) -> tuple[Tensor, ...]:
        """Radius and errors of every unit, some lines of positions at a time: what they see is cut out together."""
        cut = 1 + self._results  # the slopes of bands, their radii, and errors
        line = cut * len(self.region) * patches.values_per_line * self.region.centre.element_size()
        size = even_split(patches.space[0], max(1, min(self.budget.max_bytes, MOST_CUT) // line))
        found = []
        for start in range(0, patches.space[0], size):
            lines = slice(start, min(start + size, patches.space[0]))
            some = None if chosen is None else chosen[:, :, lines]
            found.append(self._of_lines(replace(patches, lines=lines), some))
            report_progress(index, min(1.0, (start + size) / patches.space[0]))
        return found[0] if len(found) == 1 else tuple(torch.cat(values, 2) for values in zip(*found, strict=True))

    def _of_lines(self, patches: Patches, chosen: Tensor | None) -> tuple[Tensor, ...]:
        """Radius and errors of units, as the output of a small network over many virtual examples, some at a time."""
        network = patches.network
        region, bands = patches.region(self.region), patches.bands(self.bands)
        errors, run_errors = (
            {patches.places[i]: patches.cut(i, e) for i, e in known.items() if i in patches.places}
            for known in (self.errors, self.run_errors)
        )
        if chosen is not None:
            small = PulledRadii(network, region, bands, self.budget, errors=errors, run_errors=run_errors)
            limit = self.budget.patches(network, 1, region.centre)
            found = small._of_chosen_units(network.output, chosen.flatten(2).mT.flatten(0, 1), limit)
            return tuple(patches.assemble(values.T) for values in found)
        plan = DensePlan(network.nodes[network.output].shape)
        size = even_split(len(region), self.budget.patches(network, plan.count, region.centre))

        def some(part: slice) -> Tensor:
            cut = {i: Band(b.slope[part], b.centre, b.radius[part]) for i, b in bands.items()}
            small = PulledRadii(
                network,
                region[part],
                cut,
                self.budget,
                static=self.static,
                errors={i: e[part] for i, e in errors.items()},
                run_errors={i: e[part] for i, e in run_errors.items()},
            )
            (rows,) = plan.chunks(plan.count, region.centre)
            return small._with_errors(network.output, rows) if errors else small.of_rows(network.output, rows)

        parts = [slice(start, start + size) for start in range(0, len(region), size)]
        again = torch.is_grad_enabled() and len(parts) > 1
        results = [checkpoint(some, part, use_reentrant=False) if again else some(part) for part in parts]
        count = 1 + bool(errors) + bool(run_errors)  # a patch may hold no activation at all
        by_kind = zip(*(result.chunk(count, dim=1) for result in results), strict=True)
        return tuple(patches.assemble(torch.cat(values, 1)) for values in by_kind)


def _flipped(work: Callable[[int, Rows], Tensor]) -> Callable[[int, Rows], Tensor]:
    return lambda index, rows: work(index, rows.flipped())


# The centres of all nodes: the network with every activation replaced by the middle of its band.


@dataclass(frozen=True)
class Centres(Pass[Tensor]):
    """c = W c + b, and slope * c + centre of the band; the owner fills `bands` on the way."""

    region: InputSet
    bands: dict[int, Band]

    def input(self) -> Tensor:
        return self.region.centre

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return layer.apply(*operands)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        band = self.bands[index]
        return layer.along(band.slope, operands[0]) + band.centre


# The state of one backward computation: relaxations found so far, and bounds from them.


class Solver(ABC):
    """Backward bounds with relaxations of one kind. Lives for one call.

    `relax` fixes the dual layer of an activation from the bounds on its input; after that, `bound` bounds any node whose activations
    are relaxed, and `minimum` any linear function of it.
    """

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> None:
        self.network, self.region, self.budget, self.rounding = network, region, budget, rounding

    @abstractmethod
    def relax(self, index: int, interval: Interval) -> None:
        """Choose the dual layer of activation `index`, whose input lies in `interval`."""

    @abstractmethod
    def bound(self, index: int) -> Interval:
        """Bounds on the value of a node."""

    def settle(self, index: int) -> Interval:
        """Bounds on what enters activation `index`; they may be loose where tighter ones would give the same dual layer."""
        return self.bound(self.network.source(index))

    @abstractmethod
    def operations(self, index: int) -> float:
        """Multiplications, about, that `bound` takes for one example."""

    @abstractmethod
    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds from below on the rows, and sums over activations of |coefficients| times errors and times run errors.

        The last is not to be used unless `as_run` asks for it.
        """

    def minimum(self, index: int, spec: Spec) -> Tensor:
        """[N, K]: bounds from below on linear functions of a node. [SPAD Thm 1: J]"""
        return self.lower(index, self.rows(index, spec))[0].T

    def prove(self, index: int, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds from below, their rounding slack, and the error of the network as it runs; [N, K] each."""
        rounding = self.rounding
        assert isinstance(rounding, Rounding)
        rows = self.rows(index, spec)
        lower, error, run_error = self.lower(index, rows, as_run=True)
        total = SAFETY * (error + rows.norm(index, rows.seed, rounding.ending(index)) + rounding.lost)
        products = sum(math.prod(node.shape) for node in self.network.nodes)
        total = total + underflow_of_sum(products, spec.rows.dtype)  # of coefficients times values and times errors
        slack = total - rows.inner(index, rows.seed, self._drift(index, rounding))
        run_error = SAFETY * (run_error + rows.norm(index, rows.seed, rounding.at(index).run_since) + rounding.run_lost)
        return lower.T, slack.T, run_error.T

    def _drift(self, index: int, rounding: Rounding) -> Tensor:
        return rounding.at(index).drift

    def rows(self, index: int, spec: Spec) -> DenseRows:
        return DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *self.network.nodes[index].shape))

    def narrow(self, index: int, values: Tensor) -> Tensor:
        """The channels of a node [N, C, *space] that rows have coefficients for: all of them, unless a solver leaves some out."""
        return values


# Bounds from parallel lines: a centre that goes forward, and a radius that is pulled back.

DEEP = 3
"""From so many activations on, run errors are pulled back together with the bounds on later nodes, which makes them smaller."""


class DualSolver(Solver):
    """One common slope per unit."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> None:
        super().__init__(network, region, budget, rounding)
        self.bands: dict[int, Band] = {}
        self.constant: set[int] = set()
        self.centres = OnDemand(network, Centres(region, self.bands))
        self._alive: dict[int, Tensor] = {}
        self._slim, self._kept = network, dict[int, Tensor]()
        self._ready, self._ready_errors = dict[int, Band](), dict[int, Tensor]()
        self._ready_run_errors = dict[int, Tensor]()
        """Bands and errors of activations as rows meet them: only channels that are kept, laid out as convolutions need them."""
        self._settling = Settling(network, region, self.bands, rounding)

    def relax(self, index: int, interval: Interval) -> None:
        self.set_band(index, interval, self.network.activation(index).band(interval))

    def set_band(self, index: int, interval: Interval, band: Band) -> None:
        self.bands[index] = band
        self._ready.pop(index, None)
        self.rounding.enter_band(index, interval, band, self.centre(self.network.source(index)))
        known = not torch.is_grad_enabled() and self.network.activation(index).elementwise
        alive = alive_channels(*self.rounding.alive(index, band)) if known else None
        if alive is not None:
            self._alive[index] = alive
            self._slim, self._kept = prune(self.network, self._alive)

    def narrow(self, index: int, values: Tensor) -> Tensor:
        return values.index_select(1, self._kept[index]) if index in self._kept else values

    def _laid_out(self, index: int, values: Tensor) -> Tensor:
        return channels_inside(self.narrow(index, values))

    def centre(self, index: int) -> Tensor:
        return self.centres.at(index)

    def bound(self, index: int) -> Interval:
        return self._bound(index, self._pulled_radii())

    def operations(self, index: int) -> float:
        return self._pulled_radii().operations(index)

    def _bound(self, index: int, radii: PulledRadii) -> Interval:
        centre = self.centre(index)
        reach = radii.of_units(index)
        self.rounding.note(index, reach.error, reach.run_error)
        return Interval(centre - reach.below, centre + reach.above)

    def settle(self, index: int) -> Interval:
        """Exact bounds only for the units that need them: see `settling`."""
        source, radii = self.network.source(index), self._pulled_radii()
        chosen = self._settling.chosen(source, self.centre(source), radii.plan(source), radii.operations)
        if chosen is None:
            interval = self._bound(source, radii)
        else:
            exact = radii.of_some_units(source, chosen)
            self.rounding.note_some(source, chosen, exact.error, exact.run_error)
            reach = torch.where(chosen, exact.below, self._settling.reach(source))
            interval = Interval.around(self.centre(source), reach)
        self._settling.remember(source, interval)
        return interval

    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        radius, error, run_error = self._pulled_radii(as_run).of_rows_with_errors(index, rows)
        return rows.inner(index, rows.seed, self.centre(index)) - radius, error, run_error

    def _drift(self, index: int, rounding: Rounding) -> Tensor:
        return torch.zeros_like(self.centre(index)) if self.constant else super()._drift(index, rounding)

    def _pulled_radii(self, as_run: bool | None = None) -> PulledRadii:
        """Radii for the bands that are known by now.

        as_run: whether to count run errors; None: only in a deep network.
        """
        for i, band in self.bands.items():
            if i not in self._ready:
                self._ready[i] = Band(self._laid_out(i, band.slope), band.centre, self._laid_out(i, band.radius))
                errors = self.rounding.of_activation(i, by_image=i in self.constant)
                for ready, error in zip((self._ready_errors, self._ready_run_errors), errors, strict=False):
                    ready[i] = self._laid_out(i, error)
        bands, known = dict(self._ready), dict(self._ready_errors)
        with_run = len(bands) >= DEEP if as_run is None else as_run
        run_errors = dict(self._ready_run_errors) if with_run else {}
        constant = frozenset(self.constant)
        return PulledRadii(self._slim, self.region, bands, self.budget, constant, errors=known, run_errors=run_errors)


def interval_solver(
    network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors, intervals: dict[int, Interval]
) -> DualSolver:
    """A solver that bounds linear functions of the output as interval arithmetic does; `intervals` are of what enters activations.

    The activations that rows of the output meet first get a constant band, slope 0, around the interval of their values. Rows go no
    farther, so nothing before these activations is computed.
    """
    solver = DualSolver(network, region, budget, rounding)
    waiting, seen = [network.output], set[int]()
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        if index not in intervals:
            waiting += network.nodes[index].inputs
            continue
        image = network.activation(index).image(intervals[index])
        solver.bands[index] = Band(torch.zeros_like(image.lower), image.centre, image.radius)
        solver.centres.put(index, image.centre)
        solver.constant.add(index)
    return solver
