"""From a config to the things it names: model, ball, engine, optimiser, device."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from autodual import models
from autodual._errors import ArgumentError
from autodual._files import check_plain, in_one_line
from autodual._tensor import Shape
from autodual.data import (
    ArrayData,
    Examples,
    Statistics,
    TableOptions,
    error_in_words,
    is_factory,
    load,
    named_function,
)
from autodual.digits import digits_network
from autodual.engines import (
    IBP,
    BoundEngine,
    Crown,
    Dual,
    GeometricMean,
    MaximumLikelihood,
    Median,
    Projected,
    QuietGradient,
)
from autodual.runs.config import OTHERS, TrainConfig, attacks
from autodual.runs.schedule import SMALLEST_EPS, crown_weight_at, eps_at, regularise_at, weight_at
from autodual.sets import L2Ball, LinfBall, Perturbation
from autodual.training.objectives import PGD, Descent, Objective, TrainingAttack, evaluating

ESTIMATORS = {
    "quiet-gradient": QuietGradient(), "median": Median(), "geometric-mean": GeometricMean(),
    "maximum-likelihood": MaximumLikelihood(),
}  # fmt: skip
PLAIN: dict[str, Callable[..., nn.Module]] = {
    "small": models.small, "large": models.large, "resnet": models.resnet, "cnn5": models.cnn5, "cnn7": models.cnn7
}  # fmt: skip


def _with_filters(family: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda filters, *image, **statistics: family(*image, filters=filters, **statistics)


SIZED: dict[str, Callable[..., nn.Module]] = {
    "wide": models.wide, "deep": models.deep, "cnn5": _with_filters(models.cnn5), "cnn7": _with_filters(models.cnn7)
}  # fmt: skip


def make_model(name: str, shape: Shape, classes: int, statistics: Statistics | None = None) -> nn.Module:
    """An untrained network for images of this shape; `statistics` become its first layer."""
    if classes < 2:
        raise ArgumentError(
            f"model: {name} is for {classes} class, but chooses between at least two; add data of another"
        )
    if is_factory(name) or name.endswith(".py"):
        return _behind(statistics, [_from_factory(name, shape, classes)], shape)
    if name == "digits" and (tuple(shape), classes) != ((1, 8, 8), 10):
        raise ArgumentError(
            f"model: digits takes images [1, 8, 8] of 10 classes, but the data is {list(shape)} of {classes}; use small, or "
            "file.py:factory"
        )
    if name == "digits":
        return _behind(statistics, digits_network(), shape)
    kind, _, rest = name.partition(":")
    if kind == "mlp" and re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", rest):
        return _behind(statistics, models.mlp([*map(int, rest.split(","))], math.prod(shape), classes), shape)
    mean, std = (None, None) if statistics is None else statistics
    try:
        if kind in PLAIN and not rest:
            return PLAIN[kind](*_square(shape, name), classes, mean=mean, std=std)
        if kind in SIZED and rest.isdecimal() and int(rest) >= 1:
            return SIZED[kind](int(rest), *_square(shape, name), classes, mean=mean, std=std)
    except ArgumentError:
        raise
    except ValueError as error:  # the models know nothing of this library, nor of its errors
        raise ArgumentError(f"model: {error}") from error
    known = [*PLAIN, "wide:1", "deep:1", "cnn5:16", "cnn7:32", "digits", "mlp:64,64"]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}, file.py:factory"
    raise ArgumentError(f"model: unknown model {name!r}; {hint}")


def _square(shape: Shape, name: str) -> tuple[int, int]:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ArgumentError(
            f"model: {name} takes square images [channels, width, width], but the data is {list(shape)}; for tables, use mlp:64,64"
        )
    return shape[0], shape[1]


def _from_factory(name: str, shape: Shape, classes: int) -> nn.Module:
    """What factory(shape, classes) returns."""
    factory = named_function(name)
    try:
        model = factory(shape, classes)
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            f"model: calling {name} with ({tuple(shape)}, {classes}) raised {error_in_words(error)}; it must take (shape, classes) "
            "and return an nn.Module"
        ) from error
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"model: {name} returned {type(model).__name__}, not an nn.Module; return the network for (shape, classes)"
        )
    check_scores(f"the network of {name}", model, shape, classes)
    return model


def check_scores(what: str, model: nn.Module, shape: Shape, classes: int) -> None:
    """Shows the network one black image, for which it must give one score per class; leaves it and the CPU's random state alone."""
    device = next((p.device for p in model.parameters()), None)
    try:
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            scores = model(torch.zeros(1, *shape, device=device))
    except Exception as error:
        raise ArgumentError(
            f"model: {what} raised {error_in_words(error)} for images [1, {', '.join(map(str, shape))}]; correct it"
        ) from error
    found = list(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if found != [1, classes]:
        raise ArgumentError(
            f"model: {what} gives {found} for one image, not [1, {classes}]; end it with one score per class"
        )


def _behind(statistics: Statistics | None, layers: Iterable[nn.Module], shape: Shape) -> nn.Module:
    """The layers in a row, behind one that normalises images or standardises features; a single one stays as it is."""
    whole = [*layers] if statistics is None else [_first_layer(statistics, shape), *layers]
    return whole[0] if len(whole) == 1 else nn.Sequential(*whole)


def _first_layer(statistics: Statistics, shape: Shape) -> nn.Module:
    mean, std = statistics
    if len(shape) == 3 and len(mean) == shape[0]:
        return models.Normalize(mean, std)
    return models.Standardize(*(torch.as_tensor(values, dtype=torch.float32).reshape(shape) for values in (mean, std)))


def table_options(config: TrainConfig) -> TableOptions:
    return TableOptions(config.label_column, config.test_dataset, config.split_seed)


def load_part(config: TrainConfig, split: Literal["train", "test"]) -> Examples:
    """The data that the config names."""
    return load(config.dataset, split, config.data_folder, table_options(config))


def make_ball(config: TrainConfig, eps: float | torch.Tensor | None = None) -> Perturbation:
    size = config.eps if eps is None else eps
    if config.norm != "linf":
        return L2Ball(size)
    scale = feature_scale(config)
    if scale is not None and isinstance(size, torch.Tensor):
        scale = scale.to(size.device)  # once, since a captured step may not copy
    return LinfBall(size, clip=config.clip, scale=scale)


# An eps for each feature.

EPS_KEY = "eps"


def feature_scale(config: TrainConfig) -> torch.Tensor | None:
    """How far each feature may move at eps 1; None where all move alike."""
    text = config.feature_eps
    if text is None:
        return None
    found = json.loads(text) if not text.endswith(".npz") else _read_eps(Path(text).expanduser())
    if isinstance(found, dict):
        raise ArgumentError(f"eps: is given by the names of columns ({', '.join(found)[:200]}), but the data has none")
    return torch.as_tensor(found, dtype=torch.float64)


def with_columns(config: TrainConfig, data: Examples) -> TrainConfig:
    """The config with an eps for each feature in the order of the data's columns, whichever way it was given; refuses one that does
    not fit. A file of them stays named: what it holds is part of every perturbation."""
    text = config.feature_eps
    if text is None:
        if isinstance(data, ArrayData) and config.norm == "linf":
            data.check_reach(torch.tensor(config.eps))
        return config
    if text.startswith("{"):
        features = data.features if isinstance(data, ArrayData) else ()
        named = json.loads(text)
        others = named.pop(OTHERS, 0.0)
        for name in named if features else ():
            if name not in features:
                near = difflib.get_close_matches(name, features, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(features)[:200]}"
                raise ArgumentError(f"eps: data {data.name!r} has no column {name!r}; {hint}")
        if features or not named:
            config = config.with_changes(feature_eps=[named.get(name, others) for name in features or (OTHERS,)])
    scale = feature_scale(config)
    assert scale is not None
    if scale.dim() > len(data.shape) or any(
        a not in (1, b) for a, b in zip(reversed(scale.shape), reversed(data.shape), strict=False)
    ):
        raise ArgumentError(
            f"eps: is given for {list(scale.shape)} features, but an example of data {data.name!r} is {list(data.shape)}; give one "
            f"for each, in the order of the columns, and 0 for those that do not move"
        )
    if isinstance(data, ArrayData):
        data.check_reach(config.eps * scale)
    return config


def _read_eps(path: Path) -> Any:
    """The array `eps` of an .npz file."""
    with in_one_line(path, "cannot be read"):
        check_plain(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = list(file.files)
            key = EPS_KEY if EPS_KEY in keys else keys[0] if len(keys) == 1 else None
            found = None if key is None else file[key]
    except Exception as error:  # a damaged file makes numpy and zipfile raise errors of many kinds
        raise ArgumentError(
            f"{path}: cannot be read ({error_in_words(error)}); save it with numpy.savez(path, eps=...)"
        ) from None
    if found is None or found.dtype.kind not in "fiu" or found.ndim == 0:
        raise ArgumentError(
            f"{path}: must hold an array `eps`, a number for each feature; it has the keys {', '.join(keys) or '(none)'}"
        )
    if not bool((np.isfinite(found) & (found >= 0)).all()) or not bool((found > 0).any()):
        raise ArgumentError(f"{path}: every eps must be finite and not negative, and one at least positive")
    return found.astype(np.float64)


def make_engine(config: TrainConfig) -> BoundEngine | None:
    if config.engine == "projected":
        return Projected(config.k, not config.per_term, ESTIMATORS[config.estimator])
    if config.engine == "crown-ibp":
        # No limit of memory: a step keeps everything for the pass backwards, and must not look at the machine.
        return Crown(intermediate=IBP(), max_bytes=sys.maxsize)
    return {"dual": Dual(), "ibp": IBP(), "none": None}[config.engine]


# From a config to what is minimised, and to the numbers in it that change from step to step.


class Pace:
    """What a schedule changes from step to step: numbers on the device, which a captured step reads."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config = config
        self.eps, self.attack_eps, self.box_eps, self.weight, self.crown_weight, self.regularise = (
            torch.tensor(0.0, device=device) for _ in range(6)
        )
        self._values: dict[torch.Tensor, float] = {}
        self.regularising = config.regularise > 0
        """Whether the regularisers have not faded out yet."""
        self.set(config.eps)

    def at(self, epoch: int, part: float) -> float:
        """Sets all numbers for a step that ends when this part of an epoch is done; returns eps."""
        eps = eps_at(self.config, epoch, part)
        self.set(eps)
        return eps

    def set(self, eps: float) -> None:
        config = self.config
        self.regularising = regularise_at(config, eps) > 0
        for tensor, value in (
            (self.eps, eps),
            (self.attack_eps, config.attack_eps_factor * eps),
            (self.box_eps, max(config.box_part * eps, min(eps, SMALLEST_EPS))),
            (self.weight, weight_at(config, eps)),
            (self.crown_weight, crown_weight_at(config, eps)),
            (self.regularise, regularise_at(config, eps)),
        ):
            if self._values.get(tensor) != value:
                tensor.fill_(value)
                self._values[tensor] = value


def make_attack(config: TrainConfig) -> TrainingAttack | None:
    if not attacks(config):
        return None
    if config.attack_steps is None:
        return Descent()
    return PGD(config.attack_steps, config.attack_step_size, config.attack_restarts, config.attack_half)


def make_objective(config: TrainConfig, model: nn.Module, pace: Pace) -> Objective:
    """What the config minimises; its numbers follow `pace`."""
    engine, attack = make_engine(config), make_attack(config)
    ball = None if engine is None and attack is None else make_ball(config, pace.eps)
    wider = attack is not None and config.attack_eps_factor != 1
    blended = config.engine == "crown-ibp" and (config.crown_weight < 1 or config.crown_weight_start is not None)
    return Objective(
        model,
        ball,
        engine,
        weight=config.robust_weight if config.robust_weight_start is None else pace.weight,
        mix=config.mix,
        mix_with=config.mix_with,
        attack=attack,
        attack_ball=make_ball(config, pace.attack_eps) if wider else None,
        small_ball=make_ball(config, pace.box_eps) if config.box_part < 1 else None,
        crown_weight=pace.crown_weight if blended else None,
        batch_statistics=config.batch_statistics,
        regularise=pace.regularise if config.regularise > 0 else None,
        l1=config.l1,
    )


def make_optimiser(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the parameters that are to be trained."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ArgumentError(
            f"model: {type(model).__name__} has nothing to train; give it layers with weights whose requires_grad is true"
        )
    fused, decay = all(p.is_cuda for p in parameters), config.weight_decay
    lr = torch.tensor(config.lr, device=parameters[0].device) if fused else config.lr
    if config.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr, config.momentum, weight_decay=decay, fused=fused)
    if config.optimiser == "radam":
        return torch.optim.RAdam(parameters, lr, weight_decay=decay, capturable=fused)
    kind = torch.optim.Adam if config.optimiser == "adam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=decay, fused=fused, capturable=fused)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate: in place where it is a tensor, which a captured step reads."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


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
