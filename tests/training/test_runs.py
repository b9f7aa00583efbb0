"""Runs survive: stopped anywhere and resumed, they end with the weights and certificates of the run that was never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import autodual as ad
from autodual._files import load_tensors
from autodual.digits import digits_network, load_digits
from autodual.evaluation.processes import StoppedError, Watch
from autodual.runs.checkpoint import listed
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.records import TrainedLine
from autodual.training.fitting import train

CONFIG = TrainConfig(
    dataset="digits", model="digits", eps=0.05, clip=(0.0, 1.0), k=4, epochs=3, eps_part=2 / 3, lr_epochs=1, limit_train=120,
    limit_test=12, evaluate_every=2, evaluate_examples=10, batch=25, device="cpu", skip_curve=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(CONFIG, folder)
    return folder


def _same_result(a: Path, b: Path) -> bool:
    files = ("certificates.jsonl", "evaluation.json", "config.yaml")
    weights = load_tensors(a / "model.safetensors"), load_tensors(b / "model.safetensors")
    return all((a / f).read_bytes() == (b / f).read_bytes() for f in files) and all(
        torch.equal(weights[0][k], weights[1][k]) for k in weights[0]
    )


def _metrics(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def _stop_after(steps: int) -> Watch:
    seen: list[int] = []
    return Watch(step=lambda progress: seen.append(1), stop=lambda: len(seen) >= steps)


def test_the_files_of_a_run(whole: Path) -> None:
    names = {p.name for p in whole.iterdir()}
    assert {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
        "model.safetensors",
        "evaluation.json",
    } <= names
    assert Run(whole).config() == CONFIG
    assert [m["kind"] for m in _metrics(whole)] == ["epoch", "epoch", "validation", "epoch", "validation", "trained"]
    assert len((whole / "certificates.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize("steps", [1, 4, 5, 7, 14])
def test_a_stopped_run_goes_on_bit_for_bit(whole: Path, tmp_path: Path, steps: int) -> None:
    with pytest.raises(StoppedError, match="go on with --resume"):
        train(CONFIG, tmp_path / "run", watch=_stop_after(steps))
    train(CONFIG, tmp_path / "run", resume=True)
    assert _same_result(whole, tmp_path / "run")
    assert _metrics(whole) == _metrics(tmp_path / "run")


def test_a_run_that_is_stopped_again_and_again(whole: Path, tmp_path: Path) -> None:
    for attempt in range(20):
        try:
            train(CONFIG, tmp_path / "run", resume=attempt > 0, watch=_stop_after(2))
        except StoppedError:
            continue
        break
    assert _same_result(whole, tmp_path / "run")


def test_a_finished_run_is_not_trained_again(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    steps: list[int] = []
    train(CONFIG, copy, resume=True, watch=Watch(step=lambda p: steps.append(1)))
    assert not steps


def test_an_interrupted_evaluation_is_finished(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    (copy / "evaluation.json").unlink()
    lines = (copy / "certificates.jsonl").read_text()
    (copy / "certificates.jsonl").write_text(lines[: len(lines) // 2])  # cut in the middle of a line
    train(CONFIG, copy, resume=True)
    assert _same_result(whole, copy)


@pytest.fixture(scope="module")
def stopped_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two checkpoints that is not finished; tests copy it."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    for resume in (False, True):
        with pytest.raises(StoppedError):
            train(CONFIG, folder, resume=resume, watch=_stop_after(3))
    return folder


@pytest.mark.parametrize("damage", ["truncate", "remove", "scribble", "empty", "list", "no extra", "wrong type"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    whole: Path, stopped_twice: Path, tmp_path: Path, damage: str
) -> None:
    run = shutil.copytree(stopped_twice, tmp_path / "run")
    last = listed(run / "checkpoints")[-1]
    weights = last / "model.safetensors"
    harm: dict[str, Callable[[], object]] = {
        "truncate": lambda: weights.write_bytes(weights.read_bytes()[:100]),
        "remove": weights.unlink,
        "scribble": lambda: (last / "state.json").write_text("{"),
        "empty": lambda: (last / "state.json").write_text("{}"),
        "list": lambda: (last / "state.json").write_text("[]"),
        "no extra": lambda: _edit(last / "state.json", extra=None),
        "wrong type": lambda: _edit(last / "state.json", position={"stage": 0, "epoch": "1", "batch": 1, "step": 6}),
    }
    harm[damage]()
    said: list[str] = []
    train(CONFIG, run, resume=True, watch=Watch(say=said.append))
    assert any("damaged checkpoint passed over" in line for line in said)
    assert _same_result(whole, run)


def test_when_all_checkpoints_are_damaged_the_stage_begins_again(whole: Path, tmp_path: Path) -> None:
    """No epoch is recorded twice, and what is saved from then on can be gone on with."""
    run = tmp_path / "run"
    with pytest.raises(StoppedError):
        train(CONFIG, run, watch=_stop_after(12))
    for path in listed(run / "checkpoints"):
        (path / "state.json").write_text("{}")
    said: list[str] = []
    again = _stop_after(7)
    with pytest.raises(StoppedError):
        train(CONFIG, run, resume=True, watch=Watch(again.step, say=said.append, stop=again.stop))
    assert any("this stage begins again" in line for line in said)
    assert [path.name[-2:] for path in listed(run / "checkpoints")] == ["00", "07"]
    steps: list[int] = []
    train(CONFIG, run, resume=True, watch=Watch(step=lambda progress: steps.append(1)))
    assert len(steps) == 15 - 7
    assert _metrics(run) == _metrics(whole)
    assert _same_result(whole, run)


def test_metrics_of_the_stages_before_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for stage, epoch in ((0, 0), (0, 1), (1, 0), (2, 0)):
        run.record(TrainedLine("trained", stage, epoch, None, None))
    with run.metrics_file.open("a") as stream:
        stream.write('{"kind": "epo')
    run.forget_stage(1)
    assert [(m["stage"], m["epoch"]) for m in _metrics(tmp_path)] == [(0, 0), (0, 1)]


def test_a_folder_of_another_config_is_refused_and_left_alone(whole: Path) -> None:
    before = (whole / "config.yaml").read_bytes()
    with pytest.raises(ad.ArgumentError, match=r"another config: eps was 0\.05, now 0\.07; go on with its own"):
        train(CONFIG.with_changes(eps=0.07), whole, resume=True)
    with pytest.raises(ad.ArgumentError, match="holds a run already; go on with --resume"):
        train(CONFIG, whole)
    assert (whole / "config.yaml").read_bytes() == before


def test_a_config_that_has_lost_its_tail_is_not_completed_with_defaults(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text[: text.index("seed:")])
    with pytest.raises(
        ad.ArgumentError, match=r"config\.yaml: .* lacks seed, device, tensorboard, half_weights, .*; put back"
    ):
        Run(copy).config()
    with pytest.raises(ad.ArgumentError, match="lacks seed"):
        train(CONFIG, copy, resume=True)


def test_a_run_that_could_not_start_does_not_claim_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ad.ArgumentError):
        train(CONFIG.with_changes(model=f"{tmp_path}/nowhere.py:factory"), run)
    with Run(run).locked():
        Run(run).begin(CONFIG.with_changes(eps=0.04), resume=False)
    train(CONFIG.with_changes(epochs=1), run)
    assert Run(run).config().epochs == 1


def test_other_data_are_noticed(tmp_path: Path) -> None:
    images, labels = load_digits("train")
    data = ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "mine").take(60)
    model, config = digits_network(), CONFIG.with_changes(epochs=1, limit_train=None)
    ad.fit(model, data, data.take(10), config, tmp_path / "run")
    other = ad.ImageData(255 - data.images, data.labels, data.classes, "mine")
    with pytest.raises(ad.ArgumentError, match="its data have changed since it was begun"):
        ad.fit(model, other, other.take(10), config, tmp_path / "run", resume=True)
    first = json.loads((tmp_path / "run" / "environment.json").read_text())
    ad.fit(model, data, data.take(10), config, tmp_path / "run", resume=True)
    again = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert len(again.pop("resumed")) == 1
    assert again == first


def test_a_run_of_fit_does_not_claim_to_be_about_the_default_data(tmp_path: Path) -> None:
    images, labels = load_digits("train")
    data = ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "mine").take(60)
    ad.fit(digits_network(), data, data.take(10), CONFIG.with_changes(epochs=1, limit_train=None), tmp_path / "run")
    with pytest.raises(ad.ArgumentError, match=r"begun by ad\.fit, with a module and data of its own"):
        train(Run(tmp_path / "run").config(), tmp_path / "run", resume=True)


def test_fit_changes_nothing_about_the_module(tmp_path: Path) -> None:
    images, labels = load_digits("train")
    data = ad.ImageData((images * 255).to(torch.uint8), labels, tuple("0123456789"), "mine")
    with pytest.raises(ad.ArgumentError, match=r"make ad\.models\.Normalize its first layer"):
        ad.fit(digits_network(), data, data, CONFIG.with_changes(normalise=True), tmp_path / "run")


def _edit(path: Path, **changes: object) -> None:
    """None: without that name."""
    record = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in record.items() if value is not None}))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evaluation.json", "{"),
        ("evaluation.json", "{}"),
        ("evaluation.json", '{"error": "none"}'),
        ("environment.json", "{"),
        ("environment.json", '{"resumed": 5}'),
        ("environment.json", '{"data": {}, "resumed": 5}'),
    ],
)
def test_a_damaged_record_is_named(whole: Path, tmp_path: Path, name: str, content: str) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(ad.ArgumentError, match=rf"{name}: is damaged; remove it"):
        train(CONFIG, tmp_path / "run", resume=True)
    (tmp_path / "run" / name).unlink()
    train(CONFIG, tmp_path / "run", resume=True)
    assert _same_result(whole, tmp_path / "run")


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(ad.ArgumentError, match="is not empty and holds no run"):
        train(CONFIG, tmp_path)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_is_refused_stays_as_it_is(whole: Path, tmp_path: Path, resume: bool) -> None:
    """Also what runs inside of it are writing at this moment."""
    shutil.copytree(whole, tmp_path / "live")
    for place in (tmp_path / ".writing-1" / "thesis.pdf", tmp_path / "live" / ".writing-2" / "config.yaml"):
        place.parent.mkdir()
        place.write_text("half of it")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ad.ArgumentError, match="is not empty and holds no run"):
        train(CONFIG, tmp_path, resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_killed_process_left_half_written_is_removed(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    shutil.copytree(whole, copy / "live")
    places = [copy / ".writing-1", copy / "checkpoints" / ".writing-2", copy / "live" / ".writing-3"]
    for place in places:
        place.mkdir()
    train(CONFIG, copy, resume=True)
    assert [place.exists() for place in places] == [False, False, True]


def test_a_run_killed_while_it_wrote_its_config_can_begin(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".writing-1").mkdir()
    (tmp_path / ".writing-1" / "config.yaml").write_text("half of it")
    Run(tmp_path).begin(CONFIG, resume=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "config.yaml"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with Run(tmp_path).locked(), pytest.raises(ad.ArgumentError, match="another process is working"):
        train(CONFIG, tmp_path)


def test_another_model_file_is_refused(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    (copy / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(ad.ArgumentError, match="not a readable safetensors file"):
        train(CONFIG, copy, resume=True)


def _command(folder: Path) -> list[str]:
    config = folder.with_suffix(".yaml")
    from autodual.runs.config import dump_yaml

    config.write_text(dump_yaml(CONFIG.to_mapping()))
    return [sys.executable, "-m", "autodual", "train", str(config), "--out", str(folder)]


@pytest.mark.slow
def test_killed_processes_leave_a_resumable_run(whole: Path, tmp_path: Path) -> None:
    """kill -9 at several moments, then once to the end."""
    command, environment = _command(tmp_path / "run"), os.environ | {"OMP_NUM_THREADS": "1"}
    for attempt, seconds in enumerate((4.0, 4.6, 5.2)):
        process = subprocess.Popen(
            [*command, *(["--resume"] if attempt else [])], env=environment, stderr=subprocess.DEVNULL
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(
        [*command, "--resume"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert _same_result(whole, tmp_path / "run")


@pytest.mark.slow
def test_sigterm_stops_cleanly_with_a_checkpoint(tmp_path: Path) -> None:
    command = _command(tmp_path / "run")
    process = subprocess.Popen([*command, "--epochs", "500"], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "go on with --resume" in said
    assert listed(tmp_path / "run" / "checkpoints")


def test_a_run_killed_before_its_first_checkpoint_starts_again_cleanly(whole: Path, tmp_path: Path) -> None:
    """What it had written is forgotten, not written twice."""

    class KilledError(BaseException):
        pass

    def kill(progress: object) -> None:
        if (tmp_path / "run" / "metrics.jsonl").exists() and len(_metrics(tmp_path / "run")) == 3:
            raise KilledError

    with pytest.raises(KilledError):
        train(CONFIG, tmp_path / "run", watch=Watch(step=kill))
    train(CONFIG, tmp_path / "run", resume=True)
    assert _metrics(whole) == _metrics(tmp_path / "run")
    assert _same_result(whole, tmp_path / "run")


def test_certificates_of_another_problem_are_not_taken_over(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    (copy / "evaluation.json").unlink()
    beside = copy / "certificates.problem.json"
    beside.write_text(beside.read_text().replace("eps=0.05", "eps=0.01"))
    with pytest.raises(ad.ArgumentError, match="its certificates are about something else"):
        train(CONFIG, copy, resume=True)


def test_of_equal_checkpoints_the_later_one_counts(tmp_path: Path) -> None:
    config = CONFIG.with_changes(engine="none", eps=0.9, eps_epochs=1, validation=0.2, evaluate_every=1)  # never robust
    train(config, tmp_path / "run")
    lines = [m for m in _metrics(tmp_path / "run") if m["kind"] == "validation"]
    assert [m["robust_error"] for m in lines] == [1.0, 1.0, 1.0]
    best = min(range(3), key=lambda i: (lines[i]["error"], -i))
    alone = tmp_path / "until"
    train(config.with_changes(epochs=best + 1), alone)
    one, other = (load_tensors(f / "model.safetensors") for f in (tmp_path / "run", alone))
    assert all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "validation", "stage": 0}'])
def test_metrics_that_do_not_say_which_checkpoint_is_best(tmp_path: Path, line: str) -> None:
    config = CONFIG.with_changes(engine="none", validation=0.2, evaluate_every=1)
    with pytest.raises(StoppedError):
        train(config, tmp_path / "run", watch=_stop_after(6))
    metrics = tmp_path / "run" / "metrics.jsonl"
    first, rest = metrics.read_text().split("\n", 1)
    metrics.write_text(line.ljust(len(first)) + "\n" + rest)
    with pytest.raises(ad.ArgumentError, match=r"metrics\.jsonl: line 1 is damaged"):
        train(config, tmp_path / "run", resume=True)
