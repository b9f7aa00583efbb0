"""Command-line options from a record's fields: types, names and help are written once, in the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from autodual.train.config import TrainConfig


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `changes` gets every field of `TrainConfig` as an option; those given arrive there by name."""
    own = inspect.signature(command)
    hints = get_type_hints(TrainConfig)
    extra = [_parameter(f.name, hints[f.name], f.default, f.metadata["help"]) for f in fields(TrainConfig)]

    def wrapped(**arguments: Any) -> None:
        changes = {f.name: arguments.pop(f.name) for f in fields(TrainConfig)}
        command(**arguments, changes={k: v for k, v in changes.items() if v is not None})

    kept = [p for p in own.parameters.values() if p.name != "changes"]
    resolved = get_type_hints(command, include_extras=True)
    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=resolved[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in kept] + extra
    )
    wrapped.__annotations__ = {p.name: p.annotation for p in wrapped.__signature__.parameters.values()}  # type: ignore[attr-defined]
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


def _parameter(name: str, hint: Any, default: Any, text: str) -> inspect.Parameter:
    shown = "" if default is None else f" [default: {default}]"
    flag = f"--{name.replace('_', '-')}"
    names = (flag,) if hint is not bool else (f"{flag}/--no-{flag[2:]}",)
    option = typer.Option(*names, help=text + shown, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint | None, option]
    )
