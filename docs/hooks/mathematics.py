"""Turns LaTeX into MathML while the site is built: browsers draw it by themselves, without a script and without a network.

`pymdownx.arithmatex` marks what stands between dollar signs; this hook replaces the marked text. Both the scripts that usually do this
(MathJax, KaTeX) would have to be fetched by the reader or kept here, one and a half megabytes of them.
"""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)

BARS = re.compile(r"<mo(?: stretchy=\"false\")?>(&#x0007C;|&#x02016;)</mo>")
TIGHT = r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>'
"""Bars around an absolute value or a norm, without the room that a relation sign has."""


def on_page_content(html: str, **_: object) -> str:
    return MARKED.sub(_to_mathml, html)


def _to_mathml(marked: re.Match[str]) -> str:
    tag, bracket, latex = marked.groups()
    display = "block" if bracket == "[" else "inline"
    mathml = convert(unescape(latex).strip(), display=display)
    if "<mi>&</mi>" in mathml or "\\" in mathml:
        raise ValueError(
            f"latex2mathml does not understand all of {latex.strip()!r}; write it with align* and plain commands"
        )
    return f'<{tag} class="mathematics">{BARS.sub(TIGHT, mathml)}</{tag}>'
