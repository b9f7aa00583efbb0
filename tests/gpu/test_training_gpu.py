"""Training on a GPU: a step captured as a CUDA graph does what the plain step does."""

from __future__ import annotations

import copy

import pytest
import torch

from autodual.bounds import Projected
from autodual.digits import digits_network, load_digits
from autodual.sets import LinfBall
from autodual.train.objective import RobustObjective
from autodual.train.step import GraphStep, Step, make_step

pytestmark = pytest.mark.gpu


def test_the_captured_step_is_the_plain_step() -> None:
    images, labels = (t.cuda() for t in load_digits("train"))
    torch.manual_seed(0)
    model = digits_network().cuda()
    losses = []
    for kind in (Step, GraphStep):
        network = copy.deepcopy(model)
        eps = torch.tensor(0.02, device="cuda")
        objective = RobustObjective(network, LinfBall(eps, clip=(0.0, 1.0)), Projected(20))
        optimiser = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
        step = kind(objective, optimiser, torch.Generator("cuda"), 1.0)
        if isinstance(step, GraphStep):
            step.batch = 50
        found = []
        for number, index in enumerate(torch.arange(1437).split(50)):  # the last batch is smaller
            step.generator.manual_seed(number)
            eps.fill_(0.02 + 0.001 * number)
            found.append(step(images[index], labels[index])[0].clone())
        losses.append(torch.stack(found))
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0.02)
    assert losses[0][-5:].mean() < losses[0][:5].mean()
    assert isinstance(make_step(objective, optimiser, torch.Generator("cuda"), None, 50), GraphStep)
