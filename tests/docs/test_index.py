"""The first page leads to every other one, and so does the site's menu."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
PAGE = r"[\w/-]+\.md"


def test_the_first_page_links_every_other() -> None:
    table = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Where to go")[2].partition("## ")[0]
    assert set(re.findall(rf"\]\(({PAGE})\)", table)) == PAGES - {"index.md"}


def test_the_menu_has_every_page() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert set(re.findall(PAGE, menu)) == PAGES


@pytest.mark.parametrize("page", sorted(PAGES))
def test_no_page_promises_what_is_not_there(page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    assert "being built" not in text
