"""From a run folder back to Python: the trained network, what it was trained against, and what `certify` and `attack` ask about it."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autodual import models
from autodual._errors import ArgumentError
from autodual._files import digest, read_content, read_json
from autodual._tensor import Shape
from autodual.cascades import Combination, load_combination
from autodual.data import Examples, Statistics, any_mean_std, form_of, is_factory, mean_std
from autodual.data.known import KNOWN
from autodual.engines import BoundEngine, Dual, HighProbability
from autodual.engines.prepare import capture
from autodual.evaluation.evaluate import Broken, attacked, check_claims
from autodual.evaluation.judge import Judged, problem_of
from autodual.evaluation.processes import own_device
from autodual.graph.digest import digest_network
from autodual.interchange.layers import Reshape
from autodual.interchange.onnx_file import read_onnx
from autodual.interchange.onnx_reading import load_file
from autodual.runs.checkpoint import load_model
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run, versions
from autodual.runs.lines import (
    LINES_LIMIT,
    CertificateLine,
    Problem,
    Say,
    parse_lines,
    read_problem,
    record_about,
    split_lines,
)  # fmt: skip
from autodual.runs.records import Evaluation, read_if_sound
from autodual.sets import Perturbation
from autodual.training.fitting import OWN
from autodual.training.setup import (
    check_scores,
    load_part,
    make_ball,
    make_device,
    make_model,
    table_options,
    with_columns,
)

KEPT_RECIPES = ("best", "modern", "paper")
RESULTS_VARIABLE = "AUTODUAL_RESULTS"


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What a run has trained."""

    model: nn.Module
    """In evaluation mode, with its weights; of a cascade, the first stage alone."""
    ball: Perturbation
    """What it was trained against."""
    cascade: Combination | None
    """All stages together, if there are several."""
    config: TrainConfig


def load_run(folder: Path | str, model: nn.Module | None = None, device: torch.device | str = "cpu") -> TrainedRun:
    """Load the network that a run folder holds, ready for certify(), attack() and the like.

    Weights are safetensors; nothing is unpickled.

    Args:
        folder: The run folder, of `autodual train` or of `fit`.
        model: A module of the same architecture, of which a copy gets the weights; a run of `fit` needs it, since its folder does not
            know the module. Without it, the network is built from its name: file.py:factory is run, and a data set of your own is
            read for the shape of its images.
        device: Where the network is put.

    Returns:
        The network in evaluation mode, the ball that it was trained against, its cascade if there is one, and its config.

    Raises:
        ArgumentError: The folder holds no finished run, or a module is needed.

    Examples:
        >>> import autodual as ad
        >>> run = ad.load_run("runs/digits")  # doctest: +SKIP
        >>> certificate = ad.certify(run.model, images, labels, run.ball)  # doctest: +SKIP
    """
    place, on = Path(folder), make_device(str(device))
    config = trained_config(place)
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if model is None and config.model == OWN:
        raise ArgumentError(
            f"{place}: was begun by ad.fit, with a module of its own; pass one like it: ad.load_run(folder, model=...)"
        )
    if config.cascade > 1 and not Run(place).cascade_folder.is_dir():
        raise ArgumentError(f"{place}: its cascade is not finished; go on with `autodual train --resume --out {place}`")
    fresh = _named(config) if model is None else model
    found, cascade = _with_weights(place, lambda stage: copy.deepcopy(fresh).to(on).eval(), make_ball(config))
    if model is None:
        _check_as_evaluated(
            place, config.model, found, form_of(config.dataset, config.data_folder, table_options(config))[0]
        )
    return TrainedRun(found, make_ball(config), cascade, config)


