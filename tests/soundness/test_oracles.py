"""Cheap bounds <= the linear program over the same relaxation <= the exact minimum <= every value that is reached."""

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import autodual as ad
from autodual.spec import Spec
from autodual.testing import corners, exact_minimum, triangle_minimum
from autodual.testing.engines import attack_points
from soundness.graphs import CLASSES, Recipe, build, recipes, region, unstable_units
from soundness.properties import network_of

TOLERANCE = 1e-6
"""What the solver's feasibility tolerance may change in a minimum."""
MOST_UNSTABLE = 12
"""Above this many, the mixed-integer program may take long."""


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(recipes(activations=("relu",)), st.sampled_from(["linf", "linf clipped", "box"]), st.integers(0, 1000))
def test_relaxations_are_ordered(recipe: Recipe, kind: str, seed: int) -> None:
    model, sets = build(recipe), region(kind, recipe.shape, 1, seed, largest=0.3)
    assert isinstance(sets, ad.Box)
    network = network_of(model, sets)
    rows = torch.randn(2, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        layers = ad.Dual().bounds(network, sets).layers
        dual = ad.Dual().minimum(network, sets, Spec(rows.unsqueeze(1))).lower
        crown = ad.Crown(intermediate=ad.Dual()).minimum(network, sets, Spec(rows.unsqueeze(1))).lower
        reached = torch.stack([network.forward(x) @ rows.T for x in attack_points(network, sets, 8, 8, seed)]).amin(0)
        linear = triangle_minimum(model, sets, rows, layers)
    assert bool((dual <= linear + TOLERANCE).all())
    assert bool((crown <= linear + TOLERANCE).all())
    assert bool((linear <= reached + TOLERANCE).all())
    if unstable_units(network, layers)[0] <= MOST_UNSTABLE:
        exact = exact_minimum(model, sets, rows, layers)
        assert bool((linear <= exact + TOLERANCE).all())
        assert bool((exact <= reached + TOLERANCE).all())
        event("solved exactly")


@pytest.mark.parametrize("seed", range(8))
def test_small_networks_exactly(seed: int) -> None:
    """The same with the exact minimum always at hand, over all outputs and against all corners."""
    model = build(Recipe(False, (("plain", "relu"), ("plain", "relu")), seed))
    sets = region("linf", (4,), 2, seed, largest=0.5)
    assert isinstance(sets, ad.Box)
    rows = torch.eye(CLASSES, dtype=torch.float64)
    with torch.no_grad():
        found = ad.bounds(model, sets)
        linear, exact = (f(model, sets, rows, found.layers) for f in (triangle_minimum, exact_minimum))
        values = torch.stack(
            [model(x) for x in (*corners(sets), *attack_points(network_of(model, sets), sets, 32, 16, 0))]
        )
    assert bool((found.output.lower <= linear + TOLERANCE).all())
    assert bool((linear <= exact + TOLERANCE).all())
    assert bool((exact <= values.amin(0) + TOLERANCE).all())


def test_one_unstable_unit() -> None:
    """relu(x) - x / 4 on [-1, 1] is smallest at 0. The triangle finds that; the band relu(x) >= x / 2 gives x / 4 >= -1/4."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1)).double().eval()
    with torch.no_grad():
        for tensor, value in zip(model.parameters(), ([[1.0], [1.0]], [0.0, 2.0], [[1.0, -0.25]], [0.5]), strict=True):
            tensor.copy_(torch.tensor(value))
    box = ad.LinfBall(1.0).around(torch.zeros(1, 1, dtype=torch.float64))
    rows = torch.ones(1, 1, dtype=torch.float64)
    with torch.no_grad():
        dual = ad.bounds(model, box).output.lower
    torch.testing.assert_close(triangle_minimum(model, box, rows), torch.tensor([[0.0]], dtype=torch.float64))
    torch.testing.assert_close(exact_minimum(model, box, rows), torch.tensor([[0.0]], dtype=torch.float64))
    torch.testing.assert_close(dual, torch.tensor([[-0.25]], dtype=torch.float64))
