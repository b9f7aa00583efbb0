"""What `certify` and `attack` work on, and what its run folder knows about the question already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import parse_json, read_content, read_json
from autodual.cascades import Combination
from autodual.cli.options import checked
from autodual.data import ImageData, load, mean_std
from autodual.engines import BoundEngine, Dual, HighProbability
from autodual.evaluation.claims import Broken, attacked, check_claims
from autodual.evaluation.judge import Judged, fault, question
from autodual.evaluation.processes import own_device
from autodual.runs.checkpoint import load_model
from autodual.runs.config import TrainConfig
from autodual.runs.lines import LINES_LIMIT, record_about
from autodual.sets import Perturbation
from autodual.training.fitting import OWN
from autodual.training.setup import make_ball, make_device, make_model
from autodual.training.trained import check_as_evaluated, trained_config, with_weights

# What `certify` and `attack` work on: a run folder, or weights with the model and data they belong to.


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


# What a run folder knows already about the question that `certify` or `attack` is asked: it must not contradict the answer.

Say = Callable[[str], None]


def check_by_evaluation(place: Path, opened: Target, engine: BoundEngine, found: Judged, say: Say) -> None:
    """Fail if the attack of the run's evaluation breaks what is certified now. say: told of what only rounding breaks."""
    record = _read(place / "evaluation.json")
    if isinstance(engine, HighProbability) or not _same(place / "certificates.jsonl", opened):
        return  # what is only probable may be wrong
    broken = _flags(record, "attacked", len(found.certified)) | _flags(record, "attacked_as_run", len(found.certified))
    _check(f"{engine!r}", found.certified, found.certified_as_run, _again(opened, found.certified & broken), say)


def check_by_certificates(place: Path, opened: Target, broken: Broken, say: Say) -> None:
    """Fail if the attack breaks what the run folder has certificates of. say: told of what only rounding breaks."""
    labels = opened.data.labels.tolist()
    for file in sorted(place.glob("certificates*.jsonl")) if place.is_dir() else ():
        if not _same(file, opened):
            continue
        certified, as_run = torch.zeros_like(broken.exact), torch.zeros_like(broken.exact)
        for line in read_content(file, LINES_LIMIT).split(b"\n")[: len(labels)]:
            record = _parsed(line)
            index = record.get("index")
            if type(index) is int and 0 <= index < len(labels) and fault(record, labels) is None:
                certified[index], as_run[index] = record["certified"], record["certified_as_run"]
        _check(file, certified, as_run, broken, say)


def _check(source: object, certified: Tensor, certified_as_run: Tensor, broken: Broken, say: Say) -> None:
    note = check_claims(source, certified, certified_as_run, broken)
    if note is not None:
        say(note)


def _again(opened: Target, doubtful: Tensor) -> Broken:
    """Attacks these examples again: a record may be edited, and an older one does not say in which arithmetic its attack holds."""
    broken = Broken(torch.zeros_like(doubtful), torch.zeros_like(doubtful))
    index = doubtful.nonzero().squeeze(1)
    if len(index) > 0:
        found = attacked(opened.model, opened.data.select(index.to(opened.data.device)), opened.ball)
        broken.exact[index], broken.as_run[index] = found.exact, found.as_run
    return broken


def _flags(record: dict[str, Any], name: str, length: int) -> Tensor:
    """[N] bool; none is set where the record does not have one for each example."""
    values = record.get(name)
    if not isinstance(values, list) or len(values) != length or not all(isinstance(value, bool) for value in values):
        return torch.zeros(length, dtype=torch.bool)
    return torch.tensor(values, dtype=torch.bool)


def _same(file: Path, opened: Target) -> bool:
    """Whether the lines of a file are proofs about this network, data and perturbation, by whatever engine, version and device."""
    note = _read(record_about(file, "problem"))
    engine = note.get("engine")
    if not isinstance(engine, str) or engine.startswith(HighProbability.__name__):
        return False
    asked = question([opened.model], opened.data, opened.ball, Dual())
    return all(note.get(name) == asked[name] for name in ("perturbation", "examples", "data", "network", "dtype"))


def _read(path: Path) -> dict[str, Any]:
    """A record, or nothing."""
    try:
        found = read_json(path)
    except ArgumentError:
        return {}
    return found if isinstance(found, dict) else {}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
