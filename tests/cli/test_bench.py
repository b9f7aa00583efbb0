"""`autodual bench`: a table with a row per network, whatever is missing, and readable mistakes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from autodual.cli import bench
from autodual.models import ResidualBlock
from autodual.runs.config import TrainConfig
from autodual.speed import trials
from autodual.speed.problems import PROBLEMS, PaperNetwork, authors_network, kept_weights

Call = Callable[..., tuple[int, str, str]]

DIGITS = TrainConfig(dataset="digits", model="digits", eps=0.05, clip=(0.0, 1.0), lr=1e-8, clip_gradients=1.0)
SHORT = ("digits", "--seconds", "0", "--batch", "6", "--k", "4", "--device", "cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more network, which takes milliseconds, ceilings that do, and no code of the authors."""
    monkeypatch.setitem(PROBLEMS, "digits", PaperNetwork("Digits", DIGITS))
    monkeypatch.setattr(trials, "ceilings", partial(trials.ceilings, copied=1 << 16, width=32))
    monkeypatch.setattr(bench, "NETWORKS", (*bench.NETWORKS, "digits"))
    monkeypatch.setattr(trials, "BUSY", 100.0)
    monkeypatch.setitem(sys.modules, "convex_adversarial", None)


def test_the_command_knows_the_names_of_all_networks() -> None:
    assert tuple(PROBLEMS) == bench.NETWORKS


class Dense(nn.Module):
    def __init__(self, *parts: nn.Module | None) -> None:
        super().__init__()
        self.parts = parts


class RobustBounds(nn.Module):
    """In place of the authors' class, by our bounds."""

    def __init__(self, net: nn.Module, epsilon: float, norm_type: str, bounded_input: bool) -> None:
        super().__init__()
        assert norm_type == "l1"
        self.net, self.ball = net, ad.LinfBall(epsilon, clip=(0.0, 1.0) if bounded_input else None)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        margins = ad.certify(self.net, x, labels, self.ball).margins
        return -margins.masked_fill(margins == torch.inf, 0.0)


@pytest.fixture
def authors(monkeypatch: pytest.MonkeyPatch, tiny: None) -> ModuleType:
    """A stand-in for their package."""

    def robust_loss(net: nn.Module, epsilon: float, x: Tensor, labels: Tensor, **options: Any) -> tuple[Tensor, float]:
        assert options == {"proj": 4, "norm_type": "l1_median", "bounded_input": True}
        return ad.RobustCrossEntropy(net, ad.LinfBall(epsilon, clip=(0.0, 1.0)))(x, labels), 0.0

    package = ModuleType("convex_adversarial")
    package.__dict__.update(
        robust_loss=robust_loss, RobustBounds=RobustBounds, Dense=Dense, DenseSequential=nn.Sequential
    )
    monkeypatch.setitem(sys.modules, package.__name__, package)
    return package


def _row(said: str) -> list[str]:
    """The first row about digits."""
    return next(line for line in said.splitlines() if line.startswith("| Digits")).split(" | ")


def test_the_table_has_its_rows_and_says_what_is_missing(call: Call, tmp_path: Path) -> None:
    code, said, told = call("bench", *SHORT, "--out", str(tmp_path / "deep" / "found.md"))
    assert code == 0, told
    record = json.loads((tmp_path / "deep" / "found.json").read_text())
    assert (tmp_path / "deep" / "found.md").read_text() == said
    assert record["networks"].keys() == {"Digits"}
    row = record["networks"]["Digits"]
    assert row["epoch"] == 1437
    assert 0 < row["seconds_per_step"]["low"] <= row["seconds_per_step"]["median"] <= row["seconds_per_step"]["high"]
    assert (
        min(row[name] for name in ("bytes_per_second", "part_of_bandwidth", "part_of_arithmetic", "first_seconds")) > 0
    )
    assert "authors" not in row
    assert "pip install --no-deps convex_adversarial==0.4.4" in said
    assert _row(said)[1] == ""
    assert str(tmp_path) not in said
    assert "Digits: first 4 steps" in told


