"""Thousands of generated cases, counted; and enough units in them that the relaxations matter."""

from __future__ import annotations

import torch

import autodual as ad
from soundness.graphs import SETS, build, drawn_recipe, region, unstable_units
from soundness.properties import (
    bounds_contain_values,
    forward_equals_backward,
    minimum_is_homogeneous,
    network_of,
    single_points_give_the_output,
)

GRAPHS, EXAMPLES = 80, 32
LEAST_CASES, LEAST_UNSTABLE = 5000, 0.2


def test_at_least_5000_cases_hold() -> None:
    """A case is one network with the input set of one example; all four properties are checked for each."""
    cases = unstable = units = 0
    for seed in range(GRAPHS):
        recipe = drawn_recipe(seed)
        model = build(recipe)
        for kind in (SETS[seed % len(SETS)], SETS[(seed // len(SETS) + 3) % len(SETS)]):
            sets = region(kind, recipe.shape, EXAMPLES, seed)
            network = network_of(model, sets)
            bounds_contain_values(network, sets)
            forward_equals_backward(network, sets)
            single_points_give_the_output(network, sets)
            minimum_is_homogeneous(network, sets)
            with torch.no_grad():
                across, there = unstable_units(network, ad.Dual().bounds(network, sets).layers)
            cases, unstable, units = cases + len(sets), unstable + across, units + there
    print(f"{cases} cases, {units} units of activations, {unstable / units:.1%} of them unstable")
    assert cases >= LEAST_CASES
    assert unstable >= LEAST_UNSTABLE * units
