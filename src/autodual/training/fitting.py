"""From data and a config to a trained, evaluated run; interrupted anywhere, it goes on from where it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from autodual._errors import ArgumentError
from autodual.data import ArrayData, Examples, ImageData, check_parts, mean_std
from autodual.evaluation.evaluate import evaluate
from autodual.evaluation.judge import ENGINES
from autodual.evaluation.processes import UNWATCHED, StoppedError, Watch, joined, own_device
from autodual.runs.checkpoint import load_model, save_model
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.records import CascadeSummary, DataUsed, Evaluation, plain, read
from autodual.runs.schedule import check_ramp
from autodual.training.loop import Events, summary_writer
from autodual.training.setup import check_scores, load_part, make_ball, make_device, make_model, with_columns
from autodual.training.stages import Parts, finish_cascade, fresh_model, train_cascade, train_stage, trained_at

SPLITS: tuple[Literal["train"], Literal["test"]] = ("train", "test")
OWN = "given to ad.fit"
"""What stands for the module and the data of a run that no name leads to."""


@dataclass(frozen=True)
class Finished:
    """What a finished run is worth: its network, and all stages together if it is a cascade."""

    evaluation: Evaluation
    cascade: CascadeSummary | None = None

    def to_mapping(self) -> dict[str, Any]:
        """The values of evaluation.json, and under `cascade` the values of cascade.json."""
        return plain(self.evaluation) | ({} if self.cascade is None else {"cascade": plain(self.cascade)})


def train(config: TrainConfig, folder: Path | str, resume: bool = False, watch: Watch | None = None) -> dict[str, Any]:
    """Train and evaluate what a config names: data, model, training, exact evaluation, as `autodual train` does.

    Args:
        config: All options.
        folder: The run folder; it is made if it is not there.
        resume: Whether to go on with a run that the folder holds.
        watch: Hears of progress, and may stop the run.

    Returns:
        The evaluation: `error`, `pgd_error`, `robust_error`, `robust_error_as_run` and more; everything is in the folder, too.

    Raises:
        ArgumentError: The config names something that is not there, or the folder holds another run.

    Examples:
        >>> import autodual as ad
        >>> from autodual.training.fitting import train
        >>> result = train(ad.TrainConfig(dataset="digits", model="digits"), "runs/digits")  # doctest: +SKIP
    """
    return train_run(config, folder, resume, watch).to_mapping()


def train_run(config: TrainConfig, folder: Path | str, resume: bool = False, watch: Watch | None = None) -> Finished:
    """Trains a whole run, as `train` does, and returns typed records."""
    if OWN in (config.dataset, config.model):
        raise ArgumentError(
            f"{folder}: was begun by ad.fit, with a module and data of its own; go on with ad.fit(..., resume=True)"
        )
    return run_named(config, folder, resume, watch or UNWATCHED, _train_and_finish)


T = TypeVar("T")
InRun = Callable[[TrainConfig, Run, Parts, Watch], T]
"""What is done in a run folder that is locked and noted, with data on the device."""


def run_named(config: TrainConfig, folder: Path | str, resume: bool, watch: Watch, work: InRun[T]) -> T:
    """Loads the data that the config names, opens the run folder, and does `work` there."""
    train_data, test_data = (load_part(config, split) for split in SPLITS)
    check_parts(train_data, test_data)
    config = with_columns(config, train_data)

    def build(trained_on: Examples) -> nn.Module:
        statistics = mean_std(config.dataset, trained_on, config.per_channel) if config.normalise else None
        model = make_model(config.model, trained_on.shape, len(trained_on.classes), statistics)
        if not config.normalise and ".py:" not in config.model:  # a network of one's own may standardise by itself
            _warn_of_units(trained_on)
        return model

    return _run(config, Run(Path(folder)), resume, watch, train_data, test_data, build, work)


def _warn_of_units(data: Examples) -> None:
    """Warns of a table whose columns differ so much in size that a network hardly learns from them as they are."""
    if not isinstance(data, ArrayData) or data.values.dim() != 2 or len(data) < 2:
        return
    spread = data.values.double().std(0)
    spread = spread[spread > 0]
    if len(spread) > 0 and spread.max() > 100 * spread.min().clamp(max=1.0):
        warnings.warn(
            f"the columns of this table spread between {spread.min():.3g} and {spread.max():.3g}, and networks learn little from such "
            f"numbers; --normalise makes standardisation the first layer of the network (eps stays in the units of the table)",
            stacklevel=2,
        )


def fit(
    model: nn.Module, train_data: Examples | Pair, test_data: Examples | Pair, config: TrainConfig, folder: Path | str,
    resume: bool = False, watch: Watch | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a module of your own on data of your own, certify the result exactly, attack it, and keep everything in a folder.

    Args:
        model: Any nn.Module from [N, *shape] to one score for each class; it ends with the trained weights.
        train_data: What to learn from: `ImageData`, `ArrayData`, or a pair (inputs, labels) of tensors or NumPy arrays.
        test_data: What to judge by, likewise; it is used once, at the end.
        config: All options; `dataset` and `model` are not read.
        folder: The run folder; it is made if it is not there.
        resume: Whether to go on with a run that the folder holds.
        watch: Hears of progress, and may stop the run.

    Returns:
        The evaluation: `error`, `pgd_error`, `robust_error`, `robust_error_as_run` and more, as in `evaluation.json`.

    Raises:
        ArgumentError: Something does not fit: shapes, classes, a config for a cascade, a folder of another run.
        CaptureError: The module could not be turned into a graph.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("train")
        >>> data = ad.ImageData((images * 255).byte(), labels, classes=tuple("0123456789"), name="digits")
        >>> train, test = data.split(0.2, seed=0)
        >>> config = ad.TrainConfig(eps=0.1, k=10, epochs=30, robust_weight=0.8)
        >>> result = ad.fit(ad.load_digits_network(), train, test, config, "runs/mine")  # doctest: +SKIP
    """
    if not isinstance(config, TrainConfig):
        raise ArgumentError(
            f"config must be a TrainConfig, such as ad.TrainConfig(eps=0.1, epochs=30), got {type(config).__name__}"
        )
    train_data, test_data = _as_examples(train_data, test_data)
    if config.cascade > 1:
        raise ArgumentError(
            "fit trains one module; a cascade needs a fresh one per stage: name model and data as file.py:factory, and use `autodual "
            "train --cascade 2 --model ... --dataset ...`, or `from autodual.training.fitting import train` and train(config, folder)"
        )
    if config.normalise:
        raise ArgumentError(
            "fit trains the module as it is: make ad.models.Normalize its first layer, or "
            "ad.models.Standardize for other data than images"
        )
    check_parts(train_data, test_data)
    check_scores("the module", model, train_data.shape, len(train_data.classes))
    if not isinstance(train_data, ImageData) and (config.crop or config.flip):
        raise ArgumentError("crop and flip are for images; leave them out")
    own = with_columns(config, train_data).with_changes(dataset=OWN, model=OWN)
    found = _run(
        own, Run(Path(folder)), resume, watch or UNWATCHED, train_data, test_data, lambda _: model, _train_and_finish
    )
    return found.to_mapping()


