"""The notebook says what its page says; if this fails, the page has changed: run `python docs/hooks/notebook.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from runpy import run_path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorials" / "certify.md"
MAKER = run_path(str(DOCS / "hooks" / "notebook.py"))


def _kept() -> dict[str, Any]:
    return json.loads(PAGE.with_suffix(".ipynb").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_the_kept_notebook_is_made_from_the_page() -> None:
    assert _kept() == MAKER["notebook"](PAGE.read_text(encoding="utf-8"))


def test_every_code_block_of_the_page_is_a_cell_in_order() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    cells = ["".join(cell["source"]) for cell in _kept()["cells"] if cell["cell_type"] == "code"]
    assert cells == [block.rstrip() for block in blocks]
    assert any(cell.get("outputs") for cell in _kept()["cells"])


def test_no_cell_has_what_only_the_site_understands() -> None:
    words = "".join("".join(cell["source"]) for cell in _kept()["cells"] if cell["cell_type"] == "markdown")
    assert not re.search(r"^!!! |<!--|^```", words, re.MULTILINE)
