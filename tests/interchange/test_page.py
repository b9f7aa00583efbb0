"""docs/onnx.md lists the operators that are read, and the exit codes that `verify` has."""

from __future__ import annotations

import re
from pathlib import Path

from autodual.cli.verify import EXIT_CODES
from autodual.interchange.onnx_reading import OPERATORS

PAGE = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text(encoding="utf-8")


def test_the_page_lists_every_operator() -> None:
    table = PAGE.partition("### Operators")[2].partition("To be read")[0]
    rows = re.findall(r"^\| [\w ]+ \| (.+) \|$", table, re.MULTILINE)
    assert sorted(name for row in rows for name in row.split(", ") if name != "read") == list(OPERATORS)


def test_the_page_has_the_exit_codes() -> None:
    assert dict(re.findall(r"^\| `(\w+)` \| (\d) \|", PAGE, re.MULTILINE)) == {k: str(v) for k, v in EXIT_CODES.items()}
