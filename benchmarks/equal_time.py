"""One network trained for equal times with several estimates of its bounds, from the same config.

    python benchmarks/equal_time.py CONFIG.yaml --seconds 110 [--data FOLDER] [--test 1000] [--out FILE.md]

For every way to estimate, a training step is timed first; the epochs are those that fit into the seconds at that speed, and the
schedule of the config is stretched over them. The last epoch counts, certified exactly on the first test images.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machine import RESULTS, describe, in_words

import autodual as ad
from autodual.data import load
from autodual.runs import TrainConfig
from autodual.runs.config import read_yaml
from autodual.training import load_run
from autodual.training.fitting import train
from autodual.training.objectives import Objective
from autodual.training.setup import make_ball, make_device, make_engine, make_model, make_optimiser
from autodual.training.step import make_step

BATCH = 50
"""Examples that are certified together."""


@dataclass(frozen=True)
class Way:
    """What differs from the config."""

    name: str
    changes: dict[str, Any]


WAYS = (
    Way("merged stream, median and its autodiff, k = 50", {"k": 50, "estimator": "median"}),
    Way("one stream per term, median (the paper's), k = 50", {"k": 50, "estimator": "median", "per_term": True}),
    Way("default, k = 50", {"k": 50}),
    Way("default, k = 20", {"k": 20}),
)


def seconds_of_step(config: TrainConfig) -> float:
    """Median of some captured steps on one batch, everything but the loading of images included."""
    device = make_device(config.device)
    data = load(config.dataset, "test", None if config.data_folder is None else Path(config.data_folder))
    model = make_model(config.model, data.shape, len(data.classes), None).to(device)
    x, labels = data.scaled(slice(0, config.batch)).to(device), data.labels[: config.batch].to(device)
    engine = make_engine(config)
    assert engine is not None
    objective = Objective.robust(model, make_ball(config), engine)
    optimiser = make_optimiser(config.with_changes(lr=1e-9), model)
    step = make_step(objective, optimiser, torch.Generator(device).manual_seed(0), config.clip_gradients, config.batch)
    times = []
    for _ in range(23):
        begin = time.perf_counter()
        step(x, labels)
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[3:])


def trained(way: Way, config: TrainConfig, seconds: float) -> dict[str, Any]:
    step = seconds_of_step(config)
    examples = len(load(config.dataset, "train", None if config.data_folder is None else Path(config.data_folder)))
    epochs = max(3, round(seconds / (step * examples / config.batch)))
    config = config.with_changes(epochs=epochs)
    with tempfile.TemporaryDirectory() as folder:
        train(config.with_changes(limit_test=20), Path(folder) / "run")
        found = judged(Path(folder) / "run", config)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    epoch = [one["seconds"] for one in map(json.loads, lines) if one["kind"] == "epoch"]
    return {
        "way": way.name,
        "epochs": epochs,
        "ms_per_step": 1e3 * step,
        "seconds_per_epoch": statistics.median(epoch),
        "seconds": sum(epoch),
        **found,
    }


def judged(folder: Path, config: TrainConfig) -> dict[str, float]:
    """Error and exact robust error on the first test images. (A run's own evaluation also searches radii, which takes minutes.)"""
    run = load_run(folder)
    data = load(config.dataset, "test", None if config.data_folder is None else Path(config.data_folder))
    device = make_device(config.device)
    model = run.model.to(device)
    count = len(data) if config.limit_test is None else config.limit_test
    begin = time.perf_counter()
    certified = wrong = 0
    for start in range(0, count, BATCH):
        part = slice(start, min(start + BATCH, count))
        found = ad.certify(model, data.scaled(part).to(device), data.labels[part].to(device), run.ball)
        certified += int(found.certified.sum())
        wrong += round(found.error * len(found.labels))
    return {
        "robust_error": 1 - certified / count,
        "error": wrong / count,
        "examples": count,
        "certifying_seconds": time.perf_counter() - begin,
    }


def as_markdown(config: Path, options: argparse.Namespace, records: list[dict[str, Any]]) -> str:
    lines = [
        f"# {config.stem} trained for equal times",
        "",
        f"`python benchmarks/equal_time.py {config.as_posix()} --seconds {options.seconds:g} --test {options.test}`",
        "",
        f"Robust error exact (`Dual()`), on the first {options.test} test images, after the last epoch. {in_words(describe())}",
        "",
        "| estimate | epochs | ms per step | s per epoch | s in all | robust error | error |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['way']} | {r['epochs']} | {r['ms_per_step']:.2f} | {r['seconds_per_epoch']:.2f} | {r['seconds']:.0f} "
        f"| {r['robust_error']:.2%} | {r['error']:.2%} |"
        for r in records
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--ways", type=int, nargs="*", default=list(range(len(WAYS))))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or RESULTS / f"equal_time_{options.config.stem}.md"
    changes = {"limit_test": options.test, "data_folder": None if options.data is None else str(options.data)}
    base = TrainConfig.from_mapping(read_yaml(options.config) | changes, str(options.config))
    records = []
    for number in options.ways:
        way = WAYS[number]
        records.append(trained(way, base.with_changes(**way.changes), options.seconds))
        print(json.dumps(records[-1]), flush=True)
        out.write_text(as_markdown(options.config, options, records))
        out.with_suffix(".json").write_text(json.dumps({"machine": describe(), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
