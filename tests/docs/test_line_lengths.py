"""Pages can be read in an editor: no line of prose is longer than the linter allows in code."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 135
"""As in pyproject.toml; the rows of a table cannot be cut."""


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_prose_is_wrapped(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    assert [number for number, line in lines if len(line) > LONGEST and not line.startswith("|")] == []
