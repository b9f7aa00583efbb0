"""Cascades in two processes: every process has the same split, thresholds and decisions, and stops where one does."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from autodual._files import load_tensors
from autodual.cascades import Cascade, load_combination
from autodual.digits import digits_network, load_digits
from autodual.runs.checkpoint import listed
from autodual.sets import LinfBall
from torchrun import TOGETHER, call, signal_when, start

pytestmark = pytest.mark.slow
TRAIN, TEST = 250, 130  # more than a batch, so that both processes certify
SETTINGS = ["--dataset", "digits", "--model", "digits", "--engine", "dual", "--eps", "0.03", "--clip", "0", "1", "--epochs", "4",
            "--eps-epochs", "2", "--lr", "0.003", "--limit-train", str(TRAIN), "--limit-test", str(TEST), "--batch", "25",
            "--evaluate-every", "0", "--evaluate-examples", "120", "--device", "cpu", "--cascade", "2"]  # fmt: skip


def command(kind: str, folder: Path) -> list[str]:
    return [*TOGETHER, "train", *SETTINGS, "--cascade-kind", kind, "--out", str(folder)]


@pytest.fixture(scope="module", params=["paper", "routed", "sum"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("cascade") / request.param
    done = call(*command(request.param, folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"The {request.param} cascade") == 1
    assert done.stderr.count("stage 1: training on") == 1
    return request.param, folder


def test_the_figures_are_those_of_the_saved_combination_in_one_process(trained: tuple[str, Path]) -> None:
    kind, folder = trained
    record = json.loads((folder / "cascade.json").read_text())
    combination = load_combination(folder / "cascade", lambda stage: digits_network())
    images, labels = (t[:TEST] for t in load_digits("test"))
    alone = combination.certify(images, labels).summary()
    for row in record["stages"]:
        assert row.pop("trained_on") > 0
    assert alone == {name: record[name] for name in alone}
    assert record["kind"] == kind
    attacked = combination.attack(images[:100], labels[:100], steps=20)
    assert record["attacked_examples"] == 100
    assert record["attacked_error"] == attacked.error
    assert record["broken_claims"] == int(
        (combination.certify(images[:100], labels[:100]).claimed & attacked.found).sum()
    )


def test_both_processes_sort_out_what_one_would(trained: tuple[str, Path]) -> None:
    kind, folder = trained
    if kind == "sum":
        assert not (folder / "stages" / "open-1.json").exists()
        return
    model = digits_network()
    model.load_state_dict(load_tensors(folder / "stages" / "0.safetensors"))
    images, _ = (t[:TRAIN] for t in load_digits("train"))
    certified = torch.cat(
        [Cascade([model.eval()], LinfBall(0.03, (0, 1))).predict(x).certified for x in images.split(100)]
    )
    left = json.loads((folder / "stages" / "open-1.json").read_text())
    assert left["open"] == (~certified).nonzero().squeeze(1).tolist()
    assert 0 < len(left["open"]) < TRAIN


INTERRUPTIONS = {"paper": (signal.SIGTERM, None), "routed": (signal.SIGINT, 1), "sum": (signal.SIGKILL, 1)}


def test_a_cascade_interrupted_in_its_second_stage_goes_on_bit_for_bit(
    trained: tuple[str, Path], tmp_path: Path
) -> None:
    """By SIGTERM to the job, Ctrl-C to one process, or the death of one."""
    kind, folder = trained
    number, worker = INTERRUPTIONS[kind]
    run = tmp_path / "run"
    job = start(*command(kind, run))
    said = signal_when(job, lambda: any("stage-01-" in p.name for p in listed(run / "checkpoints")), number, worker)
    assert job.returncode != 0
    assert ("go on with --resume" in said) == (number != signal.SIGKILL), said
    assert not (run / "cascade.json").exists()
    done = call(*command(kind, run), "--resume")
    assert done.returncode == 0, done.stderr
    assert (folder / "cascade.json").read_bytes() == (run / "cascade.json").read_bytes()
    for stage in range(2):
        one, other = (load_tensors(f / "stages" / f"{stage}.safetensors") for f in (folder, run))
        assert all(torch.equal(one[k], other[k]) for k in one)
