"""Several charts on one sheet, as an SVG file for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import ROOT

from autodual._files import write_text
from autodual.report.svg import CHARACTER, Svg, element, group
from autodual.reproduce.figures import STYLE

FIGURES = ROOT / "docs" / "figures"
GAP, TITLE, LEGEND = 26.0, 30.0, 22.0
"""Between panels; height of the title; height of one line of the legend."""


@dataclass(frozen=True)
class Panel:
    """A chart of a given size, what stands above it, and remarks in its upper right corner: words and their tone."""

    chart: Svg
    head: str = ""
    notes: Sequence[tuple[str, str]] = ()
    size: tuple[float, float] = (400.0, 260.0)


@dataclass(frozen=True)
class Key:
    """An entry of the legend: a line in a tone, dashed perhaps, or a filled square of a tone."""

    tone: str
    dash: str = ""
    filled: bool = False


def sheet(title: str, rows: Sequence[Sequence[Panel]], legend: Mapping[str, Key], style: str = "") -> str:
    """The text of an SVG file: title, legend, panels row by row. All panels of a sheet have one size."""
    panel_width, panel_height = rows[0][0].size
    width = max(len(row) for row in rows) * (panel_width + GAP) + GAP
    entries, lines = _legend(legend, width)
    top = TITLE + LEGEND * lines + 8
    parts = [element("text", title, x=GAP, y=20, class_="title"), entries]
    for number, row in enumerate(rows):
        y = top + number * (panel_height + GAP + 14) + 14
        for place, panel in enumerate(row):
            x = GAP + place * (panel_width + GAP)
            parts.append(element("text", panel.head, x=x + 2, y=y - 6, class_="head"))
            parts.append(element("svg", panel.chart, x=x, y=y, width=panel_width, height=panel_height))
            parts += [
                element(
                    "text",
                    words,
                    x=x + panel_width - 14,
                    y=y + 48 + 16 * line,
                    text_anchor="end",
                    class_=f"halo t-{tone}",
                )
                for line, (words, tone) in enumerate(panel.notes)
            ]
    height = top + len(rows) * (panel_height + GAP + 14)
    rules = f"{STYLE}.title{{font-size:15px;font-weight:600}}.head{{font-weight:600}}{style}"
    ground = element("rect", width=width, height=height, fill="#fff")
    whole = element(
        "svg",
        element("title", title),
        element("style", Svg(rules)),
        ground,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
    )
    return f"{whole}\n"


def _legend(legend: Mapping[str, Key], width: float) -> tuple[Svg, int]:
    """The entries side by side, on as many lines as they need."""
    parts, x, line = list[Svg](), GAP, 0
    for words, key in legend.items():
        needed = 34 + CHARACTER * len(words) + 22
        if x > GAP and x + needed > width:
            x, line = GAP, line + 1
        y = TITLE + LEGEND * line + 10
        if key.filled:
            parts.append(element("rect", x=x + 8, y=y - 7, width=14, height=14, class_=f"f-{key.tone}"))
        else:
            parts.append(
                element("line", x1=x, x2=x + 26, y1=y, y2=y, class_=f"line s-{key.tone}", stroke_dasharray=key.dash)
            )
        parts.append(element("text", words, x=x + 32, y=y + 4))
        x += needed
    return group(parts), line + 1 if legend else 0


def write_figure(name: str, text: str, folder: Path = FIGURES) -> Path:
    """FOLDER/NAME.svg."""
    path = folder / f"{name}.svg"
    write_text(path, text)
    return path
