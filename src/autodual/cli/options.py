"""Command-line options from a record's fields: types, names and help are written once, in the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from autodual.train.config import TrainConfig

TARGET = ("dataset", "data_folder", "model", "normalise", "norm", "eps", "clip", "device")
"""What `certify` and `attack` may change about a run, or must know about bare weights."""


def with_config_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a parameter `changes` gets these fields of `TrainConfig` as options, or all; those given arrive there by name."""
    chosen = [f for f in fields(TrainConfig) if not names or f.name in names]
    hints = get_type_hints(TrainConfig)
    extra = [_parameter(f.name, hints[f.name], f.default if not names else None, f.metadata["help"]) for f in chosen]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**arguments: Any) -> None:
            changes = {f.name: arguments.pop(f.name) for f in chosen}
            command(**arguments, changes={k: v for k, v in changes.items() if v is not None})

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


def _parameter(name: str, hint: Any, default: Any, text: str) -> inspect.Parameter:
    shown = "" if default is None else f" [default: {default}]"
    flag = f"--{name.replace('_', '-')}"
    names = (flag,) if hint is not bool else (f"{flag}/--no-{flag[2:]}",)
    option = typer.Option(*names, help=text + shown, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint | None, option]
    )
