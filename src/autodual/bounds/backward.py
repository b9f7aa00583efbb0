"""Pulling rows back through a dual network: the traversal that the backward engines share. [SPAD Eq. 8]"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autodual._tensor import merge_leading, split_leading
from autodual.bounds.memory import Budget, even_split
from autodual.bounds.rows import Plan, Rows
from autodual.dual import AffineDual, DualNetwork

Observer = Callable[[int, Tensor], None]
AtActivation = Callable[[int, Tensor], Tensor | None]


def pull_back(
    network: DualNetwork, target: int, seed: Tensor, at_activation: AtActivation, observe: Observer | None = None
) -> Tensor | None:
    """Coefficients on the network's input [R, N or 1, *shape], or None if no row reaches it.

    `at_activation` turns the coefficients on an activation's result into those on its operand (None stops there);
    `observe` sees the coefficients on every node.
    """
    coefficients: dict[int, Tensor] = {target: seed}
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


def over_chunks(
    network: DualNetwork, target: int, plan: Plan, budget: Budget, like: Tensor, bound: Callable[[Rows], Tensor]
) -> Tensor:
    """`bound` for all units of a node, some rows at a time. With gradients, chunks are recomputed instead of stored."""
    size = even_split(plan.count, budget.rows(network, target, like))
    chunks = plan.chunks(size, like)
    if torch.is_grad_enabled() and size < plan.count:
        return plan.assemble([checkpoint(bound, rows, use_reentrant=False) for rows in chunks])
    return plan.assemble([bound(rows) for rows in chunks])
