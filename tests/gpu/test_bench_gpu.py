"""`autodual bench` on a GPU: kernels are counted as the operations that they stand for, and ceilings are in order."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from autodual.cli.app import main
from autodual.kernels import narrow
from autodual.runs.config import TrainConfig
from autodual.speed import trials
from autodual.speed.measure import BFLOAT16, COPY, FLOAT32, TF32, Counting, Peak, Work, ceilings, timed
from autodual.speed.problems import PROBLEMS, OurSteps, PaperNetwork
from autodual.training.step import GraphStep

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)


def _counted(kernel: bool) -> Work:
    x = torch.rand(3, 1, 28, 28, device=GPU, requires_grad=True)
    weight = torch.rand(16, 1, 4, 4, device=GPU, requires_grad=True)
    assert narrow.is_narrow(x, weight, 1)  # which imports the kernels
    geometry = (2, 2), (1, 1), (1, 1)
    with Counting().with_kernels() as work:
        y = narrow.convolve(x, weight, None, geometry) if kernel else F.conv2d(x, weight, None, *geometry)
        y.sum().backward()
    return work


def test_a_narrow_convolution_counts_as_the_librarys_own() -> None:
    found, plain = _counted(True), _counted(False)
    assert found.operations == plain.operations == {TF32: 3 * 2 * 3 * 16 * 14 * 14 * 16}
    assert found.bytes > 0


def test_a_captured_step_is_counted_by_a_plain_one() -> None:
    problem = PROBLEMS["mnist-small"]
    x, labels, _ = problem.images(50, None)
    steps = OurSteps.of(problem, 50, x.to(GPU), labels.to(GPU))
    steps.first()
    assert isinstance(steps.step, GraphStep)
    assert steps.step.graph is not None
    plain = steps.plain()
    first, second = plain.counted(), plain.counted()
    assert first == second
    assert first.operations[BFLOAT16] > 0
    assert first.operations[TF32] > 0
    assert first.bytes > 50 * 50 * 16 * 14 * 14 * 2  # the first stream, read once
    steps()  # the graph still runs


def test_ceilings_are_in_order() -> None:
    found = ceilings(GPU, copied=1 << 28, width=4096)
    assert found.keys() == {COPY, FLOAT32, TF32, BFLOAT16}
    assert found[FLOAT32] < found[TF32] < found[BFLOAT16]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_time_and_memory_are_the_gpus_own() -> None:
    a = torch.rand(2048, 2048, device=GPU)
    peak = Peak(GPU)
    few, many = (timed(lambda n=n: [a @ a for _ in range(n)], GPU, 0.0).median for n in (4, 40))  # type: ignore[misc]
    assert 5 < many / few < 20
    assert (found := peak.bytes()) is not None
    assert found >= a.numel() * 4


def test_the_whole_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(dataset="digits", model="digits", eps=0.05, clip=(0.0, 1.0), lr=1e-8)
    monkeypatch.setitem(PROBLEMS, "digits", PaperNetwork("Digits", config))
    monkeypatch.setattr("autodual.cli.bench.NETWORKS", ("digits",))
    monkeypatch.setattr(trials, "ceilings", partial(ceilings, copied=1 << 28, width=2048))
    monkeypatch.setitem(sys.modules, "convex_adversarial", None)
    options = ["digits", "--k", "4", "--seconds", "0.1", "--float32", "--profile", "--device", "cuda"]
    monkeypatch.setattr(sys, "argv", ["autodual", "bench", *options])
    with pytest.raises(SystemExit) as done:
        main()
    said = capsys.readouterr().out
    assert not done.value.code
    cells = next(line for line in said.splitlines() if line.startswith("| Digits")).split(" | ")
    assert [bool(cell.strip("| ")) for cell in cells] == [
        True,
        False,
        *[True] * 3,
        False,
        *[True] * 2,
        False,
        *[True] * 4,
    ]
    assert "## Digits: kernels, ms per step" in said
    assert "## Digits: operations, ms per step" in said
