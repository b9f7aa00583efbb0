"""How far rounding may have moved a bound: a running error estimate from the sizes of what was added up."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual.bounds.solver import Solver
from autodual.dual import AffineDual, DualNetwork
from autodual.dual.network import evaluate
from autodual.sets import InputSet
from autodual.spec import Spec

SAFETY = 4.0
"""Slack is SAFETY * machine epsilon * (sum of the absolute values of all terms). Observed errors are below a tenth of it."""


def prove_rows(solver: Solver, index: int, spec: Spec) -> tuple[Tensor, Tensor]:
    """Bounds from below on the rows and their rounding slack, both [N, K].

    Every sum W z + b that enters the bound is wrong by a few units in the last place of |W| |z| + |b|, and reaches the result
    multiplied by the coefficient that stands before it.
    """
    rows = solver.rows(index, spec)
    sizes = magnitudes(solver.network, solver.region)
    terms: list[Tensor] = []
    lower = solver.lower(
        index, rows, lambda node, a: terms.append(rows.inner(node, a.abs(), solver.narrow(node, sizes[node])))
    )
    return lower.T, SAFETY * torch.finfo(lower.dtype).eps * sum(terms[1:], terms[0]).T


def magnitudes(network: DualNetwork, region: InputSet) -> list[Tensor]:
    """Per node, the size of the terms whose sum it is, at the centre and widened by the set's box."""
    box = region.box()
    reach = torch.maximum(box.lower.abs(), box.upper.abs())
    values, sizes = [region.centre], [reach]
    for node in network.nodes[1:]:
        operands = [values[i] for i in node.inputs]
        assert node.layer is not None
        values.append(evaluate(node.layer, *operands))
        if isinstance(node.layer, AffineDual):
            bias = node.layer.bias()
            size = node.layer.absolute(*(o.abs() for o in operands))
            sizes.append(size if bias is None else size + bias.abs().to(size))
        else:
            sizes.append(values[-1].abs())
    return sizes
