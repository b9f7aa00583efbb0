"""autodual data list | fetch | verify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autodual._errors import ArgumentError

app = typer.Typer(help="Data sets: what there is, fetch one, check one.", no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[
    Path | None, typer.Option("--folder", help="where data sets lie; $AUTODUAL_DATA or the user's cache")
]


@app.command("list")
def list_(folder: Folder = None) -> None:
    """All data sets that are known by name."""
    from autodual.train.data import catalogue

    for entry in catalogue(folder):
        print(entry)


@app.command()
def fetch(name: str, folder: Folder = None) -> None:
    """Download a data set, check it, and put it in its place."""
    from autodual.train.data import fetch as fetch_data

    print(fetch_data(name, folder))


@app.command()
def verify(name: str, folder: Folder = None) -> None:
    """Check the files of a data set against their digests."""
    from autodual.train.data import verify as verify_data

    found = verify_data(name, folder)
    for entry in found:
        print(entry)
    if not all(entry.ok for entry in found):
        raise ArgumentError(
            f"{name}: some files are missing or damaged; fetch them again with `autodual data fetch {name}`"
        )
