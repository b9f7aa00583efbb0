"""NVIDIA's MPS is started for processes side by side, and ended after them, where it is there and nobody else runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from autodual.reproduce import jobs as sharing
from autodual.reproduce.jobs import MPS_PIPES, MPS_PROGRAM, shared_gpu

SCRIPT = """#!/bin/sh
echo "$* $(cat)" >> {log}
test -d "$CUDA_MPS_PIPE_DIRECTORY" && exit {code}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for NVIDIA's program writes its calls."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sharing, "MPS_USUAL_PIPES", tmp_path / "nobody")
    monkeypatch.delenv(MPS_PIPES, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return _install(tmp_path, 0)


def _install(folder: Path, code: int) -> Path:
    program, log = folder / MPS_PROGRAM, folder / "calls"
    program.write_text(SCRIPT.format(log=log, code=code))
    program.chmod(0o755)
    return log


def test_started_and_ended(calls: Path) -> None:
    said: list[str] = []
    with shared_gpu("auto", said.append) as variables:
        folder = Path(variables[MPS_PIPES])
        assert folder.is_dir()
        assert calls.read_text() == "-d \n"
    assert (calls.read_text(), said, folder.exists()) == ("-d \n quit\n", [], False)


def test_ended_after_an_error(calls: Path) -> None:
    with pytest.raises(KeyError), shared_gpu("cuda", print):
        raise KeyError
    assert calls.read_text().endswith("quit\n")


def test_says_that_it_could_not_be_started(calls: Path) -> None:
    _install(calls.parent, 1)
    said: list[str] = []
    with shared_gpu("auto", said.append) as variables:
        assert variables == {}
    assert said == ["the GPU is used in turns: MPS could not be started"]
    assert calls.read_text() == "-d \n"


@pytest.mark.parametrize("why", ["cpu", "no program", "no GPU", "own daemon", "the machine's daemon"])
def test_left_alone(calls: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "no program":
        (calls.parent / MPS_PROGRAM).unlink()
        monkeypatch.setenv("PATH", str(calls.parent))
    if why == "no GPU":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if why == "own daemon":
        monkeypatch.setenv(MPS_PIPES, str(calls.parent))
    if why == "the machine's daemon":
        monkeypatch.setattr(sharing, "MPS_USUAL_PIPES", calls.parent)
    with shared_gpu("cpu" if why == "cpu" else "auto", print) as variables:
        assert variables == {}
    assert not calls.exists()