def load_pretrained(
    name: str, recipe: str | None = None, folder: Path | str | None = None, device: torch.device | str = "cpu"
) -> TrainedRun:
    """Load the network of a reproduced row, of the paper or of what came after it, ready for certify(), attack() and the like.

    Weights do not come with an installed package.

    Args:
        name: The row, such as "mnist-small-0.1"; `autodual reproduce list` has them all.
        recipe: "best" for ours, "paper" for the paper's settings, "modern" for later methods; when None, ours where there is one.
        folder: The `results/` of a source tree; when None, $AUTODUAL_RESULTS, or that of the source tree that this package is
            imported from.
        device: Where the network is put.

    Returns:
        The network in evaluation mode, the ball that it was trained against, and its config.

    Raises:
        ArgumentError: There are no weights of such a row; the message names those that there are.

    Examples:
        >>> import autodual as ad
        >>> run = ad.load_pretrained("mnist-small-0.1")  # doctest: +SKIP
        >>> run.ball  # doctest: +SKIP
        LinfBall(eps=0.1, clip=(0.0, 1.0))
    """
    if recipe not in (None, *KEPT_RECIPES):
        raise ArgumentError(f"recipe must be one of {', '.join(KEPT_RECIPES)}, or None, got {recipe!r}")
    if not isinstance(name, str) or Path(name).name != name:
        raise ArgumentError(
            f"name must be that of a row, such as 'cifar-large-2', got {name!r}; for a folder, use ad.load_run"
        )
    root = _results_folder(folder)
    places = [root / name] if recipe is None else []
    places = [root / each / name for each in (KEPT_RECIPES if recipe is None else (recipe,))] + places
    place = next((place for place in places if Run(place).model_file.exists()), None)
    if place is None and any(Run(place).evaluation_file.exists() for place in places):
        raise ArgumentError(
            f"{name}: was reproduced, but its weights are too large to be kept in {root}; train it with `autodual reproduce {name}`"
        )
    if place is None:
        there = {path.parent.name for depth in ("*", "*/*") for path in root.glob(f"{depth}/model.safetensors")}
        known = ", ".join(sorted(there)) or "none"
        raise ArgumentError(f"{name}: {root} has no weights of such a row; it has those of {known}")
    config, on = trained_config(place), make_device(str(device))
    model = _named(config).to(on).eval()
    _check_as_recorded(Run(place))
    load_model(Run(place).model_file, model, expect_half=True)
    return TrainedRun(model, make_ball(config), None, config)


def _check_as_recorded(run: Run) -> None:
    """Refuse weights that are not those of the figures beside them, where these tell which."""
    record = read_json(run.evaluation_file) if run.evaluation_file.exists() else None
    weights = record.get("weights") if isinstance(record, dict) else None
    known = weights.get("sha256") if isinstance(weights, dict) else None
    if isinstance(known, list) and digest(run.model_file) not in known:
        raise ArgumentError(
            f"{run.model_file}: are not the weights that {run.evaluation_file.name} beside them is about; get the folder again"
        )


def _results_folder(folder: Path | str | None) -> Path:
    given = folder or os.environ.get(RESULTS_VARIABLE)
    if given:
        root = Path(given).expanduser()
        if not root.is_dir():
            raise ArgumentError(f"{root}: no such folder; it must be the results/ of a source tree of autodual")
        return root
    tree = Path(__file__).resolve().parents[3]
    if (tree / "pyproject.toml").is_file() and (tree / "results").is_dir():
        return tree / "results"
    raise ArgumentError(
        f"trained networks do not come with the installed package; get a source tree of autodual, and name its results/ in "
        f"{RESULTS_VARIABLE}, or as folder="
    )


def _named(config: TrainConfig) -> nn.Module:
    """The untrained network that the config names; leaves the CPU's random state alone."""
    if config.dataset in KNOWN:
        shape, classes = form_of(config.dataset)
        statistics = any_mean_std(config.dataset, shape[0], config.per_channel) if config.normalise else None
    else:
        data = load_part(config, "test")
        shape, classes = data.shape, len(data.classes)
        statistics = mean_std(config.dataset, data, config.per_channel) if config.normalise else None
    with torch.random.fork_rng(devices=[]):
        return make_model(config.model, shape, classes, statistics)


