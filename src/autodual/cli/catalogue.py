"""autodual models; autodual data list | fetch | verify"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodual._errors import ArgumentError
from autodual.cli.options import DATASETS, dataset_names, model_names
from autodual.cli.terminal import answer, print_table, speaks

if TYPE_CHECKING:
    from autodual.data import CatalogueEntry

# Data sets.

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
    print_table([("name", "training + test", "shape", "classes", "where"), *map(_data_row, found)])


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


def _data_row(entry: CatalogueEntry) -> tuple[str, ...]:
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


# Networks.

SHOWN = ("small", "large", "resnet", "wide:1", "wide:8", "deep:1", "deep:3", "cnn5", "cnn7", "digits")
USUAL = {
    "small": ("mnist", "cifar10"),
    "large": ("mnist", "cifar10"),
    "resnet": ("cifar10",),
    "wide": ("mnist",),
    "deep": ("mnist",),
    "cnn5": ("mnist", "cifar10"),
    "cnn7": ("mnist", "cifar10"),
    "digits": ("digits",),
}
"""The data that a family of networks is meant for."""


@dataclass(frozen=True)
class ModelSize:
    """An architecture at the shape of one data set."""

    name: str
    dataset: str
    shape: tuple[int, ...]
    classes: int
    parameters: int
    hidden_units: int
    """Values that pass through an activation."""


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="small, large, resnet, wide:K, deep:K, cnn5, cnn7, digits, or file.py:factory; all but the last when not given",
            show_default=False,
            autocompletion=model_names,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help=f"images to size them for: {', '.join(DATASETS)}; those of the paper when not given",
            autocompletion=dataset_names,
        ),
    ] = None,
) -> None:
    """The architectures that --model can name, with parameters, hidden units and shapes."""
    if not speaks():
        return
    if dataset is not None and dataset not in DATASETS:
        raise ArgumentError(f"--dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
    asked = names or [name for name in SHOWN if name != "digits" or dataset in (None, "digits")]
    found = [_size(name, data) for name in asked for data in ([dataset] if dataset else _usual(name))]
    answer(models=[asdict(each) for each in found])
    head = ("model", "for", "input", "classes", "parameters", "hidden units")
    print_table([head, *map(_size_row, found)])


def _usual(name: str) -> tuple[str, ...]:
    if name.rpartition(":")[0].endswith(".py"):
        raise ArgumentError(f"{name}: say with --dataset which images it is for: {', '.join(DATASETS)}")
    return USUAL.get(name.partition(":")[0], ("mnist",))  # a name that nobody knows is refused with the nearest one


def _size(name: str, dataset: str) -> ModelSize:
    import torch

    from autodual.data.known import known
    from autodual.engines.prepare import dual_network
    from autodual.training.setup import make_model

    data = known(dataset)
    with torch.random.fork_rng(devices=[]):
        model = make_model(name, data.shape, len(data.classes)).eval()
    network = dual_network(model, torch.zeros(1, *data.shape))
    hidden = sum(math.prod(network.nodes[index].shape) for index in network.activations)
    parameters = sum(each.numel() for each in model.parameters())
    return ModelSize(name, dataset, tuple(data.shape), len(data.classes), parameters, hidden)


def _size_row(size: ModelSize) -> tuple[str, ...]:
    shape = "x".join(map(str, size.shape))
    return size.name, size.dataset, shape, str(size.classes), f"{size.parameters:,}", f"{size.hidden_units:,}"
