"""Writes the tables of options from the code that reads them, while the site is built: they cannot be out of date.

A page has `<!-- table: train-config -->`, `<!-- table: commands -->` or `<!-- table: operations -->` where a table is to stand.
`python docs/hooks/tables.py` writes the paragraph about operations in README.md anew, which a test compares with the registry.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from html import escape
from pathlib import Path
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


# Operations of PyTorch that the registry knows.

KINDS = {
    "activation": "activations", "batchnorm": "normalisation", "normalization": "normalisation", "instancenorm": "normalisation",
    "conv": "convolutions", "dropout": "dropout", "flatten": "shapes", "padding": "padding", "pixelshuffle": "shapes",
    "pooling": "pooling", "upsampling": "upsampling", "linear": "linear",
}  # fmt: skip
"""Words for the files of torch.nn.modules; one that is not here gives its own name."""
OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@", "neg": "-x", "pos": "+x", "abs": "abs(x)", "getitem": "x[...]",
    "pow": "**",
}  # fmt: skip
"""How operators look; one that is not here, such as `iadd` for +=, gives no name of its own."""


def known_modules() -> dict[str, list[str]]:
    """Names of registered modules of PyTorch, by kind, both in alphabetical order."""
    found: dict[str, list[str]] = {}
    for each in _registered():
        if isinstance(each, type) and each.__module__.startswith("torch.nn.modules."):
            file = each.__module__.rpartition(".")[2]
            found.setdefault(KINDS.get(file, file), []).append(each.__name__)
    return {kind: sorted(found[kind], key=str.lower) for kind in sorted(found)}


def known_functions() -> dict[str, list[str]]:
    """Names of registered functions, methods and operators, by where a user finds them. Where there is `relu`, `relu_` goes without
    saying."""
    import operator

    import torch

    registered = {each for each in _registered() if not isinstance(each, type)}
    found = {}
    for prefix, place in {"torch": torch, "torch.nn.functional": torch.nn.functional, "Tensor": torch.Tensor}.items():
        names = {name for name in dir(place) if not name.startswith("_") and _is_one_of(place, name, registered)}
        names -= {"dsmm", "spmm"}  # other names of mm, for sparse tensors, which are refused
        found[prefix] = sorted(name for name in names if name.removesuffix("_") == name or name[:-1] not in names)
    found["operators"] = [sign for name, sign in OPERATORS.items() if getattr(operator, name) in registered]
    return found


def _registered() -> list[Any]:
    import autodual.dual
    from autodual.dual.base import REGISTRY

    assert autodual.dual.__doc__  # all families are imported
    return [*dict.fromkeys([*REGISTRY.builders, *REGISTRY.rewrites])]


def _is_one_of(place: Any, name: str, registered: set[Any]) -> bool:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that PyTorch is about to give up
        found = getattr(place, name, None)
    try:
        return found in registered
    except TypeError:  # has no hash
        return False


def operations() -> Iterator[str]:
    """Two tables: modules by kind, and functions by where they are found."""
    yield from ("| modules | |", "|---|---|")
    for kind, names in known_modules().items():
        yield f"| {kind} | {', '.join(map(_code, names))} |"
    yield from ("", "| functions, methods, operators | |", "|---|---|")
    for place, names in known_functions().items():
        yield f"| {_code(place) if place != 'operators' else place} | {', '.join(map(_code, names))} |"


def short(names: list[str]) -> str:
    """Names with those that differ in their dimension alone as one: Conv1d/2d/3d."""
    found: dict[str, list[str]] = {}
    for name in names:
        stem = re.sub(r"[123]d$", "", name)
        found.setdefault(stem, []).append(name[len(stem) :])
    return ", ".join(stem + "/".join(ends) for stem, ends in found.items())


README = re.compile(r"(?<=<!-- operations, by docs/hooks/tables.py -->\n)[^<]*(?=<!-- end -->)")


def paragraph() -> str:
    """All modules, and how many functions there are beside them, in lines for README.md."""
    modules, functions = known_modules(), known_functions()
    several = len({name for place, names in functions.items() if place != "operators" for name in names})
    kinds = "; ".join(f"{kind}: {short(names)}" for kind, names in modules.items())
    text = (
        f"**Understood** are {sum(map(len, modules.values()))} modules of PyTorch ({kinds}), and the {several} functions and methods "
        f"that [Capture](docs/capture.md#what-is-understood) lists, with operators (`{'`, `'.join(functions['operators'])}`), in any "
        f"graph that they make. Anything else is refused by name, with advice; your own activation takes "
        f"[20 lines](docs/extending.md)."
    )
    return "\n".join(textwrap.wrap(text, 130, break_long_words=False, break_on_hyphens=False)) + "\n"


TABLES = {"train-config": train_config, "commands": commands, "operations": operations}

if __name__ == "__main__":
    page = Path(__file__).parents[2] / "README.md"
    page.write_text(README.sub(lambda _: paragraph(), page.read_text(encoding="utf-8")), encoding="utf-8")
