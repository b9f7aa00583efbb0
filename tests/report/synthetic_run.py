"""A run folder as training and evaluation would leave it, made up: 60 epochs, 360 examples, a gallery, three stages."""

import json
import math
from pathlib import Path

import numpy as np

from autodual.digits import load_digits
from autodual.runs.config import TrainConfig, dump_yaml
from autodual.runs.records import EpochLine

EPS = 0.1
EXAMPLES = 360
CLASSES = [str(digit) for digit in range(10)]
AS_RUN = {"robust_error_as_run": 0.4005, "pgd_error": 0.2, "pgd_error_exact": 0.1995, "robust_error": 0.4, "error": 0.1}
"""Rates of a record that tells real numbers from the network as it runs."""


def metrics(seed: int = 0, epochs: int = 60, stages: int = 1) -> list[dict]:
    random, lines = np.random.default_rng(seed), []
    for stage in range(stages):
        for epoch in range(epochs):
            warm = min(1.0, (epoch + 1) / 20)
            decay = math.exp(-epoch / 18)
            robust = 0.16 + 0.5 * decay + 0.08 * warm + random.normal(0, 0.008) + 0.05 * stage
            error = 0.02 + 0.4 * math.exp(-epoch / 6) + random.normal(0, 0.003)
            line = {
                "kind": "epoch",
                "stage": stage,
                "epoch": epoch,
                "step": 29 * (epoch + 1),
                "eps": 0.01 + (EPS - 0.01) * warm,
            }
            line |= {
                "lr": 1e-3 * 0.5 ** (epoch // 20),
                "loss": 2.4 * robust + random.normal(0, 0.01),
                "robust_error": robust,
            }
            lines.append(
                line | {"error": max(error, 0.0), "seconds": 1.4 + random.random() / 5, "examples": 1437 >> stage}
            )
            if epoch % 5 == 4:
                measured = {
                    "kind": "validation",
                    "stage": stage,
                    "epoch": epoch,
                    "split": "validation",
                    "engine": "Dual()",
                    "examples": 200,
                    "eps": EPS,
                }
                lines.append(measured | {"error": max(error + 0.01, 0.0), "robust_error": robust + 0.03})
    return lines


def epoch_line(stage: int, epoch: int, **values: float) -> EpochLine:
    """One line of metrics, in which only some values matter."""
    line = {
        "step": 0,
        "eps": EPS,
        "lr": 0.001,
        "loss": 1.0,
        "robust_error": 0.4,
        "error": 0.1,
        "seconds": 1.0,
        "examples": 1437,
    }
    return EpochLine("epoch", stage, epoch, **line | values)


def evaluation(seed: int = 0, classes: list[str] | None = None) -> dict:
    """Consistent with itself: rates are those of the lists, certified is what the margins say, nothing certified is broken."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, EXAMPLES)
    margins = random.normal(1.1, 1.6, EXAMPLES)
    certified = margins > 0
    wrong = ~certified & (margins < -1.9)
    attacked = ~certified & (margins < -0.35)
    predicted = np.where(wrong, (labels + random.choice([1, 5], EXAMPLES)) % 10, labels)
    radii = np.where(wrong, 0.0, (EPS * (1 + margins / 2.2)).clip(0, 2 * EPS))[:200]
    robust, pgd = float(1 - certified.mean()), float(attacked.mean())
    curve = [
        {"eps": factor * EPS, "robust_error": min(1.0, robust * factor**1.3), "pgd_error": min(1.0, pgd * factor**1.1)}
        for factor in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    ]
    return {
        "split": "test", "examples": EXAMPLES, "perturbation": f"LinfBall(eps={EPS}, clip=(0.0, 1.0))", "norm": "linf", "eps": EPS,
        "engine": "Dual()", "dtype": "float32", "error": float(wrong.mean()), "robust_error": robust, "pgd_error": pgd,
        "curve": curve, "margins": margins.tolist(), "radii": radii.tolist(), "radius_limit": 2 * EPS, "labels": labels.tolist(),
        "predicted": predicted.tolist(), "certified": certified.tolist(), "attacked": attacked.tolist(), "classes": classes or CLASSES,
        "curve_examples": 200,
    }  # fmt: skip


def grey_images(random: np.random.Generator) -> np.ndarray:
    """24 real digits, 8 x 8."""
    images = load_digits("test")[0][:24]
    return (np.asarray(images).reshape(24, 1, 8, 8) * 255).round().astype(np.uint8)


def colour_images(random: np.random.Generator) -> np.ndarray:
    """24 smooth coloured patterns, 32 x 32."""
    up, across = np.mgrid[0:32, 0:32] / 32
    waves = [[np.sin(6 * (a * up + b * across) + c) for a, b, c in random.normal(size=(3, 3))] for _ in range(24)]
    return (127.5 + 120 * np.array(waves)).astype(np.uint8)


def gallery(path: Path, colour: bool = False, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    images = colour_images(random) if colour else grey_images(random)
    noise = random.choice([-25, 25], images.shape)
    kind = np.repeat([0, 1, 2], 8)
    label = random.integers(0, 10, 24)
    predicted = np.where(np.arange(24) == 9, (label + 1) % 10, label)  # one is wrong before the attack
    np.savez_compressed(
        path,
        images=images,
        attacked=(images.astype(int) + noise).clip(0, 255).astype(np.uint8),
        kind=kind,
        label=label,
        predicted=predicted,
        attacked_label=np.where(kind == 1, (label + 3) % 10, predicted),
        index=np.arange(24) * 7,
    )


def cascade() -> dict:
    counts = ("trained_on", "answers", "certified", "correct", "certified_correct", "certified_wrong")
    table = [(1437, 270, 270, 266, 266, 4), (402, 31, 31, 27, 31, 0), (188, 59, 9, 44, 7, 2)]
    stages = [{"stage": stage, **dict(zip(counts, row, strict=True))} for stage, row in enumerate(table)]
    rates = {
        "error": 0.0639,
        "stage_certified_error": 0.1611,
        "sound_certified_error": 0.3083,
        "sound_certified_error_as_run": 0.3111,
    }
    attack = {
        "attacked_examples": EXAMPLES, "attacked_error": 0.1944, "attacked_certified_error": 0.05, "broken_claims": 3,
        "on_attacked": rates,
    }  # fmt: skip
    head = {"kind": "paper", "perturbation": f"LinfBall(eps={EPS}, clip=(0.0, 1.0))", "engine": "Dual()"}
    return head | {"stages": stages, "examples": EXAMPLES, "no_wrong_certificate": 0.9} | rates | attack


def config(seed: int = 0, **changes: object) -> str:
    options = {"dataset": "digits", "model": "small", "eps": EPS, "epochs": 60, "clip": (0.0, 1.0), "seed": seed}
    return dump_yaml(TrainConfig(**options | changes).to_mapping())


def environment(seed: int = 0) -> dict:
    data = {"name": "digits", "train": 1437, "test": 360, "digest": "9f2c" * 16}
    command = f"autodual train --dataset digits --eps 0.1 --seed {seed} --out runs/digits-{seed}"
    versions = {
        "autodual": "0.1.0",
        "torch": "2.6.0",
        "python": "3.11.2",
        "machine": "Linux",
        "processes": 1,
        "device": "cpu",
    }
    return versions | {"command": command, "started": "2026-11-15T13:00:00+00:00", "data": data}


def write_run(folder: Path, seed: int = 0, *, colour: bool = False, stages: int = 1) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config(seed))
    (folder / "environment.json").write_text(json.dumps(environment(seed)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics(seed, stages=stages)))
    (folder / "evaluation.json").write_text(json.dumps(evaluation(seed)))
    gallery(folder / "gallery.npz", colour, seed)
    (folder / "cascade.json").write_text(json.dumps(cascade()))
    return folder
