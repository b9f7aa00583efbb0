"""How kept files name other files: relative to themselves, so that they say nothing of a machine and move with their project."""

from __future__ import annotations

import os
from pathlib import Path

from autodual.train.data import is_factory


def to_folder(text: str, folder: Path) -> str:
    """The file of `file.py:factory`, which is meant from where one stands, as seen from `folder`; other text as it is."""
    if not is_factory(text):
        return text
    file, _, name = text.rpartition(":")
    return f"{relative(Path(file).expanduser(), folder)}:{name}"


def from_folder(text: str, folder: Path) -> str:
    """What `to_folder` has written, as seen from anywhere. A file that is not there was written before, from where one stood."""
    if not is_factory(text):
        return text
    file, _, name = text.rpartition(":")
    place = folder.resolve() / file
    return f"{os.path.normpath(place)}:{name}" if place.is_file() else text


def resolved(text: str) -> str:
    """`file.py:factory` with the whole path of the file that it means from where one stands; other text as it is."""
    if not is_factory(text):
        return text
    file, _, name = text.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}"


def relative(path: Path, folder: Path) -> str:
    """With slashes; whole where there is no way from one to the other, as between drives of Windows."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:
        return str(path)
