"""Tables and figures as Markdown and as one HTML page.

Nothing here depends on the time or the machine: equal records make equal files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from autodual._files import write_text
from autodual.report.blocks import Block, Figure, Figures, Section, Table, Text
from autodual.report.page import render_sections
from autodual.report.verdicts import rates_chart
from autodual.reproduce.campaign import Campaign
from autodual.reproduce.figures import Drawing, draw_figures
from autodual.reproduce.tables import ResultTable, build_tables

TITLE = "Results"
SUBTITLE = "the rows of Wong, Schmidt, Metzen and Kolter (2018), reproduced"

INTRODUCTION = (
    "`autodual reproduce tables` builds this page from the records in `results/`; do not edit it.",
    "All figures are per cent of the 10,000 test images unless they say otherwise. The paper chose its networks by their test error, "
    "so its figures are optimistic. Ours are of the last epoch, or of the best one on held-out training images where the table of "
    "engines says so; test images were used once, at the end. Recipe paper: the paper's settings with our estimator. Recipe best: the "
    "same network and eps, trained as well as we can. [Reproduce](reproduce.md) says how to run a row.",
)


def to_markdown(tables: Sequence[ResultTable], pictures: Sequence[Drawing] = ()) -> str:
    """Tables as Markdown. Pictures that were drawn are shown from `figures/`, where `autodual reproduce figures` puts them."""
    parts = [f"# {TITLE}", *map(_wrapped, INTRODUCTION)]
    for table in tables:
        lines = ["| " + " | ".join(cells) + " |" for cells in (table.header, *table.rows)]
        rule = "|" + "|".join("---" if name in table.words else "---:" for name in table.header) + "|"
        parts += [f"## {table.title}", *map(_wrapped, table.text)]
        parts += ["\n".join([lines[0], rule, *lines[1:]]) if table.rows else "No row has run yet."]
    drawn = [picture for picture in pictures if picture.chart is not None]
    parts += ["## Figures"] if drawn else []
    parts += [f"![{picture.title}](figures/{picture.name}.svg)\n\n{picture.title}." for picture in drawn]
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def to_page(tables: Sequence[ResultTable], pictures: Sequence[Drawing] = ()) -> str:
    """One self-contained HTML page, with a chart of what is attacked, unknown and proved where rows have run."""
    about = [Text(text.partition(" [")[0].replace("`", "")) for text in INTRODUCTION]
    sections = [Section("about", "How to read this page", about)]
    for table in tables:
        blocks: list[Block] = [Text(text.replace("`", "")) for text in table.text]
        blocks.append(Table(table.header, table.rows, table.words) if table.rows else Text("No row has run yet."))
        if table.shown:
            blocks.append(rates_chart(table.title, table.shown))
        sections.append(Section(table.key, table.title, blocks))
    drawn = [Figure(picture.title, picture.chart) for picture in pictures if picture.chart is not None]
    if drawn:
        sections.append(Section("pictures", "Figures", [Figures(drawn)]))
    return render_sections(TITLE, SUBTITLE, sections)


def write_tables(campaign: Campaign, markdown: Path, page: Path) -> None:
    tables, pictures = build_tables(campaign), draw_figures(campaign)
    write_text(markdown, to_markdown(tables, pictures))
    write_text(page, to_page(tables, pictures))
