"""From data and a config to a trained, evaluated run; interrupted anywhere, it goes on from where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autodual._errors import ArgumentError
from autodual.train.cascade import finish_cascade, train_cascade
from autodual.train.checkpoint import load_model, save_model
from autodual.train.config import TrainConfig
from autodual.train.data import ImageData, load, mean_std
from autodual.train.evaluate import evaluate
from autodual.train.group import Group, joined
from autodual.train.run import Run
from autodual.train.setup import Statistics, make_ball, make_device, make_model
from autodual.train.stage import Parts, Watch, fresh_model, train_stage


def train(config: TrainConfig, folder: Path | str, resume: bool = False, watch: Watch | None = None) -> dict[str, Any]:
    """A whole run by name: data, model, training, exact evaluation. Returns the evaluation; everything is in the folder."""
    folder_of_data = None if config.data_folder is None else Path(config.data_folder)
    statistics = _statistics(config)
    data = load(config.dataset, "train", folder_of_data), load(config.dataset, "test", folder_of_data)

    def build(stage: int) -> nn.Module:
        return make_model(config.model, data[0].shape, len(data[0].classes), statistics)

    return _run(config, Run(Path(folder)), resume, watch or Watch(), *data, build)


def fit(
    model: nn.Module,
    train_data: ImageData,
    test_data: ImageData,
    config: TrainConfig,
    folder: Path | str,
    resume: bool = False,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """The same for a module and data of your own; the module ends with the trained weights."""
    if config.cascade > 1:
        raise ArgumentError(
            "fit trains one module; a cascade needs a fresh one per stage: use train() with model=file.py:factory"
        )
    return _run(config, Run(Path(folder)), resume, watch or Watch(), train_data, test_data, lambda stage: model)


def _statistics(config: TrainConfig) -> Statistics | None:
    return mean_std(config.dataset) if config.normalise else None


def _run(
    config: TrainConfig,
    run: Run,
    resume: bool,
    watch: Watch,
    train_data: ImageData,
    test_data: ImageData,
    build: Callable[[int], nn.Module],
) -> dict[str, Any]:
    with joined(make_device(config.device)) as group:
        device = group.device(make_device(config.device))
        with run.locked() if group.first else nullcontext():
            if group.first:
                run.begin(config, resume)
            group.wait()
            parts = _parts(config, train_data, test_data, device, build, group)
            if group.first:
                _note(run, parts, train_data, device)
            return _train_and_finish(config, run, parts, watch)


def _train_and_finish(config: TrainConfig, run: Run, parts: Parts, watch: Watch) -> dict[str, Any]:
    if config.cascade > 1:
        if not parts.group.alone:
            raise ArgumentError("cascade: stages are trained in one process; start it without torchrun")
        stages = train_cascade(config, run, parts, watch)
        save_model(run.model_file, stages[0])
        record = finish(config, run, stages[0], parts, watch)
        return record | {"cascade": finish_cascade(config, run, stages, parts, watch)}
    model = fresh_model(config, parts, 0)
    if run.model_file.exists():
        load_model(run.model_file, model)
    else:
        train_stage(config, run, 0, model, parts.train, parts.held_out, watch, parts.group)
        if parts.group.first:
            save_model(run.model_file, model)
    parts.group.wait()
    return finish(config, run, model.eval(), parts, watch)


def _note(run: Run, parts: Parts, data: ImageData, device: torch.device) -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    used = {"name": data.name, "train": len(parts.train), "test": len(parts.test), "digest": data.digest()}
    run.note_environment(device=name, processes=parts.group.size, data=used)


def finish(config: TrainConfig, run: Run, model: nn.Module, parts: Parts, watch: Watch) -> dict[str, Any]:
    """The exact evaluation, once."""
    done = run.folder / "evaluation.json"
    if done.exists():
        record: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return record
    subset = 1000 if parts.test.images.is_cuda else 200
    found = evaluate(
        run.folder, model, parts.test, make_ball(config), config.norm, subset=subset, tell=watch.tell, group=parts.group
    )
    parts.group.wait()
    return found


def _parts(
    config: TrainConfig,
    train_data: ImageData,
    test_data: ImageData,
    device: torch.device,
    build: Callable[[int], nn.Module],
    group: Group,
) -> Parts:
    if config.limit_train is not None:
        train_data = train_data.take(config.limit_train)
    if config.limit_test is not None:
        test_data = test_data.take(config.limit_test)
    held_out = None
    if config.validation > 0:
        train_data, held_out = train_data.split(config.validation, config.seed)
        held_out = held_out.to(device)
    return Parts(train_data.to(device), held_out, test_data.to(device), build, group)
