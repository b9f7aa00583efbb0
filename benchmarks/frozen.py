"""Estimates of the radius of what enters each activation, with all bands held at the exact engine's.

Bias and spread of a layer only compare when the layers before it are the same, so the bands come from `Dual()` once and the
streams run over them with many draws. Over fixed bands the k projections are independent of each other: a pass with many
projections is cut into as many estimates of k projections as it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from machine import ROOT
from torch import Tensor, nn

import autodual as ad
from autodual.dual import DualNetwork, OnDemand
from autodual.engines.prepare import dual_network
from autodual.engines.streams import StreamPass, Streams, draw, read

DATA = ROOT / "tests" / "golden" / "data"
SEED = 0
TINY = 1e-6
"""Units whose exact radius is smaller than this part of their layer's mean do not count: a ratio to nothing says nothing."""


@dataclass(frozen=True)
class Case:
    """A network, images, and how large an l-infinity ball around them."""

    title: str
    build: Callable[[], nn.Module]
    golden: str
    eps: float
    examples: int
    weights: str | None = None

    def model(self) -> nn.Module:
        """With published weights where there are some, else freshly initialised from a fixed seed."""
        torch.manual_seed(SEED)
        model = self.build()
        if self.weights is not None:
            with np.load(DATA / f"weights_{self.weights}.npz", allow_pickle=False) as file:
                names = [n for n in file.files if n.startswith("stage0.")]
                model.load_state_dict({n.removeprefix("stage0."): torch.from_numpy(file[n]) for n in names})
        return model.eval()

    def images(self) -> Tensor:
        with np.load(DATA / f"golden_{self.golden}.npz", allow_pickle=False) as file:
            return torch.from_numpy(file["X"][: self.examples]).float()


def small_mnist(examples: int, trained: bool) -> Case:
    title = f"MNIST small, {'published weights' if trained else 'random'}"
    return Case(title, lambda: ad.models.small(1, 28), "mnist", 0.1, examples, "mnist" if trained else None)


@dataclass(frozen=True)
class Frozen:
    """A network with exact bands, and the exact radii [N, *shape] of what enters its activations."""

    network: DualNetwork
    region: ad.InputSet
    bands: dict[int, ad.Band]
    radii: dict[int, Tensor]

    @classmethod
    def of(cls, case: Case) -> Frozen:
        model, x = case.model(), case.images()
        network, region = dual_network(model, x), ad.LinfBall(case.eps).around(x)
        with torch.no_grad():
            intervals = ad.Dual().preactivations(network, region).intervals
            bands = {i: network.activation(i).band(interval) for i, interval in intervals.items()}
        return cls(network, region, bands, {i: (v.upper - v.lower) / 2 for i, v in intervals.items()})

    @property
    def estimated(self) -> list[int]:
        """Activations that another one comes before; the others need no projection."""
        hidden = set(self.network.activations)
        return [i for i in self.network.activations if (set(self.network.ancestors(i)) - {i}) & hidden]

    def entering(self, k: int, merged: bool, generator: torch.Generator) -> Iterator[tuple[int, Streams]]:
        """One pass with fresh draws: the streams that enter each activation of `estimated`, in order."""
        draws = draw(self.network, self.region, k, generator)
        carried = StreamPass(self.network, self.region, draws, merged, self.bands)
        streams = OnDemand(self.network, carried, keep=False)
        for index in self.estimated:
            yield index, streams.at(self.network.nodes[index].inputs[0])

    def relative_errors(self, index: int, radius: Tensor) -> Tensor:
        """Estimate / exact - 1: [N, units that count]."""
        exact = self.radii[index].flatten(1)
        counts = (exact > TINY * exact.mean()).all(0)
        return (radius.expand_as(self.radii[index]).flatten(1) / exact)[:, counts].double() - 1


@dataclass
class Tally:
    """Sums over draws, unit by unit, and the mean of the layer for each example, draw by draw."""

    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))
    means: list[Tensor] = field(default_factory=list)

    def add(self, errors: Tensor) -> None:
        self.total, self.squares = self.total + errors, self.squares + errors.square()
        self.means.append(errors.mean(1))

    def summary(self) -> dict[str, float]:
        """bias: mean over units and draws, with its standard error; spread: root of the mean over units of the variance over draws;
        shared: the same of the mean over an example's units, which is the part that does not average out within a layer."""
        count, means = len(self.means), torch.stack(self.means)
        variance = (self.squares - self.total**2 / count) / (count - 1)
        return {
            "bias": float(means.mean()),
            "bias_error": float(means.mean(1).std()) / math.sqrt(count),
            "spread": float(variance.mean().sqrt()),
            "shared": float(means.var(0).mean().sqrt()),
            "estimates": count,
        }


def cut(streams: Streams, k: int) -> Iterator[Streams]:
    """Streams of many projections as several of k."""
    available = len(next(iter(streams.values())))
    for start in range(0, available - k + 1, k):
        yield {source: values[start : start + k] for source, values in streams.items()}


Setting = tuple[int, ad.Estimator]
"""k and how a norm is read off k projections."""


def estimate_errors(
    frozen: Frozen, merged: bool, settings: list[Setting], projections: int, passes: int
) -> dict[Setting, dict[int, dict[str, float]]]:
    """Bias and spread by setting and activation, from so many passes with so many projections each."""
    tallies = {setting: {i: Tally() for i in frozen.estimated} for setting in settings}
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for _ in range(passes):
            for index, streams in frozen.entering(projections, merged, generator):
                for k, estimator in settings:
                    for part in cut(streams, k):
                        tallies[k, estimator][index].add(frozen.relative_errors(index, read(part, estimator)))
    return {setting: {i: t.summary() for i, t in layers.items()} for setting, layers in tallies.items()}
