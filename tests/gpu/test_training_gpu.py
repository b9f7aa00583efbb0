"""Training on a GPU: a step captured as a CUDA graph does what the plain step does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import parametrizations

from autodual.bounds import Projected
from autodual.digits import digits_network, load_digits
from autodual.sets import LinfBall
from autodual.train.objective import RobustObjective
from autodual.train.randomness import kept_random_state, seed_globally
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


def test_a_capture_leaves_the_global_numbers_as_they_were_and_seeding_goes_on_after_it() -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    objective = RobustObjective(digits_network().cuda(), LinfBall(0.02), Projected(20))
    optimiser = torch.optim.Adam(objective.parameters(), 1e-3, fused=True)
    step = make_step(objective, optimiser, torch.Generator("cuda"), None, 50)
    torch.manual_seed(5)
    caller = torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()
    torch.manual_seed(5)
    drawn = []
    with kept_random_state(images.device):
        for _ in range(3):  # the first one captures
            seed_globally(7, images.device)
            step(images, labels)
            drawn.append((torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()))
    assert drawn[0] == drawn[1] == drawn[2]
    assert (torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()) == caller


def test_a_capture_leaves_the_buffers_as_they_were() -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    torch.manual_seed(0)
    model = digits_network()
    parametrizations.spectral_norm(model[5])
    found = []
    for kind in (Step, GraphStep):
        network = copy.deepcopy(model).cuda().train()
        objective = RobustObjective(network, LinfBall(0.02), Projected(20))
        step = kind(objective, torch.optim.SGD(network.parameters(), 0.0), torch.Generator("cuda"), None)
        if isinstance(step, GraphStep):
            step.batch = 50
        for _ in range(2):
            step(images, labels)
        found.append(dict(network.named_buffers()))
    for name, buffer in found[0].items():
        torch.testing.assert_close(found[1][name], buffer, rtol=1e-4, atol=1e-5)
