"""Two processes do what one does: the same gradients, the same certificates, and a killed worker ends the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autodual.digits import load_digits_network
from autodual.train.checkpoint import load_tensors
from autodual.train.group import Group

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "autodual"]
SETTINGS = ["--dataset", "digits", "--model", "digits", "--engine", "dual", "--eps", "0.03", "--clip", "0", "1", "--epochs", "1",
            "--eps-epochs", "1", "--limit-train", "55", "--limit-test", "8", "--batch", "18", "--optimiser", "sgd", "--lr", "0.05",
            "--evaluate-every", "0", "--device", "cpu"]  # fmt: skip
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)


def test_shares_of_a_batch_add_up_to_the_batch() -> None:
    for count in (1, 2, 7, 18):
        index = torch.arange(count)
        shares = [Group(rank, 3).share(index) for rank in range(3)]
        assert sum(weight for _, weight in shares) == pytest.approx(3)
        used = torch.cat([own for own, weight in shares if weight > 0])
        assert sorted(used.tolist()) == index.tolist()


@pytest.mark.slow
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path) -> None:
    """The last batch has one example, so that one process has none."""
    alone = call(sys.executable, "-m", "autodual", "train", *SETTINGS, "--out", str(tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    together = call(*TORCHRUN, "train", *SETTINGS, "--out", str(tmp_path / "together"))
    assert together.returncode == 0, together.stderr
    assert together.stdout.count("robust error") == 1
    one, two = (load_tensors(tmp_path / name / "model.safetensors") for name in ("alone", "together"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_processes_certify_as_one_does(tmp_path: Path) -> None:
    weights = tmp_path / "digits.safetensors"
    save_file(dict(load_digits_network().state_dict()), str(weights))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("alone", "together")}
    rest = ["certify", str(weights), "--model", "digits", "--dataset", "digits", "--eps", "0.05", "--clip", "0", "1", "--limit", "250",
            "--device", "cpu", "--out"]  # fmt: skip
    alone = call(sys.executable, "-m", "autodual", *rest, files["alone"])
    together = call(*TORCHRUN, *rest, files["together"])
    assert alone.returncode == together.returncode == 0, alone.stderr + together.stderr
    assert Path(files["alone"]).read_bytes() == Path(files["together"]).read_bytes()


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_and_the_run_resumes(tmp_path: Path) -> None:
    arguments = [*TORCHRUN, "train", *SETTINGS, "--epochs", "3", "--out", str(tmp_path / "run")]
    job = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "run" / "metrics.jsonl").exists() and job.poll() is None:
        time.sleep(0.05)
    workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=False).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    assert job.wait(timeout=120) != 0
    done = call(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert "robust error" in done.stdout
