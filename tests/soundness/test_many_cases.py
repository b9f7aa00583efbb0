"""Thousands of generated cases, counted; and enough units in them that the relaxations matter."""

from __future__ import annotations

from soundness.graphs import SETS, build, drawn_recipe, region, unstable_units
from soundness.properties import (
    bounds_contain_values,
    forward_equals_backward,
    minimum_is_homogeneous,
    network_of,
    single_points_give_the_output,
)

GRAPHS, EXAMPLES = 52, 50
LEAST_CASES, LEAST_UNSTABLE = 5000, 0.2


def test_at_least_5000_cases_hold() -> None:
    """A case is one network with the input set of one example; all four properties are checked for each."""
    cases = unstable = units = 0
    for seed in range(GRAPHS):
        recipe = drawn_recipe(seed)
        model = build(recipe)
        for kind, place in ((SETS[seed % 6], 2 * seed), (SETS[(seed + 1 + seed // 6 % 5) % 6], 2 * seed + 1)):
            sets = region(kind, recipe.shape, EXAMPLES, place)
            network = network_of(model, sets)
            bounds_contain_values(network, sets)
            found = forward_equals_backward(network, sets)
            single_points_give_the_output(network, sets)
            minimum_is_homogeneous(network, sets)
            across, there = unstable_units(network, found.layers)
            cases, unstable, units = cases + len(sets), unstable + across, units + there
    print(f"{cases} cases, {units} units of activations, {unstable / units:.1%} of them unstable")
    assert cases >= LEAST_CASES
    assert unstable >= LEAST_UNSTABLE * units
