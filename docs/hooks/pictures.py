"""Puts pictures that name the site's colours into the page itself, where they follow its light and dark palettes.

A picture that a page merely links to cannot see the page's colours. Those drawn by `docs/hooks/draw.py` say so by their class.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path

LINKED = re.compile(r'<img alt="([^"]*)" src="[^"]*?figures/([\w-]+)\.svg"\s*/?>')
FIGURES = Path(__file__).parents[1] / "figures"


def on_page_content(html: str, **_: object) -> str:
    return LINKED.sub(_in_line, html)


def _in_line(linked: re.Match[str]) -> str:
    text = (FIGURES / f"{linked[2]}.svg").read_text(encoding="utf-8")
    if 'class="palette"' not in text:
        return linked[0]
    label = escape(unescape(linked[1]), quote=True)
    drawn = text.strip().replace("<svg ", f'<svg aria-label="{label}" ', 1)
    return f'<div class="picture">{drawn}</div>'
