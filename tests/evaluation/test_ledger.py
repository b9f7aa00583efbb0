"""Every example has a line with its number, in parts of whatever size the work is done."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual.digits import load_digits, load_digits_network
from autodual.engines import effort
from autodual.engines.effort import TimeLimitError
from autodual.evaluation.judge import Ledger, judge_lines, judge_to_file


def five() -> ad.ImageData:
    images, labels = load_digits("test")
    return ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "digits").take(5)


@pytest.mark.parametrize("step", [1, 3, 5, None])
def test_lines_are_numbered_through_all_parts(tmp_path: Path, step: int | None) -> None:
    data = five()
    file = tmp_path / "certificates.jsonl"
    judge_to_file(Ledger(file, step=step), load_digits_network().eval(), data, ad.LinfBall(0.1), ad.Dual())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["label"] for line in lines] == data.labels.tolist()
    problem = json.loads((tmp_path / "certificates.problem.json").read_text())
    assert problem["batch"] == (
        100 if step is None else step
    )  # a check computes lines again in the parts that they were found in


@pytest.mark.parametrize("engine", [ad.Dual(), ad.Crown()])
def test_a_part_ends_in_the_middle_when_time_is_up(engine: ad.Dual, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a part that was not finished becomes a line."""
    monkeypatch.setattr(effort, "PATIENCE", -1.0)
    ask = load_digits_network().eval(), ad.LinfBall(0.1), engine, five(), slice(0, 5)
    assert len(judge_lines(*ask, until=time.monotonic() + 1e6)) == 5
    with pytest.raises(TimeLimitError):
        judge_lines(*ask, until=time.monotonic())
