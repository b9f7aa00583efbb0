"""Tutorials and other pages with outputs run as they stand: their code blocks in order, and what they print is what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "config.md", DOCS / "index.md"]
BLOCK = re.compile(r'^```(python|text)(?: title="([^"]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PROMISED = "prints"
"""Title of an output that is the same on every machine; others are examples, since training depends on the machine."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_the_page_says(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert sum(language == "python" for language, _, _ in blocks) > 0
    names: dict[str, object] = {"__name__": page.stem}
    printed = ""
    with torch.random.fork_rng(devices=[]):
        for language, title, text in blocks:
            if language == "python":
                exec(compile(text, str(page), "exec"), names)
                printed = capsys.readouterr().out
            elif title == PROMISED:
                assert printed == text
            else:
                assert printed.strip()
