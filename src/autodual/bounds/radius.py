"""How far rows of a network with parallel lines can move: pulled back once, for both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autodual._tensor import flat_pair, has_channels_inside
from autodual.bounds.backward import Observer, over_chunks, pull_back
from autodual.bounds.memory import Budget, even_split
from autodual.bounds.patches import Patches, crop
from autodual.bounds.rows import DensePlan, DenseRows, Plan, Rows, SomeUnitsPlan, features, local_windows, plan_for
from autodual.bounds.weigh import sizes, weigh, weighable
from autodual.dual import Band, DualNetwork
from autodual.sets import InputSet

FEW = 0.3
"""Unstable units are gathered if at most this part of all units is unstable in some example."""


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

    static: bool = False
    """Whether shapes must not depend on values, nor the host wait for them."""

    def of_rows(self, index: int, rows: Rows, observe: Observer | None = None) -> Tensor:
        """The dual norm of the input's coefficients plus the l1 norm of those of all unstable units. [SPAD Thm 1]"""
        total: list[Tensor] = []

        def through(activation: int, coefficients: Tensor) -> Tensor | None:
            slope, radius = self.bands[activation].slope, self.bands[activation].radius
            if (
                activation not in self.constant
                and isinstance(rows, DenseRows)
                and weighable(coefficients, radius, slope)
            ):
                passed, size = weigh(coefficients, slope, radius)
                total.append(size)
                return passed
            total.append(self._unstable_units(rows, activation, coefficients))
            return None if activation in self.constant else coefficients * self.bands[activation].slope

        on_input = pull_back(self.network, index, rows.seed, through, observe)
        if on_input is not None:
            total.append(self._support(rows, on_input))
        return sum(total[1:], total[0])

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
        return rows.inner(activation, coefficients.abs(), radius)

    def _support(self, rows: Rows, coefficients: Tensor) -> Tensor:
        if self.region.dual_norm == 1 and isinstance(rows, DenseRows) and weighable(coefficients, self.region.radius):
            return sizes(coefficients, self.region.radius)
        if self.region.dual_norm is not None:
            return rows.support(0, coefficients, self.region)
        return rows.inner(0, coefficients, self.region.centre) - self.region.minimise(coefficients)

    def plan(self, index: int) -> Plan | Patches:
        """The cheapest way to treat all units of a node, by counting values."""
        windows = local_windows(self.network, index, self.region)
        plan = plan_for(self.network, index, windows)
        patches = None if windows is None else crop(self.network, index, windows)
        channels = self.network.nodes[index].shape[0]
        if patches is not None and patches.cost * channels < plan.count * features(self.network, index):
            return patches
        return plan

    def of_some_units(self, index: int, units: Tensor) -> Tensor:
        """[N, len(units)]: the same for some units of a node, given by their place in the flattened shape."""
        plan = SomeUnitsPlan(self.network.nodes[index].shape, units)
        return over_chunks(self.network, index, plan, self.budget, self.region.centre, lambda r: self.of_rows(index, r))

    def of_units(self, index: int) -> tuple[Tensor, Tensor]:
        """How far below and above its centre every unit of a node can be, by the cheapest way: patches, cells or rows."""
        plan = self.plan(index)
        if isinstance(plan, Patches):
            radius = self._of_patches(plan)
            return radius, radius
        like = self.region.centre
        below = over_chunks(self.network, index, plan, self.budget, like, lambda r: self.of_rows(index, r))
        if self.region.dual_norm is not None:
            return below, below
        return below, over_chunks(
            self.network, index, plan, self.budget, like, lambda r: self.of_rows(index, r.flipped())
        )

    def _of_patches(self, patches: Patches) -> Tensor:
        """Every unit as the output of a small network over many virtual examples, some at a time."""
        network = patches.network
        region, bands = patches.region(self.region), patches.bands(self.bands)
        plan = DensePlan(network.nodes[network.output].shape)
        size = even_split(len(region), self.budget.patches(network, plan.count, region.centre))

        def some(part: slice) -> Tensor:
            cut = {i: Band(b.slope[part], b.centre, b.radius[part]) for i, b in bands.items()}
            (rows,) = plan.chunks(plan.count, region.centre)
            return RadiusPass(network, region[part], cut, self.budget).of_rows(network.output, rows)

        parts = [slice(start, start + size) for start in range(0, len(region), size)]
        if torch.is_grad_enabled() and len(parts) > 1:
            return patches.assemble(torch.cat([checkpoint(some, part, use_reentrant=False) for part in parts], 1))
        return patches.assemble(torch.cat([some(part) for part in parts], 1))
