"""The single forward pass of AutoDual: every node is a centre plus generators. [SPAD Alg. "Autodual", signs corrected]"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from autodual._errors import MemoryBudgetError
from autodual._tensor import added, flat, merge_leading, split_leading
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, OnDemand, Pass, walk
from autodual.dual.base import schur_test
from autodual.engines.backward.dual import Dual, join_bounds, join_preactivations
from autodual.engines.effort import COPIES, Budget, current, report_progress
from autodual.engines.results import (
    BoundEngine,
    Bounds,
    Minimum,
    Preactivations,
    ProbableProof,
    Proof,
    generators,
    require_bands,
)
from autodual.engines.rounding import SAFETY, Errors, NoErrors, Rounding
from autodual.interval import Interval
from autodual.sets import InputSet, norm_of
from autodual.spec import Spec

Result = TypeVar("Result")

CHUNK_BYTES = 32 << 20
"""Bytes of columns that go through a layer at once."""
UNSTABLE = 0.02
"""Part of the units of a network that are taken to be unstable before anything is known."""
FETCHING = 128
"""Multiplications that take as long as fetching and storing a value that is too far away for a cache, about."""
INPUT = 0
"""Key of the input's generators; those of an activation's unstable units are under its index."""


@dataclass(frozen=True)
class Centred:
    """A node's values: centre [N, *shape] plus generators {source: [G, N, *shape]}."""

    centre: Tensor
    generators: dict[int, Tensor]


class ErrorLengths(Pass[Tensor]):
    """[N]: the l2 norm of what the errors of activations so far make of a node, at most.

    An error e of an activation reaches a node as J e, where J is the linear network of its slopes. Rows of J would tell how much
    that is for every unit. Its norm is at most the product of the layers' own, which costs next to nothing; in float64 there is
    room for that, even after many layers.
    """

    def __init__(self, network: DualNetwork, bands: dict[int, Band], rounding: Rounding, like: Tensor) -> None:
        self.network, self.bands, self.rounding, self.like = network, bands, rounding, like

    def input(self) -> Tensor:
        return self.like.new_zeros(len(self.like))

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        if not any(bool(o.any()) for o in operands):
            return operands[0]
        norms = layer.operator_norms(self.network.operand_shapes(index), self.like)
        return added([_stretched(norm, o) for norm, o in zip(norms, operands, strict=True)])

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        slope = self.bands[index].slope.abs()
        ones = torch.ones_like(self.rounding.at(self.network.source(index)).size)
        own = flat(self.rounding.errors[index], 1)
        largest = own.amax(1)  # squares of what rounds or underflows are below all numbers
        scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
        length = scale * torch.linalg.vector_norm(own / scale.unsqueeze(1), dim=1)
        return _stretched(schur_test(lambda x: layer.along(slope, x), ones), operands[0]) + SAFETY * length


def _stretched(norm: float | Tensor, length: Tensor) -> Tensor:
    """The product, and room for its underflow where it is not zero; of zero and infinity nothing is known."""
    product = (norm * length).nan_to_num(nan=math.inf, posinf=math.inf)
    return product + torch.finfo(length.dtype).tiny * length.sign()


