"""How far gradients through an estimator are from the true one.

One unit with 20 equal generators g, radius |g|_1: the true gradient on each of them is 1. Prints the median of |error| by k.

    python benchmarks/estimator_gradients.py
"""

from __future__ import annotations

import math

import torch

import autodual as ad

GENERATORS = 20
COUNTS = (10, 50, 500, 5000)
ESTIMATORS = (ad.Median(), ad.GeometricMean(), ad.MaximumLikelihood())


def median_error(estimator: ad.Estimator, k: int, units: int, generator: torch.Generator) -> float:
    """Over so many independent units, all generators of each."""
    angles = torch.empty(k, units, GENERATORS, dtype=torch.float64).uniform_(0, math.pi, generator=generator)
    g = torch.ones(units, GENERATORS, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(estimator.scale((angles.tan() * g).sum(2)).sum(), g)
    return (gradient - 1).abs().median().item()


def main() -> None:
    print("| estimator | " + " | ".join(f"k = {k}" for k in COUNTS) + " |")
    print("|---|" + "---|" * len(COUNTS))
    for estimator in ESTIMATORS:
        generator = torch.Generator().manual_seed(0)
        found = [median_error(estimator, k, max(100, 100_000 // k), generator) for k in COUNTS]
        print(f"| `{type(estimator).__name__}()` | " + " | ".join(f"{error:.2f}" for error in found) + " |")


if __name__ == "__main__":
    main()
