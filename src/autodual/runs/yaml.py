"""YAML files of any origin: read safely, refused in one line. PyYAML is imported when it is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from autodual._errors import ArgumentError
from autodual._files import read_content

CONFIG_LIMIT = 100_000
"""Bytes of a config; those of published runs have about 1,000."""
YAML_DEPTH = 8
"""Levels of a config; a clip is on the second."""


def read_yaml(path: Path) -> Any:
    """What a config file of any origin says; a name that it gives twice is refused, since only one of the two can be meant."""
    yaml, content = _yaml(), read_content(path, CONFIG_LIMIT)
    try:
        text = content.decode("utf-8")
        _check_yaml(yaml, text, path)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
    except ArgumentError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist
        raise ArgumentError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    except (
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ):  # a value that its tag does not fit
        raise ArgumentError(f"{path}: is not YAML: a value in it has the wrong type, or is too large") from None
    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            where = f"line {line}" if lines[name] == line else f"lines {lines[name]} and {line}"
            raise ArgumentError(f"{path}: {name} is given twice, in {where}; keep one")
        lines[name] = line
    return values


def _check_yaml(yaml: Any, text: str, path: Path) -> None:
    """Refuse what takes forever to build: values inside values inside values, names for whole lists, and endless numbers."""
    depth, names = 0, set()
    for event in yaml.parse(text, yaml.SafeLoader):
        where = f"{path}: line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > YAML_DEPTH:
                raise ArgumentError(
                    f"{where} puts values inside one another {depth} levels deep; a config is a list of options"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            names |= {event.anchor} - {None}
            if len(event.value) > (64 if re.fullmatch(r"[-+\da-fA-FxXo_:.]+", event.value) else 4096):
                raise ArgumentError(f"{where} has a value of {len(event.value):,} letters; no option is that long")
        elif isinstance(event, yaml.AliasEvent) and event.anchor not in names:
            raise ArgumentError(f"{where} repeats *{event.anchor}, which is no single value; write it out")


def dump_yaml(values: dict[str, Any]) -> str:
    return str(_yaml().safe_dump(values, sort_keys=False))


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ArgumentError("configs are YAML, which needs pyyaml: pip install 'autodual[cli]'") from None
    return yaml
