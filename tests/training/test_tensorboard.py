"""TensorBoard events: what was measured, once per step, however often the run was interrupted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autodual.cli.app import main
from autodual.evaluation.processes import StoppedError, Watch
from autodual.runs.config import TrainConfig
from autodual.training.fitting import train
from torchrun import ALONE, TOGETHER, call

CONFIG = TrainConfig(
    dataset="digits", model="digits", eps=0.05, clip=(0.0, 1.0), engine="dual", epochs=3, eps_part=0.6, lr_epochs=1, lr_halve_every=1,
    limit_train=120, limit_test=12, evaluate_every=2, evaluate_examples=10, batch=25, robust_weight=0.5, device="cpu",
    tensorboard=True, skip_curve=True,
)  # fmt: skip
NEEDED = "tensorboard is not installed: pip install 'autodual[tensorboard]'"

Scalars = dict[str, list[tuple[int, float]]]


def scalars(folder: Path) -> Scalars:
    """What TensorBoard shows: (step, value) by tag."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=NEEDED)
    found = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    pytest.importorskip("tensorboard", reason=NEEDED)
    folder = tmp_path_factory.mktemp("events") / "whole"
    train(CONFIG, folder)
    return folder


def test_every_step_and_epoch_is_there_once(whole: Path) -> None:
    found = scalars(whole / "tensorboard" / "stage-0")
    for name in ("loss", "robust_loss", "standard_loss", "robust_error", "error"):
        assert [step for step, _ in found[f"step/{name}"]] == list(range(15)), name
    assert [step for step, _ in found["epoch/loss"]] == [5, 10, 15]
    assert [value for _, value in found["epoch/eps"]] == pytest.approx([0.01, 0.05, 0.05])
    assert [value for _, value in found["epoch/lr"]] == pytest.approx([1e-3, 5e-4, 2.5e-4])
    for mixed, robust, standard in zip(*(found[f"step/{n}loss"] for n in ("", "robust_", "standard_")), strict=True):
        assert mixed[1] == pytest.approx((robust[1] + standard[1]) / 2)
        assert robust[1] >= standard[1]


def test_events_agree_with_the_files_of_the_run(whole: Path) -> None:
    found = scalars(whole / "tensorboard" / "stage-0")
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    for kind, names in (
        ("epoch", ("loss", "robust_error", "error", "eps", "lr")),
        ("validation", ("error", "robust_error", "robust_error_as_run")),
    ):
        for name in names:
            measured = [line[name] for line in lines if line["kind"] == kind]
            assert [value for _, value in found[f"{kind}/{name}"]] == pytest.approx(measured)
    end, record = scalars(whole / "tensorboard"), json.loads((whole / "evaluation.json").read_text())
    for name in ("error", "pgd_error", "pgd_error_exact", "robust_error", "robust_error_as_run"):
        assert [value for _, value in end[f"evaluation/{name}"]] == pytest.approx([record[name]])
    sizes = [25, 25, 25, 25, 20]
    errors = [value for _, value in found["step/robust_error"][:5]]
    mean = sum(e * n for e, n in zip(errors, sizes, strict=True)) / 120
    assert mean == pytest.approx(found["epoch/robust_error"][0][1])


def test_interrupted_runs_write_nothing_twice(whole: Path, tmp_path: Path) -> None:
    """Stopped at steps and inside a validation, killed between checkpoints, and asked to go on when it was finished."""

    class KilledError(BaseException):
        pass

    def dies_after(steps: int) -> Watch:
        seen: list[int] = []

        def step(progress: object) -> None:
            seen.append(1)
            if len(seen) == steps:
                raise KilledError

        return Watch(step=step)

    def stops_validating(what: str, done: int, of: int) -> None:
        if what == "validating":
            raise StoppedError("in a validation")

    seen: list[int] = []
    run = tmp_path / "run"
    watches = [
        Watch(step=lambda p: seen.append(1), stop=lambda: len(seen) == 3),
        dies_after(6),  # epoch 0 was written, the checkpoint is older: it is written again
        Watch(draw=stops_validating),
        dies_after(2),
    ]
    for number, watch in enumerate(watches):
        with pytest.raises((StoppedError, KilledError)):
            train(CONFIG, run, resume=number > 0, watch=watch)
    train(CONFIG, run, resume=True)
    train(CONFIG, run, resume=True)
    assert len(list((run / "tensorboard" / "stage-0").iterdir())) > 2
    for part in (".", "stage-0"):
        assert scalars(run / "tensorboard" / part) == scalars(whole / "tensorboard" / part)


def test_stages_of_a_cascade_have_folders_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=NEEDED)
    train(CONFIG.with_changes(cascade=2, cascade_kind="sum", epochs=1), tmp_path / "run")
    for stage in range(2):
        assert len(scalars(tmp_path / "run" / "tensorboard" / f"stage-{stage}")["step/loss"]) == 5
    assert "cascade/sound_certified_error" in scalars(tmp_path / "run" / "tensorboard")


@pytest.mark.slow
def test_two_processes_write_what_one_does(tmp_path: Path) -> None:
    """Means over whole batches, also over the last one, of two examples, which both processes take and one counts."""
    rest = ["--dataset", "digits", "--model", "digits", "--engine", "dual", "--eps", "0.03", "--epochs", "1", "--limit-train", "56",
            "--limit-test", "8", "--batch", "18", "--optimiser", "sgd", "--evaluate-every", "0", "--device", "cpu",
            "--tensorboard", "--out"]  # fmt: skip
    for name, command in (("one", ALONE), ("two", TOGETHER)):
        done = call(*command, "train", *rest, str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    one, two = (scalars(tmp_path / name / "tensorboard" / "stage-0") for name in ("one", "two"))
    assert len(one["step/loss"]) == 4
    for tag, values in one.items():
        assert two[tag] == [(step, pytest.approx(value, rel=1e-4)) for step, value in values], tag


def test_without_the_package_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr(sys, "argv", ["autodual", "train", "--tensorboard", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: tensorboard: event files need the package tensorboard")
    assert "pip install 'autodual[tensorboard]'" in said
    assert not (tmp_path / "run").exists()


def test_events_are_written_only_if_wanted(tmp_path: Path) -> None:
    train(CONFIG.with_changes(tensorboard=False, epochs=1), tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()
