"""Help and refused options come at once: PyTorch, which takes seconds, is imported when a command begins to work."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import contextlib, io, json, sys
from autodual.cli.app import main

wrong = json.loads(sys.argv[1])

def outcome(arguments):
    sys.argv = ["autodual", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return {"arguments": arguments, "code": code, "said": said.getvalue(), "torch": "torch" in sys.modules}

def commands(path):
    yield path
    _, _, listed = outcome([*path, "--help"])["said"].partition("Commands:\\n")
    for line in listed.splitlines():
        if line[:2] == "  " and line[2] != " ":
            yield from commands([*path, line.split()[0]])

every = list(commands([]))
print(json.dumps({
    "help": [outcome([*command, "--help"]) for command in every],
    "wrong": [outcome([*command, "--nonsense"]) for command in every] + [outcome(arguments) for arguments in wrong],
}))
"""

WRONG = [
    ["nonsense"],
    ["train", "--eps", "-1"],
    ["train", "--engine", "nonsense"],
    ["train", "CONFIG"],
    ["train", "CONFIG", "--k", "0"],
    ["certify"],
    ["certify", "run", "--engine", "nonsense"],
    ["certify", "run", "--delta", "0.1"],
    ["certify", "run", "--sample", "3"],
    ["certify", "run", "--timeout", "0"],
    ["certify", "run", "--check", "--limit", "3"],
    ["attack", "run", "--limit", "0"],
    ["attack", "run", "--eps", "nonsense"],
    ["report"],
    ["bench", "nonsense"],
    ["bench", "--weights", "nonsense"],
    ["data", "nonsense"],
    ["reproduce", "all", "--jobs", "0"],
    ["reproduce", "all", "--recipe", "nonsense"],
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """One process for all: what one of them imports stays, and shows."""
    config = tmp_path_factory.mktemp("config") / "config.yaml"
    config.write_text("eps: -1\n")
    wrong = [[str(config) if word == "CONFIG" else word for word in arguments] for arguments in WRONG]
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(wrong)], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, list[dict[str, Any]]] = json.loads(said.stdout)
    return result


def test_help_of_every_command(found: dict[str, list[dict[str, Any]]]) -> None:
    every = {" ".join(each["arguments"][:-1]) for each in found["help"]}
    assert {
        "",
        "train",
        "certify",
        "attack",
        "report",
        "bench",
        "data",
        "data fetch",
        "reproduce",
        "reproduce run",
    } <= every
    for each in found["help"]:
        assert (each["code"], each["torch"]) == (0, False), each
        assert each["said"].lstrip().startswith("Usage:"), each


def test_wrong_options_and_commands(found: dict[str, list[dict[str, Any]]]) -> None:
    assert len(found["wrong"]) == len(found["help"]) + len(WRONG)
    for each in found["wrong"]:
        assert (each["code"], each["torch"]) == (2, False), each
        assert each["said"].startswith("error: "), each
        assert each["said"].count("\n") == 1, each
