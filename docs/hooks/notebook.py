"""Makes the notebook of a tutorial from its page: text becomes text, code becomes cells, and what is printed their output.

    python docs/hooks/notebook.py           (docs/tutorials/certify.md -> certify.ipynb)

The page is what is edited; a test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "tutorials" / "certify.md"
FENCE = re.compile(r"^```(python|text)[^\n]*\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([\w./-]+)\.md(#[\w-]+)?\)")


def notebook(markdown: str) -> dict[str, Any]:
    cells = list(_cells(markdown))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cells(markdown: str) -> Iterator[dict[str, Any]]:
    """An output stands behind its code on the page, with nothing but white space between."""
    place, code = 0, None
    for found in FENCE.finditer(markdown):
        words = markdown[place : found.start()].strip()
        place = found.end()
        if found[1] == "text" and code is not None and not words:
            code["outputs"].append({"name": "stdout", "output_type": "stream", "text": _lines(found[2])})
            continue
        if words:
            yield {"cell_type": "markdown", "metadata": {}, "source": _lines(_readable(words))}
        code = {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": _lines(found[2].rstrip()),
        }
        yield code
    if words := markdown[place:].strip():
        yield {"cell_type": "markdown", "metadata": {}, "source": _lines(_readable(words))}


def _readable(words: str) -> str:
    """Without what only the site understands: notes become quotations, comments go, links lead to the site's pages."""
    lines, inside = [], False
    for line in words.splitlines():
        note = re.match(r'!!! \w+ "(.*)"$', line)
        inside = bool(note) or (inside and (line.startswith("    ") or not line))
        lines.append(f"> **{note[1]}.**" if note else f"> {line.strip()}".rstrip() if inside and line else line)
    without = re.sub(r"<!--.*?-->\n*", "", "\n".join(lines), flags=re.DOTALL)
    return LINK.sub(lambda link: f"]({link[1]}.html{link[2] or ''})", without).replace(
        "This page is\nalso a [notebook](certify.ipynb).", "The page on the site\nis the original of this notebook."
    )


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def write(page: Path = PAGE) -> Path:
    target = page.with_suffix(".ipynb")
    made = notebook(page.read_text(encoding="utf-8"))
    target.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    print(write())
