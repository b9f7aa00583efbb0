"""Records as JSON and back: a frozen dataclass says once which entries a record has, and of which types.

A float takes whole numbers, too, and a tuple is a list on disk. A field with a default may be missing from a file. One declared with
`optional()` is not written where it is None. The entries of one declared with `flat()` stand among those of its owner. Entries that a
dataclass does not know are passed over, or refused by `exactly`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, partial
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
    known, given = _entries(kind), dict[str, Any]()  # type: ignore[arg-type]  # every class can be hashed
    missing = [name for name, entry in known.items() if entry.needed and name not in values]
    if missing or (exactly and not values.keys() <= known.keys()):
        raise ValueError(f"does not hold {', '.join(known)}, and nothing else" if exactly else f"lacks {missing[0]}")
    for name, entry in known.items():
        if entry.flat:
            given[name] = _inner(entry.hint, values)
        elif name in values:
            try:
                given[name] = entry.read(values[name])
            except ValueError:
                text = repr(values[name])
                raise ValueError(f"has {text if len(text) <= 200 else f'{text[:200]}...'} as {name}") from None
    return kind(**given)


def _inner(hint: Any, values: dict[str, Any]) -> Any:
    """The record of a flat field: of the kind that has most of its entries here; None where there is none of them."""
    kinds = [kind for kind in get_args(hint) or (hint,) if is_dataclass(kind)]
    there = {kind: len(values.keys() & _entries(kind).keys()) for kind in kinds}  # type: ignore[arg-type]  # see above
    best = max(kinds, key=lambda kind: there[kind])
    return None if there[best] == 0 and type(None) in get_args(hint) else parse(best, values)  # type: ignore[arg-type]


def entry_names(kind: type) -> tuple[str, ...]:
    return tuple(_entries(kind))


Read = Callable[[Any], Any]
"""JSON -> the value of a field. ValueError if it is of another type."""


@dataclass(frozen=True)
class _Entry:
    hint: Any
    read: Read
    needed: bool
    flat: bool


@cache
def _entries(kind: type) -> dict[str, _Entry]:
    hints = get_type_hints(kind)
    return {f.name: _described(f, hints[f.name]) for f in fields(kind)}


def _described(entry: Field[Any], hint: Any) -> _Entry:
    is_flat = bool(entry.metadata.get("flat"))
    needed = entry.default is MISSING and entry.default_factory is MISSING and not is_flat
    return _Entry(hint, _reader(hint), needed, is_flat)


@cache
def _reader(hint: Any) -> Read:
    """How values of this type are read; made once for each type, since files may have many lines."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return partial(
            _first_that_fits, [_reader(choice) for choice in inner if choice is not type(None)], type(None) in inner
        )
    if is_dataclass(hint):
        return partial(parse, hint)  # type: ignore[arg-type]  # a class, as a hint
    if origin is tuple:
        return partial(_tuple, _reader(inner[0]), None if inner[-1] is Ellipsis else len(inner))
    if origin is dict:
        return partial(_dict, _reader(inner[1]))
    if origin is Literal:
        return partial(_one_of, inner)
    return partial(_plain_value, hint)


def _first_that_fits(choices: list[Read], may_be_none: bool, value: Any) -> Any:
    if value is None and may_be_none:
        return None
    for read_choice in choices:
        try:
            return read_choice(value)
        except ValueError:
            continue
    raise ValueError


def _tuple(read_each: Read, size: int | None, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or size not in (None, len(value)):
        raise ValueError
    return tuple(map(read_each, value))


def _dict(read_each: Read, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return {name: read_each(each) for name, each in value.items()}


def _one_of(choices: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError
    return value


def _plain_value(kind: Any, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise ValueError
    return value


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
