"""Bounds from two lines per unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from autodual._tensor import added, channels_inside, laid_out_like
from autodual.bounds.backward import over_chunks, pull_back
from autodual.bounds.memory import Budget
from autodual.bounds.rounding import Rounding
from autodual.bounds.rows import Rows, local_windows, plan_for
from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, DualNetwork, Lines
from autodual.interval import Interval
from autodual.sets import InputSet


class CrownSolver(Solver):
    """Two lines per unit: which one applies depends on the sign of the coefficient, so each side is pulled back."""

    def __init__(
        self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Rounding | None = None
    ) -> None:
        super().__init__(network, region, budget, rounding)
        self.chosen: dict[int, Lines] = {}

    def relax(self, index: int, interval: Interval) -> None:
        lines = self.activation(index).lines(interval)
        self.chosen[index] = Lines(*(channels_inside(getattr(lines, f.name)) for f in fields(lines)))
        if self.rounding is not None:
            offset = torch.maximum(lines.lower_offset.abs(), lines.upper_offset.abs())
            self.rounding.enter(index, interval, (lines.lower_slope, lines.upper_slope), offset)

    def lower(self, index: int, rows: Rows) -> Tensor:
        return self._lower(index, rows, [])

    def lower_with_errors(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        kinds = [self._errors(), self._run_errors()] if as_run else [self._errors()]
        found: list[list[Tensor]] = [[] for _ in kinds]
        lower = self._lower(index, rows, list(zip(kinds, found, strict=True)))
        sums = [added(parts or [torch.zeros_like(lower)]) for parts in found]
        return lower, sums[0], sums[-1]

    def _lower(self, index: int, rows: Rows, errors: list[tuple[dict[int, Tensor], list[Tensor]]]) -> Tensor:
        """errors: pairs of known errors of activations, and where to put what each adds to the rows."""
        total: list[Tensor] = []

        def through(activation: int, coefficients: Tensor) -> Tensor:
            lines = self.chosen[activation]
            coefficients = laid_out_like(coefficients, lines.lower_slope)
            if errors:
                sizes = rows.norms(activation, coefficients, *(known[activation] for known, _ in errors))
                for (_, found), size in zip(errors, sizes, strict=True):
                    found.append(size)
            positive, negative = coefficients.clamp(min=0), coefficients.clamp(max=0)
            total.append(rows.inner(activation, positive, lines.lower_offset))
            total.append(rows.inner(activation, negative, lines.upper_offset))
            return torch.addcmul(positive * lines.lower_slope, negative, lines.upper_slope)

        def add_bias(node: int, coefficients: Tensor) -> None:
            bias = _bias(self.network, node, coefficients)
            if bias is not None:
                total.append(rows.inner(node, coefficients, bias))

        on_input = pull_back(self.network, index, rows.seed, through, add_bias)
        assert on_input is not None
        if self.region.dual_norm is not None:
            centre = rows.inner(0, on_input, self.region.centre)
            total.append(centre - rows.support(0, on_input, self.region))
        else:
            total.append(self.region.minimise(on_input))
        return added(total)

    def bound(self, index: int) -> Interval:
        plan = plan_for(self.network, index, local_windows(self.network, index, self.region))

        def of_all(work: Callable[[Rows], Tensor]) -> Tensor:
            return over_chunks(self.network, index, plan, self.budget, self.region.centre, work)

        if self.rounding is None:
            below, above = of_all(lambda r: self.lower(index, r)), of_all(lambda r: self.lower(index, r.flipped()))
            return Interval(below, -above)
        below, error = of_all(lambda r: self._with_errors(index, r)).chunk(2)
        above, other = of_all(lambda r: self._with_errors(index, r.flipped())).chunk(2)
        self.rounding.note(index, torch.maximum(error, other))
        return Interval(below, -above)

    def _with_errors(self, index: int, rows: Rows) -> Tensor:
        """[R, 2 N, ...]: results and, after them, errors."""
        return torch.cat(torch.broadcast_tensors(*self.lower_with_errors(index, rows)[:2]), dim=1)


def _bias(network: DualNetwork, index: int, like: Tensor) -> Tensor | None:
    layer = network.nodes[index].layer
    bias = layer.bias() if isinstance(layer, AffineDual) else None
    return None if bias is None else bias.to(like).expand(1, *network.nodes[index].shape)
