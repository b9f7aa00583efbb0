"""How far rounding may have moved a bound: a running error estimate from the sizes of what was added up."""

from __future__ import annotations

import torch
from torch import Tensor

from autodual.bounds.backward import pull_back
from autodual.bounds.rows import DenseRows
from autodual.bounds.solvers import CrownSolver, DualSolver, Solver
from autodual.dual import AffineDual, DualNetwork
from autodual.dual.network import evaluate
from autodual.sets import InputSet
from autodual.spec import Spec

SAFETY = 4.0
"""Slack is SAFETY * machine epsilon * (sum of the absolute values of all terms). Observed errors are below a tenth of it."""


def rounding_slack(solver: Solver, spec: Spec) -> Tensor:
    """[N, K]: every sum W z + b that enters the bound is wrong by a few units in the last place of |W| |z| + |b|, and reaches
    the result multiplied by the coefficient that stands before it."""
    network = solver.network
    rows = DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *network.nodes[network.output].shape))
    sizes = magnitudes(network, solver.region)
    total: list[Tensor] = [rows.inner(network.output, rows.seed.abs(), sizes[network.output])]

    def at_affine(index: int, coefficients: Tensor) -> None:
        total.append(rows.inner(index, coefficients.abs(), sizes[index]))

    def at_activation(index: int, coefficients: Tensor) -> Tensor:
        total.append(rows.inner(index, coefficients.abs(), sizes[index]))
        if isinstance(solver, DualSolver):
            return coefficients * solver.bands[index].slope
        assert isinstance(solver, CrownSolver)
        lines = solver.chosen[index]
        return coefficients.abs() * torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs())

    on_input = pull_back(network, network.output, rows.seed, at_activation, at_affine)
    if on_input is not None:
        total.append(rows.inner(0, on_input.abs(), sizes[0]))
    return SAFETY * torch.finfo(rows.seed.dtype).eps * sum(total[1:], total[0]).T


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
            sizes.append(size if bias is None else size + bias.abs())
        else:
            sizes.append(values[-1].abs())
    return sizes
