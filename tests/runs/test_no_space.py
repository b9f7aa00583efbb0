"""Disks that are full and folders that cannot be written to: a clear message, and nothing that was there is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import autodual as ad
from autodual._files import replacing, write_json, write_text
from autodual.evaluation.processes import StoppedError, Watch
from autodual.runs import checkpoint
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.records import TrainedLine
from autodual.training.fitting import train

CONFIG = TrainConfig(
    dataset="digits", model="digits", eps=0.05, k=4, epochs=2, eps_epochs=1, limit_train=60, limit_test=4, evaluate_every=0, batch=20,
    device="cpu", skip_curve=True,
)  # fmt: skip


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a.json", "before")
    monkeypatch.setattr(os, "replace", _full)
    with pytest.raises(ad.ArgumentError, match=r"a\.json: not written, nothing is lost: No space left on device"):
        write_json(tmp_path / "a.json", {"after": 1})
    assert (tmp_path / "a.json").read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_while_writing(tmp_path: Path) -> None:
    with (
        pytest.raises(ad.ArgumentError, match="No space left"),
        replacing(tmp_path / "b"),
        open("/dev/full", "w") as full,
    ):
        full.write("x" * 100_000)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_at_a_checkpoint_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    with pytest.raises(StoppedError):
        train(CONFIG, tmp_path / "run", watch=Watch(step=lambda p: seen.append(1), stop=lambda: len(seen) >= 2))
    before = checkpoint.listed(tmp_path / "run" / "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "encode_tensors", _full)
        with pytest.raises(ad.ArgumentError, match="nothing is lost: No space left"):
            train(CONFIG, tmp_path / "run", resume=True)
    assert checkpoint.listed(tmp_path / "run" / "checkpoints") == before
    assert train(CONFIG, tmp_path / "run", resume=True)["examples"] == 4


def test_metrics_that_cannot_be_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(ad.ArgumentError, match=r"metrics\.jsonl: not written: No space left"):
        run.record(TrainedLine("trained", 0, 0, None, None))


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(ad.ArgumentError, match=r"cannot write there: (Not a directory|File exists)"):
        train(CONFIG, tmp_path / "file" / "run")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(ad.ArgumentError, match="cannot write there: Read-only file system"):
        train(CONFIG, tmp_path / "run")
