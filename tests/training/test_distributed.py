"""Two processes do what one does: the same gradients, the same certificates; they stop together, and a killed one ends the job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autodual._files import load_tensors
from autodual.digits import load_digits_network
from autodual.evaluation.processes import Group
from torchrun import ALONE, TOGETHER, call, signal_when, start

SETTINGS = ["--dataset", "digits", "--model", "digits", "--engine", "dual", "--eps", "0.03", "--clip", "0", "1", "--epochs", "1",
            "--eps-epochs", "1", "--limit-train", "55", "--limit-test", "8", "--batch", "18", "--optimiser", "sgd", "--lr", "0.05",
            "--evaluate-every", "0", "--device", "cpu"]  # fmt: skip


def test_shares_of_a_batch_add_up_to_the_batch() -> None:
    for count in (1, 2, 7, 18):
        index = torch.arange(count)
        shares = [Group(rank, 3).share(index) for rank in range(3)]
        assert sum(share.weight for share in shares) == pytest.approx(3)
        assert sum(share.counted for share in shares) == count
        total = torch.zeros(count)
        for share in shares:
            total[share.index] += share.weight / len(share.index) / 3
        torch.testing.assert_close(total, torch.full((count,), 1 / count))  # the mean over processes of their means
        assert all(len(share.index) > 1 for share in shares) or count == 1


@pytest.mark.slow
@pytest.mark.parametrize(("examples", "batches"), [(55, 3), (56, 4)])
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path, examples: int, batches: int) -> None:
    """The last batch has 19 examples, which are shared unevenly; or two, so few that both processes take them all."""
    settings = [*SETTINGS, "--limit-train", str(examples)]
    alone = call(*ALONE, "train", *settings, "--out", str(tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    together = call(*TOGETHER, "train", *settings, "--out", str(tmp_path / "together"))
    assert together.returncode == 0, together.stderr
    assert together.stdout.count("robust error") == 1
    assert (
        together.stderr.count(f"stage 0  epoch 1/1  {batches}/{batches}  100%") == 1
    )  # batches of the job, told by one process
    one, two = (load_tensors(tmp_path / name / "model.safetensors") for name in ("alone", "together"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_processes_certify_and_attack_as_one_does(tmp_path: Path) -> None:
    weights = tmp_path / "digits.safetensors"
    save_file(dict(load_digits_network().state_dict()), str(weights))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("alone", "together")}
    rest = ["certify", str(weights), "--model", "digits", "--dataset", "digits", "--eps", "0.05", "--clip", "0", "1", "--limit", "250",
            "--device", "cpu", "--out"]  # fmt: skip
    alone = call(*ALONE, *rest, files["alone"])
    together = call(*TOGETHER, *rest, files["together"])
    assert alone.returncode == together.returncode == 0, alone.stderr + together.stderr
    assert Path(files["alone"]).read_bytes() == Path(files["together"]).read_bytes()
    attack = ["attack", *rest[1:-1]]
    assert call(*ALONE, *attack).stdout == call(*TOGETHER, *attack).stdout != ""


FACTORY = """
import torch

def data(split):
    numbers = torch.Generator().manual_seed(len(split))
    images = torch.rand(3000 if split == "test" else 60, 1, 8, 8, generator=numbers)
    return torch.utils.data.TensorDataset(images, torch.arange(len(images)) % 10)

def model(shape, classes):
    body = torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, classes)
    return torch.nn.Sequential(torch.nn.Flatten(), *body)
"""


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1])
def test_when_one_process_is_told_to_stop_all_stop_certifying(tmp_path: Path, worker: int) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    weights, out = tmp_path / "digits.safetensors", tmp_path / "found.jsonl"
    save_file(dict(load_digits_network().state_dict()), str(weights))
    rest = ["certify", str(weights), "--model", "digits", "--dataset", f"{tmp_path}/mine.py:data", "--eps", "0.05", "--device", "cpu",
            "--out"]  # fmt: skip
    job = start(*TOGETHER, *rest, str(out))
    said = signal_when(job, lambda: out.exists() and out.stat().st_size > 0, signal.SIGTERM, worker)
    assert job.returncode != 0
    assert said.count("stopped as asked; go on with --resume") == 1
    assert "Connection" not in said
    assert 0 < len(out.read_text().splitlines()) < 3000
    alone = tmp_path / "alone.jsonl"
    assert call(*TOGETHER, *rest, str(out), "--resume").returncode == call(*ALONE, *rest, str(alone)).returncode == 0
    assert out.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_certificates_are_about_the_weights_that_are_kept(tmp_path: Path) -> None:
    """Each process has batch statistics of its own; those of the first are saved, and all must certify with them."""
    (tmp_path / "mine.py").write_text(FACTORY)
    run = tmp_path / "run"
    rest = ["--engine", "none", "--epochs", "2", "--evaluate-every", "0", "--batch", "16", "--eps", "0.01", "--limit-test", "400",
            "--device", "cpu"]  # fmt: skip
    mine = ["--dataset", f"{tmp_path}/mine.py:data", "--model", f"{tmp_path}/mine.py:model"]
    done = call(*TOGETHER, "train", *mine, *rest, "--out", str(run))
    assert done.returncode == 0, done.stderr
    out = tmp_path / "again.jsonl"
    again = call(*ALONE, "certify", str(run), "--limit", "400", "--device", "cpu", "--out", str(out))
    assert again.returncode == 0, again.stderr
    assert (run / "certificates.jsonl").read_bytes() == out.read_bytes()


@pytest.mark.slow
def test_a_mistake_of_all_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    done = call(*TOGETHER, "train", *SETTINGS, "--out", str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.count("is not empty and holds no run") == 1
    assert "Connection" not in done.stderr


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_and_the_run_resumes(tmp_path: Path) -> None:
    arguments = [*TOGETHER, "train", *SETTINGS, "--epochs", "3", "--out", str(tmp_path / "run")]
    job = start(*arguments)
    signal_when(job, (tmp_path / "run" / "metrics.jsonl").exists, signal.SIGKILL, worker=1)
    assert job.returncode != 0
    done = call(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert "robust error" in done.stdout