def trained_config(place: Path) -> TrainConfig:
    """The config of a run folder that has a trained model."""
    run = Run(place)
    if not run.config_file.exists():
        raise ArgumentError(f"{place}: is no run folder; it has no config.yaml")
    config = run.config()
    if not run.model_file.exists():
        raise ArgumentError(
            f"{place}: has no trained model yet; finish it with `autodual train --resume --out {place}`"
        )
    return config


def _with_weights(
    place: Path, build: Callable[[int], nn.Module], ball: Perturbation
) -> tuple[nn.Module, Combination | None]:
    """The network of a run folder, and its cascade for this ball if it has one; build(stage) makes untrained modules."""
    model, saved = build(0), Run(place).cascade_folder
    load_model(Run(place).model_file, model)
    return model, load_combination(saved, build).around(ball) if saved.is_dir() else None


def _check_as_evaluated(place: Path, name: str, model: nn.Module, shape: Shape) -> None:
    """Refuse a network of file.py:factory that is not the one of the run's certificates: the file has changed, or is another one.

    What certificates of another version of this package, of PyTorch or of Python noted is not compared: a graph may look
    different there.
    """
    note = record_about(Run(place).certificates_file, "problem")
    before = read_problem(note) if is_factory(name) and note.exists() else None
    if before is None or any(getattr(before, package) != version for package, version in versions().items()):
        return
    x = torch.zeros(1, *shape, device=next((p.device for p in model.parameters()), None))
    if digest_network(capture(model, x)) != before.network:
        raise ArgumentError(
            f"{place}: {name} makes another network than the one that this run has trained; put the file back as it was, or name the "
            f"right one with --model"
        )


# What `certify` and `attack` are asked about: a run folder, or bare weights.


@dataclass(frozen=True)
class Target:
    """A trained model in evaluation mode, test data on its device, and the perturbation."""

    place: Path
    """A run folder, an ONNX file, or a file of weights."""
    config: TrainConfig
    own: TrainConfig
    """The run's config before changes; the default options for bare weights."""
    model: nn.Module
    data: Examples
    ball: Perturbation
    combination: Combination | None
    """The cascade of the run with this ball, if it is one."""

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
            lines = split_lines(read_content(file, LINES_LIMIT))[: len(labels)]
            for index, line in enumerate(parse_lines(CertificateLine, lines, labels)):
                if not isinstance(line, str):
                    certified[index], as_run[index] = line.certified, line.certified_as_run
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
    if is_factory(str(place)):
        raise ArgumentError(f"{place}: names a network, but not its weights; give them with --weights")
    raise ArgumentError(f"{place}: {'is neither a file nor a folder' if place.exists() else 'no such file or folder'}")


def open_target(
    place: Path, own: TrainConfig, config: TrainConfig, given: Collection[str], limit: int | None = None
) -> Target:
    """Loads a network and its test data. own: what `own_config` says; config: with the options `given` over it. limit: takes only the
    first test images."""
    _check_named(place, config, given)
    data = load_part(config, "test")
    config = with_columns(config, data)
    if limit is not None:
        data = data.take(limit)
    # The weights hold the values that they were trained with; these only have their shape.
    trained_on = own.dataset if place.is_dir() else config.dataset
    statistics = mean_std(trained_on, data, config.per_channel) if config.normalise else None
    device, ball = own_device(make_device(config.device)), make_ball(config)

    def build(stage: int) -> nn.Module:
        return make_model(config.model, data.shape, len(data.classes), statistics).to(device).eval()

    combination: Combination | None = None
    if _is_onnx(place):
        model = _from_onnx(place, data.shape, len(data.classes), statistics).to(device).eval()
    elif place.is_dir():
        model, combination = _with_weights(place, build, ball)
        if all(getattr(config, name) == getattr(own, name) for name in ("model", "normalise", "per_channel")):
            _check_as_evaluated(place, config.model, model, data.shape)
    else:
        model = build(0)
        load_model(place, model)
    return Target(place, config, own, model, data.to(device), ball, combination)


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
