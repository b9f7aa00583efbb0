"""Ctrl-C while a command imports PyTorch: one line and exit code 130; other programs are interrupted as usual."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOW = """
import time
print("importing", flush=True)
time.sleep(60)
"""

LOSES_IT = """
import time
try:
    print("importing", flush=True)
    time.sleep(60)
except BaseException:  # as where C code imports NumPy, and goes on without it
    raise ImportError("no such luck") from None
"""

COMMANDS = {
    "autodual": [str(Path(sys.executable).with_name("autodual")), "train"],
    "python -m autodual": [sys.executable, "-m", "autodual", "certify", "run"],
    "torchrun": [sys.executable, "-u", "-m", "autodual", "attack", "run"],
}


@pytest.fixture(autouse=True)
def ctrl_c_works() -> Iterator[None]:
    """Also where the tests run in the background: programs that a shell starts there ignore it, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(folder: Path, command: list[str], source: str = SLOW, **variables: str) -> tuple[int, str]:
    """Exit code and complaint of this command, which gets Ctrl-C in the middle of `import torch`."""
    (folder / "torch.py").write_text(source)
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | variables
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


def test_an_import_that_loses_the_interrupt_ends_as_well(tmp_path: Path) -> None:
    assert interrupted(tmp_path, COMMANDS["python -m autodual"], LOSES_IT) == (130, "\ninterrupted\n")


def test_of_several_processes_the_first_one_says_it(tmp_path: Path) -> None:
    assert interrupted(tmp_path, COMMANDS["torchrun"], RANK="1") == (130, "")


def test_a_program_that_imports_the_library_is_interrupted_as_usual(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "try:\n    import autodual\n    autodual.certify\nexcept KeyboardInterrupt:\n    raise SystemExit(7)\n"
    )
    assert interrupted(tmp_path, [sys.executable, str(program)]) == (7, "")
