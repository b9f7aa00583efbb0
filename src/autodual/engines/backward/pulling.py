"""Pulling rows back through a dual network: the traversal that the backward engines share. [SPAD Eq. 8]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autodual._tensor import merge_leading, split_leading
from autodual.dual import AffineDual, DualNetwork
from autodual.engines.backward.rows import Plan, Rows, SomeUnitsPlan, StartedRows, taken
from autodual.engines.effort import Budget, even_split, report_progress

Observer = Callable[[int, Tensor], None]
AtActivation = Callable[[int, Tensor], Tensor | None]


def pull_back(
    network: DualNetwork, target: int, rows: Rows, at_activation: AtActivation, observe: Observer | None = None
) -> Tensor | None:
    """Coefficients on the network's input [R, N or 1, *shape], or None if no row reaches it.

    `at_activation` turns the coefficients on an activation's result into those on its operand (None stops there);
    `observe` sees the coefficients on every node.
    """
    coefficients = dict(rows.start(target))
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


def started(network: DualNetwork, target: int, units: Tensor, like: Tensor) -> StartedRows:
    """Rows of units [R, N] of a node: each example's own, pulled back to the first activations once for all examples."""
    shape = network.nodes[target].shape
    needed = units.new_zeros(math.prod(shape)).index_fill_(0, units.flatten(), 1)
    distinct, which = needed.nonzero().squeeze(1), (needed.cumsum(0) - 1)[units]
    (shared,) = SomeUnitsPlan(shape, distinct).chunks(len(distinct), like)
    found: dict[int, Tensor] = {}

    def stop(activation: int, coefficients: Tensor) -> None:
        found[activation] = coefficients

    on_input = pull_back(network, target, shared, stop)
    if on_input is not None:
        found[0] = on_input
    return StartedRows(taken(shared.seed, which), {i: taken(c, which) for i, c in found.items()})


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
        report_progress(target, span[0] + done * (span[1] - span[0]))
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