Pair = tuple[Any, Any]
"""Inputs [N, *shape] and labels [N], as tensors or NumPy arrays."""


def _as_examples(train: Examples | Pair, test: Examples | Pair) -> tuple[Examples, Examples]:
    """Pairs of arrays as data, with the classes of both."""
    given, largest = {"train_data": train, "test_data": test}, 0
    for name, data in given.items():
        if not isinstance(data, Examples | tuple | list) or (not isinstance(data, Examples) and len(data) != 2):
            raise ArgumentError(
                f"{name} must be an ImageData, an ArrayData, or a pair (inputs, labels), got {type(data).__name__}; see ad.ImageData"
            )
        pair = ArrayData(*data, name=name) if not isinstance(data, Examples) else data
        given[name], largest = pair, max(largest, len(pair.classes))
    classes = tuple(map(str, range(largest)))
    for name, data in (("train_data", train), ("test_data", test)):
        if not isinstance(data, Examples):
            given[name] = replace(given[name], classes=classes)  # type: ignore[type-var]  # made above
    return given["train_data"], given["test_data"]  # type: ignore[return-value]


def _run(
    config: TrainConfig, run: Run, resume: bool, watch: Watch, train_data: Examples, test_data: Examples,
    build: Callable[[Examples], nn.Module], work: InRun[T],
) -> T:  # fmt: skip
    """Opens the run folder, alone in it, and does `work` there; notes why it failed, if it does."""
    if config.tensorboard:
        summary_writer()  # refuses before anything is begun
    device = own_device(make_device(config.device))
    with joined(device) as group, ExitStack() as stack:
        watch = watch.within(group)
        group.by_first(lambda: run.check(config, resume))  # before a lock is left in a folder that is not ours
        if not group.by_first(run.begun):
            check_ramp(config)  # an older run that was begun like this goes on
        group.by_first(lambda: stack.enter_context(run.attempted()))
        if resume and not group.by_first(run.begun):
            watch.say(f"{run.folder}: holds no run to go on with, so one is begun")
        group.by_first(lambda: run.begin(config, resume))
        train, held_out = train_data if config.limit_train is None else train_data.take(config.limit_train), None
        test = test_data if config.limit_test is None else test_data.take(config.limit_test)
        if config.validation > 0:
            train, held_out = train.split(config.validation, config.seed)
            held_out = held_out.to(device)
        parts = Parts(train.to(device), held_out, test.to(device), build)
        kind = None if isinstance(train_data, ImageData) else train_data.KIND
        used = DataUsed(train_data.name, len(train), len(test), train_data.digest(), kind)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        group.by_first(lambda: run.note_environment(used, device=name, processes=group.size))
        try:
            return work(config, run, parts, watch)
        except StoppedError:
            raise
        except Exception as error:
            if group.first:
                run.note_failure(error)
            raise


