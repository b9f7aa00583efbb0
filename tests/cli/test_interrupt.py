"""Ctrl-C while PyTorch is still being imported: one line from the command, Python's own answer in other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = """
import time
print("importing", flush=True)
time.sleep(60)
"""

COMMANDS = {
    "autodual": [str(Path(sys.executable).with_name("autodual")), "train", "--help"],
    "python -m autodual": [sys.executable, "-m", "autodual", "certify"],
    "torchrun": [sys.executable, "-u", "-m", "autodual"],
}


def interrupted(folder: Path, command: list[str], **variables: str) -> tuple[int, str]:
    """Exit code and complaint of this command, which gets Ctrl-C in the middle of `import torch`."""
    (folder / "torch.py").write_text(SLOW)
    environment = os.environ | {"PYTHONPATH": str(folder)} | variables
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        return process.wait(30), process.communicate()[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_in_one_line(tmp_path: Path, name: str) -> None:
    assert interrupted(tmp_path, COMMANDS[name]) == (130, "\ninterrupted\n")


def test_of_several_processes_the_first_one_says_it(tmp_path: Path) -> None:
    assert interrupted(tmp_path, COMMANDS["torchrun"], RANK="1") == (130, "")


def test_a_program_that_imports_the_library_is_interrupted_as_usual(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("try:\n    import autodual\nexcept KeyboardInterrupt:\n    raise SystemExit(7)\n")
    assert interrupted(tmp_path, [sys.executable, str(program)]) == (7, "")
