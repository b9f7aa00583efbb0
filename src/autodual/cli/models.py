"""autodual models"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from autodual._errors import ArgumentError
from autodual.cli.answers import answer
from autodual.cli.completion import DATASETS, dataset_names, model_names
from autodual.cli.terminal import print_table, speaks

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
class Size:
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
    print_table([head, *map(_row, found)])


def _usual(name: str) -> tuple[str, ...]:
    if name.rpartition(":")[0].endswith(".py"):
        raise ArgumentError(f"{name}: say with --dataset which images it is for: {', '.join(DATASETS)}")
    return USUAL.get(name.partition(":")[0], ("mnist",))  # a name that nobody knows is refused with the nearest one


def _size(name: str, dataset: str) -> Size:
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
    return Size(name, dataset, tuple(data.shape), len(data.classes), parameters, hidden)


def _row(size: Size) -> tuple[str, ...]:
    shape = "x".join(map(str, size.shape))
    return size.name, size.dataset, shape, str(size.classes), f"{size.parameters:,}", f"{size.hidden_units:,}"
