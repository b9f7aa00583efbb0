"""Training bounds at linear cost: random projections of the generators. [SPAD Sec. 3.2, Thm 2]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from autodual import kernels
from autodual._errors import ArgumentError, UnsoundError
from autodual._tensor import channels_inside
from autodual.dual import AffineDual, Band, DualNetwork, ElementwiseDual, OnDemand, Pass, walk
from autodual.engines.backward.bands import Centres, PulledRadii
from autodual.engines.backward.rows import DenseRows, Patches
from autodual.engines.effort import Budget
from autodual.engines.results import (
    BoundEngine,
    Bounds,
    EstimatedBounds,
    EstimatedPreactivations,
    Minimum,
    Preactivations,
    Proof,
    check_switches,
    exact_is_cheaper,
    name_layers,
    require_bands,
    warn_of_exact_bounds,
)
from autodual.engines.streams import Draws, Estimator, QuietGradient, StreamPass, draw, passed_activations, read
from autodual.interval import Interval
from autodual.kernels.stream import Angles
from autodual.sets import InputSet, norm_of
from autodual.spec import Spec, outputs


@dataclass(frozen=True, repr=False)
class Projected(BoundEngine):
    """Bounds on what enters the activations are estimated from k random projections; the last step is the exact dual objective.

    Estimates: good for a loss, refused by `certify`. Time and memory are linear in k times the network's units.

    Args:
        k: Number of projections. Bounds are exact, with a notice, if they are no fewer than the input's features and hidden
            units.
        merged: One Cauchy stream for all terms (cost independent of depth); False is the paper's one stream per term.
        estimator: How a norm is read off its projections.
        exact_first: Exact bounds where no activation comes before and they are no dearer than k projections: after one layer that
            mixes features, or where a unit reads few of them. Others are estimated. False is the paper's form.
        exact_narrow: Exact bounds also where at most so many units enter an activation: their rows are pulled back as in the last
            step. Late, narrow layers carry most of the noise; as many rows as projections cost about the same.
        half: Streams are bfloat16 on a GPU with kernels, if the input is float32 and the estimator allows it: half the memory,
            and faster products. What is lost is a hundredth of the estimates' own noise; centres and the last step stay float32.
        generator: Where random numbers come from; PyTorch's global one when None.
        draws: Numbers to use instead of fresh ones, from `draw`.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> found = ad.bounds(ad.load_digits_network(), ad.LinfBall(0.05).around(images[:5]), ad.Projected(k=20))
        >>> type(found).__name__
        'EstimatedBounds'
    """

    k: int = 50
    merged: bool = True
    estimator: Estimator = field(default_factory=QuietGradient)
    exact_first: bool = True
    exact_narrow: int = 0
    half: bool = True
    generator: torch.Generator | None = field(default=None, repr=False)
    draws: Draws | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ArgumentError(f"k must be a whole number of projections, at least 1, got {self.k!r}")
        if isinstance(self.exact_narrow, bool) or not isinstance(self.exact_narrow, int) or self.exact_narrow < 0:
            raise ArgumentError(f"exact_narrow must be a number of units, 0 for none, got {self.exact_narrow!r}")
        if not isinstance(self.estimator, Estimator):
            raise ArgumentError(f"estimator must be one such as QuietGradient() or Median(), got {self.estimator!r}")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise ArgumentError(f"generator must be a torch.Generator, got {type(self.generator).__name__}")
        check_switches(self, "merged", "exact_first", "half")

    def draw(self, network: DualNetwork, region: InputSet) -> Draws:
        """Fresh random numbers for one batch; none, with a notice, where exact bounds are cheaper than k projections."""
        require_bands(network, "Projected")
        if exact_is_cheaper(self.k, network):
            warn_of_exact_bounds(self.k, network)
            return Draws({}, None, exact=True)
        return draw(network, region, self.k, self.generator)

    def with_draws(self, draws: Draws) -> Projected:
        """The engine with given random numbers."""
        return replace(self, draws=draws)

    @property
    def random(self) -> bool:
        return True

    def preactivations(self, network: DualNetwork, region: InputSet) -> Preactivations:
        return EstimatedPreactivations(self._relaxed(network, region, last=False).intervals)

    def bounds(self, network: DualNetwork, region: InputSet) -> Bounds:
        relaxed = self._relaxed(network, region)
        shape = network.nodes[network.output].shape
        rows = outputs(math.prod(shape), region.centre.dtype, region.centre.device)
        ends = [relaxed.minimum(network, region, Spec(sign * rows.rows)).reshape(-1, *shape) for sign in (1, -1)]
        return EstimatedBounds(Interval(ends[0], -ends[1]), name_layers(network, relaxed.intervals))

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Minimum:
        return Minimum(self._relaxed(network, region).minimum(network, region, spec))

    def prove(self, network: DualNetwork, region: InputSet, spec: Spec) -> Proof:
        raise UnsoundError(
            "Projected() only estimates bounds: they can train a network, but they certify nothing. Use Dual() or Crown(), "
            "or HighProbability() for certificates that hold with a stated probability"
        )

    def _relaxed(self, network: DualNetwork, region: InputSet, last: bool = True) -> Relaxed:
        """Bounds on what enters activations, and their bands; `last`: also the band of the last one."""
        if norm_of(region) is None:
            raise ArgumentError(
                f"Projected works on norm balls and boxes, whose dual norm it estimates; {type(region).__name__} has none. Use Dual()"
            )
        require_bands(network, "Projected")
        draws = self.draw(network, region) if self.draws is None else self.draws
        check_draws(draws, network, region, self.k)
        if draws.exact:
            return Relaxed.exactly(network, region)
        half = self.half and self.estimator.halves and self.k <= kernels.LARGEST_K
        stream_pass = StreamPass(network, region, draws, self.merged, {}, half=half)
        return _relax_by_streams(network, region, stream_pass, self, last)


@dataclass(frozen=True)
class Relaxed:
    """A network with a band for every activation."""

    intervals: dict[int, Interval]
    """By activation: what enters it, as far as that was bounded or estimated."""
    bands: dict[int, Band]
    centres: OnDemand[Tensor]
    """By node, with these bands."""

    @classmethod
    def exactly(cls, network: DualNetwork, region: InputSet) -> Relaxed:
        """Exact bounds and their bands. No shape depends on values; a compiled step does not look at the free memory either."""
        compiled = torch.compiler.is_compiling()
        budget = Budget.unlimited() if compiled else Budget.of(None, region.centre.device)
        bands: dict[int, Band] = {}
        intervals: dict[int, Interval] = {}
        centres = OnDemand(network, Centres(region, bands))
        for index in network.activations:
            source = network.source(index)
            radius = PulledRadii(network, region, bands, budget, static=True).of_units(source).below
            intervals[index] = Interval.around(centres.at(source), radius)
            bands[index] = network.activation(index).band(intervals[index])
        return cls(intervals, bands, centres)

    def minimum(self, network: DualNetwork, region: InputSet, spec: Spec) -> Tensor:
        """[N, K]: the exact dual objective for these bands. [SPAD Thm 1]"""
        rows = DenseRows(spec.rows.reshape(*spec.rows.shape[:2], *network.nodes[network.output].shape))
        radii = PulledRadii(network, region, self.bands, Budget.unlimited(), static=True)
        centre = rows.inner(network.output, rows.seed, self.centres.at(network.output))
        return (centre - radii.of_rows(network.output, rows)).T


def _relax_by_streams(
    network: DualNetwork, region: InputSet, stream_pass: StreamPass, engine: Projected, last: bool
) -> Relaxed:
    """Reads radii off the streams that enter each activation, and chooses its band, by which the streams then pass it."""
    radii = exact_first_radii(network, region, engine.k) if engine.exact_first else {}
    bands, streams = stream_pass.bands, OnDemand(network, stream_pass, keep=False)
    centres = OnDemand(network, Centres(region, bands))
    intervals: dict[int, Interval] = {}
    for index in network.activations:
        source = network.source(index)
        if source not in radii and math.prod(network.nodes[source].shape) <= engine.exact_narrow:
            radii[source] = PulledRadii(network, region, bands, Budget.unlimited(), static=True).of_units(source).below
        elif source not in radii:
            radii[source] = read(streams.at(source), engine.estimator)
        centre, radius = channels_inside(centres.at(source)), channels_inside(radii[source])
        if last or index != network.activations[-1]:
            relaxation = network.activation(index).relax(centre, radius)
            intervals[index], bands[index] = relaxation.interval, relaxation.band
            centres.put(index, relaxation.middle)
        else:
            intervals[index] = Interval.around(centre, radius.expand_as(centre))
    return Relaxed(intervals, bands, centres)


def check_draws(draws: Draws, network: DualNetwork, region: InputSet, k: int) -> None:
    """Refuse numbers that were drawn for something else."""
    if not isinstance(draws, Draws):
        raise ArgumentError(f"draws must come from draw(), got {type(draws).__name__}")
    if draws.exact:
        return
    first, needed = draws.first, passed_activations(network)
    fits = all(i in draws.fresh and draws.fresh[i].fits(network.nodes[i].shape, len(region)) for i in needed)
    norm = norm_of(region)
    if not fits or norm is None or not draws.begins_for(norm, tuple(region.centre.shape[1:])):
        raise ArgumentError(
            f"draws were made for another network, batch size or kind of ball than {len(region)} examples of "
            f"{type(region).__name__}; draw them again with draw(x)"
        )
    parts = [*(draws.fresh[i].angles for i in needed), first.angles if isinstance(first, Angles) else first]
    for part in parts:
        if part is not None and part.shape[0] != k:
            raise ArgumentError(
                f"draws hold {part.shape[0]} projections, but the engine has k = {k}; draw them again with draw(x)"
            )


# Exact radii where no activation comes before, and where they are cheap: they need no projection.


def exact_first_radii(network: DualNetwork, region: InputSet, k: int) -> dict[int, Tensor]:
    """Exact radii [N or 1, *shape] of `exact_first_sources`, by node."""
    return {
        source: _exact_radius(network, region, source) for source in sorted(exact_first_sources(network, region, k))
    }


def exact_first_sources(network: DualNetwork, region: InputSet, k: int) -> set[int]:
    """Nodes that enter an activation, that no activation comes before, and whose exact radii are no dearer than k projections.

    The answer depends on shapes alone, not on the size of the batch.
    """
    activations = set(network.activations)
    sources = {network.source(i) for i in network.activations}
    first = {source for source in sources if not set(network.ancestors(source)) & activations}
    return {
        source
        for source in first
        if _goes_layer_by_layer(network, region, source) or _is_no_dearer(network, region, source, k)
    }


def _exact_radius(network: DualNetwork, region: InputSet, target: int) -> Tensor:
    """[N or 1, *shape]: how far a node that no activation comes before may be from its centre."""
    if _goes_layer_by_layer(network, region, target):
        return walk(network, _RadiiLayerByLayer(region), target)
    return PulledRadii(network, region, {}, Budget.unlimited(), static=True).of_units(target).below


@dataclass(frozen=True)
class _RadiiLayerByLayer(Pass[Tensor]):
    """Radii |W| r from layer to layer: exact only where `_goes_layer_by_layer` says so."""

    region: InputSet

    def input(self) -> Tensor:
        return self.region.radius.expand(-1, *self.region.centre.shape[1:])

    def affine(self, index: int, layer: AffineDual, operands: Sequence[Tensor]) -> Tensor:
        return layer.absolute(*operands)

    def activation(self, index: int, layer: ElementwiseDual, operands: Sequence[Tensor]) -> Tensor:
        raise AssertionError("there is none before a first layer")


def _goes_layer_by_layer(network: DualNetwork, region: InputSet, target: int) -> bool:
    """Whether |W| of the whole chain, applied to the radius, is the product of the layers' |W|."""
    return _separable(region) and _mixes_at_most_once(network, target)


