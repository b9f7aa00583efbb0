"""Certificates that cannot be right are not believed: lines of a file that contradict themselves, the data, or an attack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.certify.cascade_records import Answers, CascadeAttack, CascadeCertificate
from autodual.digits import load_digits, load_digits_network
from autodual.sets import LinfBall
from autodual.train.cascade import check_together
from autodual.train.claims import check_claims
from autodual.train.evaluate import evaluate

BALL = LinfBall(0.2, clip=(0.0, 1.0))
"""Large enough that the network is wrong about some, and right about others."""


@pytest.fixture(scope="module")
def data() -> ad.ImageData:
    images, labels = load_digits("test")
    return ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "digits").take(8)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return load_digits_network().eval()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "certificates.jsonl").read_text().splitlines()]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    records = lines(folder)
    for record in records:
        change(record)
    (folder / "certificates.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_an_evaluation_fails_where_an_attack_breaks_a_certificate(
    tmp_path: Path, model: nn.Module, data: ad.ImageData
) -> None:
    record = evaluate(tmp_path, model, data, BALL, "linf", subset=2)
    broken = [i for i, wrong in enumerate(record["attacked"]) if wrong]
    assert broken
    (tmp_path / "evaluation.json").unlink()
    rewrite(tmp_path, lambda line: line.update(predicted=line["label"], certified=True, margin=1.0))
    names = ", ".join(map(str, broken))
    with pytest.raises(ad.AutodualError, match=rf"certificates\.jsonl: certified, but .* examples {names};"):
        evaluate(tmp_path, model, data, BALL, "linf", subset=2)
    assert not (tmp_path / "evaluation.json").exists()


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "certified, but wrong": ({"predicted": 11, "certified": True, "margin": 1.0}, "is certified, but has the label"),
    "certified, but margin": ({"certified": True, "margin": -0.5}, "is certified, but has the label"),
    "certified, but no margin": ({"certified": True, "margin": None}, "is certified, but has the label"),
    "other label": ({"label": 12}, "has the label 12, but its example has"),
    "type": ({"certified": "yes"}, "has 'yes' as certified"),
    "not a number": ({"certified": False, "margin": float("nan")}, "is damaged"),
    "renamed": (
        {"label": None, "lable": 3},
        "does not hold index, label, predicted, certified, margin, slack, and nothing else",
    ),
    "huge": ({"certified": False, "predicted": 10**30}, "is damaged"),
    "one more": ({"sure": True}, "does not hold index, label, predicted, certified, margin, slack, and nothing else"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_lines_that_cannot_be_right_are_found_again(
    tmp_path: Path, model: nn.Module, data: ad.ImageData, name: str
) -> None:
    change, message = FAULTS[name]
    first = evaluate(tmp_path, model, data, BALL, "linf", subset=2)
    before = lines(tmp_path)
    rewrite(tmp_path, lambda line: line.update(change) if line["index"] == 3 else None)
    said: list[str] = []
    assert evaluate(tmp_path, model, data, BALL, "linf", subset=2, say=said.append) == first
    assert lines(tmp_path) == before
    assert len(said) == 1
    assert f"certificates.jsonl: line 4 {message}" in said[0]
    assert said[0].endswith("it and what follows are done again")


class Threshold(nn.Module):
    """Gives scores that differ by exactly x - 0.5 in float64, and by less than that in float32."""

    def forward(self, x: Tensor) -> Tensor:
        margin = x.flatten(1)[:, :1] - 0.5 + (1e-9 if x.dtype == torch.float64 else 0.0)
        return torch.cat([margin, torch.zeros_like(margin)], 1)


def test_what_only_rounding_breaks_is_no_contradiction() -> None:
    data = ad.ImageData(torch.full((2, 1, 1, 1), 0.75), torch.zeros(2, dtype=torch.int64), ("a", "b"), "mine")
    sure, broken = torch.tensor([True, True]), torch.tensor([False, True])
    check_claims("file", Threshold(), data, LinfBall(0.25), sure, broken)
    with pytest.raises(ad.AutodualError, match="file: certified, but an attack gives them another label: examples 1;"):
        check_claims("file", Threshold(), data, LinfBall(0.3), sure, broken)


@pytest.mark.parametrize(("sound", "fails"), [(True, True), (False, False)])
def test_only_what_is_proved_about_a_whole_cascade_must_stand(sound: bool, fails: bool) -> None:
    label, yes = torch.zeros(2, dtype=torch.int64), torch.tensor([True, True])
    proved = torch.tensor([sound, sound])
    certified = CascadeCertificate(
        "paper", 1, label, Answers(label, yes, label), proved, torch.tensor([False, False]), "", ""
    )
    attack = CascadeAttack(torch.zeros(2, 1), label, Answers(torch.tensor([0, 1]), yes, label))
    if not fails:
        check_together("cascade", certified, attack)
        return
    with pytest.raises(ad.AutodualError, match=r"cascade: certified, .* examples 1;"):
        check_together("cascade", certified, attack)
