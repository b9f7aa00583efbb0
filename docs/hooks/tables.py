"""Writes the tables of options from the code that reads them, while the site is built: they cannot be out of date.

A page has `<!-- table: train-config -->` or `<!-- table: commands -->` where a table is to stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from html import escape
from typing import Any, get_type_hints

PLACE = re.compile(r"<!-- table: ([\w-]+) -->")


def on_page_markdown(markdown: str, **_: object) -> str:
    return PLACE.sub(lambda place: "\n".join(TABLES[place[1]]()), markdown)


def train_config() -> Iterator[str]:
    """One row for each field of TrainConfig: name and type, default, meaning."""
    from autodual.runs.config import TrainConfig

    hints = get_type_hints(TrainConfig)
    yield from ("| field | default | meaning | type |", "|---|---|---|---|")
    for each in fields(TrainConfig):
        meaning, kind = _cell(each.metadata["help"]), _code(_type(hints[each.name]))
        yield f"| `{each.name}` | {_code(_short(each.default))} | {meaning} | {kind} |"


def _type(hint: Any) -> str:
    shown = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    choices = re.sub(r"typing\.Literal\[(.*)\]", lambda found: found[1].replace(", ", " | "), shown)
    return choices.replace("'", '"')


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def commands() -> Iterator[str]:
    """Every command with its usage, its arguments and its options, read from the parser."""
    import typer

    from autodual.cli.app import command_line

    yield from _command(typer.main.get_command(command_line()), "autodual")


def _command(command: Any, name: str, parent: Any = None) -> Iterator[str]:
    context = command.context_class(command, info_name=name, parent=parent)
    if parent is not None:
        yield from ("", f"{'##' if name.count(' ') == 1 else '###'} {name}", "", *_paragraphs(command.help or ""))
        yield from _rows([each.get_help_record(context) for each in command.get_params(context) if each.name != "help"])
    for key, each in getattr(command, "commands", {}).items():
        yield from _command(each, f"{name} {key}", context)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def _rows(records: list[tuple[str, str] | None]) -> Iterator[str]:
    shown = [record for record in records if record is not None]
    if shown:
        yield from ("| argument or option | meaning | default |", "|---|---|---|")
    for names, text in shown:
        yield f"| {_code(names.replace(' range>', '>'))} | {_cell(DEFAULT.sub('', text))} | {_default(text)} |"


DEFAULT = re.compile(r"\s*\[default: ([^];]*)(?:;[^]]*)?\]")


def _default(text: str) -> str:
    said = DEFAULT.search(text)
    return _code(said[1]) if said and said[1] != "False" else ""


def _code(text: str) -> str:
    """As code in a cell, where a bar would end the cell."""
    return f"<code>{escape(text, quote=False)}</code>".replace("|", "&#124;") if text else ""


def _cell(text: str) -> str:
    return escape(" ".join(text.split()), quote=False).replace("|", "&#124;")


TABLES = {"train-config": train_config, "commands": commands}
