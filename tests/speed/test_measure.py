"""What `autodual bench` counts is what can be worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from autodual.evaluation.processes import StoppedError
from autodual.runs.config import TrainConfig
from autodual.speed.measure import (
    BFLOAT16,
    COPY,
    FLOAT32,
    LEAST,
    TF32,
    Counting,
    Peak,
    ceilings,
    hottest,
    size_of,
    timed,
)
from autodual.speed.problems import OurSteps, PaperNetwork
from autodual.speed.trials import achieved
from autodual.training.objectives import Objective
from autodual.training.step import GraphStep, Step

CPU = torch.device("cpu")
A, B, WEIGHT = torch.rand(5, 3), torch.rand(5, 3), torch.rand(4, 3)
HALF = torch.rand(2, 6).bfloat16()
IMAGE, FILTERS = torch.rand(2, 3, 8, 8), torch.rand(4, 3, 3, 3)

CASES: dict[str, tuple[Callable[[], object], dict[str, int], int, int]] = {
    # what is computed; operations by arithmetic; values read; values written
    "product": (lambda: F.linear(A, WEIGHT), {FLOAT32: 2 * 5 * 3 * 4}, 15 + 12, 20),
    "convolution": (lambda: F.conv2d(IMAGE, FILTERS, padding=1), {FLOAT32: 2 * 512 * 27}, 384 + 108, 512),
    "transpose": (lambda: F.conv_transpose2d(torch.ones(1, 4, 2, 2), FILTERS), {FLOAT32: 2 * 16 * 27}, 16 + 108, 48 + 16),
    "sum of two": (lambda: A + B, {}, 30, 15),
    "in place": (lambda: A.clone().add_(B), {}, 15 + 30, 15 + 15),
    "copy": (lambda: torch.empty(5, 3).copy_(A), {}, 15, 15),
    "zeros": (lambda: torch.empty(5, 3).zero_(), {}, 0, 15),
    "like": (lambda: torch.zeros_like(A), {}, 0, 15),
    "out": (lambda: torch.mul(A, B, out=torch.empty(5, 3)), {}, 30, 15),
    "views": (lambda: A.t()[1:].unsqueeze(0).expand(7, 2, 5).detach(), {}, 0, 0),
    "broadcast": (lambda: A[:, :1].expand(5, 100) + 1.0, {}, 5, 500),
    "a scalar for all": (lambda: torch.ones(()).expand(3, 4).sum(), {}, 1, 1 + 1),
    "several results": (lambda: A.max(1), {}, 15, 5 + 2 * 5),
    "several tensors": (lambda: torch._foreach_add_([torch.empty(4), torch.empty(2)], 1.0), {}, 6, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operation(name: str) -> None:
    run, operations, read, written = CASES[name]
    with Counting().with_kernels() as work:
        run()
    assert (dict(work.operations), work.read, work.written) == (operations, 4 * read, 4 * written)


def test_products_are_told_apart_by_their_arithmetic() -> None:
    with Counting().with_kernels() as work:
        HALF @ HALF.t()
        A @ B.t()
    assert work.operations == {BFLOAT16: 2 * 2 * 6 * 2, FLOAT32: 2 * 5 * 3 * 5}
    assert work.bytes == 2 * (12 + 12 + 4) + 4 * (15 + 15 + 25)


def test_a_network_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    x = torch.rand(4, 1, 4, 4)
    with torch.no_grad(), Counting().with_kernels() as work:
        model(x)
    convolution, linear = 2 * 32 * 9, 2 * 4 * 8 * 3
    assert work.operations == {FLOAT32: convolution + linear}
    assert work.read == 4 * ((64 + 18 + 2) + 32 + (32 + 24 + 3))
    assert work.written == 4 * (32 + 32 + 12)
    with Counting().with_kernels() as work:
        model(x).sum().backward()
    assert work.operations == {FLOAT32: 2 * convolution + 3 * linear}  # there is no gradient on the images


def _steps() -> OurSteps:
    problem = PaperNetwork("digits", TrainConfig(dataset="digits", model="digits", eps=0.05, clip=(0.0, 1.0), lr=1e-8))
    steps = OurSteps.of(problem, 4, *problem.images(6, None)[:2])
    steps()
    return steps


def test_operations_of_a_whole_step_are_those_of_pytorchs_own_counter() -> None:
    steps = _steps()
    found = steps.counted()
    objective = steps.step.objective
    assert isinstance(objective, Objective)
    network = objective.bounded._captured_network(steps.x)
    with patch.object(objective.loss, "_captured_network", lambda x: network), FlopCounterMode(display=False) as theirs:
        steps()
    assert found.operations == {FLOAT32: theirs.get_total_flops()}
    assert found.operations[FLOAT32] > 0
    assert found.read > found.written > 0
    steps()  # the network is captured and checked as before
    assert "_captured_network" not in vars(objective.loss)


def test_the_steps_of_a_graph_are_taken_plainly_where_they_are_counted() -> None:
    plain = _steps()
    assert plain.plain() is plain
    step = plain.step
    graph = GraphStep(step.objective, step.optimiser, step.generator, step.clip_gradients)
    found = OurSteps(graph, plain.x, plain.labels).plain()
    assert type(found.step) is Step
    assert found.counted().operations == plain.counted().operations


def test_kernels_are_counted_by_what_goes_in_and_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins: Triton's do not run without a GPU. tests/gpu has the real ones."""
    narrow = ModuleType("autodual.kernels.narrow")
    source = """
import torch
def launch_convolve(images, weight, bias, *geometry): return images.new_empty(2, 4, 8, 8)
def launch_spread(images, weight, size, *geometry): return images.new_empty(2, 3, 8, 8)
def launch_on_weight(given, images, kernel, *geometry): return given.new_empty(4, 3, 3, 3)
def _inner(images): return images
"""
    exec(source, narrow.__dict__)
    monkeypatch.setitem(sys.modules, narrow.__name__, narrow)
    before, given = narrow.launch_convolve, torch.rand(2, 4, 8, 8)
    with Counting().with_kernels() as work:
        narrow.launch_convolve(IMAGE, FILTERS, torch.rand(4), (1, 1))
        assert (work.read, work.written) == (4 * (384 + 108 + 4), 4 * (512 + 4))  # and the bias was made
        narrow.launch_spread(given, FILTERS, (8, 8), (1, 1))
        narrow.launch_on_weight(given, IMAGE, (3, 3), (1, 1))
        narrow._inner(given)
    assert work.operations == {TF32: 3 * 2 * 512 * 27}
    assert work.read == 4 * ((384 + 108 + 4) + (512 + 108) + (512 + 384))
    assert work.written == 4 * (512 + 4 + 384 + 108)
    assert narrow.launch_convolve is before


