"""Refuses a page that would fetch something from another site when it is opened: scripts, styles, fonts, pictures, frames."""

from __future__ import annotations

import re

from mkdocs.exceptions import PluginError

FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]*\"|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]*\""
)


def on_post_page(output: str, page: object, **_: object) -> str:
    found = FETCHED.search(output)
    if found:
        raise PluginError(f"{page}: {found[0]} is fetched from another site; keep it in docs/assets")
    return output
