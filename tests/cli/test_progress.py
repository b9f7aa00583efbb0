"""Progress without a terminal: a line every few seconds, the last one at 100 %, from the first process alone."""

from __future__ import annotations

import pytest
import torch

from autodual.cli import terminal as progress
from autodual.cli.terminal import Display
from autodual.evaluation.processes import StepProgress, StoppedError


def steps(display: Display, epochs: int, batches: int) -> None:
    """Batches of 20, of which this process has 10: 5 wrong under the bound, 1 wrong."""
    watch = display.watch()
    for epoch in range(epochs):
        for batch in range(1, batches + 1):
            watch.step(StepProgress(0, epoch, epochs, batch, batches, torch.tensor([0.5, 5.0, 1.0, 0.5, 0.1]), 10, 20))


def test_a_quick_stage_is_one_line_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    steps(Display(lambda: False), epochs=3, batches=4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stage 0  epoch 3/3  12/12  100%")
    assert line.endswith("images/s  robust loss 0.500  robust error 50%  error 10%")


def test_training_without_bounds_has_one_loss(capsys: pytest.CaptureFixture[str]) -> None:
    Display(lambda: False).watch().step(StepProgress(0, 0, 1, 1, 1, torch.tensor([0.3, 1.0, 1.0, 0.3, 0.3]), 10, 10))
    assert capsys.readouterr().err.rstrip().endswith("100%  loss 0.300  robust error 10%  error 10%")


def test_a_slow_stage_is_told_again_and_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    steps(Display(lambda: False), epochs=2, batches=2)
    assert [line.split("  ")[2] for line in capsys.readouterr().err.splitlines()] == ["1/4", "2/4", "3/4", "4/4"]


def test_the_rate_is_that_of_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    rate = progress.Rate()
    for _ in range(5):
        rate.add(0, 20)
        now[0] += 2.0
    assert str(rate) == "8 images/s  "  # four steps of 20 since the first one, in ten seconds


def test_evaluations_end_at_100_percent(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Display(lambda: False).watch().tell
    for done in (100, 200, 230):
        tell("certifying", done, 230)
    assert capsys.readouterr().err.splitlines() == ["certifying  230/230  100%"]


def test_only_the_first_process_shows_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    display = Display(lambda: False)
    steps(display, epochs=1, batches=2)
    display.watch().say("a line")
    assert capsys.readouterr().err == ""


def test_an_evaluation_that_is_asked_to_stop_stops() -> None:
    with pytest.raises(StoppedError, match="stopped as asked"):
        Display(lambda: True).watch().tell("certifying", 1, 2)
