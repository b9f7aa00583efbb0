"""A line says of its example what its certificate says, whatever part of the data it is found with; no example is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual.digits import load_digits, load_digits_network
from autodual.evaluation.judge import Judged, Ledger, judge_lines, judge_to_file
from autodual.evaluation.processes import Watch, in_turns

BALL = ad.LinfBall(0.05, clip=(0.0, 1.0))


@pytest.fixture(scope="module")
def data() -> ad.ImageData:
    images, labels = load_digits("test")
    return ad.ImageData((images * 16).to(torch.uint8), labels, tuple("0123456789"), "digits", scale=16).take(7)


@pytest.mark.parametrize(("start", "step"), [(0, 3), (3, 3), (0, 7), (0, 100), (6, 4), (7, 2)])
def test_parts_cover_all_examples_once(data: ad.ImageData, start: int, step: int) -> None:
    told: list[int] = []
    turns = in_turns(
        lambda part: list(range(len(data)))[part],
        data,
        "x",
        Watch(draw=lambda _, done, of: told.append(done)),
        start,
        step,
    )
    assert [index for turn in turns for part in turn for index in part] == list(range(start, len(data)))
    assert told == sorted(told)
    assert told[-1:] == ([len(data)] if start < len(data) else [])


def test_lines_say_what_certificates_say(data: ad.ImageData, tmp_path: Path) -> None:
    """The smallest margin, and the largest slack, of each example, in order."""
    model = load_digits_network().eval()
    found = ad.certify(model, data.scaled(slice(0, 7)), data.labels, BALL)
    judged = judge_to_file(Ledger(tmp_path / "x.jsonl", step=3), model, data, BALL, ad.Dual())
    assert torch.equal(judged.labels, data.labels)
    assert torch.equal(judged.predicted, found.predicted)
    assert torch.equal(judged.certified, found.certified)
    assert torch.equal(judged.certified_as_run, found.certified_as_run)
    torch.testing.assert_close(judged.margins, found.margins.amin(1))
    torch.testing.assert_close(
        judged.slack, found.slack.amax(1), rtol=0.1, atol=0
    )  # depends on who is certified together
    lines = judge_lines(model, BALL, ad.Dual(), data, slice(4, 6))
    assert [line.index for line in lines] == [4, 5]
    torch.testing.assert_close(Judged.read(lines).margins, judged.margins[4:6])
