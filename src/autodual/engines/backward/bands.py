"""Bounds from bands, two parallel lines per unit: a centre that goes forward, and a radius that rows are pulled back for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autodual._tensor import (
    added,
    channels_inside,
    flat,
    flat_pair,
    has_channels_inside,
    laid_out_like,
    merge_leading,
    put_at,
    split_leading,
)
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, OnDemand, Pass
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
from autodual.engines.effort import Budget, even_split, reached
from autodual.engines.rounding import SAFETY, Errors, Rounding, of_underflow
from autodual.interval import Interval
from autodual.kernels.weigh import weigh, weighable, weighted_l1
from autodual.sets import InputSet, norm_of
from autodual.spec import Spec

# Pulling rows back through a dual network: the traversal that the backward engines share. [SPAD Eq. 8]

Observer = Callable[[int, Tensor], None]
AtActivation = Callable[[int, Tensor], Tensor | None]


def pull_back(
    network: DualNetwork, target: int, seed: Tensor, at_activation: AtActivation, observe: Observer | None = None
) -> Tensor | None:
    """Coefficients on the network's input [R, N or 1, *shape], or None if no row reaches it.

    `at_activation` turns the coefficients on an activation's result into those on its operand (None stops there);
    `observe` sees the coefficients on every node.
    """
    coefficients: dict[int, Tensor] = {target: seed}
    for index in network.ancestors(target):
        if index not in coefficients:
            continue
        node, current = network.nodes[index], coefficients.pop(index)
        if observe is not None:
            observe(index, current)
        if node.layer is None:
            return current
        pulled: Iterable[Tensor | None]
        if isinstance(node.layer, AffineDual):
            merged = node.layer.transpose(merge_leading(current), network.operand_shapes(index))
            pulled = (split_leading(p, current.shape[0]) for p in merged)
        else:
            pulled = (at_activation(index, current),)
        for source, part in zip(node.inputs, pulled, strict=True):
            if part is not None:
                coefficients[source] = coefficients[source] + part if source in coefficients else part
    return None


def over_chunks(
    network: DualNetwork,
    target: int,
    plan: Plan,
    budget: Budget,
    like: Tensor,
    bound: Callable[[Rows], Tensor],
    span: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Results of `bound` for all units of a node, some rows at a time. With gradients, chunks are recomputed instead of stored.

    span: which part of the work on the node this is, for whoever watches.
    """
    size = even_split(plan.count, budget.rows(network, target, like))
    again = torch.is_grad_enabled() and size < plan.count
    results = []
    for rows in plan.chunks(size, like):
        results.append(checkpoint(bound, rows, use_reentrant=False) if again else bound(rows))
        done = min(1.0, len(results) * size / plan.count)
        reached(target, span[0] + done * (span[1] - span[0]))
    return plan.assemble(results)


AT_ACTIVATION = 8
"""Operations on a coefficient at an activation, about, as many multiplications of a product."""


