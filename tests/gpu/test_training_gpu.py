"""Training on a GPU: a step captured as a CUDA graph does what the plain step does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from autodual.digits import digits_network, load_digits
from autodual.engines import Projected
from autodual.runs.config import TrainConfig
from autodual.sets import LinfBall
from autodual.training.objectives import Objective
from autodual.training.setup import make_optimiser, set_lr
from autodual.training.step import WARM_UP, GraphStep, Step, kept_random_state, make_step, seed_globally
from training.test_waiting import Prepared

pytestmark = pytest.mark.gpu


def test_the_captured_step_is_the_plain_step() -> None:
    images, labels = (t.cuda() for t in load_digits("train"))
    torch.manual_seed(0)
    model = digits_network().cuda()
    losses = []
    for kind in (Step, GraphStep):
        network = copy.deepcopy(model)
        eps = torch.tensor(0.02, device="cuda")
        objective = Objective.robust(network, LinfBall(eps, clip=(0.0, 1.0)), Projected(20))
        optimiser = torch.optim.Adam(network.parameters(), 1e-3, fused=True, capturable=True)
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
    objective = Objective.robust(digits_network().cuda(), LinfBall(0.02), Projected(20))
    optimiser = torch.optim.Adam(objective.parameters(), 1e-3, fused=True, capturable=True)
    step = make_step(objective, optimiser, torch.Generator("cuda"), None, 50)
    torch.manual_seed(5)
    caller = torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()
    torch.manual_seed(5)
    drawn = []
    with kept_random_state(images.device):
        for _ in range(WARM_UP + 2):  # the last but one captures
            seed_globally(7, images.device)
            step(images, labels)
            drawn.append((torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()))
    assert all(numbers == drawn[0] for numbers in drawn)
    assert (torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()) == caller


def test_a_network_whose_constants_are_checked_is_captured() -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    network = Prepared().cuda().train()
    objective = Objective.robust(network, LinfBall(0.02), Projected(20))
    optimiser = torch.optim.SGD(network.parameters(), 0.01, fused=True)
    step = make_step(objective, optimiser, torch.Generator("cuda"), None, 50)
    losses = [step(images, labels)[0].item() for _ in range(WARM_UP + 3)]
    assert isinstance(step, GraphStep)
    assert step.graph is not None
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["spectral norm", "batch norm"])
def test_a_captured_step_moves_buffers_as_a_plain_one_does(kind: str) -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    torch.manual_seed(0)
    model = digits_network()
    if kind == "spectral norm":
        parametrizations.spectral_norm(model[5])
    else:
        model.insert(1, nn.BatchNorm2d(model[0].out_channels))
    found = []
    for step_kind in (Step, GraphStep):
        network = copy.deepcopy(model).cuda().train()
        objective = Objective.robust(network, LinfBall(0.02), Projected(20))
        step = step_kind(
            objective, torch.optim.SGD(network.parameters(), 0.0, fused=True), torch.Generator("cuda"), None
        )
        if isinstance(step, GraphStep):
            step.batch = 50
        for number in range(WARM_UP + 3):
            step(images if number % 2 else images.flip(0), labels)
        assert step_kind is Step or step.graph is not None
        found.append(dict(network.named_buffers()))
    assert found[0]
    for name, buffer in found[0].items():
        torch.testing.assert_close(found[1][name], buffer, rtol=1e-4, atol=1e-5)


def test_the_numbers_of_a_captured_step_follow_from_its_seed_alone() -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    network = digits_network().cuda()
    objective = Objective.robust(network, LinfBall(0.02), Projected(20))
    generator = torch.Generator("cuda")

    def noisy(x: Tensor, numbers: torch.Generator) -> Tensor:
        return x + 0.1 * torch.rand(x.shape, generator=numbers, device=x.device)

    step = make_step(objective, torch.optim.SGD(network.parameters(), 0.0, fused=True), generator, None, 50, noisy)
    found: dict[int, list[Tensor]] = {}
    for number in range(3 * WARM_UP):
        generator.manual_seed(number % WARM_UP)
        found.setdefault(number % WARM_UP, []).append(step(images, labels).clone())
    for seed, (plain, *captured) in found.items():
        assert torch.equal(captured[0], captured[1])
        torch.testing.assert_close(captured[0], plain, rtol=1e-3, atol=1e-3)
        assert not torch.equal(captured[0], found[(seed + 1) % WARM_UP][1])


def test_a_captured_step_obeys_a_new_learning_rate() -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    network = digits_network().cuda()
    config = TrainConfig(dataset="digits", model="digits", eps=0.02)
    optimiser = make_optimiser(config, network)
    step = make_step(
        Objective.robust(network, LinfBall(0.02), Projected(20)), optimiser, torch.Generator("cuda"), 1.0, 50
    )
    for _ in range(WARM_UP + 2):
        step(images, labels)
    set_lr(optimiser, 0.0)
    before = [p.detach().clone() for p in network.parameters()]
    step(images, labels)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_memory_does_not_grow_over_a_thousand_steps() -> None:
    images, labels = (t[:50].cuda() for t in load_digits("train"))
    network = digits_network().cuda()
    optimiser = torch.optim.SGD(network.parameters(), 1e-3, fused=True)
    step = make_step(
        Objective.robust(network, LinfBall(0.02), Projected(20)), optimiser, torch.Generator("cuda"), 1.0, 50
    )
    for _ in range(WARM_UP + 5):
        step(images, labels)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(1000):
        step(images, labels)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
