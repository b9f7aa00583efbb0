"""The commands on a GPU, as a person types them: trained, certified, attacked, in a cascade and by torchrun.

Two processes need two GPUs, which no machine of ours has: they are tested on CPUs.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

SMALL = ["--model", "digits", "--eps", "0.05", "--clip", "0", "1", "--k", "8", "--epochs", "3", "--limit-test", "60",
         "--evaluate-every", "2", "--validation", "0.1"]  # fmt: skip


def _autodual(*arguments: str, by: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *by, "autodual", *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _certified(file: Path) -> list[bool]:
    return [json.loads(line)["certified"] for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("device", ["auto", "cuda:0"])
def test_train_certify_and_attack(device: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "robust error" in _autodual("train", *SMALL, "--device", device, "--out", str(run))
    assert json.loads((run / "environment.json").read_text(encoding="utf-8"))["device"] == torch.cuda.get_device_name()
    assert "(60 images)" in _autodual("certify", str(run), "--limit", "60", "--device", device)
    again = _certified(run / "certificates-dual-first-60.jsonl")
    assert _certified(run / "certificates.jsonl") == again
    assert 0 < sum(again) < 60
    _autodual("certify", str(run), "--limit", "60", "--device", "cpu", "--out", str(tmp_path / "cpu.jsonl"))
    assert _certified(tmp_path / "cpu.jsonl") == again
    assert "PGD error" in _autodual("attack", str(run), "--limit", "60", "--device", device)


@pytest.mark.parametrize("kind", ["paper", "routed", "sum"])
def test_a_cascade(kind: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _autodual("train", *SMALL, "--cascade", "2", "--cascade-kind", kind, "--out", str(run))
    assert json.loads((run / "cascade.json").read_text(encoding="utf-8"))["kind"] == kind


def test_by_torchrun_in_one_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    events = ["--tensorboard"] if importlib.util.find_spec("tensorboard") else []
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m")
    _autodual("train", *SMALL, *events, "--out", str(run), by=torchrun)
    assert (run / "tensorboard").exists() == bool(events)
    assert len(_certified(run / "certificates.jsonl")) == 60
