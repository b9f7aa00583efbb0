"""Where data files are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from autodual._errors import ArgumentError
from autodual.train.data.known import KnownData


def data_folder(folder: Path | str | None = None) -> Path:
    """The folder that holds all data: the given one, else $AUTODUAL_DATA, else ~/.cache/autodual."""
    return Path(folder or os.environ.get("AUTODUAL_DATA") or "~/.cache/autodual").expanduser()


def find_file(data: KnownData, name: str, folder: Path | str | None = None) -> Path | None:
    """The file or its .gz, in the data set's own sub-folder or in the data folder itself; None where there is neither."""
    root = data_folder(folder)
    for place in (root / data.folder, root):
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
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
