"""Where data files are looked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from autodual._errors import ArgumentError
from autodual.train.data.known import KnownData


def data_folder(folder: Path | str | None = None) -> Path:
    """The folder that holds all data: the given one, else $AUTODUAL_DATA, else ~/.cache/autodual."""
    return expanded(folder or os.environ.get("AUTODUAL_DATA") or "~/.cache/autodual")


def find_file(data: KnownData, name: str, folder: Path | str | None = None) -> Path | None:
    """The file or its .gz, in the data set's own sub-folder or in the data folder itself; None where there is neither."""
    root = data_folder(folder)
    for place in (root / data.folder, root):
        for path in (place / name, place / f"{name}.gz"):
            if is_file(path):
                return path
    return None


def find_files(data: KnownData, names: Iterable[str], folder: Path | str | None = None) -> list[Path]:
    """All of these files; the first that is missing is named."""
    found = []
    for name in names:
        path = find_file(data, name, folder)
        if path is None:
            root = data_folder(folder)
            raise ArgumentError(
                f"{data.name}: {name} is neither in {root / data.folder} nor in {root}; run `autodual data fetch {data.name}`, "
                "or name the folder that holds the data in AUTODUAL_DATA"
            )
        found.append(path)
    return found


def expanded(path: Path | str) -> Path:
    """With the home folder in place of ~."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ArgumentError(f"{path}: there is no such home folder; write the path without ~") from error


def is_file(path: Path) -> bool:
    with reading(path):
        return path.is_file()


def is_folder(path: Path) -> bool:
    with reading(path):
        return path.is_dir()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system says against it, in words."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(
            f"{path}: cannot be read ({error.strerror or error}); check its name, and the permissions of it and its folder"
        ) from error
