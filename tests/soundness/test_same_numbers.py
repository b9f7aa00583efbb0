"""Bounds do not depend on how they are computed: with or without gradients, at once or in pieces, alone or as a proof."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import autodual as ad
from soundness.graphs import SETS, Recipe, build, recipes, region
from soundness.properties import assert_close, network_of, random_rows

FEW_BYTES = 100_000
"""So few that rows and examples are treated in several pieces."""


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(recipes(), st.sampled_from(SETS), st.integers(0, 1000))
def test_one_way_or_the_other(recipe: Recipe, kind: str, seed: int) -> None:
    sets = region(kind, recipe.shape, 4, seed)
    network = network_of(build(recipe), sets)
    spec = random_rows(network, len(sets))
    for engine in (ad.Dual(), ad.Crown(), ad.Dual(intersect=True)):
        with torch.no_grad():
            expected = engine.minimum(network, sets, spec).lower
            found = {
                "as a proof": engine.prove(network, sets, spec).lower,
                "in pieces": replace(engine, max_bytes=FEW_BYTES).minimum(network, sets, spec).lower,
                "example by example": torch.cat(
                    [engine.minimum(network, sets[i : i + 1], spec[i : i + 1]).lower for i in range(len(sets))]
                ),
            }
        found["with gradients"] = engine.minimum(network, sets, spec).lower.detach()
        for how, lower in found.items():
            assert_close(lower, expected, 1e-10, f"{engine!r}: {how}")