def test_rates_are_parts_of_the_ceilings_of_their_own_arithmetic() -> None:
    with Counting().with_kernels() as work:
        HALF @ HALF.t()
        A @ B.t()
    row = achieved(work, 2.0, {COPY: 1000.0, FLOAT32: 100.0, BFLOAT16: 1000.0})
    assert row["operations_per_second"] == (48 + 150) / 2
    assert row["part_of_arithmetic"] == pytest.approx((48 / 1000 + 150 / 100) / 2)
    assert row["part_of_bandwidth"] == pytest.approx(work.bytes / 2 / 1000)


def test_ceilings_of_a_cpu() -> None:
    found = ceilings(CPU, copied=1 << 16, width=32)
    assert found.keys() == {COPY, FLOAT32}
    assert min(found.values()) > 0


def test_memory_is_seen() -> None:
    peak = Peak(CPU)
    torch.ones(32 << 20, dtype=torch.uint8)
    found = peak.bytes()
    if sys.platform == "linux":
        assert found is not None
        assert 31 << 20 <= found < 48 << 20  # the system counts pages in bunches


def test_calls_are_timed_until_somebody_stops_them() -> None:
    calls: list[int] = []
    spread = timed(lambda: calls.append(1), CPU, 0.0)
    assert spread.calls == len(calls) == LEAST
    assert spread.low <= spread.median <= spread.high
    assert timed(lambda: calls.append(1), CPU, 0.0, lambda: len(calls) >= LEAST + 3).calls == 3
    with pytest.raises(StoppedError):
        timed(lambda: None, CPU, 0.0, lambda: True)


class Mark:
    """In place of an event of a GPU."""

    passed = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at, Mark.passed = Mark.passed, Mark.passed + 3

    def elapsed_time(self, other: Mark) -> float:
        """Milliseconds."""
        return float(other.at - self.at)


def test_events_divide_the_time_of_a_gpu_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    calls: list[int] = []
    spread = timed(lambda: calls.append(1), torch.device("cuda"), 0.0)
    assert (spread.calls, spread.median, len(calls)) == (LEAST, 0.003, LEAST)


def test_what_takes_most_time_comes_first_with_its_shapes() -> None:
    def work() -> Tensor:
        return (torch.ones(200, 300) @ torch.ones(300, 400)).relu()

    rows = hottest(work, CPU, "operations")
    assert [row["shapes"] for row in rows if row["name"] == "aten::mm"] == [[[200, 300], [300, 400]]]
    assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
    assert sum(row["part"] for row in rows) <= 1 + 1e-9


def test_bytes_of_nothing() -> None:
    assert size_of([None, 3, torch.empty(0, 5), {"a": torch.empty(2, dtype=torch.int64)}]) == 16
