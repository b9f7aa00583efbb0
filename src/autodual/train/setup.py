"""From a config to the things it names: model, ball, engine, optimiser, device."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch
from torch import nn

from autodual import models
from autodual._errors import ArgumentError
from autodual._types import Shape
from autodual.bounds import IBP, BoundEngine, Dual, GeometricMean, MaximumLikelihood, Median, Projected
from autodual.digits import digits_network
from autodual.sets import L2Ball, LinfBall, Perturbation
from autodual.train.config import TrainConfig
from autodual.train.data import named_function

ESTIMATORS = {"median": Median(), "geometric-mean": GeometricMean(), "maximum-likelihood": MaximumLikelihood()}
PLAIN: dict[str, Callable[..., nn.Module]] = {"small": models.small, "large": models.large, "resnet": models.resnet}
SIZED: dict[str, Callable[..., nn.Module]] = {"wide": models.wide, "deep": models.deep}

Statistics = tuple[tuple[float, ...] | float, tuple[float, ...] | float]
"""Mean and deviation of a data set, per channel or for all."""


def make_model(name: str, shape: Shape, classes: int, statistics: Statistics | None = None) -> nn.Module:
    """An untrained network for images of this shape; `statistics` become its first layer."""
    kind, _, rest = name.partition(":")
    if kind.endswith(".py"):
        body = named_function(name)(shape, classes)
        if not isinstance(body, nn.Module):
            raise ArgumentError(f"model: {name} returned {type(body).__name__}, not an nn.Module")
        return body if statistics is None else nn.Sequential(models.Normalize(*statistics), body)
    mean, std = (None, None) if statistics is None else statistics
    if name == "digits":
        return digits_network()
    if kind in PLAIN and not rest:
        return PLAIN[kind](*_square(shape, name), classes, mean=mean, std=std)
    if kind in SIZED and rest.isdigit() and int(rest) >= 1:
        return SIZED[kind](int(rest), *_square(shape, name), classes, mean=mean, std=std)
    known = [*PLAIN, *(f"{s}:1" for s in SIZED), "digits"]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}, file.py:factory"
    raise ArgumentError(f"model: unknown model {name!r}; {hint}")


def _square(shape: Shape, name: str) -> tuple[int, int]:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ArgumentError(
            f"model: {name} takes square images [channels, width, width], but the data is {list(shape)}"
        )
    return shape[0], shape[1]


def make_ball(config: TrainConfig, eps: float | torch.Tensor | None = None) -> Perturbation:
    size = config.eps if eps is None else eps
    return LinfBall(size, clip=config.clip) if config.norm == "linf" else L2Ball(size)


def make_engine(config: TrainConfig) -> BoundEngine | None:
    if config.engine == "projected":
        return Projected(config.k, not config.per_term, ESTIMATORS[config.estimator])
    return {"dual": Dual(), "ibp": IBP(), "none": None}[config.engine]


def make_optimiser(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """For the parameters that are to be trained."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    fused = all(p.is_cuda for p in parameters)
    if config.optimiser == "adam":
        return torch.optim.Adam(parameters, config.lr, weight_decay=config.weight_decay, fused=fused)
    return torch.optim.SGD(parameters, config.lr, config.momentum, weight_decay=config.weight_decay, fused=fused)


def make_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type != "cuda":  # a GPU is not woken up here: the process may yet be given another one
            torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        raise ArgumentError(f"device: {name!r} is none that PyTorch can use here; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device: cuda was asked for, but PyTorch finds no GPU here; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"device: {name} was asked for, but there are only {torch.cuda.device_count()} GPUs")
    return device
