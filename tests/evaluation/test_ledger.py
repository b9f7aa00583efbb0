"""Every example has a line with its number, in parts of whatever size the work is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual.digits import load_digits, load_digits_network
from autodual.evaluation.judge import Ledger, judge_to_file


@pytest.mark.parametrize("step", [1, 3, 5, None])
def test_lines_are_numbered_through_all_parts(tmp_path: Path, step: int | None) -> None:
    images, labels = load_digits("test")
    data = ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "digits").take(5)
    file = tmp_path / "certificates.jsonl"
    judge_to_file(Ledger(file, step=step), load_digits_network().eval(), data, ad.LinfBall(0.1), ad.Dual())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["label"] for line in lines] == data.labels.tolist()
