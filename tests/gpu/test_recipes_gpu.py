"""The step of every recipe, captured as a CUDA graph, does what the plain step does; also when the regularisers have faded out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from autodual.data import load
from autodual.models import initialise_for_intervals
from autodual.training.setup import Pace, make_model, make_objective, make_optimiser, set_lr
from autodual.training.step import WARM_UP, Average, GraphStep, Step, make_step
from training.test_waiting import CASES, config_of

pytestmark = pytest.mark.gpu

BATCH = 20


def _losses(case: str, model: nn.Module, captured: bool, seeds: list[int]) -> tuple[Tensor, nn.Module, Average]:
    """Summaries of some steps through a whole ramp, the model, and the moving average of its weights."""
    config, data = config_of(case).with_changes(average="ema"), load("digits", "train").take(3 * BATCH).to("cuda")
    network = copy.deepcopy(model).cuda().train()
    pace, generator = Pace(config, torch.device("cuda")), torch.Generator("cuda")
    objective, optimiser = make_objective(config, network, pace), make_optimiser(config, network)
    average = Average(config, network)
    arguments = (objective, optimiser, generator, config.clip_gradients)
    step = make_step(*arguments, BATCH, after=average.after_step)
    assert isinstance(step, GraphStep)
    if not captured:
        step = Step(*arguments, after=average.after_step)
    found = []
    for number, seed in enumerate(seeds):
        pace.at(4 * number // len(seeds), 4 * number / len(seeds) % 1)
        objective.regularising = pace.regularising
        set_lr(optimiser, 1e-3)
        average.before_step(number)
        generator.manual_seed(seed)
        part = slice(number % 3 * BATCH, (number % 3 + 1) * BATCH)
        found.append(step(data.scaled(part), data.labels[part]).clone())
    assert not captured or (isinstance(step, GraphStep) and step.graph is not None)
    return torch.stack(found), network, average


@pytest.mark.parametrize("case", CASES)
def test_the_captured_step_is_the_plain_step(case: str) -> None:
    config = config_of(case)
    torch.manual_seed(0)
    model = make_model(config.model, (1, 8, 8), 10)
    initialise_for_intervals(model)
    seeds = list(range(4 * WARM_UP + 8))
    plain, network, average = _losses(case, model, captured=False, seeds=seeds)
    captured, twin, other = _losses(case, model, captured=True, seeds=seeds)
    assert captured.isfinite().all()
    torch.testing.assert_close(captured[:, 0], plain[:, 0], rtol=0.05, atol=0.05)
    torch.testing.assert_close(captured[: WARM_UP + 2], plain[: WARM_UP + 2], rtol=0.02, atol=0.02)
    for name, value in dict(network.named_buffers()).items():
        torch.testing.assert_close(twin.state_dict()[name], value, rtol=0.05, atol=0.05)
    for name, value in average.values.items():
        torch.testing.assert_close(other.values[name], value, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("case", ["mtl-ibp", "sabr"])
def test_random_starts_follow_from_the_seed_alone(case: str) -> None:
    config, data = config_of(case), load("digits", "train").take(BATCH).to("cuda")
    torch.manual_seed(0)
    network = make_model(config.model, (1, 8, 8), 10).cuda().train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 0.0  # the attack reads running statistics, which would move from step to step
    pace, generator = Pace(config, torch.device("cuda")), torch.Generator("cuda")
    still = torch.optim.SGD(network.parameters(), 0.0, fused=True)
    step = make_step(make_objective(config, network, pace), still, generator, None, BATCH)
    found: dict[int, list[Tensor]] = {}
    for number in range(WARM_UP + 8):
        generator.manual_seed(number % 2)
        found.setdefault(number % 2, []).append(step(data.scaled(), data.labels).clone())
    for values in found.values():
        torch.testing.assert_close(values[-1], values[-2], rtol=1e-3, atol=1e-3)


def test_a_graph_is_captured_anew_when_the_regularisers_have_faded_out() -> None:
    config, data = config_of("mtl-ibp"), load("digits", "train").take(BATCH).to("cuda")
    network = make_model(config.model, (1, 8, 8), 10).cuda().train()
    pace, generator = Pace(config, torch.device("cuda")), torch.Generator("cuda")
    objective = make_objective(config, network, pace)
    step = make_step(objective, make_optimiser(config, network), generator, None, BATCH)
    assert isinstance(step, GraphStep)
    graphs = set()
    for epoch in (1, 3):
        pace.at(epoch, 0.5)
        objective.regularising = pace.regularising
        for _ in range(WARM_UP + 2):
            step(data.scaled(), data.labels)
        assert step.graph is not None
        assert step.regularising == pace.regularising == (epoch == 1)
        graphs.add(id(step.graph))
    torch.cuda.synchronize()
    memory = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(100):
        step(data.scaled(), data.labels)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= memory[0]
