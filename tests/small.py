"""Small networks, batches and sets of inputs that many tests need. Double precision unless said otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import autodual as ad

DOUBLE = torch.float64
ENGINES: dict[str, ad.BoundEngine] = {
    "ibp": ad.IBP(),
    "dual": ad.Dual(),
    "crown": ad.Crown(),
    "forward": ad.ForwardDual(),
    "dual-after-ibp": ad.Dual(intermediate=ad.IBP()),
    "crown-after-dual": ad.Crown(intermediate=ad.Dual()),
    "dual-and-intervals": ad.Dual(intersect=True),
    "crown-and-intervals": ad.Crown(intersect=True),
}


class Net(nn.Module):
    """A module from a function of itself and its input: `Net(lambda m, x: m.a(x) + 1, a=nn.Linear(4, 3))`."""

    def __init__(self, compute: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)
        self.to(DOUBLE).eval()

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def mlp(*sizes: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> nn.Sequential:
    """Linear layers with ReLU in between."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * inputs**-0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(dtype).eval()


def convnet(dtype: torch.dtype = DOUBLE) -> nn.Sequential:
    """For images [1, 6, 6]; three classes."""
    return (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        )
        .to(dtype)
        .eval()
    )


def batch(count: int, *shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    """Inputs between 0 and 1."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def bounds_of(model: nn.Module | ad.Network, region: ad.InputSet, engine: ad.BoundEngine | None = None) -> list[Tensor]:
    """All numbers that an engine finds, in order."""
    found = ad.bounds(model, region, engine)
    return [end for i in (*found.layers.values(), found.output) for end in (i.lower, i.upper)]


def corners(lower: Tensor, upper: Tensor) -> Tensor:
    """[2^features, N, *shape]: every corner of every box."""
    choices = itertools.product((0.0, 1.0), repeat=lower[0].numel())
    weights = torch.tensor(list(choices), dtype=lower.dtype).reshape(-1, 1, *lower.shape[1:])
    return lower + weights * (upper - lower)


@dataclass(frozen=True)
class Ellipsoid(ad.InputSet):
    """{centre + A v : |v| <= 1}: a set that the library does not know, given by its support function alone."""

    centre: Tensor
    axes: Tensor
    """[N, features, features]: A."""

    def minimise(self, coefficients: Tensor) -> Tensor:
        flat = coefficients.flatten(2).expand(-1, len(self), -1)
        pulled = torch.einsum("rnf,nfg->rng", flat, self.axes)
        return (coefficients * self.centre).flatten(2).sum(-1) - torch.linalg.vector_norm(pulled, dim=-1)

    def __getitem__(self, examples: slice) -> Ellipsoid:
        return Ellipsoid(self.centre[examples], self.axes[examples])

    def holds(self, x: Tensor, tolerance: float = 1e-9) -> Tensor:
        """[N] bool, from the definition."""
        v = torch.linalg.solve(self.axes, (x - self.centre).flatten(1).unsqueeze(-1)).squeeze(-1)
        return v.norm(dim=1) <= 1 + tolerance


@dataclass(frozen=True)
class Tilted(ad.Perturbation):
    """An ellipsoid with fixed, tilted axes, eps times as large, around every input."""

    eps: float | Tensor
    shape: Tensor
    """[features, features]."""

    def around(self, x: Tensor) -> Ellipsoid:
        eps = torch.as_tensor(self.eps, dtype=x.dtype).reshape(-1, 1, 1)
        return Ellipsoid(x, (eps * self.shape).expand(len(x), -1, -1))

    def with_eps(self, eps: float | Tensor) -> Tilted:
        return replace(self, eps=eps)


def tilted(features: int, eps: float, seed: int = 0) -> Tilted:
    generator = torch.Generator().manual_seed(seed)
    axes = torch.eye(features, dtype=DOUBLE) + 0.4 * torch.randn(features, features, generator=generator, dtype=DOUBLE)
    return Tilted(eps, axes)


@dataclass(frozen=True)
class Unknown(ad.InputSet):
    """Another set stripped of its norm: engines have to go by the support function, row by row."""

    inner: ad.InputSet

    @property
    def centre(self) -> Tensor:  # type: ignore[override]
        return self.inner.centre

    def minimise(self, coefficients: Tensor) -> Tensor:
        return self.inner.minimise(coefficients)

    def __getitem__(self, examples: slice) -> Unknown:
        return Unknown(self.inner[examples])