def _separable(region: InputSet) -> bool:
    norm = norm_of(region)
    return norm is not None and norm.separable


def _mixes_at_most_once(network: DualNetwork, target: int) -> bool:
    """Whether a node is the end of a chain of layers at most one of which mixes entries."""
    chain = [i for i in network.ancestors(target) if i != 0]
    if any(len(network.nodes[i].inputs) != 1 for i in chain):
        return False
    layers = [(network.nodes[i].layer, network.operand_shapes(i)) for i in chain]
    return sum(not (isinstance(a, AffineDual) and a.one_to_one(shapes)) for a, shapes in layers) <= 1


def _is_no_dearer(network: DualNetwork, region: InputSet, target: int, k: int) -> bool:
    """Whether pulling back all units of a node holds no more values, per example, than k projections of it do."""
    plan = PulledRadii(network, region, {}, Budget.unlimited(), static=True).plan(target)
    units = math.prod(network.nodes[target].shape)
    if isinstance(plan, Patches):
        patch = math.prod(plan.network.nodes[0].shape)
        return patch * (math.prod(plan.space) if _separable(region) else units) <= k * units
    if len(region.radius) == 1 and _mixes_at_most_once(network, target):
        return True  # the rows are those of one layer's weights, for all examples
    return plan.count * max(math.prod(network.nodes[i].shape) for i in network.ancestors(target)) <= k * units
