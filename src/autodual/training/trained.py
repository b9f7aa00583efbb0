"""From a run folder back to Python: the trained network, and what it was trained against."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape
from autodual.cascades import Combination, load_combination
from autodual.data import any_mean_std, form_of, is_factory
from autodual.engines.prepare import capture
from autodual.graph.digest import digest_network
from autodual.runs.checkpoint import load_model
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run, versions
from autodual.runs.lines import read_problem, record_about
from autodual.sets import Perturbation
from autodual.training.fitting import OWN
from autodual.training.setup import make_ball, make_device, make_model


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
    found, cascade = with_weights(place, lambda stage: copy.deepcopy(fresh).to(on).eval(), make_ball(config))
    if model is None:
        check_as_evaluated(place, config.model, found, form_of(config.dataset, config.data_folder)[0])
    return TrainedRun(found, make_ball(config), cascade, config)


def load_pretrained(
    name: str, recipe: str | None = None, folder: Path | str | None = None, device: torch.device | str = "cpu"
) -> TrainedRun:
    """Load the network of a reproduced row of the paper, ready for certify(), attack() and the like.

    Weights do not come with an installed package.

    Args:
        name: The row, such as "mnist-small-0.1"; `autodual reproduce list` has them all.
        recipe: "best" for ours, "paper" for the paper's settings; when None, ours where there is one.
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
    if recipe not in (None, *RECIPES):
        raise ArgumentError(f"recipe must be one of {', '.join(RECIPES)}, or None, got {recipe!r}")
    if not isinstance(name, str) or Path(name).name != name:
        raise ArgumentError(
            f"name must be that of a row, such as 'cifar-large-2', got {name!r}; for a folder, use ad.load_run"
        )
    root = _results_folder(folder)
    recipes = RECIPES if recipe is None else (recipe,)
    places = [root / each / name for each in recipes] + ([root / name] if recipe is None else [])
    place = next((place for place in places if Run(place).model_file.exists()), None)
    if place is None:
        raise ArgumentError(_not_there(name, root, places))
    config, on = trained_config(place), make_device(str(device))
    model = _named(config).to(on).eval()
    load_model(Run(place).model_file, model, expect_half=True)
    return TrainedRun(model, make_ball(config), None, config)


RECIPES = ("best", "paper")
RESULTS_VARIABLE = "AUTODUAL_RESULTS"


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


def _not_there(name: str, root: Path, places: list[Path]) -> str:
    if any(Run(place).evaluation_file.exists() for place in places):
        return f"{name}: was reproduced, but its weights are too large to be kept in {root}; train it with `autodual reproduce {name}`"
    pattern = "/model.safetensors"
    found = {path.parent.name for depth in ("*", "*/*") for path in root.glob(depth + pattern)}
    known = ", ".join(sorted(found)) or "none"
    return f"{name}: {root} has no weights of such a row; it has those of {known}"


def check_as_evaluated(place: Path, name: str, model: nn.Module, shape: Shape) -> None:
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


def with_weights(
    place: Path, build: Callable[[int], nn.Module], ball: Perturbation
) -> tuple[nn.Module, Combination | None]:
    """The network of a run folder, and its cascade for this ball if it has one; build(stage) makes untrained modules."""
    model = build(0)
    load_model(Run(place).model_file, model)
    saved = Run(place).cascade_folder
    return model, load_combination(saved, build).around(ball) if saved.is_dir() else None


def _named(config: TrainConfig) -> nn.Module:
    """The untrained network that the config names; leaves the CPU's random state alone."""
    shape, classes = form_of(config.dataset, config.data_folder)
    statistics = any_mean_std(config.dataset, shape[0]) if config.normalise else None
    with torch.random.fork_rng(devices=[]):
        return make_model(config.model, shape, classes, statistics)
