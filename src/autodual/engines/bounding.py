"""Bounds of a network's output and of what enters its activations: `bounds`, which rounds outwards what an engine finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import full_precision
from autodual.engines.arguments import check_region, require_engine
from autodual.engines.prepare import COMPARED, Prepared, prepare
from autodual.engines.results import BoundEngine, Bounds, ProbableBounds, SoundBounds
from autodual.graph import Network
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.sets.input_sets import rounded_up


def bounds(model: nn.Module | Network, input_set: InputSet, engine: BoundEngine | None = None) -> Bounds:
    """Bound the output, and what enters every activation, for every input of the set.

    Differentiable in the parameters, the inputs and eps. Sound and probable bounds are rounded outwards, so that they hold as they
    are. Sound ones are computed in float64 where float32 would have to move them by more than a hundredth of their width. Gradients
    are those of the bounds without rounding.

    Args:
        model: Any nn.Module in evaluation mode, whose output may have any shape; or a captured Network.
        input_set: Where the inputs may lie: `LinfBall(0.1).around(x)`, `Box(lower, upper)`, or your own.
        engine: How to bound; `Dual()` if not given.

    Returns:
        `output` and `layers`, intervals by name. The type says what they are worth: `SoundBounds`, `ProbableBounds` or
        `EstimatedBounds`.

    Raises:
        ArgumentError: An argument has a value, shape, dtype or device that cannot be used.
        CaptureError: The model could not be turned into a graph.
        MemoryBudgetError: The work does not fit into the memory, however it is cut.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
        >>> found = ad.bounds(model, ad.LinfBall(0.1).around(torch.zeros(5, 3)))
        >>> type(found).__name__, found.output.lower.shape
        ('SoundBounds', torch.Size([5, 2]))
    """
    engine = require_engine(engine)
    if not isinstance(input_set, InputSet):
        raise ArgumentError(
            f"input_set must be an InputSet such as LinfBall(0.1).around(x) or Box(lower, upper), got {type(input_set).__name__}"
        )
    check_region(input_set, "input_set")
    with full_precision():
        prepared = prepare(model, input_set.centre, input_set[slice(0, COMPARED)])
        found = engine.bounds(prepared.network, input_set)
        if not isinstance(found, SoundBounds | ProbableBounds):
            return found
        with torch.no_grad():
            outer = _known(_rounded_outwards(prepared, input_set, engine, found))
    layers = {name: _with_gradient(outer.layers[name], interval) for name, interval in found.layers.items()}
    return replace(outer, output=_with_gradient(outer.output, found.output), layers=layers)


def _known(bounds: Bounds) -> Bounds:
    """Bounds without NaN: what overflowed is known to be below +inf and above -inf, and no more."""

    def known(ends: Interval) -> Interval:
        unknown = -torch.inf, torch.inf
        lower, upper = (
            torch.where(e.isfinite(), e, end) for e, end in zip((ends.lower, ends.upper), unknown, strict=True)
        )
        return Interval(lower, upper)

    layers = {name: known(ends) for name, ends in bounds.layers.items()}
    return replace(bounds, output=known(bounds.output), layers=layers)


ROOM = 0.01
"""The largest part of a bound's width that rounding outwards may add in float32."""


def _rounded_outwards(prepared: Prepared, region: InputSet, engine: BoundEngine, found: Bounds) -> Bounds:
    """Bounds that hold as they are, in the dtype of the set."""
    wider = region.double()
    if prepared.only_in_double and wider is None:
        raise ArgumentError(
            "model: computes weights that float32 cannot hold, so its bounds need float64; give the input set a method `double`, or "
            "give model and set in float64"
        )
    outer = None if prepared.only_in_double else engine.enclose(prepared.network, region)
    if prepared.only_in_double and wider is not None:
        double = engine.enclose(prepared.in_double, wider)
        return found if double is None else _single_bounds(double)
    if outer is None:  # an engine of the user's own, which answers for its rounding
        return found
    if region.centre.dtype == torch.float64 or engine.random:  # to try twice would double delta
        return outer
    pairs = [(outer.output, found.output), *((outer.layers[name], found.layers[name]) for name in found.layers)]
    if all(bool((wide.width <= (1 + ROOM) * narrow.width).all()) for wide, narrow in pairs):
        return outer
    double = None if wider is None else engine.enclose(prepared.in_double, wider)
    if double is None:
        return outer
    return _single_bounds(double)


def _single_bounds(double: Bounds) -> Bounds:
    layers = {name: _single_interval(i) for name, i in double.layers.items()}
    return replace(double, output=_single_interval(double.output), layers=layers)


def _single_interval(interval: Interval) -> Interval:
    """The smallest interval of float32 numbers around one of float64 numbers."""
    return Interval(-rounded_up(-interval.lower, torch.float32), rounded_up(interval.upper, torch.float32))


class _Moved(torch.autograd.Function):
    """Other numbers with the gradient of the given ones."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, numbers: Tensor) -> Tensor:
        return numbers.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _with_gradient(numbers: Interval, given: Interval) -> Interval:
    if not torch.is_grad_enabled() or not (given.lower.requires_grad or given.upper.requires_grad):
        return numbers
    return Interval(_Moved.apply(given.lower, numbers.lower), _Moved.apply(given.upper, numbers.upper))
