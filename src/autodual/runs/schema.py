"""Records as JSON and back: a frozen dataclass says once which entries a record has, and of which types.

A float takes whole numbers, too, and a tuple is a list on disk. A field with a default may be missing from a file. One declared with
`optional()` is not written where it is None. The entries of one declared with `flat()` stand among those of its owner. Entries that a
dataclass does not know are passed over, or refused by `exactly`.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from autodual._errors import ArgumentError
from autodual._files import RECORD_LIMIT, parse_json, read_content

R = TypeVar("R")


def optional() -> Any:
    """A field that some records of its kind do not have, which is None then."""
    return field(default=None, metadata={"optional": True})


def flat(optional: bool = False) -> Any:
    """A record inside another one, whose entries stand among the other's in the file. If optional, it is None where none is there."""
    return field(default=None, metadata={"flat": True}) if optional else field(metadata={"flat": True})


def parse(kind: type[R], values: object, exactly: bool = False) -> R:
    """`values` as a record of this kind. ValueError: a clause that says what is wrong, such as "has 'x' as label"."""
    if not isinstance(values, dict):
        raise ValueError("holds no record")
    known = _entries(kind)  # type: ignore[arg-type]  # every class can be hashed
    missing = [name for name, (_, entry) in known.items() if name not in values and _is_needed(entry)]
    if missing or (exactly and values.keys() - known.keys()):
        raise ValueError(f"does not hold {', '.join(known)}, and nothing else" if exactly else f"lacks {missing[0]}")
    given = {name: _entry(name, hint, values[name]) for name, (hint, _) in known.items() if name in values}
    inner = {name: _inner(hint, values) for name, (hint, entry) in known.items() if entry.metadata.get("flat")}
    return kind(**given | inner)


def _inner(hint: Any, values: dict[str, Any]) -> Any:
    """The record of a flat field: of the kind that has most of its entries here; None where there is none of them."""
    kinds = [kind for kind in get_args(hint) or (hint,) if is_dataclass(kind)]
    there = {kind: len(values.keys() & _entries(kind).keys()) for kind in kinds}  # type: ignore[arg-type]  # see above
    best = max(kinds, key=lambda kind: there[kind])
    return None if there[best] == 0 and type(None) in get_args(hint) else parse(best, values)  # type: ignore[arg-type]


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON holds it, its entries in the order of the fields."""
    found: dict[str, Any] = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if entry.metadata.get("flat"):
            found |= {} if value is None else plain(value)
        elif value is not None or not entry.metadata.get("optional"):
            found[entry.name] = _plain(value)
    return found


def entry_names(kind: type) -> tuple[str, ...]:
    return tuple(_entries(kind))


def _is_needed(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING and not entry.metadata.get("flat")


@cache
def _entries(kind: type) -> dict[str, tuple[Any, Field[Any]]]:
    hints = get_type_hints(kind)
    return {entry.name: (hints[entry.name], entry) for entry in fields(kind)}


def _entry(name: str, hint: Any, value: object) -> Any:
    try:
        return _fitted(hint, value)
    except ValueError:
        text = repr(value)
        raise ValueError(f"has {text if len(text) <= 200 else f'{text[:200]}...'} as {name}") from None


def _fitted(hint: Any, value: Any) -> Any:
    """The value as the type hint has it. ValueError if it is of another type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for choice in inner:
            try:
                return _fitted(choice, value)
            except ValueError:
                continue
    elif is_dataclass(hint):
        return parse(hint, value)  # type: ignore[arg-type]  # a class, as a hint
    elif origin is tuple and isinstance(value, list) and (inner[-1] is Ellipsis or len(inner) == len(value)):
        return tuple(_fitted(inner[0], each) for each in value)
    elif origin is dict and isinstance(value, dict):
        return {name: _fitted(inner[1], each) for name, each in value.items()}
    elif origin is Literal and isinstance(value, str) and value in inner:
        return value
    elif hint is float and type(value) in (int, float):
        return float(value)
    elif hint is Any or (origin is None and type(value) is hint):
        return value
    raise ValueError


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def read(kind: type[R], path: Path) -> R:
    """The record that a file holds. ArgumentError if it cannot be read, or is damaged."""
    content = read_content(path, RECORD_LIMIT)
    try:
        return parse(kind, parse_json(content))
    except ValueError:
        raise damaged(path) from None


def read_if_sound(kind: type[R], path: Path) -> R | None:
    """The record that a file holds; None where there is none, or where it cannot be read."""
    try:
        return read(kind, path)
    except ArgumentError:
        return None


def damaged(path: Path) -> ArgumentError:
    """What to say of a file that can be made anew."""
    return ArgumentError(f"{path}: is damaged; remove it, and it will be made anew")
