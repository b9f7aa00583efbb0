"""How far rows of a network with parallel lines can move: pulled back once, for both sides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autodual._tensor import added, flat_pair, has_channels_inside, laid_out_like
from autodual.bounds.backward import over_chunks, pull_back
from autodual.bounds.memory import Budget, even_split
from autodual.bounds.patches import Patches, crop
from autodual.bounds.rows import DensePlan, DenseRows, Plan, Rows, SomeUnitsPlan, features, local_windows, plan_for
from autodual.bounds.weigh import sizes, weigh, weighable
from autodual.dual import Band, DualNetwork
from autodual.sets import InputSet

FEW = 0.3
"""Unstable units are gathered if at most this part of all units is unstable in some example."""


class Reach(NamedTuple):
    """How far below and above its centre every unit of a node can be; and what errors before it add up to, if there are any: those of
    bounds, and those of the network as it runs."""

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
    """By node, once one has been made."""

    static: bool = False
    """Whether shapes must not depend on values, nor the host wait for them."""
    errors: dict[int, Tensor] = field(default_factory=dict)
    """By activation, for a proof: see `Rounding`."""
    run_errors: dict[int, Tensor] = field(default_factory=dict)
    """Of the network as it runs, if they are asked for."""

    def of_rows(self, index: int, rows: Rows) -> Tensor:
        """The dual norm of the input's coefficients plus the l1 norm of those of all unstable units. [SPAD Thm 1]"""
        return self._pulled_back(index, rows, [], [])

    def of_rows_with_errors(self, index: int, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The radius, and what the errors of activations add up to, multiplied by their coefficients: of bounds, and as it runs."""
        errors, run_errors = list[Tensor](), list[Tensor]()
        radius = self._pulled_back(index, rows, errors, run_errors)
        none = [torch.zeros_like(radius)]
        return radius, added(errors or none), added(run_errors or none)

    def _pulled_back(self, index: int, rows: Rows, errors: list[Tensor], run_errors: list[Tensor]) -> Tensor:
        total: list[Tensor] = []

        def through(activation: int, coefficients: Tensor) -> Tensor | None:
            slope, radius = self.bands[activation].slope, self.bands[activation].radius
            coefficients = laid_out_like(coefficients, slope)
            sums = [(errors, self.errors[activation])] if self.errors else []
            if self.run_errors:
                sums.append((run_errors, self.run_errors[activation]))
            if activation not in self.constant and self._worthwhile(rows, coefficients, radius, slope):
                passed, size = weigh(coefficients, slope, radius)
                total.append(size)
                for found, error in sums:
                    found.append(rows.norm(activation, coefficients, error))
                return passed
            if sums:
                size, *sizes_of_errors = rows.norms(activation, coefficients, radius, *(error for _, error in sums))
                total.append(size)
                for (found, _), size_of_error in zip(sums, sizes_of_errors, strict=True):
                    found.append(size_of_error)
            else:
                total.append(self._unstable_units(rows, activation, coefficients))
            return None if activation in self.constant else coefficients * slope

        on_input = pull_back(self.network, index, rows.seed, through)
        if on_input is not None:
            total.append(self._support(rows, on_input))
        return added(total)

    def _unstable_units(self, rows: Rows, activation: int, coefficients: Tensor) -> Tensor:
        """The l1 norm of the coefficients on the unstable units, weighted by their radius; few units are gathered first."""
        radius = self.bands[activation].radius
        if coefficients.shape[1] > 1 and isinstance(rows, DenseRows) and not (self.static or torch.is_grad_enabled()):
            key = (activation, has_channels_inside(coefficients))
            if key not in self.unstable:
                self.unstable[key] = flat_pair(coefficients, radius)[1].any(0).nonzero().squeeze(1)
            units = self.unstable[key]
            if len(units) < FEW * math.prod(radius.shape[1:]):
                some, size = (v.index_select(-1, units) for v in flat_pair(coefficients, radius))
                return rows.inner(activation, some.abs(), size)
        return rows.norm(activation, coefficients, radius)

    def _worthwhile(self, rows: Rows, coefficients: Tensor, radius: Tensor, *slope: Tensor) -> bool:
        """Whether to have a kernel for it."""
        return isinstance(rows, DenseRows) and weighable(coefficients, radius, *slope, in_graph=self.static)

    def _support(self, rows: Rows, coefficients: Tensor) -> Tensor:
        if self.region.dual_norm == 1 and self._worthwhile(rows, coefficients, self.region.radius):
            return sizes(coefficients, self.region.radius)
        if self.region.dual_norm is not None:
            return rows.support(0, coefficients, self.region)
        return rows.inner(0, coefficients, self.region.centre) - self.region.minimise(coefficients)

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
        channels = self.network.nodes[index].shape[0]
        return patches if patches.cost * channels < plan.count * features(self.network, index) else plan

    def of_some_units(self, index: int, units: Tensor) -> Reach:
        """[N, len(units)]: of some units of a node, given by their place in the flattened shape."""
        radius, *errors = self._of_plan(index, SomeUnitsPlan(self.network.nodes[index].shape, units))
        return Reach(radius, radius, *errors)

    def of_units(self, index: int) -> Reach:
        """Of every unit of a node, by the cheapest way: patches, cells or rows."""
        plan = self.plan(index)
        if isinstance(plan, Patches):
            radius, *errors = self._of_patches(plan)
            return Reach(radius, radius, *errors)
        below, *errors = self._of_plan(index, plan)
        above = below if self.region.dual_norm is not None else self._over(index, plan, _flipped(self.of_rows))
        return Reach(below, above, *errors)

    def _of_plan(self, index: int, plan: Plan) -> tuple[Tensor, ...]:
        """Radius and errors of the units that are planned for."""
        if not self.errors:
            return (self._over(index, plan, self.of_rows),)
        return self._over(index, plan, self._with_errors).chunk(self._results)

    @property
    def _results(self) -> int:
        """How many numbers a proof finds for every row."""
        return 1 + bool(self.errors) + bool(self.run_errors)

    def _over(self, index: int, plan: Plan, work: Callable[[int, Rows], Tensor]) -> Tensor:
        return over_chunks(self.network, index, plan, self.budget, self.region.centre, lambda rows: work(index, rows))

    def _with_errors(self, index: int, rows: Rows) -> Tensor:
        """[R, 2 N or 3 N, ...]: results and, after them, errors."""
        return torch.cat(torch.broadcast_tensors(*self.of_rows_with_errors(index, rows)[: self._results]), dim=1)

    def _of_patches(self, patches: Patches) -> tuple[Tensor, ...]:
        """Every unit as the output of a small network over many virtual examples, some at a time."""
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
