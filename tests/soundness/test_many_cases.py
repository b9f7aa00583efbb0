"""Thousands of generated cases, counted; and enough units in them that the relaxations matter."""

from __future__ import annotations

import pytest

from soundness.graphs import SETS, build, drawn_recipe, region, unstable_units
from soundness.properties import (
    bounds_contain_values,
    forward_equals_backward,
    minimum_is_homogeneous,
    network_of,
    single_points_give_the_output,
)

EXAMPLES, LEAST_UNSTABLE = 50, 0.2


@pytest.mark.parametrize(("graphs", "least"), [(12, 1200), pytest.param(52, 5000, marks=pytest.mark.slow)])
def test_so_many_cases_hold(graphs: int, least: int) -> None:
    """A case is one network with the input set of one example; all four properties are checked for each."""
    cases = unstable = units = 0
    for seed in range(graphs):
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
    assert cases >= least
    assert unstable >= LEAST_UNSTABLE * units
