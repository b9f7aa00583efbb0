"""What scripts rely on: the version, and with --json one JSON object on standard output, and all else on standard error."""

from __future__ import annotations

import contextlib
import inspect
import json as json_format
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from autodual.cli.terminal import speaks

JSON = "--json"
Option = Annotated[bool, typer.Option(JSON, help="print one JSON object, and all else on standard error")]


def _print_version(asked: bool) -> None:
    if asked:
        from autodual._version import __version__

        print(f"autodual {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version, and end")
]


def autodual(version: Version = False) -> None:
    """Neural networks whose robustness is proved: train, certify, attack, look, and measure."""


_said: dict[str, Any] = {}
"""What the command that runs has answered so far."""


def answer(**values: Any) -> None:
    """Adds fields to the object of the command that runs. Records are given as `plain` makes them."""
    _said.update(values)


def asked_for(arguments: Sequence[str]) -> bool:
    """Whether a script reads the output. The arguments may not have been parsed: a mistake among them is told as an object, too."""
    options = [*arguments, "--"]
    return JSON in options[: options.index("--")]


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option --json. One that has such an option stays as it is."""
    signature = inspect.signature(command)
    if "json" in signature.parameters:
        return command
    hints = get_type_hints(command, include_extras=True)
    own = [
        each.replace(annotation=hints.get(each.name, each.annotation), kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
    ]
    extra = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Option)

    def wrapped(*, json: bool, **arguments: Any) -> None:
        _said.clear()
        with _as_json() if json else contextlib.nullcontext():
            command(**arguments)

    wrapped.__signature__ = inspect.Signature([*own, extra])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in (*own, extra)}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


@contextmanager
def _as_json() -> Iterator[None]:
    """What is printed goes to standard error, and the object to standard output at the end. After a failure, `main` writes it."""
    ended: typer.Exit | None = None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except typer.Exit as end:
            ended = end
    write_answer()
    if ended is not None:
        raise ended


def write_answer(error: str | None = None) -> None:
    """Prints the object: what the command has answered, and why it failed, if it has. Of several processes, the first one does."""
    if speaks():
        found = _said if error is None else {**_said, "error": error}
        print(json_format.dumps(_standard(found), indent=1, allow_nan=False), flush=True)


def _standard(value: Any) -> Any:
    """JSON has no NaN and no infinity: both are null. Paths are text."""
    if isinstance(value, dict):
        return {str(name): _standard(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
