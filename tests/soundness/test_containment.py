"""Bounds of every engine contain the values that the network takes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from soundness.graphs import SETS, Recipe, build, recipes, region
from soundness.properties import bounds_contain_values, network_of


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(recipes(), st.sampled_from(SETS), st.integers(0, 1000))
def test_bounds_contain_values(recipe: Recipe, kind: str, seed: int) -> None:
    sets = region(kind, recipe.shape, 4, seed, largest=1.0)
    bounds_contain_values(network_of(build(recipe), sets), sets)
