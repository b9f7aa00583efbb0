"""The state of one backward computation: relaxations found so far, and bounds from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor

from autodual.bounds.memory import Budget
from autodual.bounds.rounding import OWN, Rounding, of_underflow
from autodual.bounds.rows import DenseRows, Rows
from autodual.dual import DualNetwork, ElementwiseDual
from autodual.interval import Interval
from autodual.sets import InputSet
from autodual.spec import Spec


class Solver(ABC):
    """Backward bounds with relaxations of one kind. Lives for one call.

    `relax` fixes the dual layer of an activation from the bounds on its input; after that, `bound` bounds any node whose activations
    are relaxed, and `minimum` any linear function of it.
    """

    def __init__(
        self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Rounding | None = None
    ) -> None:
        """rounding: told what happens, for a proof."""
        self.network, self.region, self.budget, self.rounding = network, region, budget, rounding

    @abstractmethod
    def relax(self, index: int, interval: Interval) -> None:
        """Choose the dual layer of activation `index`, whose input lies in `interval`."""

    @abstractmethod
    def bound(self, index: int) -> Interval:
        """Bounds on the value of a node."""

    def _errors(self) -> dict[int, Tensor]:
        """Errors of activations, for the channels that coefficients are kept for."""
        return {} if self.rounding is None else self._narrowed(self.rounding.errors)

    def _run_errors(self) -> dict[int, Tensor]:
        """Errors of activations as the network runs."""
        return {} if self.rounding is None else self._narrowed(self.rounding.run_errors)

    def _narrowed(self, errors: dict[int, Tensor]) -> dict[int, Tensor]:
        return {i: self.narrow(i, error) for i, error in errors.items()}

    def settle(self, index: int) -> Interval:
        """Bounds on what enters activation `index`, as tight as its dual layer can tell the difference."""
        return self.bound(self.network.nodes[index].inputs[0])

    @abstractmethod
    def lower(self, index: int, rows: Rows) -> Tensor:
        """Bounds from below on the rows."""

    @abstractmethod
    def lower_with_errors(self, index: int, rows: Rows, as_run: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds from below, and what the errors of activations add up to, multiplied by their coefficients: those of the bound, and,
        if asked for, those of the network as it runs."""

    def minimum(self, index: int, spec: Spec) -> Tensor:
        """[N, K]: bounds from below on linear functions of a node. [SPAD Thm 1: J]"""
        return self.lower(index, self.rows(index, spec)).T

    def prove(self, index: int, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds from below, their rounding slack, and the error of the network as it runs; [N, K] each."""
        rounding = self.rounding
        assert rounding is not None
        rows = self.rows(index, spec)
        lower, error, run_error = self.lower_with_errors(index, rows, as_run=True)
        total = OWN * (error + rows.norm(index, rows.seed, rounding.ending(index)) + rounding.lost)
        products = sum(math.prod(node.shape) for node in self.network.nodes)
        total = total + of_underflow(products, spec.rows.dtype)  # of coefficients times values and times errors
        slack = total - rows.inner(index, rows.seed, self._drift(index))
        run_error = OWN * (run_error + rows.norm(index, rows.seed, rounding.run_since(index)))
        return lower.T, slack.T, run_error.T

    def _drift(self, index: int) -> Tensor:
        assert self.rounding is not None
        return self.rounding.drift(index)

    def rows(self, index: int, spec: Spec) -> DenseRows:
        return DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *self.network.nodes[index].shape))

    def narrow(self, index: int, values: Tensor) -> Tensor:
        """The channels of a node [N, C, *space] that coefficients are kept for: all of them, unless a solver leaves some out."""
        return values

    def activation(self, index: int) -> ElementwiseDual:
        layer = self.network.nodes[index].layer
        assert isinstance(layer, ElementwiseDual)
        return layer
