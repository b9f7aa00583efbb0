"""Whoever watches a call hears how far it is, and a time limit ends it; a call that nobody watches computes the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import autodual as ad
from autodual.engines import effort as module
from autodual.engines.backward import bands
from autodual.engines.effort import Effort, Progress, TimeLimitError, current, report_progress, watched
from autodual.engines.prepare import dual_network


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still unless a test moves it."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 5 * 5, 20), nn.ReLU(), nn.Linear(20, 5),
    )  # fmt: skip
    x = torch.rand(3, 2, 12, 12)
    return model.eval(), x, model(x).argmax(1)


class TestCounting:
    def test_fraction_is_that_of_operations_in_all_passes(self, clock: list[float]) -> None:
        told: list[Progress] = []
        effort = Effort(tell=told.append)
        effort.begin(lambda: {4: 30.0, 7: 70.0}, examples=4)
        effort.next_part(1)
        clock[0] += 2.0
        effort.report_progress(4, 0.5)
        assert told[-1].fraction == pytest.approx(15 / 400)
        effort.next_part(3)
        clock[0] += 2.0
        effort.report_progress(7, 0.5)
        assert told[-1].fraction == pytest.approx((100 + 3 * 65) / 400)
        effort.end()
        effort.begin(lambda: {4: 100.0}, examples=4)
        effort.next_part(4)
        clock[0] += 2.0
        effort.report_progress(4, 0.25)
        assert told[-1].fraction == pytest.approx((400 + 100) / 800)
        assert told[-1].elapsed == pytest.approx(6.0)

    def test_time_left_follows_from_the_operations_so_far(self, clock: list[float]) -> None:
        told: list[Progress] = []
        effort = Effort(tell=told.append)
        clock[0] += 50.0  # capture, say: no operation of an engine
        effort.begin(lambda: {1: 1.0}, examples=1)
        effort.next_part(1)
        clock[0] += 10.0
        effort.report_progress(1, 0.25)
        assert (told[-1].worked, told[-1].remaining, told[-1].expected) == pytest.approx((10.0, 30.0, 90.0))

    def test_short_calls_count_nothing(self, clock: list[float]) -> None:
        def costs() -> dict[int, float]:
            raise AssertionError("counted")

        effort = Effort(tell=lambda progress: None)
        effort.begin(costs, examples=1)
        effort.next_part(1)
        clock[0] += 0.9
        effort.report_progress(1, 0.5)

    def test_reports_keep_their_distance(self, clock: list[float]) -> None:
        told: list[Progress] = []
        effort = Effort(tell=told.append)
        effort.begin(lambda: {1: 1.0}, examples=1)
        effort.next_part(1)
        for number in range(100):
            clock[0] += 0.05
            effort.report_progress(1, number / 100)
        assert 4.0 / 0.25 - 2 <= len(told) <= 4.0 / 0.2 + 1


class TestEngines:
    @pytest.mark.parametrize(
        "engine",
        [ad.Dual(), ad.Crown(), ad.Dual(intermediate=ad.IBP()), ad.Crown(ad.Dual()), ad.Dual(intersect=True)],
        ids=repr,
    )
    @pytest.mark.parametrize("most", [None, 200_000])
    def test_fractions_rise_to_one(self, engine: ad.Dual, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PATIENCE", -1.0)
        monkeypatch.setattr(module, "OFTEN", -1.0)
        model, x, _ = network()
        engine = type(engine)(engine.intermediate, engine.intersect, most)
        dual = dual_network(model, x)
        fractions: list[float] = []
        with watched(Effort(tell=lambda progress: fractions.append(progress.fraction))) as effort, torch.no_grad():
            engine.bounds(dual, ad.LinfBall(0.01).around(x))
        assert len(fractions) > 3 or engine.intermediate is not None
        assert fractions == sorted(fractions) or isinstance(
            engine.intermediate, ad.Dual
        )  # a pass that begins later adds work
        assert fractions[-1] == pytest.approx(1.0)
        assert effort.progress(1.0).fraction == 1.0

    def test_a_time_limit_ends_a_call(self) -> None:
        model, x, _ = network()
        dual = dual_network(model, x)
        with watched(Effort(timeout=0.0)), torch.no_grad(), pytest.raises(TimeLimitError, match="time limit of 0 s"):
            ad.Dual().bounds(dual, ad.LinfBall(0.01).around(x))
        assert current() is None

    def test_nobody_need_watch(self) -> None:
        report_progress(3, 0.5)

    def test_watching_changes_no_number(self) -> None:
        model, x, labels = network()
        alone = ad.certify(model, x, labels, ad.LinfBall(0.01))
        with watched(Effort(timeout=1e9, tell=lambda progress: None)):
            together = ad.certify(model, x, labels, ad.LinfBall(0.01))
        assert torch.equal(alone.margins, together.margins)


def test_patches_are_cut_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What units see is cut out of bands for some lines of positions at a time: with the same bounds, and far less memory."""
    model, x, labels = network()
    x, model = x.double(), model.double()
    whole = ad.certify(model, x, labels, ad.LinfBall(0.01))
    pieces = []
    before = bands.PulledRadii._of_lines
    monkeypatch.setattr(
        bands.PulledRadii,
        "_of_lines",
        lambda self, patches, *rest: pieces.append(patches.lines) or before(self, patches, *rest),
    )
    monkeypatch.setattr(bands, "MOST_CUT", 1)
    cut = ad.certify(model, x, labels, ad.LinfBall(0.01))
    assert pieces[:3] == [slice(0, 1), slice(1, 2), slice(2, 3)]
    torch.testing.assert_close(cut.margins, whole.margins, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(cut.slack, whole.slack, rtol=1e-6, atol=0.0)


def test_transposes_from_autodiff_need_no_compiler() -> None:
    """Importing PyTorch's compiler takes seconds."""
    code = (
        "import sys, torch, autodual as ad; from torch import nn\n"
        "model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(18, 3)).eval()\n"
        "x = torch.rand(2, 1, 8, 8); ad.certify(model, x, model(x).argmax(1), ad.LinfBall(0.01))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
