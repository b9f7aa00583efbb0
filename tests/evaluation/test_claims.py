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
from autodual.cascades.records import Answers, CascadeAttack, CascadeCertificate
from autodual.digits import load_digits, load_digits_network
from autodual.evaluation.evaluate import CURVE, Broken, check_claims, check_together, evaluate
from autodual.evaluation.judge import Ledger, judge_to_file
from autodual.evaluation.processes import Watch
from autodual.runs.folder import Run
from autodual.runs.records import plain
from autodual.sets import LinfBall

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
    record = evaluate(Run(tmp_path), model, data, BALL, "linf", subset=2)
    broken = [i for i, wrong in enumerate(record.attacked) if wrong]
    assert broken
    (tmp_path / "evaluation.json").unlink()
    rewrite(tmp_path, lambda line: line.update(predicted=line["label"], certified=True, margin=1.0))
    names = ", ".join(map(str, broken))
    with pytest.raises(ad.AutodualError, match=rf"certificates\.jsonl: certified, but .* examples {names};"):
        evaluate(Run(tmp_path), model, data, BALL, "linf", subset=2)
    assert not (tmp_path / "evaluation.json").exists()


MISSHAPEN = "does not hold index, label, predicted, certified, certified_as_run, margin, slack, and nothing else"

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "certified, but wrong": ({"predicted": 11, "certified": True, "margin": 1.0}, "is certified, but has the label"),
    "certified, but margin": ({"certified": True, "margin": -0.5}, "is certified, but has the label"),
    "certified, but no margin": ({"certified": True, "margin": None}, "is certified, but has the label"),
    "other label": ({"label": 12}, "has the label 12, but its example has"),
    "type": ({"certified": "yes"}, "has 'yes' as certified"),
    "not a number": ({"certified": False, "margin": float("nan")}, "is damaged"),
    "renamed": ({"label": None, "lable": 3}, MISSHAPEN),
    "as run only": (
        {"certified": False, "certified_as_run": True},
        "is certified as it runs, but not in real numbers, which is less",
    ),
    "huge": ({"certified": False, "predicted": 10**30}, "is damaged"),
    "one more": ({"sure": True}, MISSHAPEN),
}


@pytest.mark.parametrize("name", FAULTS)
def test_lines_that_cannot_be_right_are_found_again(
    tmp_path: Path, model: nn.Module, data: ad.ImageData, name: str
) -> None:
    change, message = FAULTS[name]
    file, said = tmp_path / "certificates.jsonl", list[str]()
    judge_to_file(Ledger(file), model, data, BALL, ad.Dual())
    before = lines(tmp_path)
    rewrite(tmp_path, lambda line: line.update(change) if line["index"] == 3 else None)
    judge_to_file(Ledger(file, Watch(say=said.append)), model, data, BALL, ad.Dual())
    assert lines(tmp_path) == before
    assert len(said) == 1
    assert f"certificates.jsonl: line 4 {message}" in said[0]
    assert said[0].endswith("it and what follows are done again")


def flags(*values: int) -> Tensor:
    return torch.tensor([bool(value) for value in values])