def _train_and_finish(config: TrainConfig, run: Run, parts: Parts, watch: Watch) -> Finished:
    if config.cascade > 1:
        stages = train_cascade(config, run, parts, watch)
        watch.group.by_first(lambda: save_model(run.model_file, stages[0]))
        first = finish(config, run, stages[0], parts, watch)
        found = Finished(first, finish_cascade(config, run, stages, parts, watch))
    else:
        found = Finished(finish(config, run, trained_network(config, run, parts, watch), parts, watch))
    if config.tensorboard:
        watch.group.by_first(lambda: _write_events(run, found))
    return found


def trained_network(config: TrainConfig, run: Run, parts: Parts, watch: Watch) -> nn.Module:
    """The single network of a run in evaluation mode: the one that its folder holds, or trained now."""
    group, model = watch.group, fresh_model(config, parts, 0)
    if group.by_first(run.model_file.exists):
        load_model(run.model_file, model)
    else:
        train_stage(config, run, 0, model, parts.train, parts.held_out, watch)
        group.by_first(lambda: save_model(run.model_file, model))
    return model.eval()


def finish(config: TrainConfig, run: Run, model: nn.Module, parts: Parts, watch: Watch) -> Evaluation:
    """Evaluates the network by the bound that the config names, unless that was done before."""
    group, file = watch.group, run.evaluation_file
    found = group.by_first(lambda: read(Evaluation, file) if file.exists() else None)
    if found is not None and (found.curve or config.skip_curve):
        return found
    subset, at = 1000 if parts.test.device.type == "cuda" else 200, group.by_first(lambda: trained_at(config, run, 0))
    ball, engine = make_ball(config), ENGINES[config.evaluate_engine]
    return evaluate(run, model, parts.test, ball, config.norm, 0 if config.skip_curve else subset, watch, at, engine)


ERRORS = ("error", "pgd_error", "pgd_error_exact", "robust_error", "robust_error_as_run")
ATTACK_ERRORS = ("attacked_error", "attacked_certified_error")


def _write_events(run: Run, found: Finished) -> None:
    """Writes the final figures as events. Figures that an earlier process wrote do not count any more."""
    events, whole = Events(run.events), found.evaluation
    events.write("evaluation", 0, {name: value for name in ERRORS if (value := getattr(whole, name)) is not None})
    if found.cascade is not None:
        attack = found.cascade.attack
        attacked = {} if attack is None else {name: getattr(attack, name) for name in ATTACK_ERRORS}
        events.write("cascade", 0, plain(found.cascade.errors) | attacked)
    events.close()
