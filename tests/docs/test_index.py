"""The first page leads to every other one, and so does the site's menu."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_first_page_links_every_other() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Further")[2]
    assert set(re.findall(r"\]\((\w+\.md)\)", text)) == PAGES - {"index.md"}


def test_the_menu_has_every_page() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert set(re.findall(r"\w+\.md", menu)) == PAGES


@pytest.mark.parametrize("page", sorted(PAGES))
def test_no_page_promises_what_is_not_there(page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    assert "being built" not in text