CONTRADICTIONS = {
    "in real numbers": ((1, 0), (0, 0), (1, 0), (0, 0), r"examples 0; both in real numbers;"),
    "as the network runs": ((1, 1), (0, 1), (0, 0), (0, 1), r"examples 1; both as the network runs;"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_is_certified_and_broken_in_the_same_arithmetic_is_an_error(name: str) -> None:
    certified, as_run, exact, run_broken, message = CONTRADICTIONS[name]
    with pytest.raises(ad.AutodualError, match=f"file: certified, but an attack gives them another label: {message}"):
        check_claims("file", flags(*certified), flags(*as_run), Broken(flags(*exact), flags(*run_broken)), print)


@pytest.mark.parametrize(
    ("certified", "as_run", "broken", "noted"),
    [
        ((1, 1), (0, 0), (1, 1), "2 examples are"),
        ((1, 1), (1, 0), (0, 1), "1 example is"),
        ((1, 1), (1, 1), (0, 0), None),
    ],
)
def test_what_only_rounding_breaks_is_noted(
    certified: tuple[int, ...], as_run: tuple[int, ...], broken: tuple[int, ...], noted: str | None
) -> None:
    said: list[str] = []
    check_claims("file", flags(*certified), flags(*as_run), Broken(flags(0, 0), flags(*broken)), said.append)
    assert len(said) == (noted is not None)
    assert all(line.startswith(f"file: {noted} certified in real numbers, and broken ") for line in said)


class Big(nn.Module):
    """Scores 2^25 + x and 2^25: float32 cannot tell them apart for x in [0, 1], where the first one is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(1, 2)
        with torch.no_grad():
            self.last.weight.copy_(torch.tensor([[1.0], [0.0]]))
            self.last.bias.fill_(2.0**25)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1))


@pytest.fixture
def rounded() -> ad.ImageData:
    """Clean inputs that float32 gets right, by argmax's choice of the first of equals; any attack is a tie."""
    return ad.ImageData(torch.full((3, 1, 1, 1), 0.75), torch.zeros(3, dtype=torch.int64), ("a", "b"), "mine")


def test_an_evaluation_counts_both_arithmetics(tmp_path: Path, rounded: ad.ImageData) -> None:
    said: list[str] = []
    found = evaluate(
        Run(tmp_path), Big().eval(), rounded, LinfBall(0.125), "linf", subset=1, watch=Watch(say=said.append)
    )
    record = plain(found)
    assert (record["robust_error"], record["robust_error_as_run"]) == (0.0, 1.0)
    assert (record["pgd_error"], record["pgd_error_exact"]) == (1.0, 0.0)
    assert record["certified"] == record["attacked_as_run"] == [True] * 3
    assert record["certified_as_run"] == record["attacked"] == [False] * 3
    assert [line["certified_as_run"] for line in lines(tmp_path)] == [False] * 3
    assert record["curve"][0] | {"eps": 0} == {
        "eps": 0, "robust_error": 0.0, "robust_error_as_run": 1.0, "pgd_error": 1.0, "pgd_error_exact": 0.0
    }  # fmt: skip
    assert "certificates.jsonl: 3 examples are certified in real numbers, and broken by the attack only" in said[0]


def test_the_curve_and_the_radii_are_those_of_a_network_that_is_known(tmp_path: Path) -> None:
    """Scores x - 1/2 and 0, of one pixel: proved up to its distance from 1/2, and broken from there on."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0], [0.0]]))
        model[1].bias.copy_(torch.tensor([-0.5, 0.0]))
    parts = torch.tensor([0.4, 0.9, 1.1, 1.7, 3.0])
    pixels = 0.5 + 0.1 * parts.reshape(-1, 1, 1, 1)
    data = ad.ImageData(pixels, torch.zeros(5, dtype=torch.int64), ("a", "b"), "mine")
    found = evaluate(Run(tmp_path), model, data, LinfBall(0.1), "linf", subset=5)
    assert [point.eps for point in found.curve] == pytest.approx([0.1 * factor for factor in CURVE])
    for point, factor in zip(found.curve, CURVE, strict=True):
        broken = (parts < factor).double().mean().item()
        errors = (point.robust_error, point.robust_error_as_run, point.pgd_error, point.pgd_error_exact)
        assert errors == pytest.approx((broken,) * 4)
    assert found.radii == pytest.approx((0.1 * parts.clamp(max=CURVE[-1])).tolist(), abs=0.1 / 50 + 1e-6)


@pytest.mark.parametrize(
    ("sound", "as_run", "outcome"), [(True, True, "fails"), (True, False, "noted"), (False, False, "fine")]
)
def test_only_what_is_proved_about_a_whole_cascade_must_stand(sound: bool, as_run: bool, outcome: str) -> None:
    label, yes = torch.zeros(2, dtype=torch.int64), torch.tensor([True, True])
    certified = CascadeCertificate(
        "paper", 1, label, Answers(label, yes, label), flags(sound, sound), flags(as_run, as_run), flags(0, 0), "", ""
    )
    attack = CascadeAttack(torch.zeros(2, 1), label, Answers(torch.tensor([0, 1]), yes, label))
    if outcome == "fails":
        with pytest.raises(ad.AutodualError, match=r"cascade: certified, .* examples 1; both as the models run;"):
            check_together("cascade", certified, attack.found, attack.certified_wrong, print)
        return
    said: list[str] = []
    check_together("cascade", certified, attack.found, attack.certified_wrong, said.append)
    assert len(said) == (outcome == "noted")
