"""autodual reproduce, as a person types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autodual.runs.config import dump_yaml

Call = Callable[..., tuple[int, str, str]]

TINY = {
    "dataset": "digits", "model": "digits", "eps": 0.03, "k": 4, "epochs": 1, "batch": 25, "limit_train": 50, "limit_test": 4,
    "evaluate_every": 0,
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with one row."""
    (tmp_path / "configs" / "best").mkdir(parents=True)
    for name in ("mnist-small-0.1", "best/mnist-small-0.1"):
        (tmp_path / "configs" / f"{name}.yaml").write_text(dump_yaml(TINY))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_campaign(call: Call, place: Path) -> None:
    """Begun, stopped, packed, taken elsewhere, finished there, packed, brought back, put into tables."""
    code, said, told = call("reproduce", "mnist-small-0.1", "--device", "cpu", "--minutes", "0.000001")
    assert (code, said) == (0, "time is up: 1 of 1 are not finished; the same command goes on\n"), told
    code, said, told = call("reproduce", "--device", "cpu", "mnist-small-0.1")
    assert code == 0, told
    assert said.startswith("mnist-small-0.1: done: robust error ")
    code, said, _ = call("reproduce", "pack", "out.tar", "--most-mib", "1")
    assert code == 0
    assert said.startswith("mnist-small-0.1: packed (done)\nout-1.tar: 0.0 MiB\n")
    code, said, _ = call("reproduce", "unpack", "out-1.tar", "--results", "elsewhere", "--work", "w")
    assert (code, said) == (0, "mnist-small-0.1: taken from the pack (done)\n")
    code, said, _ = call("reproduce", "list", "--results", "elsewhere")
    lines = said.splitlines()
    assert len(lines) == 1 + 41 + 8 + 22 + 1
    assert lines[1].split()[:5] == ["mnist-small-0.1", "paper", "4.99", "/", "1.37"]
    assert lines[1].endswith("done (1 of 3 seeds)")
    assert "not run" in lines[3]
    assert lines[-1] == "1 of 41 rows are done in the paper's recipe"
    code, said, _ = call("reproduce", "tables", "--results", "elsewhere")
    assert (code, said) == (0, "docs/results.md\nelsewhere/index.html\n")
    assert "| cifar-large-2 | paper | not run |" in (place / "docs/results.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["mnist-smal-0.1"],
            "mnist-smal-0.1: no such row (configs/mnist-smal-0.1.yaml does not exist); did you mean mnist-small-0.1?",
        ),
        (["mnist-large-0.1", "--recipe", "best"], "mnist-large-0.1: has no config of recipe best"),
        (["mnist-small-0.1", "--recipe", "worst"], "--recipe must be one of paper, best, modern, got 'worst'"),
        (["table5"], "table5: the paper has the tables table1, table2, table3 and table4"),
        (["mnist-small-0.1", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["mnist-small-0.1", "--configs", "nowhere"], "nowhere: no such folder; go to the source tree"),
        (["unpack", "nothing.tar"], "nothing.tar: is no part of a pack, or damaged"),
    ],
)
def test_mistakes_are_one_line(call: Call, place: Path, arguments: list[str], message: str) -> None:
    code, said, told = call("reproduce", *arguments)
    assert (code, said) == (2, "")
    assert told.startswith(f"error: {message}")
    assert told.count("\n") == 1
    assert not (place / "runs").exists()


def test_help_shows_rows_and_commands(call: Call) -> None:
    code, said, _ = call("reproduce", "--help")
    assert code == 0
    assert all(name in said for name in ("list", "pack", "unpack", "tables", "run"))