def test_beside_the_authors_code(call: Call, authors: ModuleType, weights: Path) -> None:
    options = ("--certificates", "--weights", f"digits={weights}", "--profile")
    code, answer, told = call("bench", *SHORT, *options, "--json")
    assert code == 0, told
    named = {"command", "machine", "settings", "networks", "certificates", "notes", "ceilings"}
    assert named <= json.loads(answer).keys() <= named | {"cores_busy_elsewhere"}
    said = told  # the tables, and progress
    assert "cannot be imported" not in said
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| Digits")]
    assert len(rows) == 2  # steps, certificates
    assert all(row[1] and row[2] for row in rows)
    assert rows[1][-1] == "20 of 20 |"
    assert "## Digits: operations, ms per step" in said
    assert "## Digits, certificates of 10 images: operations, ms" in said
    assert "aten::" in said
    assert "random images" not in said


def test_authors_code_that_fails_costs_its_own_column_alone(call: Call, authors: ModuleType) -> None:
    def robust_loss(*given: Any, **options: Any) -> None:
        raise TypeError("no such thing in this PyTorch")

    authors.robust_loss = robust_loss  # type: ignore[attr-defined]
    code, said, _ = call("bench", *SHORT)
    assert code == 0
    assert "Digits: the authors' code fails here (TypeError: no such thing in this PyTorch)" in said
    assert _row(said)[2] != ""
    assert "fails here" not in call("bench", *SHORT, "--no-authors")[1]


def test_ctrl_c_shows_what_is_there(call: Call, authors: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(line: str) -> None:
        if line.endswith("ms/step"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bench, "_say", say)
    code, said, told = call("bench", *SHORT)
    assert code == 130
    assert told == "\nstopped as asked\n"
    assert _row(said)[1] == ""
    assert _row(said)[2] != ""
    assert "- stopped as asked: the rest is missing" in said


def test_without_data_images_are_random_and_that_is_said(call: Call, tmp_path: Path) -> None:
    x, labels, missing = PROBLEMS["mnist-small"].images(3, tmp_path)
    assert x.shape == (3, 1, 28, 28)
    assert labels.shape == (3,)
    assert missing is not None
    found = trials.Bench(torch.device("cpu"), 4, 3, 0.0, data_folder=tmp_path)
    model = PROBLEMS["mnist-small"].model().eval()
    x, labels = found._images(PROBLEMS["mnist-small"], 3, model)
    assert torch.equal(labels, model(x).argmax(1))
    assert found.record["notes"] == ["mnist: random images, since its test images were not found"]


MISTAKES = {
    ("mnist-smal",): "error: unknown network 'mnist-smal'; did you mean mnist-small?",
    (
        "--weights",
        "cifar-large",
    ): "error: --weights is NETWORK=FILE, such as cifar-large=runs/cifar-large-2, got 'cifar-large'",
    ("--weights", "cifar-large=nowhere"): "error: --weights cifar-large: nowhere: there is no such file",
    ("--out", "found.json"): "error: --out is for the tables, such as found.md; found.json is written beside",
    ("--device", "gpu"): "error: device: 'gpu' is none that PyTorch can use here; use auto, cpu or cuda",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, said, told = call("bench", *arguments)
    assert (code, said, told) == (2, "", MISTAKES[arguments] + "\n")


def test_weights_are_for_certificates(call: Call, weights: Path) -> None:
    assert call("bench", "--weights", f"digits={weights}")[2] == "error: --weights is for --certificates; add that\n"


def test_kept_weights_are_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("results") / "mnist-small-0.1" / "model.safetensors"
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    assert kept_weights()["mnist-small"] == file
    assert "cifar-large" not in kept_weights()


def test_a_residual_block_in_the_authors_form(authors: ModuleType) -> None:
    block = ResidualBlock(2, 3, down=True)
    network = authors_network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), block, nn.Flatten()))
    assert [type(layer).__name__ for layer in network] == [
        "Conv2d",
        "ReLU",
        "Dense",
        "ReLU",
        "Dense",
        "ReLU",
        "Flatten",
    ]
    first, second = (layer for layer in network if isinstance(layer, Dense))
    assert first.parts == (block.first,)
    assert second.parts == (block.skip, None, block.second)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    assert authors_network(plain) is plain