def operations_of_row(network: DualNetwork, target: int) -> float:
    """Multiplications, about, that pulling one row back from a node takes."""
    total = 0.0
    for index in network.ancestors(target):
        node, shapes = network.nodes[index], network.operand_shapes(index)
        size = sum(map(math.prod, shapes))
        if isinstance(node.layer, AffineDual):
            total += size * node.layer.terms(shapes, node.shape)[1]
        else:
            total += size * AT_ACTIVATION
    return total


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
class RadiusPass:
    """A network whose activations have bands, over a set of inputs."""

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
            if fused and self._worthwhile(rows, coefficients, radius, slope):
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

        on_input = pull_back(self.network, index, rows.seed, through)
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

    def _worthwhile(self, rows: Rows, coefficients: Tensor, radius: Tensor, *slope: Tensor) -> bool:
        """Whether to use the kernels of `weigh`."""
        return isinstance(rows, DenseRows) and weighable(coefficients, radius, *slope, in_graph=self.static)

    def _support(self, rows: Rows, coefficients: Tensor) -> Tensor:
        region, norm = self.region, norm_of(self.region)
        if norm is None:
            return rows.inner(0, coefficients, region.centre) - region.minimise(coefficients)
        if norm.separable and self._worthwhile(rows, coefficients, region.radius):
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

    def of_some_units(self, index: int, units: Tensor) -> UnitRadii:
        """Radii [N, len(units)] of some units of a node, given by their place in the flattened shape."""
        radius, *errors = self._of_plan(index, SomeUnitsPlan(self.network.nodes[index].shape, units))
        return UnitRadii(radius, radius, *errors)

    def of_units(self, index: int) -> UnitRadii:
        """Radii of all units of a node, in the cheapest way: by patches, cells or rows."""
        plan = self.plan(index)
        if isinstance(plan, Patches):
            radius, *errors = self._of_patches(index, plan)
            return UnitRadii(radius, radius, *errors)
        below, *errors = self._of_plan(index, plan)
        above = below if norm_of(self.region) is not None else self._over(index, plan, _flipped(self.of_rows))
        return UnitRadii(below, above, *errors)

    def _of_plan(self, index: int, plan: Plan) -> tuple[Tensor, ...]:
        """Radius and errors of the units of a plan."""
        if not self.errors:
            return (self._over(index, plan, self.of_rows),)
        return self._over(index, plan, self._with_errors).chunk(self._results)

    @property
    def _results(self) -> int:
        """How many numbers are found for every row: its radius, and the errors that are counted."""
        return 1 + bool(self.errors) + bool(self.run_errors)

    def _over(self, index: int, plan: Plan, work: Callable[[int, Rows], Tensor]) -> Tensor:
        return over_chunks(self.network, index, plan, self.budget, self.region.centre, lambda rows: work(index, rows))

    def _with_errors(self, index: int, rows: Rows) -> Tensor:
        """[R, 2 N or 3 N, ...]: radii and, after them, errors."""
        return torch.cat(torch.broadcast_tensors(*self.of_rows_with_errors(index, rows)[: self._results]), dim=1)

    def _of_patches(self, index: int, patches: Patches) -> tuple[Tensor, ...]:
        """Radius and errors of every unit, some lines of positions at a time: what they see is cut out together."""
        kinds = 2 + bool(self.errors) + bool(self.run_errors)
        line = kinds * len(self.region) * patches.values_per_line * self.region.centre.element_size()
        size = even_split(patches.space[0], max(1, min(self.budget.max_bytes, MOST_CUT) // line))
        found = []
        for start in range(0, patches.space[0], size):
            found.append(self._of_lines(replace(patches, lines=slice(start, min(start + size, patches.space[0])))))
            reached(index, min(1.0, (start + size) / patches.space[0]))
        return found[0] if len(found) == 1 else tuple(torch.cat(kind, 2) for kind in zip(*found, strict=True))

    def _of_lines(self, patches: Patches) -> tuple[Tensor, ...]:
        """Radius and errors of units, as the output of a small network over many virtual examples, some at a time."""
        network = patches.network
        region, bands = patches.region(self.region), patches.bands(self.bands)
        errors, run_errors = (
            {patches.places[i]: patches.cut(i, e) for i, e in kind.items() if i in patches.places}
            for kind in (self.errors, self.run_errors)
        )
        plan = DensePlan(network.nodes[network.output].shape)
        size = even_split(len(region), self.budget.patches(network, plan.count, region.centre))

        def some(part: slice) -> Tensor:
            cut = {i: Band(b.slope[part], b.centre, b.radius[part]) for i, b in bands.items()}
            small = RadiusPass(
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
        kinds = zip(*(result.chunk(count, dim=1) for result in results), strict=True)
        return tuple(patches.assemble(torch.cat(kind, 1)) for kind in kinds)


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


@dataclass(frozen=True)
class RadiusBounds(Pass[Tensor]):
    """Radii that are at least the exact ones: |W| r, and |slope| r + radius of the band; in a proof, with room for rounding."""

    region: InputSet
    bands: dict[int, Band]
    rounding: Errors

    def input(self) -> Tensor:
        return self.rounding.with_room(0, self.region.radius.expand_as(self.region.centre))

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return self.rounding.with_room(index, layer.absolute(*operands))

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        band = self.bands[index]
        return self.rounding.with_room(index, layer.along(band.slope.abs(), operands[0]) + band.radius)


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
        """Bounds from below on the rows, and sums over activations of |coefficients| times errors and (as_run) times run errors."""

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
        total = total + of_underflow(products, spec.rows.dtype)  # of coefficients times values and times errors
        slack = total - rows.inner(index, rows.seed, self._drift(index, rounding))
        run_error = SAFETY * (run_error + rows.norm(index, rows.seed, rounding.at(index).run_since))
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
FEW_CURVED = 0.7
"""Units are singled out for exact bounds if at most this part of them needs any."""


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
        self._radius_bounds = OnDemand(network, RadiusBounds(region, self.bands, rounding))

    def relax(self, index: int, interval: Interval) -> None:
        self.set_band(index, interval, self.network.activation(index).band(interval))

    def set_band(self, index: int, interval: Interval, band: Band) -> None:
        self.bands[index] = band
        self._ready.pop(index, None)
        self.rounding.enter_band(index, interval, band)
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
        return self._bound(index, self._radius())

    def operations(self, index: int) -> float:
        return self._radius().operations(index)

    def _bound(self, index: int, radius: RadiusPass) -> Interval:
        centre = self.centre(index)
        reach = radius.of_units(index)
        self.rounding.note(index, reach.error, reach.run_error)
        return Interval(centre - reach.below, centre + reach.above)

    def settle(self, index: int) -> Interval:
        """Exact bounds only for the units that need them.

        The radius is a norm of the unit's generators, so |W| times the radii of the layer before is never smaller. Where even
        with that one the activation is straight, its band is what the exact radius would give.
        """
        source = self.network.source(index)
        radius = self._radius()
        dense = norm_of(self.region) is not None and isinstance(radius.plan(source), DensePlan)
        dense = dense and self.network.activation(index).elementwise
        if not dense or torch.is_grad_enabled() or len(self.network.readers[source]) > 1:
            return self._remember(source, self._bound(source, radius))
        centre, reach = self.centre(source), self._radius_bounds.at(source)
        curved = self.network.activation(index).band(Interval.around(centre, reach)).radius != 0
        units = flat(curved, 1).any(0).nonzero().squeeze(1)
        if len(units) > FEW_CURVED * curved[0].numel():
            return self._remember(source, self._bound(source, radius))
        error = run_error = None
        if len(units) > 0:
            exact = radius.of_some_units(source, units)
            reach, error, run_error = put_at(reach, units, exact.below), exact.error, exact.run_error
        self.rounding.note_some(source, units, error, run_error)
        return self._remember(source, Interval.around(centre, reach))

    def _remember(self, index: int, interval: Interval) -> Interval:
        self._radius_bounds.put(index, self.rounding.reach(index, interval))
        return interval

    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        radius, error, run_error = self._radius(as_run).of_rows_with_errors(index, rows)
        return rows.inner(index, rows.seed, self.centre(index)) - radius, error, run_error

    def _drift(self, index: int, rounding: Rounding) -> Tensor:
        return torch.zeros_like(self.centre(index)) if self.constant else super()._drift(index, rounding)

    def _radius(self, as_run: bool | None = None) -> RadiusPass:
        """as_run: whether to count run errors; None: only in a deep network."""
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
        return RadiusPass(self._slim, self.region, bands, self.budget, constant, errors=known, run_errors=run_errors)


def constant_bands(solver: DualSolver, intervals: dict[int, Interval]) -> DualSolver:
    """Interval bounds as a dual problem: the activations that rows of the output meet first are replaced by the interval of their
    values. Rows go no farther, so nothing before these activations is computed."""
    network = solver.network
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
