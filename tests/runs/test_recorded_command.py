"""What is kept of a run says what was done, not on whose machine: commands are recorded without absolute paths."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run, recorded_command
from autodual.runs.records import DataUsed

ROOT = Path(__file__).parents[2]
KEPT = ("results", "benchmarks/results", "configs", "docs", "README.md", "CHANGELOG.md")
PLACE = re.compile(
    r"(?<![\w./~:\\-])(/(?:work|tmp|home|root|mnt|Users|private|var|opt|data|srv|workspace|scratch|content)/|[A-Z]:\\\\)"
)
TEXT = {".json", ".jsonl", ".yaml", ".md", ".html", ".txt", ".csv"}


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        (["/usr/lib/python3/autodual/__main__.py", "train", "--eps", "2/255"], "autodual train --eps 2/255"),
        (["/home/me/.venv/bin/autodual", "train"], "autodual train"),
        (["script.py"], "script.py"),
        ([""], "python"),
        (["autodual", "{cwd}/configs/a.yaml", "--out={cwd}/runs/a"], "autodual configs/a.yaml --out=runs/a"),
        (["autodual", "{home}/data/my images"], "autodual ~/'data/my images'"),
        (["autodual", "--data-folder", "/mnt/disk 7/mnist"], "autodual --data-folder .../mnist"),
        (["autodual", "--model", "/srv/me/net.py:factory"], "autodual --model .../net.py:factory"),
        (["autodual", "--model=/srv/me/net.py:factory"], "autodual --model=.../net.py:factory"),
        (["autodual", "a b"], "autodual 'a b'"),
    ],
)
def test_commands(arguments: list[str], recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, cwd = tmp_path / "home", tmp_path / "elsewhere"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    monkeypatch.setenv("HOME", str(home))
    assert recorded_command([part.format(cwd=cwd, home=home) for part in arguments]) == recorded


def test_a_new_run_records_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/x/autodual", "train", "--out", str(tmp_path)])
    Run(tmp_path).begin(TrainConfig(), resume=False)
    Run(tmp_path).note_environment(DataUsed("digits", 1, 1, "0"), device="cpu", processes=1)
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["command"] == f"autodual train --out .../{tmp_path.name}"
    assert not PLACE.search(json.dumps(record))
    assert len(record["machine"].split()) == 2


def test_no_kept_file_names_a_place_of_a_machine() -> None:
    found = []
    for path in (
        file for place in KEPT for file in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    ):
        if path.suffix in TEXT:
            text = re.sub(r"data:image/[^\"]*", "", path.read_text(encoding="utf-8"))
            found += [
                f"{path.relative_to(ROOT)}: {text[hit.start() : hit.start() + 60]!r}" for hit in PLACE.finditer(text)
            ]
    assert not found


def test_the_pattern_finds_what_was_there() -> None:
    for line in ('"command": "/work/main/x.py"', "--out /tmp/r", "--out=/root/out", "`/home/me/x`", "'C:\\\\Users'"):
        assert PLACE.search(line), line
    for line in ("https://a.org/home/x", "2/255", "runs/data/x", ".../tmp/x", "~/data/x"):
        assert not PLACE.search(line), line
