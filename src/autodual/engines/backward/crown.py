"""Bounds from two lines per unit, each side pulled back on its own: usually tighter than bands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from autodual._errors import ArgumentError
from autodual._tensor import added, channels_inside, laid_out_like
from autodual.dual import AffineDual, DualNetwork, Lines
from autodual.engines.backward.bands import DEEP, Solver
from autodual.engines.backward.dual import BackwardEngine, Dual
from autodual.engines.backward.pulling import operations_of_row, over_chunks, pull_back
from autodual.engines.backward.rows import Rows, local_windows, plan_for
from autodual.engines.effort import Budget
from autodual.engines.ibp import IBP
from autodual.engines.results import BoundEngine
from autodual.engines.rounding import Errors, Rounding
from autodual.interval import Interval
from autodual.sets import InputSet, norm_of

LowerSlope: TypeAlias = Literal["adaptive", "zero", "one"]
"""The slope of the line below: the layer's own choice, or the smallest or the largest of those that it may have."""


class CrownSolver(Solver):
    """Two lines per unit: which one applies depends on the sign of the coefficient, so each side is pulled back on its own."""

    def __init__(
        self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors, slope: LowerSlope = "adaptive"
    ) -> None:
        super().__init__(network, region, budget, rounding)
        self.slope = slope
        self.chosen: dict[int, Lines] = {}
        self._pulls_run_errors = any(not network.activation(i).elementwise for i in network.activations)
        """Whether run errors are pulled back with the bounds: absolute weights and products from layer to layer add up to far more."""

    def lines(self, index: int, interval: Interval) -> Lines:
        """The lines of activation `index`: its own, or with the smallest or the largest slope that the lower one may have."""
        layer = self.network.activation(index)
        own = layer.lines(interval)
        free = None if self.slope == "adaptive" else layer.free_slopes(interval)
        if free is None:
            return own
        return layer.lines_with(
            interval, free.lower.lower if self.slope == "zero" else free.lower.upper, own.upper_slope
        )

    def relax(self, index: int, interval: Interval) -> None:
        lines = self.lines(index, interval)
        self.chosen[index] = Lines(*(channels_inside(getattr(lines, f.name)) for f in fields(lines)))
        self.rounding.enter_lines(index, interval, lines)

    def lower(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        kinds = [self.rounding.errors, self.rounding.run_errors] if as_run else [self.rounding.errors]
        found: list[list[Tensor]] = [[] for _ in kinds]
        lower = self._lower(index, rows, [(known, to) for known, to in zip(kinds, found, strict=True) if known])
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
            if not self.network.activation(activation).elementwise:  # its two lines are parallel
                return self.network.activation(activation).back(lines.lower_slope, coefficients)
            return torch.addcmul(positive * lines.lower_slope, negative, lines.upper_slope)

        def add_bias(node: int, coefficients: Tensor) -> None:
            bias = _bias(self.network, node, coefficients)
            if bias is not None:
                total.append(rows.inner(node, coefficients, bias))

        on_input = pull_back(self.network, index, rows, through, add_bias)
        assert on_input is not None
        region, norm = self.region, norm_of(self.region)
        if norm is None:
            total.append(region.minimise(on_input))
        else:
            centre = rows.inner(0, on_input, region.centre)
            total.append(centre - rows.support(0, on_input, norm, region.radius))
        return added(total)

    def operations(self, index: int) -> float:
        plan = plan_for(self.network, index, local_windows(self.network, index, self.region))
        return 2 * plan.count * operations_of_row(self.network, index)

    def bound(self, index: int) -> Interval:
        plan = plan_for(self.network, index, local_windows(self.network, index, self.region))

        def of_all(work: Callable[[Rows], Tensor], span: tuple[float, float]) -> Tensor:
            return over_chunks(self.network, index, plan, self.budget, self.region.centre, work, span)

        as_run = self._pulls_run_errors and len(self.rounding.errors) >= DEEP
        count = 1 + bool(self.rounding.errors) + as_run

        def found(rows: Rows) -> Tensor:
            """[R, N, 2 N or 3 N, ...]: results and, after them, errors, if there are any."""
            results = self.lower(index, rows, as_run)[:count]
            return results[0] if count == 1 else torch.cat(torch.broadcast_tensors(*results), dim=1)

        below, *errors = of_all(found, (0.0, 0.5)).chunk(count)
        above, *others = of_all(lambda rows: found(rows.flipped()), (0.5, 1.0)).chunk(count)
        self.rounding.note(
            index, *(torch.maximum(a, b) for a, b in zip(errors, others, strict=True)) if errors else (None,)
        )
        return Interval(below, -above)


def _bias(network: DualNetwork, index: int, like: Tensor) -> Tensor | None:
    layer = network.nodes[index].layer
    bias = layer.bias() if isinstance(layer, AffineDual) else None
    return None if bias is None else bias.to(like).expand(1, *network.nodes[index].shape)


@dataclass(frozen=True, repr=False)
class Crown(BackwardEngine):
    """Two lines per unit; for ReLU the lower slope is 0 or 1, whichever leaves less area. Usually tighter than `Dual`.

    lower: "adaptive" is that; "zero" and "one" give every unstable ReLU the slope 0 or 1. Other activations get the smallest or the
        largest slope of a line that touches them from below; those that have one line only keep it.

    Examples:
        >>> import autodual as ad
        >>> ad.Crown(lower="zero", intermediate=ad.IBP())  # close to interval bounds, and often tighter where those are trained with
        Crown(intermediate=IBP(), lower='zero')
    """

    lower: LowerSlope = "adaptive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower not in get_args(LowerSlope):
            raise ArgumentError(
                f"lower must be one of {', '.join(map(repr, get_args(LowerSlope)))}, got {self.lower!r}"
            )

    def solver(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> CrownSolver:
        return CrownSolver(network, region, budget, rounding, self.lower)

    @property
    def coarse_in_float32(self) -> bool:
        return True

    @property
    def cheaper(self) -> list[BoundEngine]:
        return [Dual(), Crown(intermediate=IBP())] if self.intermediate is None else super().cheaper

    @property
    def sketch(self) -> BoundEngine | None:
        return replace(self, intermediate=IBP(), intersect=False) if self.intermediate is None else None

    def _rounding(self, network: DualNetwork, region: InputSet) -> Rounding:
        return Rounding(network, region, pulls_centres=True)
