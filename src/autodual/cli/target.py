"""What `certify` and `attack` work on: a run folder, or weights with the model and data they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from autodual._errors import ArgumentError
from autodual.certify import Combination
from autodual.cli.options import checked
from autodual.sets import Perturbation
from autodual.train.checkpoint import load_model
from autodual.train.config import TrainConfig
from autodual.train.data import ImageData, load, mean_std
from autodual.train.fit import OWN
from autodual.train.group import own_device
from autodual.train.setup import make_ball, make_device, make_model
from autodual.train.trained import check_as_evaluated, trained_config, with_weights


@dataclass(frozen=True)
class Target:
    """A trained model in evaluation mode, test data on its device, and the perturbation."""

    config: TrainConfig
    own: TrainConfig
    """Of the run, before changes; the default options for bare weights."""
    model: nn.Module
    data: ImageData
    ball: Perturbation
    combination: Combination | None
    """Of a cascade run, with its own size of perturbation."""


def open_target(place: Path, limit: int | None, given: dict[str, Any]) -> Target:
    """`given`: options of `TrainConfig`; a run folder supplies the others, but the device is this machine's."""
    if place.is_dir():
        own = trained_config(place)
    elif place.is_file():
        own = TrainConfig()
    else:
        raise ArgumentError(
            f"{place}: {'is neither a file nor a folder' if place.exists() else 'no such file or folder'}"
        )
    config = checked(own.to_mapping() | {"device": "auto"}, given, str(place))
    _check_named(place, config, given)
    data = load(config.dataset, "test", None if config.data_folder is None else Path(config.data_folder))
    if limit is not None:
        data = data.take(limit)
    # The weights hold the values that they were trained with; these only have their shape.
    trained_on = own.dataset if place.is_dir() else config.dataset
    statistics = mean_std(trained_on, data) if config.normalise else None
    device = own_device(make_device(config.device))

    def build(stage: int) -> nn.Module:
        return make_model(config.model, data.shape, len(data.classes), statistics).to(device).eval()

    combination: Combination | None = None
    if place.is_dir():
        model, combination = with_weights(place, build, make_ball(config))
        if (config.model, config.normalise) == (own.model, own.normalise):
            check_as_evaluated(place, config.model, model, data.shape)
    else:
        model = build(0)
        load_model(place, model)
    return Target(config, own, model, data.to(device), make_ball(config), combination)


def _check_named(place: Path, config: TrainConfig, given: dict[str, Any]) -> None:
    """Weights alone, and runs of ad.fit, do not know their model and data."""
    for name in ("model", "dataset"):
        if getattr(config, name) == OWN or (place.is_file() and name not in given):
            raise ArgumentError(
                f"{place}: does not say which {name} it belongs to; give --model and --dataset, for your own as file.py:factory"
            )
