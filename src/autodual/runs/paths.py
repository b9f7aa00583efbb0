"""How kept files name other files and the command that made them: without places of this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

NAMED = ("model", "dataset")
"""Options that may name a file: file.py:factory, and of data a folder or a file.npz, too."""


def to_folder(option: str, text: str, folder: Path) -> str:
    """An option's value for a kept file in `folder`: a path is rewritten relative to `folder`, anything else stays."""
    file, rest = _parts(option, text)
    return text if file is None else f"{relative(file, folder)}{rest}"


def from_folder(option: str, text: str, folder: Path) -> str:
    """The value that `to_folder` wrote, with a path that holds from anywhere. A path that does not exist stays as it is."""
    file, rest = _parts(option, text, folder)
    place = None if file is None else folder.resolve() / file
    return f"{os.path.normpath(place)}{rest}" if place is not None and place.exists() else text


def resolved(option: str, text: str) -> str:
    """The value with the whole path of the file that it names, if it names one."""
    file, rest = _parts(option, text)
    return text if file is None else f"{file.resolve()}{rest}"


def relative(path: Path, folder: Path) -> str:
    """The path as seen from `folder`, with slashes; the whole path where none leads there, as between drives of Windows."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:
        return str(path)


def _parts(option: str, text: str, folder: Path = Path()) -> tuple[Path | None, str]:
    """The file that is named, if one is, and what follows it."""
    from autodual.data import is_factory
    from autodual.data.known import KNOWN

    try:
        if is_factory(text):
            file, _, name = text.rpartition(":")
            return Path(file).expanduser(), f":{name}"
        if option == "dataset" and text not in KNOWN and (folder / Path(text).expanduser()).exists():
            return Path(text).expanduser(), ""
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # no such home, or no name that a file could have; whoever opens it says so
        pass
    return None, ""


def recorded_command(arguments: Sequence[str]) -> str:
    """The command without places of this machine: paths below the working folder are relative to it, those below the user's folder
    begin with ~, and of any other only the last part is kept, as in .../NAME."""
    program = Path(arguments[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return " ".join([shlex.quote(name or "python"), *map(without_place, arguments[1:])])


def without_place(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    if flag.startswith("-") and equals:
        return f"{shlex.quote(flag)}={without_place(value)}"
    path = Path(argument)
    if not path.is_absolute():
        return shlex.quote(argument)
    for place, short in ((Path(os.path.curdir).absolute(), ""), (Path(os.path.expanduser("~")), "~/")):
        if place != Path(place.anchor) and path.is_relative_to(place):
            return f"{short}{shlex.quote(str(path.relative_to(place)))}"
    return f".../{shlex.quote(path.name)}"
