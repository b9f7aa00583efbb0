"""A network that predicts one class is said to have collapsed, wherever its figures are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]

WORDS = "collapsed: it predicts class 3 for all"
CONSTANT = """
import torch
from torch import nn

def factory(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-3)
        model[3].bias[3] = 50.0
    return model
"""


def _options(folder: Path, *more: str) -> list[str]:
    (folder / "constant.py").write_text(CONSTANT)
    options = [
        "--model",
        f"{folder / 'constant.py'}:factory",
        "--lr",
        "1e-9",
        "--epochs",
        "2",
        "--limit-train",
        "60",
        "--batch",
        "30",
    ]
    return [*options, "--limit-test", "20", "--device", "cpu", "--skip-curve", "--out", str(folder / "run"), *more]


def test_a_cascade_does_not_take_it_for_success(call: Call, tmp_path: Path) -> None:
    code, _, told = call("train", *_options(tmp_path, "--cascade", "3"))
    assert code == 0
    assert "are certified" not in told
    assert f"no stage is trained after stage 0, which has {WORDS} 60 examples" in told
    assert f"warning: the network has {WORDS} 20 examples" in told
    assert f"warning: the cascade has {WORDS} 20 examples" in told
    assert sorted(path.name for path in (tmp_path / "run" / "stages").iterdir()) == ["0.safetensors"]
    code, _, told = call("train", "--resume", "--out", str(tmp_path / "run"))  # which looks at stage 0 again
    assert code == 0
    assert f"no stage is trained after stage 0, which has {WORDS}" in told
    _, _, told = call("certify", str(tmp_path / "run"), "--engine", "ibp", "--limit", "20")
    assert f"warning: the cascade has {WORDS}" in told
    assert f"warning: first stage alone, the network has {WORDS}" in told
    call("report", str(tmp_path / "run"))
    page = (tmp_path / "run" / "report.html").read_text()
    for words in ("The cascade has", "This network has", "The network of stage 0 has"):
        assert f"{words} {WORDS}" in page


@pytest.mark.parametrize("every", ["0", "1"])
def test_training_certify_and_report_say_it(call: Call, tmp_path: Path, every: str) -> None:
    code, _, told = call("train", *_options(tmp_path, "--evaluate-every", every))
    assert code == 0
    assert f"stage 0 has {WORDS} 60 examples" in told
    assert f"warning: the network has {WORDS} 20 examples" in told
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    said = [line["kind"] for line in metrics if WORDS in (line.get("collapsed") or "")]
    assert said == ([] if every == "0" else ["validation"] * 2) + ["trained"]
    assert WORDS in json.loads((tmp_path / "run" / "evaluation.json").read_text())["collapsed"]
    code, _, told = call("certify", str(tmp_path / "run"), "--limit", "15", "--out", str(tmp_path / "c.jsonl"))
    assert code == 0
    assert f"warning: the network has {WORDS} 15 examples" in told
    assert WORDS in json.loads((tmp_path / "c.summary.json").read_text())["collapsed"]
    evaluation = tmp_path / "run" / "evaluation.json"  # of an earlier version, which did not say it
    evaluation.write_text(json.dumps({k: v for k, v in json.loads(evaluation.read_text()).items() if k != "collapsed"}))
    call("report", str(tmp_path / "run"))
    assert f"This network has {WORDS} 20 examples" in (tmp_path / "run" / "report.html").read_text()


def test_other_networks_are_not_called_so(call: Call, weights: Path, tmp_path: Path) -> None:
    options = ["--model", "digits", "--dataset", "digits", "--eps", "0.05", "--limit", "30"]
    code, _, told = call("certify", str(weights), *options, "--out", str(tmp_path / "c.jsonl"))
    assert code == 0
    assert "collapsed" not in told
    assert json.loads((tmp_path / "c.summary.json").read_text())["collapsed"] is None
