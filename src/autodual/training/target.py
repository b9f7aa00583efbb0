"""What is certified or attacked by name: a run folder, an ONNX file, or bare weights; and what a run folder knows already."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autodual import models
from autodual._errors import ArgumentError
from autodual._files import read_content
from autodual._tensor import Shape
from autodual.cascades import Combination
from autodual.data import ImageData, Statistics, load, mean_std
from autodual.engines import BoundEngine, Dual, HighProbability
from autodual.evaluation.claims import Broken, attacked, check_claims
from autodual.evaluation.judge import Judged
from autodual.evaluation.ledger import fault_in, problem_of
from autodual.evaluation.processes import own_device
from autodual.interchange.layers import Reshape
from autodual.interchange.onnx_file import read_onnx
from autodual.interchange.onnx_reading import load_file
from autodual.runs.checkpoint import load_model
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.runs.lines import LINES_LIMIT, Say, parse_line, record_about
from autodual.runs.records import CertificateLine, Evaluation, Problem
from autodual.runs.schema import read_if_sound
from autodual.sets import Perturbation
from autodual.training.fitting import OWN
from autodual.training.setup import check_scores, make_ball, make_device, make_model
from autodual.training.trained import check_as_evaluated, trained_config, with_weights


@dataclass(frozen=True)
class Target:
    """A trained model in evaluation mode, test data on its device, and the perturbation."""

    place: Path
    """A run folder, an ONNX file, or a file of weights."""
    config: TrainConfig
    own: TrainConfig
    """The run's config before changes; the default options for bare weights."""
    model: nn.Module
    data: ImageData
    ball: Perturbation
    combination: Combination | None
    """The cascade of the run with this ball, if it is one."""

    # What a run folder knows already must not contradict what is found now.

    def check_certificates(self, engine: BoundEngine, found: Judged, say: Say) -> None:
        """Fail if the attack of the run's evaluation breaks what is certified now. say: told of what only rounding breaks.

        Broken examples are attacked again: the record may be edited, and one of a published run does not say in which arithmetic its
        attack holds.
        """
        run = Run(self.place)
        known = None if isinstance(engine, HighProbability) else read_if_sound(Evaluation, run.evaluation_file)
        if known is None or not self._is_proved_by(run.certificates_file):
            return  # what is only probable may be wrong
        doubtful = torch.zeros_like(found.certified)
        for flags in (known.attacked, known.attacked_as_run or ()):
            if len(flags) == len(doubtful):
                doubtful |= found.certified & torch.tensor(flags)
        broken = Broken(torch.zeros_like(doubtful), torch.zeros_like(doubtful))
        index = doubtful.nonzero().squeeze(1)
        if len(index) > 0:
            again = attacked(self.model, self.data.select(index.to(self.data.device)), self.ball)
            broken.exact[index], broken.as_run[index] = again.exact, again.as_run
        check_claims(f"{engine!r}", found.certified, found.certified_as_run, broken, say)

    def check_attack(self, broken: Broken, say: Say) -> None:
        """Fail if the attack breaks what the run folder has certificates of. say: told of what only rounding breaks."""
        labels = self.data.labels.tolist()
        for file in sorted(self.place.glob("certificates*.jsonl")) if self.place.is_dir() else ():
            if not self._is_proved_by(file):
                continue
            certified, as_run = torch.zeros_like(broken.exact), torch.zeros_like(broken.exact)
            for index, line in enumerate(read_content(file, LINES_LIMIT).split(b"\n")[: len(labels)]):
                record = parse_line(CertificateLine, line + b"\n", index, lambda line: fault_in(line, labels))
                if not isinstance(record, str):
                    certified[index], as_run[index] = record.certified, record.certified_as_run
            check_claims(file, certified, as_run, broken, say)

    def _is_proved_by(self, file: Path) -> bool:
        """Whether the lines of a file are proofs about this network, data and perturbation, by whatever engine, version and device."""
        noted = read_if_sound(Problem, record_about(file, "problem"))
        if noted is None or noted.basis is not None or noted.combination is not None:
            return False
        now = problem_of([self.model], self.data, self.ball, Dual())
        return noted.difference(now, "engine", "device", "autodual", "torch") is None


ONNX = "onnx"
"""Stands for the model of an ONNX file, which brings its own."""


def _is_onnx(place: Path) -> bool:
    return place.suffix.lower() == ".onnx" and not place.is_dir()


def own_config(place: Path) -> TrainConfig:
    """The config of a run folder; the default options for an ONNX file and for a file of weights."""
    if place.is_dir():
        return trained_config(place)
    if place.is_file():
        return TrainConfig(model=ONNX) if _is_onnx(place) else TrainConfig()
    raise ArgumentError(f"{place}: {'is neither a file nor a folder' if place.exists() else 'no such file or folder'}")


def open_target(
    place: Path, own: TrainConfig, config: TrainConfig, given: Collection[str], limit: int | None = None
) -> Target:
    """Loads a network and its test data. own: what `own_config` says; config: with the options `given` over it. limit: takes only the
    first test images."""
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
    if _is_onnx(place):
        model = _from_onnx(place, data.shape, len(data.classes), statistics).to(device).eval()
    elif place.is_dir():
        model, combination = with_weights(place, build, make_ball(config))
        if (config.model, config.normalise) == (own.model, own.normalise):
            check_as_evaluated(place, config.model, model, data.shape)
    else:
        model = build(0)
        load_model(place, model)
    return Target(place, config, own, model, data.to(device), make_ball(config), combination)


def _from_onnx(place: Path, shape: Shape, classes: int, statistics: Statistics | None) -> nn.Module:
    """The network of an ONNX file for images of this shape, which it may take as vectors; `statistics` become its first layer."""
    network = load_file(read_onnx(place))
    first: list[nn.Module] = [] if statistics is None else [models.Normalize(*statistics)]
    if network.input_shape != shape:
        if math.prod(network.input_shape) != math.prod(shape):
            raise ArgumentError(
                f"{place}: takes inputs of shape {list(network.input_shape)}, but the images of this data set have {list(shape)}"
            )
        first.append(Reshape(network.input_shape))
    model = nn.Sequential(*first, network) if first else network
    check_scores(f"the network of {place}", model, shape, classes)
    return model


def _check_named(place: Path, config: TrainConfig, given: Collection[str]) -> None:
    """Weights alone, and runs of ad.fit, do not know their model and data; an ONNX file does not know its data."""
    if _is_onnx(place):
        if config.model != ONNX:
            raise ArgumentError(f"{place}: brings its own model; leave out --model")
        if "dataset" not in given:
            raise ArgumentError(f"{place}: does not say which data set to certify; give --dataset")
        return
    for name in ("model", "dataset"):
        if getattr(config, name) == OWN or (place.is_file() and name not in given):
            raise ArgumentError(
                f"{place}: does not say which {name} it belongs to; give --model and --dataset, for your own as file.py:factory"
            )
