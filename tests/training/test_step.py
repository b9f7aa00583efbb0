"""Steps of a run that was stopped and goes on in another process are those of one that was not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import autodual as ad
from autodual.training.objectives import Objective
from autodual.training.step import Step

X, LABELS = torch.rand(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    middle = parametrizations.spectral_norm(nn.Linear(80, 70))
    return nn.Sequential(
        nn.Linear(6, 80), nn.BatchNorm1d(80), nn.ReLU(), middle, nn.BatchNorm1d(70), nn.ReLU(), nn.Linear(70, 3)
    ).train()


def _after_four_steps(engine: ad.BoundEngine, stopped_after: int | None = None) -> dict[str, Tensor]:
    """Weights and buffers; a new process keeps these and makes its own Step."""
    model = _model()
    for number in range(4):
        if number in (0, stopped_after):
            objective = Objective.robust(model, ad.LinfBall(0.1), engine)
            optimiser = torch.optim.SGD(model.parameters(), 0.1)
            step = Step(objective, optimiser, torch.Generator(), None)
        step.generator.manual_seed(number)
        step(X, LABELS)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("engine", [ad.Projected(7), ad.Dual()], ids=repr)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(engine: ad.BoundEngine) -> None:
    expected, found = _after_four_steps(engine), _after_four_steps(engine, stopped_after=2)
    assert expected["1.num_batches_tracked"] == found["1.num_batches_tracked"] == 4
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_batches_of_another_size_move_statistics_once_too() -> None:
    model = _model()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    step = Step(Objective.robust(model, ad.LinfBall(0.1), ad.Projected(7)), optimiser, torch.Generator(), None)
    for number, size in enumerate((8, 5, 8, 5), start=1):
        step(X[:size], LABELS[:size])
        assert model[1].num_batches_tracked == number
