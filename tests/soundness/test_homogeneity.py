"""The dual objective is positively homogeneous: J(a c) = a J(c) for a > 0."""

from hypothesis import given, settings
from hypothesis import strategies as st

from soundness.graphs import SETS, Recipe, build, recipes, region
from soundness.properties import minimum_is_homogeneous, network_of


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(recipes(), st.sampled_from(SETS), st.integers(0, 1000))
def test_minimum_scales_with_its_row(recipe: Recipe, kind: str, seed: int) -> None:
    sets = region(kind, recipe.shape, 4, seed)
    minimum_is_homogeneous(network_of(build(recipe), sets), sets)
