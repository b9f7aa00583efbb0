"""A run that fails before it has trained leaves everything as it was; one that fails later leaves word why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import autodual as ad
from autodual._errors import AutodualError
from autodual.report import write_report
from autodual.runs import checkpoint
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.training import loop, step
from autodual.training.fitting import train

pytest.importorskip("jinja2", reason="the report needs Jinja2")

CONFIG = TrainConfig(
    dataset="digits", model="digits", eps=0.05, k=4, epochs=2, limit_train=60, limit_test=5, evaluate_every=0, batch=30, device="cpu",
    skip_curve=True,
)  # fmt: skip
MODELS = """
import torch
from torch import nn

class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)

def unsupported(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), Sine(), nn.Linear(5, classes))

def raises(shape, classes):
    raise ValueError("this is not finished")

def no_weights(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.ReLU(), nn.AdaptiveAvgPool1d(classes))

class Steep(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 5), nn.Linear(5, classes)

    def forward(self, x):
        return self.last(torch.softmax(1e4 * self.first(x.flatten(1)), 1))

def steep(shape, classes):
    return Steep(classes)
"""
FAILURES: dict[str, tuple[dict[str, object], str]] = {
    "an operation without a dual layer": ({"model": "models.py:unsupported"}, "'sin' has no dual layer"),
    "a factory that raises": ({"model": "models.py:raises"}, "this is not finished"),
    "nothing to train": ({"model": "models.py:no_weights"}, "has nothing to train"),
    "a ramp that does not finish": ({"eps_epochs": 9}, "eps_epochs is 9"),
    "data that are not there": ({"dataset": "nowhere.npz"}, "nowhere"),
    "a tensorboard run": ({"model": "models.py:unsupported", "tensorboard": True}, "'sin'"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def _fail(case: str, folder: str) -> None:
    changes, message = FAILURES[case]
    if changes.get("tensorboard"):
        pytest.importorskip("tensorboard", reason="events need tensorboard")
    with pytest.raises(AutodualError, match=message):
        train(CONFIG.with_changes(**changes), folder)


@pytest.mark.parametrize("case", FAILURES)
def test_nothing_is_left(case: str, place: Path) -> None:
    before = _files(place)
    _fail(case, "runs/deep/run")
    assert {k: v for k, v in _files(place).items() if "__pycache__" not in k} == before


@pytest.mark.parametrize("case", FAILURES)
def test_what_was_there_stays(case: str, place: Path) -> None:
    """An empty folder, one beside other runs, and one with a config of the user's own."""
    (place / "runs" / "other").mkdir(parents=True)
    (place / "runs" / "mine").mkdir()
    (place / "runs" / "mine" / "config.yaml").write_text("epochs: 2  # a file of mine\n")
    before = _files(place)
    for name in ("other", "mine", "new"):
        _fail(case, f"runs/{name}")
        assert {k: v for k, v in _files(place).items() if "__pycache__" not in k} == before


def test_a_folder_of_the_users_own_files_is_not_touched(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(ad.ArgumentError, match="is not empty and holds no run"):
        train(CONFIG.with_changes(model="models.py:raises"), "mine")
    assert _files(place / "mine") == {"thesis.txt": b"all of it"}


def test_a_run_that_is_worked_on_by_another_stays(place: Path) -> None:
    with Run(place / "run").locked(), pytest.raises(ad.ArgumentError, match="another process is working"):
        train(CONFIG, "run")
    assert _files(place / "run") == {".lock": b""}


@pytest.mark.parametrize(
    ("error", "words"),
    [(ad.ArgumentError("it diverges"), "it diverges"), (RuntimeError("it diverges"), "RuntimeError: it diverges")],
)
def test_a_run_that_failed_later_says_why(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    """At the end of the first epoch, when steps have been trained."""
    config = CONFIG.with_changes(batch=10)

    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as spoilt:
        spoilt.setattr("autodual.training.loop.CHECKPOINT_SECONDS", 0.0)
        spoilt.setattr("autodual.training.loop.Loop._end_epoch", broken)
        with pytest.raises(type(error), match="diverges"):
            train(config, place / "run")
    assert json.loads((place / "run" / "failure.json").read_text())["error"] == words
    page = write_report([place / "run"], place / "page.html").read_text()
    assert "nothing was measured" in page
    assert f"It failed: {words}" in page
    train(config, place / "run", resume=True)
    assert not (place / "run" / "failure.json").exists()
    assert "diverges" not in write_report([place / "run"], place / "page.html").read_text()


def test_a_loss_that_is_not_finite_is_named_at_its_step(place: Path) -> None:
    """On a CPU at once, before it reaches the weights: the newest checkpoint is sound."""
    config = CONFIG.with_changes(model="models.py:steep", engine="ibp")
    told = r"stage 0, epoch 0, step 0 \(eps 0\..*\): the loss is inf: what enters .* has no finite bounds; before it, .*exp lies"
    with pytest.raises(AutodualError, match=told):
        train(config, place / "run")


def test_a_loss_that_nobody_looked_at_is_named_before_its_weights_are_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which no step waits for: at the next checkpoint or at the end of the epoch."""
    monkeypatch.setattr(step, "values_at_hand", lambda a: False)
    kept = []
    save = checkpoint.save

    def notice(folder: Path, model: nn.Module, *rest: object) -> None:
        kept.append(all(bool(p.isfinite().all()) for p in model.parameters()))
        save(folder, model, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save", notice)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    config = CONFIG.with_changes(model="models.py:steep", engine="ibp")
    with pytest.raises(AutodualError, match=r"stage 0, epoch 0: the loss is (inf|nan); bounds overflow where"):
        train(config, place / "run")
    assert kept == [True]
