"""Over single points (eps = 0), bounds are the network's own output."""

from hypothesis import given, settings
from hypothesis import strategies as st

from soundness.graphs import Recipe, build, recipes, region
from soundness.properties import network_of, single_points_give_the_output


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(recipes(), st.integers(0, 1000))
def test_bounds_are_the_output(recipe: Recipe, seed: int) -> None:
    sets = region("linf", recipe.shape, 4, seed)
    single_points_give_the_output(network_of(build(recipe), sets), sets)