class ForwardPass(Pass[Centred]):
    """Carries one column per input feature and per unstable unit; units that are stable in all examples get none.

    With a `Rounding`, intervals are widened by all errors. So nothing strays from the band of an activation: errors that are only
    known by their length could do so in every unit at once.
    """

    def __init__(self, network: DualNetwork, region: InputSet, budget: Budget, rounding: Errors) -> None:
        self.network, self.region, self.budget, self.rounding = network, region, budget, rounding
        self.bands: dict[int, Band] = {}
        self.preactivations: dict[int, Interval] = {}
        self._lengths = (
            OnDemand(network, ErrorLengths(network, self.bands, rounding, region.centre))
            if isinstance(rounding, Rounding)
            else None
        )
        self.output = walk(network, self)

    def input(self) -> Centred:
        centre = self.region.centre
        count = centre.shape[1:].numel()
        self._fits(count, centre.shape)
        identity = torch.eye(count, dtype=centre.dtype, device=centre.device).reshape(count, 1, *centre.shape[1:])
        return Centred(centre, {INPUT: identity.expand(count, *centre.shape)})

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Centred]) -> Centred:
        return Centred(layer.apply(*(o.centre for o in operands)), self._through_affine(index, layer, operands))

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Centred]) -> Centred:
        source = self.network.source(index)
        interval = self.preactivations[index] = self.interval(source, operands[0])
        band = self.bands[index] = layer.band(interval)
        self.rounding.take(source, interval, None)
        self.rounding.enter_band(index, interval, band, operands[0].centre)
        result = {}
        for origin in list(operands[0].generators):
            result[origin] = layer.along(band.slope, operands[0].generators[origin])
            self._drop(index, operands, origin)
        centre = layer.along(band.slope, operands[0].centre) + band.centre
        return Centred(centre, result | self._unstable(index, band, sum(map(len, result.values()))))

    def _through_affine(self, index: int, layer: AffineDual, operands: Sequence[Centred]) -> dict[int, Tensor]:
        result = {}
        sources = list({s: None for o in operands for s in o.generators})
        for place, source in enumerate(sources, 1):
            count = next(o.generators[source].shape[0] for o in operands if source in o.generators)
            self._fits(count, operands[0].centre.shape)
            columns = [
                merge_leading(o.generators[source])
                if source in o.generators
                else o.centre.new_zeros(count * o.centre.shape[0], *o.centre.shape[1:])
                for o in operands
            ]
            result[source] = split_leading(self._in_chunks(index, layer, columns), count)
            del columns
            self._drop(index, operands, source)
            report_progress(index, place / len(sources))
        return result

    def _in_chunks(self, index: int, layer: AffineDual, columns: list[Tensor]) -> Tensor:
        """W times columns, some at a time: convolutions of float64 copy what they read, once for every tap of the kernel."""
        shapes = (self.network.nodes[index].shape, *self.network.operand_shapes(index))
        size = max(1, CHUNK_BYTES // (columns[0].element_size() * max(map(math.prod, shapes))))
        if torch.is_grad_enabled() or size >= len(columns[0]):
            return layer.linear(*columns)
        whole = columns[0].new_empty(len(columns[0]), *self.network.nodes[index].shape)
        for start in range(0, len(whole), size):
            whole[start : start + size] = layer.linear(*(c[start : start + size] for c in columns))
        return whole

    def _drop(self, index: int, operands: Sequence[Centred], source: int) -> None:
        """Frees the columns of one source at the operands that nothing reads after this node, so that few are there twice."""
        if not torch.is_grad_enabled():
            for node, operand in zip(self.network.nodes[index].inputs, operands, strict=True):
                if max(self.network.readers[node]) == index:
                    operand.generators.pop(source, None)

    def _unstable(self, index: int, band: Band, before: int) -> dict[int, Tensor]:
        """Columns of the units whose band is not a line. before: how many columns there are already."""
        radius = flat(band.radius, 1)
        units = (radius.detach() != 0).any(0).nonzero().squeeze(1)
        if len(units) == 0:
            return {}
        self._fits(len(units), band.radius.shape)
        if len(self.region) > 1:  # a single example is tried whatever it takes
            self._fits(2 * (len(units) + before), band.radius.shape)  # the next layer's columns beside these
        columns = torch.diag_embed(radius[:, units]).movedim(1, 0)
        spread = radius.new_zeros(len(units), *radius.shape).index_copy(2, units, columns)
        return {index: spread.reshape(len(units), *band.radius.shape)}

    def interval(self, index: int, value: Centred) -> Interval:
        """Bounds on a node, for certain where errors are counted."""
        found = self.spread(value)
        if self._lengths is None:
            return found
        assert isinstance(self.rounding, Rounding)
        error = self.rounding.of_columns(index, found.radius, self._lengths.at(index))
        return found.widened(error, error)

    def spread(self, value: Centred) -> Interval:
        """The centre and, below and above it, the sum over all columns."""
        below, above = self._input_reach(value)
        for source, columns in value.generators.items():
            if source != INPUT:
                total = torch.linalg.vector_norm(columns, 1, dim=0)
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
    """Computes the bounds of `Dual` in one forward pass over columns, one per input feature and per unstable unit.

    That is cheap for deep networks with few unstable units, where `Dual` pulls back a row for every unit; memory grows with the
    number of columns times the widest layer. A proof's last step, the margins, is `Dual`'s own.
    """

    max_bytes: int | None = None

    @property
    def coarse_in_float32(self) -> bool:
        return True

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return join_preactivations(self._of_parts(network, region, _entering))

    def provable(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return join_preactivations(self._of_parts(network, region, _entering, proof=True))

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        return join_bounds(network, self._of_parts(network, region, _output))

    def enclose(self, network: DualNetwork, region: InputSet) -> Bounds:
        return join_bounds(network, self._of_parts(network, region, _output, proof=True))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        parts = self._of_parts(network, region, lambda run, some: self._project(run, spec[some]))
        return Minimum(torch.cat(parts))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof | ProbableProof:
        return Dual(intermediate=self, max_bytes=self.max_bytes).prove(network, region, spec)

    def _of_parts(
        self, network: DualNetwork, region: InputSet, read: Callable[[ForwardPass, slice], Result], proof: bool = False
    ) -> list[Result]:
        """What is read off forward passes over as many examples at a time as the memory budget allows.

        How many units are unstable, which is how many columns there will be, shows on the way: then there may be fewer examples.
        """
        require_bands(network, "ForwardDual")
        budget = Budget.of(self.max_bytes, region.centre.device)
        inputs, widest = math.prod(network.nodes[0].shape), max(math.prod(node.shape) for node in network.nodes)
        size = max(1, budget.max_bytes // (COPIES * inputs * widest * region.centre.element_size()))
        effort, results = current(), list[Result]()
        if effort is not None:
            effort.begin(lambda: _operations(network), len(region))
        start = 0
        while start < len(region):
            some = slice(start, min(start + size, len(region)))
            part = region if size >= len(region) else region[some]
            if effort is not None:
                effort.next_part(len(part))
            errors = Rounding(network, part, columns=generators(network)) if proof else NoErrors()
            try:
                results.append(read(ForwardPass(network, part, budget, errors), some))
                start = some.stop
            except (MemoryBudgetError, torch.OutOfMemoryError):
                if len(part) == 1:
                    raise
                size = -(-len(part) // 2)
                if effort is not None:
                    effort.give_up_part()
        if effort is not None:
            effort.end()
        return results

    @staticmethod
    def _project(run: ForwardPass, spec: Spec) -> Tensor:
        """The specification as one more affine layer."""
        value = run.output
        rows = spec.rows.flatten(2)

        def apply(x: Tensor) -> Tensor:
            return torch.einsum("knc,...nc->...nk", rows.expand(-1, value.centre.shape[0], -1), x)

        generators = {s: apply(g.flatten(2)) for s, g in value.generators.items()}
        return run.spread(Centred(apply(value.centre.flatten(1)), generators)).lower


def _entering(run: ForwardPass, some: slice) -> Preactivations:
    return Preactivations(run.preactivations, outside=run.rounding.outside_of(run.network.activations))


def _output(run: ForwardPass, some: slice) -> tuple[Interval, Preactivations]:
    return run.interval(run.network.output, run.output), Preactivations(run.preactivations)


def _operations(network: DualNetwork) -> dict[int, float]:
    """Multiplications, about, for every affine node of one example; how many columns will come from unstable units is a guess."""
    columns, found = float(math.prod(network.nodes[0].shape)), dict[int, float]()
    for index, node in enumerate(network.nodes):
        if isinstance(node.layer, AffineDual):
            terms = node.layer.terms(network.operand_shapes(index), node.shape)[0]
            found[index] = columns * math.prod(node.shape) * (terms + FETCHING)
        elif node.layer is not None:
            columns += UNSTABLE * math.prod(node.shape)
    return found
