"""Command-line options from a record's fields: types, names and help are written once, in the record."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, get_args, get_type_hints

import typer

from autodual._errors import ArgumentError
from autodual.train.config import TrainConfig
from autodual.train.group import speaks

TARGET = ("dataset", "data_folder", "model", "normalise", "norm", "eps", "clip", "device")
"""What `certify` and `attack` may change about a run, or must know about bare weights."""

DROPPED = (
    "is dropped: only l-infinity balls are clipped. A ball that is not clipped holds more, so what is proved for it is proved "
    "for the clipped one, too."
)


def with_config_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a parameter `changes` gets these fields of `TrainConfig` as options, or all; those given arrive there by name.

    A field that may be None has a second option, --no-FIELD, which says so: a config may have set it.
    """
    chosen = [f for f in fields(TrainConfig) if not names or f.name in names]
    hints = get_type_hints(TrainConfig)
    removable = [f.name for f in chosen if type(None) in get_args(hints[f.name])]
    extra = []
    for f in chosen:
        extra.append(_parameter(f.name, hints[f.name], f.default if not names else None, f.metadata["help"]))
        extra += [_removal(f.name)] if f.name in removable else []

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**arguments: Any) -> None:
            changes = {f.name: arguments.pop(f.name) for f in chosen}
            given = {k: v for k, v in changes.items() if v is not None}
            removed = [name for name in removable if arguments.pop(f"no_{name}")]
            for name in removed:
                if name in given:
                    raise ArgumentError(f"{_flag(name)} and --no-{_flag(name)[2:]} exclude each other")
            command(**arguments, changes=given | dict.fromkeys(removed))

        resolved = get_type_hints(command, include_extras=True)
        own = [
            p.replace(annotation=resolved[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for p in inspect.signature(command).parameters.values()
            if p.name != "changes"
        ]
        wrapped.__signature__ = inspect.Signature(own + extra)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in (*own, *extra)}
        wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
        return wrapped

    return decorate


def merged(before: Mapping[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Options as they were, and those of the command line over them. A clip that came with another norm is dropped, aloud."""
    options = {**before, **changes}
    clip = options.get("clip")
    if clip is None or "clip" in changes or changes.get("norm", "linf") == "linf":
        return options
    if speaks():
        print(f"note: clip {clip} {DROPPED}", file=sys.stderr)
    return options | {"clip": None}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _removal(name: str) -> inspect.Parameter:
    """--no-NAME"""
    option = typer.Option(f"--no-{_flag(name)[2:]}", help=f"unset {_flag(name)}, whatever the config says")
    return inspect.Parameter(
        f"no_{name}", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )


def _parameter(name: str, hint: Any, default: Any, text: str) -> inspect.Parameter:
    shown = "" if default is None else f" [default: {default}]"
    flag = _flag(name)
    names = flag if hint is not bool else f"{flag}/--no-{flag[2:]}"
    option = typer.Option(names, help=text + shown, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint | None, option]
    )
