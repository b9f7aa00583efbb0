"""How a command ends when something is wrong: Ctrl-C, the disk, and one of several processes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autodual._errors import AutodualError
from autodual.cli import app
from autodual.cli.options import merged
from autodual.evaluation.processes import StoppedError
from autodual.runs.config import EPS_START
from autodual.training import fitting

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `train` fail like this."""

    def with_error(error: BaseException) -> None:
        def raises(*_: object) -> None:
            raise error

        monkeypatch.setattr(fitting, "train_run", raises)

    return with_error


def test_ctrl_c_is_one_line(call: Call, fails: Callable[[BaseException], None]) -> None:
    fails(KeyboardInterrupt())
    assert call("train") == (130, "", "\ninterrupted\n")


def test_ctrl_c_while_commands_are_imported(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def importing() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "_run_command", importing)
    assert call("train") == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/data/x"), "error: /data/x: Permission denied\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
        (FileNotFoundError(2, "No such file or directory", b"/data/y"), "error: /data/y: No such file or directory\n"),
    ],
)
def test_errors_of_the_disk_are_one_line(
    call: Call, fails: Callable[[BaseException], None], error: OSError, message: str
) -> None:
    fails(error)
    assert call("train") == (2, "", message)


@pytest.mark.parametrize("error", [ValueError("ours"), TypeError("ours"), io.UnsupportedOperation("ours")])
def test_our_own_mistakes_keep_their_traceback(
    call: Call, fails: Callable[[BaseException], None], error: Exception
) -> None:
    fails(error)
    with pytest.raises(type(error), match="ours"):
        call("train")


@pytest.mark.parametrize(("told", "complaint"), [(False, "error: refused\n"), (True, "")])
def test_what_another_process_has_told_is_not_told_again(
    call: Call, fails: Callable[[BaseException], None], told: bool, complaint: str
) -> None:
    error = AutodualError("refused")
    error.told = told
    fails(error)
    assert call("train") == (2, "", complaint)


@pytest.mark.parametrize("arguments", [["train", "--epoch", "3"], ["certify"]])
def test_mistakes_in_the_arguments_are_told_by_the_first(
    call: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert call(*arguments) == (2, "", "")


@pytest.mark.parametrize(("rank", "told"), [("0", 1), ("1", 0)])
def test_that_all_were_stopped_is_told_by_the_first(
    call: Call, fails: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch, rank: str, told: int
) -> None:
    monkeypatch.setenv("RANK", rank)
    fails(StoppedError("stopped as asked; go on with --resume"))
    code, _, complaint = call("train")
    assert code == 130
    assert complaint.count("stopped as asked; go on with --resume") == told


@pytest.mark.parametrize("arguments", [["data", "list"], ["data", "verify", "minst"], ["report", os.devnull]])
def test_what_one_process_can_do_is_done_by_the_first(
    call: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert call(*arguments) == (0, "", "")


def test_fractions_as_options(call: Call, small: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call("train", *small, "--eps", "2/255", "--clip", "-1/2", "3/2", "--out", str(run))[0] == 0
    written = (run / "config.yaml").read_text()
    assert f"eps: {2 / 255}\n" in written
    assert "clip:\n- -0.5\n- 1.5\n" in written


@pytest.mark.parametrize(("eps", "start"), [(0.3, 0.2), (0.05, 0.05), (0.001, EPS_START), (-1.0, EPS_START)])
def test_a_first_eps_of_a_run_gives_way_to_a_smaller_eps(eps: float, start: float) -> None:
    assert merged({"eps": 0.3, "eps_start": 0.2}, {"eps": eps})["eps_start"] == start
    assert merged({"eps": 0.3, "eps_start": 0.2}, {"eps": eps, "eps_start": 0.25})["eps_start"] == 0.25


def test_a_run_folder_in_the_place_of_a_config_says_what_to_write(call: Call, tmp_path: Path) -> None:
    said = f"error: {tmp_path}: is a folder, not a config file; name a run folder with --out {tmp_path}\n"
    assert call("train", "--resume", str(tmp_path)) == (2, "", said)
