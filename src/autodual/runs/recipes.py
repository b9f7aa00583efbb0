"""Known ways of certified training by name: options for a config, their source, and what was reported for them.

A recipe has options for any data, and more for the rows that the field is compared on. Most of these were tuned by their authors on
the test data that they report, which `Row.tuned_on_test` says. `configs/modern/` has one file for each row, which `written` writes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autodual._errors import ArgumentError
from autodual.runs.config import TrainConfig, dump_yaml, parse_fraction

Options = Mapping[str, Any]

COMPARED_ROWS: dict[str, tuple[str, float | str]] = {
    "mnist-0.1": ("mnist", 0.1), "mnist-0.3": ("mnist", 0.3), "cifar-2": ("cifar10", "2/255"), "cifar-8": ("cifar10", "8/255")
}  # fmt: skip
"""Data set and eps of every row, in the l-infinity norm."""


@dataclass(frozen=True)
class RecipeRow:
    """Options of a recipe for one row."""

    options: Options
    source: str
    """Who published these numbers, and what they report: natural / certified accuracy, and how it was certified."""
    tuned_on_test: bool = True


@dataclass(frozen=True)
class Recipe:
    """Options for any data, and for some rows."""

    what: str
    options: Options
    rows: Mapping[str, RecipeRow] = field(default_factory=dict)


# What the recipes share.

MODERN: Options = {
    "norm": "linf", "clip": [0.0, 1.0], "initialisation": "intervals", "eps_schedule": "smooth", "warm_up": 1, "eps_part": "1/2",
    "optimiser": "adam", "lr": 0.0005, "lr_milestones": ["3/4", "7/8"], "lr_factor": 0.2, "clip_gradients": 10.0, "regularise": 0.5,
    "evaluate_engine": "best-ibp",
}  # fmt: skip
MNIST: Options = {
    "model": "cnn7", "batch": 256, "epochs": 70, "eps_part": "2/7", "lr_milestones": ["5/7", "6/7"]
}  # fmt: skip
CIFAR: Options = {
    "model": "cnn7", "normalise": True, "per_channel": True, "crop": 2, "crop_fill": "edge", "flip": True, "batch": 128,
}  # fmt: skip
CIFAR_2: Options = {**CIFAR, "epochs": 160, "eps_part": "1/2", "lr_milestones": ["3/4", "7/8"]}
CIFAR_8: Options = {**CIFAR, "epochs": 260, "eps_part": "4/13", "lr_milestones": ["9/13", "11/13"]}
CIFAR_8_CTBENCH: Options = {**CIFAR, "epochs": 240, "eps_part": "1/2", "lr_milestones": ["5/6", "11/12"]}
CTBENCH: Options = {"precise_statistics": True}
"""What eth-sri/CTBench adds: statistics of batch normalisation are taken again."""
THREE_STARTS: Options = {"attack_restarts": 3, "attack_step_size": 0.25}
CTRAIN: Options = {"batch": 512}
"""What ADA-research/CTRAIN has in common."""
TIGHTER: Options = {"evaluate_engine": "best"}
"""For networks whose interval bounds are loose: the bound has little weight in training, or a small box."""
ADVERSARIAL: Options = {"mix_with": "adversarial", "batch_statistics": "adversarial"}
ONE_STEP: Options = {"attack_steps": 1, "attack_step_size": 10.0}
EIGHT_STEPS: Options = {"attack_steps": 8, "attack_step_size": 0.25, "attack_eps_factor": 2.1}

SHI = "Shi et al. 2021, Fast Certified Robust Training"
EXP = "De Palma et al. 2024, Expressive Losses for Verified Robustness"
CTB = "CTBench (Mao et al. 2024), example script"
CTR = "CTRAIN 2026, tuned by hyper-parameter search"

PAPER_MNIST: Options = {"model": "large", "clip": [0.0, 1.0], "eps_start": 0.01}
PAPER_CIFAR: Options = {
    "model": "large", "normalise": True, "optimiser": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0005,
    "clip_gradients": 1.0, "eps_start": 0.000225, "crop": 4, "flip": True,
}  # fmt: skip
WONG = "Wong et al. 2018, chosen on test data:"

RECIPES: dict[str, Recipe] = {
    "ibp": Recipe(
        f"interval bounds, with a part of the natural loss where that helps ({SHI})",
        {**MODERN, "engine": "ibp"},
        {
            "mnist-0.1": RecipeRow(
                {**MNIST, **CTBENCH, "warm_up": 0, "train_eps_factor": 2.0, "robust_weight": 0.7, "l1": 2.0e-6},
                f"{CTB}; intervals alone, without natural loss, reach 97.95 certified ({SHI})",
            ),
            "mnist-0.3": RecipeRow(
                {**MNIST, **CTRAIN, "optimiser": "adamw", "lr": 0.00053, "lr_factor": 0.119, "lr_milestones": ["59/70"],
                 "warm_up": 3, "eps_part": "24/70", "train_eps_factor": 1.06, "robust_weight_start": 0.395,
                 "robust_weight": 0.891, "l1": 6.8e-6, "regularise": 0.55},
                f"{CTR}; 98.35 / 93.63 without branch and bound",
            ),
            "cifar-2": RecipeRow(
                {**CIFAR_2, **CTRAIN, "optimiser": "adamw", "lr": 0.00139, "lr_factor": 0.038,
                 "lr_milestones": ["119/160", "154/160"], "eps_part": "75/160", "robust_weight_start": 0.738,
                 "robust_weight": 0.823, "regularise": 0.24, "l1": 8.7e-7},
                f"{CTR} (9102bab8); 69.18 / 53.38 without, 55.99 with branch and bound",
            ),
            "cifar-8": RecipeRow(
                {**CIFAR_8, **CTRAIN, "optimiser": "adamw", "lr": 0.00107, "lr_factor": 0.065,
                 "lr_milestones": ["215/260", "233/260"], "warm_up": 4, "eps_part": "163/260", "train_eps_factor": 1.47,
                 "robust_weight_start": 0.289, "robust_weight": 0.544, "regularise": 0.43, "l1": 1.0e-7},
                f"{CTR} (e421b5d0); 50.98 / 34.96 without, 35.35 with branch and bound",
            ),
        },
    ),
    "crown-ibp": Recipe(
        "one backward pass over interval bounds (Zhang et al. 2020, Towards Stable and Efficient Training of Verifiably Robust "
        "Neural Networks); without loss fusion",
        {**MODERN, "engine": "crown-ibp", "robust_weight_start": 0.0, "robust_weight": 0.5},
        {
            "mnist-0.1": RecipeRow(
                {**MNIST, **CTBENCH, "warm_up": 0, "train_eps_factor": 2.0,
                 "robust_weight_start": None, "robust_weight": 0.7, "l1": 5.0e-6},
                f"{CTB}, there with loss fusion",
            ),
            "mnist-0.3": RecipeRow(
                {**MNIST, **CTBENCH, "warm_up": 0, "robust_weight_start": None, "robust_weight": 0.7, "l1": 1.0e-6},
                f"{CTB}, there with loss fusion; 98.48 / 93.90 with branch and bound, by final values that differ",
            ),
            "cifar-2": RecipeRow(
                {**CIFAR_2, **CTRAIN, "model": "cnn5", "optimiser": "adamw", "lr": 0.0012, "lr_factor": 0.114,
                 "lr_milestones": ["133/160", "155/160"], "warm_up": 3, "eps_part": "63/160", "train_eps_factor": 1.39,
                 "robust_weight_start": 0.17, "robust_weight": 0.32, "regularise": 0.0, "l1": 2.3e-6},
                f"{CTR} (best on CNN5); 74.19 / 57.66 without branch and bound",
            ),
            "cifar-8": RecipeRow(
                {**CIFAR_8_CTBENCH, **CTBENCH, "robust_weight_start": None, "robust_weight": 1.0},
                f"{CTB}, there with loss fusion; 48.25 / 32.59 with branch and bound, by final values that differ",
            ),
        },
    ),
    "sabr": Recipe(
        "interval bounds of a small box around an adversarial point (Müller et al. 2023, Certified Training: Small Boxes are All "
        "You Need); without ReLU shrinking",
        {**MODERN, "engine": "ibp", "box_part": 0.4, "attack_steps": 8, "attack_step_size": 0.5, "l1": 1.0e-6},
        {
            "mnist-0.1": RecipeRow(
                {**MNIST, **CTBENCH, "warm_up": 0, **THREE_STARTS, "train_eps_factor": 2.0, "box_part": 0.4,
                 "attack_steps": 10,
                 "robust_weight": 0.7, "l1": 1.0e-6},
                f"{CTB}; the authors report 98.22 with branch and bound",
            ),
            "mnist-0.3": RecipeRow(
                {**MNIST, **CTBENCH, "warm_up": 0, **THREE_STARTS,
                 "box_part": 0.9, "attack_steps": 5, "attack_step_size": 0.4, "l1": 2.0e-6},
                f"{CTB}; 98.66 / 93.68 with branch and bound, by final values that differ",
            ),
            "cifar-2": RecipeRow(
                {**CIFAR_2, **CTRAIN, "optimiser": "radam", "lr": 0.00154, "lr_factor": 0.114,
                 "lr_milestones": ["142/160", "154/160"], "warm_up": 3, "eps_part": "108/160", "train_eps_factor": 1.53,
                 "attack_eps_factor": 2.93, "attack_steps": 4, "attack_step_size": 1.2, "box_part": 0.0294, "l1": 4.4e-6,
                 "regularise": 0.39, **TIGHTER},
                f"{CTR} (38010d31); 79.90 / 56.05 without, 64.49 with branch and bound",
            ),
            "cifar-8": RecipeRow(
                {**CIFAR_8_CTBENCH, **CTBENCH, **THREE_STARTS, "box_part": 0.9, "attack_steps": 5, "attack_step_size": 0.4, "l1": 0.0},
                f"{CTB}; 52.71 / 35.34 with branch and bound, by final values that differ",
            ),
        },
    ),
    "mtl-ibp": Recipe(
        f"interval bounds and an adversarial loss, as a weighted sum ({EXP})",
        {**MODERN, **ADVERSARIAL, "engine": "ibp", "mix": "losses", "robust_weight": 0.1, "attack_steps": 8,
         "attack_step_size": 0.25, "l1": 1.0e-6},
        {
            "mnist-0.1": RecipeRow(
                {**MNIST, **ONE_STEP, "train_eps_factor": 2.0, "robust_weight": 0.01, "l1": 1.0e-5}, EXP
            ),
            "mnist-0.3": RecipeRow(
                {**MNIST, **ONE_STEP, "train_eps_factor": 1.334, "robust_weight": 0.08, "l1": 1.0e-6},
                f"{EXP}; 98.80 / 93.62 with branch and bound",
            ),
            "cifar-2": RecipeRow(
                {**CIFAR_2, **CTRAIN, "model": "cnn5", "optimiser": "radam", "lr": 0.0051, "lr_factor": 0.071,
                 "lr_milestones": ["97/160", "131/160"], "warm_up": 5, "eps_part": "77/160", "train_eps_factor": 1.24,
                 "attack_eps_factor": 2.45, "attack_steps": 8, "attack_step_size": 1.46, "robust_weight": 0.0054, "l1": 4.4e-6,
                 "regularise": 0.343, **TIGHTER},
                f"{CTR} (best on CNN5); 74.30 / 58.60 without branch and bound",
            ),
            "cifar-8": RecipeRow(
                {**CIFAR_8, **ONE_STEP, "robust_weight": 0.616, "l1": 1.0e-7},
                f"{EXP}, with the weight of a sweep by CTRAIN; 52.70 / 35.41 without branch and bound",
            ),
        },
    ),
    "cc-ibp": Recipe(
        f"interval bounds and adversarial scores, as a convex combination ({EXP})",
        {**MODERN, **ADVERSARIAL, "engine": "ibp", "mix": "scores", "robust_weight": 0.3, "attack_steps": 8,
         "attack_step_size": 0.25, "l1": 1.0e-6},
        {
            "mnist-0.1": RecipeRow(
                {**MNIST, **ONE_STEP, "train_eps_factor": 2.0, "robust_weight": 0.1, "l1": 2.0e-6},
                f"{EXP}; 98.43 with branch and bound",
            ),
            "mnist-0.3": RecipeRow(
                {**MNIST, **ONE_STEP, "train_eps_factor": 1.334, "robust_weight": 0.3, "l1": 3.0e-6}, EXP
            ),
            "cifar-2": RecipeRow(
                {**CIFAR_2, **EIGHT_STEPS, **TIGHTER, "robust_weight": 0.01, "l1": 3.0e-6},
                f"{EXP}; 80.09 / 52.37 without, 63.78 with branch and bound",
            ),
            "cifar-8": RecipeRow(
                {**CIFAR_8, **ONE_STEP, "robust_weight": 0.5, "l1": 0.0},
                f"{EXP}; 53.71 / 34.02 without, 35.27 with branch and bound",
            ),
        },
    ),
    "exp-ibp": Recipe(
        f"powers of the losses of interval bounds and of adversarial examples ({EXP})",
        {**MODERN, **ADVERSARIAL, "engine": "ibp", "mix": "geometric", "robust_weight": 0.5, "attack_steps": 8,
         "attack_step_size": 0.25, "l1": 1.0e-6},
        {
            "cifar-2": RecipeRow(
                {**CIFAR_2, **EIGHT_STEPS, **TIGHTER, "robust_weight": 0.095, "l1": 4.0e-6},
                f"{EXP}; 80.61 / 47.87 without, 61.65 with branch and bound",
            ),
            "cifar-8": RecipeRow(
                {**CIFAR_8, **ONE_STEP, "robust_weight": 0.5, "l1": 0.0},
                f"{EXP}; 53.97 / 33.88 without, 35.04 with branch and bound",
            ),
        },
    ),
    "paper": Recipe(
        "the paper's own: random projections of the dual bound (Wong et al. 2018, Scaling provable adversarial defenses)",
        {"norm": "linf", "engine": "projected", "k": 50},
        {
            "mnist-0.1": RecipeRow(PAPER_MNIST, f"{WONG} 98.92 / 96.33"),
            "mnist-0.3": RecipeRow(PAPER_MNIST, f"{WONG} 87.39 / 54.34"),
            "cifar-2": RecipeRow(PAPER_CIFAR, f"{WONG} 68.72 / 53.41"),
            "cifar-8": RecipeRow(PAPER_CIFAR, f"{WONG} 19.44 / 16.57"),
        },
    ),
}  # fmt: skip


def options(name: str, dataset: object = None, eps: object = None) -> dict[str, Any]:
    """Options of a recipe, as a config has them: those for the row with this data set and eps, or, of any other, those for any data.

    Raises:
        ArgumentError: There is no such recipe.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(RECIPES)}"
        raise ArgumentError(f"recipe: unknown recipe {name!r}; {hint}")
    found, row = RECIPES[name], _row(dataset, eps)
    if row is None or row not in found.rows:
        return dict(found.options)
    return {**_row_options(row), **found.options, **found.rows[row].options}


def _row_options(row: str) -> Options:
    dataset, eps = COMPARED_ROWS[row]
    return {"dataset": dataset, "eps": eps}


def _row(dataset: object, eps: object) -> str | None:
    size = _size(eps)
    close = (row for row, (data, its) in COMPARED_ROWS.items() if data == dataset and abs(_size(its) - size) <= 1e-6)
    return next(close, None)


def _size(eps: object) -> float:
    if isinstance(eps, str):
        return parse_fraction(eps) or float("nan")
    return float(eps) if isinstance(eps, int | float) else float("nan")


def written(name: str, row: str) -> str:
    """The text of configs/modern/ROW-NAME.yaml."""
    found = RECIPES[name].rows[row]
    inherited = "inherited from a paper, tuned on its test data" if found.tuned_on_test else "chosen on validation data"
    head = [
        f"{name}: {RECIPES[name].what}.",
        f"Source: {found.source}.",
        f"This row is {inherited}; we have not tuned it.",
    ]
    values = options(name, *COMPARED_ROWS[row])
    TrainConfig.from_mapping(values, f"recipe {name}, row {row}")
    return "".join(f"# {line}\n" for line in head) + dump_yaml(values)
