"""autodual data list | fetch | verify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodual._errors import ArgumentError
from autodual.cli.answers import answer
from autodual.cli.completion import dataset_names
from autodual.cli.terminal import print_table, speaks

if TYPE_CHECKING:
    from autodual.data import CatalogueEntry

app = typer.Typer(help="Data sets: what there is, fetch one, check one.", no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[
    Path | None, typer.Option("--folder", help="where data sets lie; $AUTODUAL_DATA or the user's cache")
]
SHIPPED = "comes with the package"
Name = Annotated[str, typer.Argument(help="a name that `autodual data list` shows", autocompletion=dataset_names)]


@app.callback()
def _once() -> None:
    """Lets the first of several processes do it alone."""
    if not speaks():
        raise typer.Exit


@app.command("list")
def list_(folder: Folder = None) -> None:
    """All data sets that are known by name."""
    from autodual.data import catalogue

    found = catalogue(folder)
    answer(datasets=[_fields(entry) for entry in found])
    print_table([("name", "training + test", "shape", "classes", "where"), *map(_row, found)])


@app.command()
def fetch(name: Name, folder: Folder = None) -> None:
    """Download a data set, check it, and put it in its place."""
    from autodual.data import fetch as fetch_data

    found = fetch_data(name, folder)
    answer(name=name, path=None if _is_shipped(name) else str(found))
    print(f"{name}: {SHIPPED}, nothing is to be fetched" if _is_shipped(name) else found)


@app.command()
def verify(name: Name, folder: Folder = None) -> None:
    """Check the files of a data set against their digests."""
    from autodual.data import verify as verify_data

    found = verify_data(name, folder)
    states = {str(check.path or check.name): check.state.value.partition(":")[0] for check in found}
    answer(name=name, files=states)
    for file, state in states.items():
        print(f"{file}: {state}")
    if _is_shipped(name):
        print(f"{name}: {SHIPPED}, there are no files to check")
    if not all(check.ok for check in found):
        raise ArgumentError(
            f"{name}: {sum(not check.ok for check in found)} of {len(found)} files are not as published; get them with "
            f"`autodual data fetch {name}`"
        )


def _fields(entry: CatalogueEntry) -> dict[str, Any]:
    data, here = entry.data, None if entry.folder is None else str(entry.folder)
    return {
        "name": data.name, "train": data.train, "test": data.test, "shape": data.shape, "classes": data.classes,
        "present": entry.present, "folder": here, "bytes": data.size,
    }  # fmt: skip


def _row(entry: CatalogueEntry) -> tuple[str, ...]:
    data = entry.data
    shape = "x".join(map(str, data.shape))
    return data.name, f"{data.train} + {data.test}", shape, str(len(data.classes)), _where(entry)


def _where(entry: CatalogueEntry) -> str:
    if entry.folder is None:
        return SHIPPED
    if not entry.present:
        return f"not here; `autodual data fetch {entry.data.name}` gets {entry.data.size / 1e6:.0f} MB"
    return str(entry.folder if entry.folder.is_dir() else entry.folder.parent)


def _is_shipped(name: str) -> bool:
    from autodual.data import catalogue

    return any(entry.data.name == name and entry.folder is None for entry in catalogue())
