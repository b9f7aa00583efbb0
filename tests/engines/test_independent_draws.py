"""No two layers, examples, projections or steps of a training share their random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.dual import DualNetwork
from autodual.engines.prepare import dual_network
from autodual.engines.streams import Draws, _apart, _in_one_piece, draw

LAYERS = [part for _ in range(3) for part in (nn.Linear(6, 6), nn.ReLU())]
X = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
MEMORY = {"apart": _apart, "in one piece": _in_one_piece}


def _network() -> DualNetwork:
    return dual_network(nn.Sequential(*LAYERS, nn.Linear(6, 2)).eval(), X)


def _rows(draws: Draws) -> list[Tensor]:
    """[units] each: the numbers of every layer, projection and example."""
    return [row for part in draws.fresh.values() for row in part.numbers().flatten(0, 1).flatten(1)]


def _angles(draws: Draws) -> list[Tensor]:
    """[units] each: what they were made of. Layers that share angles are dependent, even if their numbers differ."""
    parts = [t for part in draws.fresh.values() for t in (part.angles.flatten(0, 1), part.turns) if t is not None]
    return [row.clone() for part in parts for row in part.flatten(1)]


def _all_differ(rows: list[Tensor]) -> bool:
    return not any(torch.allclose(a, b) for a, b in itertools.combinations(rows, 2))


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
def test_numbers_of_layers_examples_projections_and_steps_differ(memory: Callable[..., Draws]) -> None:
    shapes = dict.fromkeys((2, 4, 6), (6,))
    draws = memory(shapes, X, 4, True).renew_(torch.Generator().manual_seed(1))
    first, angles = _rows(draws), _angles(draws)
    assert (len(first), len(angles)) == (3 * 4 * 3, 3 * (4 + 3))
    draws.renew_(torch.Generator().manual_seed(2))
    assert _all_differ(first + _rows(draws))
    assert _all_differ(angles + _angles(draws))


def test_layers_of_a_network_have_their_own() -> None:
    network = _network()
    rows = _rows(draw(network, ad.LinfBall(0.1).around(X), 4, torch.Generator().manual_seed(1)))
    assert len(rows) == 2 * 4 * 3  # a stream ends at the last activation
    assert _all_differ(rows)
