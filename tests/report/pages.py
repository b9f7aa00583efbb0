"""Pages as a reader finds them: parsed strictly, section by section."""

import json
from html.parser import HTMLParser
from pathlib import Path

from autodual.report import write_report

KEYS = ("cascade", "result", "epsilon", "margins", "classes", "gallery", "training", "settings")
"""Sections of a page, in their order; more of them may stand between these."""
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Refuses markup that is not nested properly; collects tags, text, ids and what is referred to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.sections: dict[str, str] = {}
        self._section: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        assert not any(name.startswith("on") for name in found)
        if found.get("id"):
            self.ids.append(found["id"])
        self.references += [found[name] for name in ("src", "href", "srcset", "action", "data") if found.get(name)]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section.append(found["id"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self._section.pop()

    def handle_data(self, data: str) -> None:
        self.text += data
        for key in self._section:
            self.sections[key] = self.sections.get(key, "") + data


def page_of(*runs: Path) -> tuple[Page, str]:
    html = write_report(list(runs), runs[0].parent / "report.html").read_text(encoding="utf-8")
    return Page(html), html


def change(run: Path, file: str, **values: object) -> None:
    path = run / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def known(page: Page) -> list[str]:
    """The sections that KEYS names, in the order of the page, without their run."""
    return [key.split("-", 2)[-1] for key in page.sections if key.split("-", 2)[-1] in KEYS]
