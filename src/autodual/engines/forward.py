"""The single forward pass of AutoDual: every node is a centre plus generators. [SPAD Alg. "Autodual", signs corrected]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._errors import MemoryBudgetError
from autodual._tensor import flat, merge_leading, split_leading
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, Pass, walk
from autodual.engines.backward.bands import DualSolver
from autodual.engines.effort import Budget
from autodual.engines.results import (
    BoundEngine,
    Bounds,
    Minimum,
    Preactivations,
    Proof,
    SoundBounds,
    generators,
    name_layers,
    require_bands,
)
from autodual.engines.rounding import Rounding
from autodual.interval import Interval
from autodual.sets import InputSet, norm_of
from autodual.spec import Spec

INPUT = 0
"""Key of the input's generators; those of an activation's unstable units are under its index."""


@dataclass(frozen=True)
class Centred:
    """A node's values: centre [N, *shape] plus generators {source: [G, N, *shape]}."""

    centre: Tensor
    generators: dict[int, Tensor]


class ForwardPass(Pass[Centred]):
    """Carries one column per input feature and per unstable unit; units that are stable in all examples get none."""

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget) -> None:
        self.network, self.region, self.budget = network, region, budget
        self.bands: dict[int, Band] = {}
        self.preactivations: dict[int, Interval] = {}
        self.output = walk(network, self)

    def input(self) -> Centred:
        centre = self.region.centre
        count = centre.shape[1:].numel()
        self._fits(count, centre.shape)
        identity = torch.eye(count, dtype=centre.dtype, device=centre.device).reshape(count, 1, *centre.shape[1:])
        return Centred(centre, {INPUT: identity.expand(count, *centre.shape)})

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Centred]) -> Centred:
        return Centred(layer.apply(*(o.centre for o in operands)), self._through_affine(layer, operands))

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Centred]) -> Centred:
        self.preactivations[index] = self.interval(operands[0])
        band = self.bands[index] = layer.band(self.preactivations[index])
        generators = {source: layer.along(band.slope, g) for source, g in operands[0].generators.items()}
        centre = layer.along(band.slope, operands[0].centre) + band.centre
        return Centred(centre, generators | self._unstable(index, band))

    def _through_affine(self, layer: AffineDual, operands: Sequence[Centred]) -> dict[int, Tensor]:
        result = {}
        for source in {s: None for o in operands for s in o.generators}:
            count = next(o.generators[source].shape[0] for o in operands if source in o.generators)
            self._fits(count, operands[0].centre.shape)
            columns = [
                merge_leading(o.generators[source])
                if source in o.generators
                else o.centre.new_zeros(count * o.centre.shape[0], *o.centre.shape[1:])
                for o in operands
            ]
            result[source] = split_leading(layer.linear(*columns), count)
        return result

    def _unstable(self, index: int, band: Band) -> dict[int, Tensor]:
        radius = flat(band.radius, 1)
        units = (radius.detach() != 0).any(0).nonzero().squeeze(1)
        if len(units) == 0:
            return {}
        self._fits(len(units), band.radius.shape)
        columns = torch.diag_embed(radius[:, units]).movedim(1, 0)
        spread = radius.new_zeros(len(units), *radius.shape).index_copy(2, units, columns)
        return {index: spread.reshape(len(units), *band.radius.shape)}

    def interval(self, value: Centred) -> Interval:
        below, above = self._input_reach(value)
        for source, columns in value.generators.items():
            if source != INPUT:
                total = columns.abs().sum(0)
                below, above = below + total, above + total
        return Interval(value.centre - below, value.centre + above)

    def _input_reach(self, value: Centred) -> tuple[Tensor, Tensor]:
        """How far below and above its centre the input alone can move each unit."""
        columns = value.generators[INPUT]
        region, norm = self.region, norm_of(self.region)
        if norm is not None:
            radius = region.radius.expand_as(region.centre).flatten(1).T
            reach = norm.dual(columns * radius.reshape(*radius.shape, *[1] * (columns.dim() - 2)), 0)
            return reach, reach
        rows = columns.flatten(2).movedim(2, 0).movedim(1, 2).reshape(-1, *region.centre.shape)
        middle = (rows * region.centre).flatten(2).sum(-1)
        below, above = middle - region.minimise(rows), -region.minimise(-rows) - middle
        return below.T.reshape(value.centre.shape), above.T.reshape(value.centre.shape)

    def _fits(self, columns: int, shape: torch.Size) -> None:
        needed = columns * math.prod(shape) * self.region.centre.element_size()
        if needed > self.budget.max_bytes:
            raise MemoryBudgetError(
                f"the forward pass needs {needed:,} bytes for {columns:,} columns of shape {tuple(shape)}, more than "
                f"max_bytes = {self.budget.max_bytes:,}. Use Dual(), which computes the same bounds backwards in pieces"
            )


@dataclass(frozen=True, repr=False)
class ForwardDual(BoundEngine):
    """Computes the bounds of `Dual` in one forward pass over columns; memory grows with inputs times hidden units."""

    max_bytes: int | None = None

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return Preactivations(self._run(network, region).preactivations)

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        run = self._run(network, region)
        output = run.interval(run.output)
        return SoundBounds(output, name_layers(network, run.preactivations))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        return Minimum(self._project(self._run(network, region), spec))

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        run = self._run(network, region)
        rounding = Rounding(network, region, generators(network))
        self._pull_back(run, rounding)
        return Preactivations(run.preactivations, outside=rounding.outside_of(network.activations))

    def enclose(self, network: DualNetwork, region: InputSet) -> SoundBounds:
        run, rounding = self._run(network, region), Rounding(network, region, generators(network))
        self._pull_back(run, rounding).bound(network.output)
        outside = rounding.outside_of(network.activations)
        inside = {i: outside[i].around(v) for i, v in run.preactivations.items()}
        output = rounding.outside[network.output].around(run.interval(run.output))
        return SoundBounds(output, name_layers(network, inside))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        run = self._run(network, region)
        solver = self._pull_back(run, Rounding(network, region, generators(network)))
        _, slack, run_error = solver.prove(network.output, spec)
        return Proof(self._project(run, spec), slack, run_error)

    @staticmethod
    def _pull_back(run: ForwardPass, rounding: Rounding) -> DualSolver:
        """Computes the bounds once more, backwards, which is how their rounding errors are found."""
        solver = DualSolver(run.network, run.region, run.budget, rounding)
        for index, interval in run.preactivations.items():
            source = run.network.source(index)
            if source not in rounding.outside:
                solver.bound(source)
            solver.set_band(index, interval, run.bands[index])
        return solver

    def _run(self, network: DualNetwork, region: InputSet) -> ForwardPass:
        require_bands(network, "ForwardDual")
        return ForwardPass(network, region, Budget.of(self.max_bytes, region.centre.device))

    @staticmethod
    def _project(run: ForwardPass, spec: Spec) -> Tensor:
        """The specification as one more affine layer."""
        value = run.output
        rows = spec.rows.flatten(2)

        def apply(x: Tensor) -> Tensor:
            return torch.einsum("knc,...nc->...nk", rows.expand(-1, value.centre.shape[0], -1), x)

        generators = {s: apply(g.flatten(2)) for s, g in value.generators.items()}
        return run.interval(Centred(apply(value.centre.flatten(1)), generators)).lower
