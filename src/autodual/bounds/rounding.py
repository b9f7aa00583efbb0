"""How far rounding may have moved a bound: a running error estimate from the sizes of what was added up.

Every sum W z + b is wrong by a few units in the last place of |W| |z| + |b|, and reaches the result multiplied by the coefficient
that stands before it. Sizes are taken over the whole interval of each activation, since relaxations of wide intervals have
large offsets even where the centre is small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec

SAFETY = 4.0
"""Slack is SAFETY * machine epsilon * (sum of the absolute values of all terms). A test compares float32 with float64."""


def unit(like: Tensor) -> float:
    """What a sum of terms of total size 1 may be wrong by."""
    return SAFETY * torch.finfo(like.dtype).eps


def prove_rows(
    solver: Solver, index: int, spec: Spec, intervals: dict[int, Interval], errors: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Bounds from below on the rows and their rounding slack, both [N, K].

    `intervals` are those of the activations' inputs; `errors` what rounding has added to the activations' values on the way there.
    """
    rows = solver.rows(index, spec)
    sizes = [unit(s) * s for s in magnitudes(solver.network, solver.region, intervals)]
    for activation, error in errors.items():
        sizes[activation] = sizes[activation] + error
    terms: list[Tensor] = []
    lower = solver.lower(
        index, rows, lambda node, a: terms.append(rows.inner(node, a.abs(), solver.narrow(node, sizes[node])))
    )
    return lower.T, sum(terms[1:], terms[0]).T


def magnitudes(network: DualNetwork, region: InputSet, intervals: dict[int, Interval]) -> list[Tensor]:
    """Per node, the size of the terms whose sum it is, anywhere in the set."""
    sizes = [_largest(region.box())]
    for index, node in enumerate(network.nodes[1:], start=1):
        if isinstance(node.layer, AffineDual):
            sizes.append(_sum_of_sizes(node.layer, [sizes[i] for i in node.inputs]))
        else:
            assert isinstance(node.layer, ElementwiseDual)
            sizes.append(_largest(node.layer.image(intervals[index])))
    return sizes


def interval_errors(network: DualNetwork, intervals: dict[int, Interval]) -> list[Tensor]:
    """Per node, how far rounding may have moved its interval, for intervals of all nodes that were computed layer by layer."""
    errors = [unit(intervals[0].lower) * _largest(intervals[0])]
    for index, node in enumerate(network.nodes[1:], start=1):
        operands = [errors[i] for i in node.inputs]
        if isinstance(node.layer, AffineDual):
            sizes = _sum_of_sizes(node.layer, [_largest(intervals[i]) for i in node.inputs])
            errors.append(node.layer.absolute(*operands) + unit(sizes) * sizes)
        else:
            assert isinstance(node.layer, ElementwiseDual)
            before, image = intervals[node.inputs[0]], intervals[index]
            wider = node.layer.image(Interval(before.lower - operands[0], before.upper + operands[0]))
            moved = torch.maximum(image.lower - wider.lower, wider.upper - image.upper)
            errors.append(moved + unit(moved) * _largest(image))
    return errors


def _sum_of_sizes(layer: AffineDual, operands: list[Tensor]) -> Tensor:
    bias, size = layer.bias(), layer.absolute(*operands)
    return size if bias is None else size + bias.abs().to(size)


def _largest(interval: Interval) -> Tensor:
    return torch.maximum(interval.lower.abs(), interval.upper.abs())
