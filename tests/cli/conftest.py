"""What every test of the command line uses: a command as a person types it, and weights to try it on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

from autodual.cli.app import main
from autodual.digits import load_digits_network

Call = Callable[..., tuple[int, str, str]]
"""(exit code, what it said, what it complained about) of `autodual` with these arguments."""


def exit_code(patch: pytest.MonkeyPatch, *arguments: str) -> int:
    patch.setattr(sys, "argv", ["autodual", *arguments])
    try:
        main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = exit_code(monkeypatch, *arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "digits.safetensors"
    save_file(dict(load_digits_network().state_dict()), str(path))
    return path


SMALL = ["--model", "digits", "--eps", "0.05", "--clip", "0", "1", "--k", "4", "--epochs", "2", "--limit-train", "100", "--limit-test",
         "10", "--evaluate-every", "0", "--batch", "25", "--device", "cpu", "--lr", "0.003", "--skip-curve"]  # fmt: skip


@pytest.fixture
def small() -> list[str]:
    """Options of a run that takes a second; `--no-skip-curve` adds the curve over eps, which takes longer than the rest."""
    return list(SMALL)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained run, at linf 0.05 clipped to [0, 1]; tests copy it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert exit_code(patch, "train", *SMALL, "--no-skip-curve", "--out", str(folder)) == 0
    return folder


@pytest.fixture(scope="session")
def cascade_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a cascade of two stages; nobody writes into it."""
    folder = tmp_path_factory.mktemp("runs") / "cascade"
    with pytest.MonkeyPatch.context() as patch:
        assert exit_code(patch, "train", *SMALL, "--cascade", "2", "--out", str(folder)) == 0
    return folder
