"""What optimised slopes are worth: how tight they are against the optimum, how many more images they certify, and what each costs.

    python benchmarks/slopes.py --data DIR [--images 200] [--first 5000] [--device cuda] [--out FILE.md] [NETWORK ...]
    python benchmarks/slopes.py --data DIR --choose [--images 8] [NETWORK ...]
    python benchmarks/slopes.py --optimum [--images 4]

An image is open if the network is right about it, an attack does not break it, and `Dual()` does not certify it. So many open
test images of every network, from the number `first` on, are given to all engines, in batches of 8. What `Crown()` certifies
leaves `AlphaCrown` at once, so its seconds of optimisation are those beyond the seconds of `Crown()`. `--choose` tries steps and
sizes of steps on open *training* images. `--optimum` compares with linear programs over the triangles of all ReLUs, solved for
every unit in turn, so that intervals on the way are the best ones, too: no choice of lines does better. Tables that a call does
not make are kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import describe, in_words
from torch import Tensor, nn

import autodual as ad
from autodual.data.loading import load
from autodual.engines.prepare import dual_network
from autodual.interval import Interval
from autodual.runs.folder import recorded_command
from autodual.runs.recipes import options
from autodual.spec import Spec
from autodual.testing.engines import triangle_minimum

ROOT = Path(__file__).parent.parent
NETWORKS = tuple(
    f"results/paper/{row}" for row in ("mnist-small-0.1", "mnist-small-0.3", "cifar-small-2", "cifar-small-8")
)
STEPS, RATES = (5, 10, 20, 40), (0.1, 0.25, 0.5, 1.0)
CHOOSE, OPTIMUM = "Steps and lr, on training images", "Against the optimum"
BATCH = 8
LOOKED_AT = 100
"""Test images that are tried together for being open."""


@dataclass(frozen=True)
class Column:
    """What one engine does with the open images."""

    engine: ad.BoundEngine
    certified: Tensor
    margins: Tensor
    """[N]: the smallest one of every image."""
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--optimum", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/slopes.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # that some calls will take more than a minute
    torch.set_num_threads(1)
    device = torch.device(given.device)
    tables = _tables(given.out)

    def keep(name: str, text: str) -> None:
        tables[name] = text
        order = sorted(tables, key=lambda one: (one != OPTIMUM, one != CHOOSE, one))
        given.out.write_text("\n".join([*INTRODUCTION, *(tables[one] for one in order)]), encoding="utf-8")

    if given.optimum:
        keep(OPTIMUM, optimum(given.images))
    elif given.choose:
        keep(CHOOSE, choose(given.networks, given.data, given.images, device))
    else:
        for name in given.networks:
            keep(name, table(name, given.data, given.images, given.first, device))


INTRODUCTION = (
    "# Optimised slopes",
    "",
    "Written by `benchmarks/slopes.py`. Images are open: right, not broken by an attack, not certified by `Dual()`. They come",
    "in batches of 8. Gain: how much larger the smallest margin is than that of `Crown()`, on average. Per second: images",
    "that `Crown()` does not certify, for each second of optimisation, which are the seconds beyond those of `Crown()`.",
    "Seconds on a CPU are those of the process, on one thread, whatever else the machine does.",
    "",
)


def _tables(file: Path) -> dict[str, str]:
    """The tables that a file holds, by network."""
    parts = file.read_text(encoding="utf-8").split("\n## ")[1:] if file.exists() else []
    return {part.splitlines()[0]: "## " + part.rstrip("\n") + "\n" for part in parts}


def on(device: torch.device) -> str:
    """The command, and the machine."""
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return f"`python benchmarks/{recorded_command(sys.argv)}`. {in_words(describe('torch'))}{gpu}"


def opened(name: str, device: torch.device) -> tuple[nn.Module, ad.Perturbation, str]:
    """Network, ball and data set of a folder of `results/`; weights may be kept in float16."""
    place = (ROOT / name).relative_to(ROOT / "results")
    if len(place.parts) > 1:
        run = ad.load_pretrained(place.name, recipe=place.parts[0], folder=ROOT / "results")
    else:
        run = ad.load_run(ROOT / name)
    return run.model.to(device), run.ball, run.config.dataset


def table(name: str, data: Path, images: int, first: int, device: torch.device) -> str:
    model, ball, dataset = opened(name, device)
    x, labels, tried = open_images(model, load(dataset, "test", data), ball, images, device, first)
    engines = [
        ad.Dual(),
        ad.Crown(),
        ad.BestOf(ad.Dual(), ad.Crown()),
        ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True),
    ]
    columns = [column(model, x, labels, ball, e) for e in (*engines, *(ad.AlphaCrown(steps=s) for s in STEPS))]
    crown = columns[1]
    lines = [f"## {name}", "", f"{ball!r}; {len(x)} open images, of the test images {first} to {tried - 1}.", ""]
    lines += ["| engine | certified | gain | s / image | per second |", "|---|---|---|---|---|"]
    for one in columns:
        more = int((one.certified & ~crown.certified).sum())
        beyond = one.seconds - crown.seconds
        rate = f"{more / beyond:.3f}" if isinstance(one.engine, ad.AlphaCrown) and beyond > 0 else ""
        gain = "" if one is crown else f"{(one.margins - crown.margins).mean().item():+.3f}"
        shown = f"`{one.engine!r}`"
        lines.append(f"| {shown} | {int(one.certified.sum())} | {gain} | {one.seconds / len(x):.2f} | {rate} |")
        print(lines[-1], flush=True)
    return "\n".join([*lines, "", *textwrap.wrap(on(device), 135), ""])


def open_images(
    model: nn.Module, data: ad.ImageData, ball: ad.Perturbation, images: int, device: torch.device, first: int = 0
) -> tuple[Tensor, Tensor, int]:
    """So many open images from the number `first` on, their labels, and the number after the last image that was looked at."""
    found: list[Tensor] = []
    tried = first
    while sum(map(len, found)) < images and tried < len(data):
        some = torch.arange(tried, min(tried + LOOKED_AT, len(data)))
        x, labels = data.scaled(slice(tried, tried + len(some))).to(device), data.labels[some].to(device)
        plain = ad.certify(model, x, labels, ball)
        left = (plain.right & ~plain.certified).nonzero().squeeze(1)
        if len(left) > 0:
            broken = ad.attack(model, x[left], labels[left], ball).success
            found.append(some[left[~broken].cpu()])
        tried += len(some)
    index = torch.cat(found)[:images]
    pictures = torch.cat([data.scaled(slice(i, i + 1)) for i in index.tolist()])
    return pictures.to(device), data.labels[index].to(device), tried


def column(model: nn.Module, x: Tensor, labels: Tensor, ball: ad.Perturbation, engine: ad.BoundEngine) -> Column:
    certified, margins = [], []
    clock = time.perf_counter if x.is_cuda else time.process_time
    began = clock()
    for start in range(0, len(x), BATCH):
        some = slice(start, start + BATCH)
        found = ad.certify(model, x[some], labels[some], ball, engine)
        certified.append(found.certified.cpu())
        margins.append(found.margins.amin(1).cpu())
    return Column(engine, torch.cat(certified), torch.cat(margins), clock() - began)


# Steps and their sizes, on images that no network is tested on.


def choose(names: Sequence[str], data: Path, images: int, device: torch.device) -> str:
    told = (
        f"The first {images} open *training* images of each network: certified, mean gain over `Crown()`, and seconds an image. The "
        "defaults, 10 steps at 0.5, had been chosen by eye before, on 8 of the first 1,400 test images of MNIST; this table is the "
        "check of them."
    )
    lines = [f"## {CHOOSE}", "", *textwrap.wrap(told, 135), ""]
    lines += [
        f"| network | steps | {' | '.join(f'lr {rate:g}' for rate in RATES)} |",
        f"|---|---|{'---|' * len(RATES)}",
    ]
    for name in names:
        model, ball, dataset = opened(name, device)
        x, labels, _ = open_images(model, load(dataset, "train", data), ball, images, device)
        crown = column(model, x, labels, ball, ad.Crown())
        for steps in STEPS[:3]:
            cells = []
            for rate in RATES:
                one = column(model, x, labels, ball, ad.AlphaCrown(steps=steps, lr=rate))
                gain = (one.margins - crown.margins).mean().item()
                cells.append(f"{int(one.certified.sum())}, {gain:+.3f}, {one.seconds / len(x):.2f} s")
            lines.append(f"| {name} (`Crown()`: {int(crown.certified.sum())}) | {steps} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join([*lines, "", *textwrap.wrap(on(device), 135), ""])


# The optimum, by linear programs, on small networks.


def optimum(images: int) -> str:
    lines = [
        f"## {OPTIMUM}",
        "",
        "Margins against the runner-up class at the image, in float64. Way: part of the way from `Crown()` to",
    ]
    lines += ["the optimum, which is the best margin that any choice of lines can reach.", ""]
    for name, model, ball in small_networks():
        lines += [*_against_programs(name, model, ball, images), ""]
    return "\n".join([*lines, *textwrap.wrap(on(torch.device("cpu")), 135), ""])


def _against_programs(name: str, model: nn.Sequential, ball: ad.Perturbation, images: int) -> list[str]:
    x, labels, tried = open_images(model, load("digits", "test"), ball, images, torch.device("cpu"))
    x, model, classes = x.double(), model.double(), torch.eye(10).double()
    rows = classes[labels] - classes[model(x).scatter(1, labels[:, None], -torch.inf).argmax(1)]
    engines = [ad.Dual(), ad.Crown(), *(ad.AlphaCrown(steps=steps) for steps in (*STEPS, 100))]
    found = {f"`{engine!r}`": _timed(partial(_margins, model, x, ball, rows, engine)) for engine in engines}
    found[OPTIMUM] = best, _ = _timed(partial(_by_programs, model, x, ball, rows))
    crown, _ = found["`Crown()`"]
    lines = [f"{name}, {ball!r}: {len(x)} open images, of the first {tried} test digits.", ""]
    lines += ["| bound | margin, mean | way | above 0 | s / image |", "|---|---|---|---|---|"]
    for bound, (margins, seconds) in found.items():
        if not (margins <= best + 1e-6).all():
            raise AssertionError(f"{bound} is above the optimum")
        way, certified = (margins - crown).sum() / (best - crown).sum(), int((margins > 0).sum())
        shown = "optimum, by linear programs" if bound == OPTIMUM else bound
        lines.append(f"| {shown} | {margins.mean():+.4f} | {way:.1%} | {certified} | {seconds / len(x):.2f} |")
        print(lines[-1], flush=True)
    return lines


def small_networks() -> list[tuple[str, nn.Sequential, ad.Perturbation]]:
    """The embedded network, and two that are trained here: on adversarial examples, and as MTL-IBP does."""
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Flatten(), *ad.models.mlp([32, 32, 32, 32], 64, 10))
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in ((64, 60), (60, 60), (60, 40)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    normed = nn.Sequential(*layers, nn.Linear(40, 10))
    pgd = {"engine": "none", "adversarial": True, "attack_steps": 5, "attack_step_size": 0.5, "epochs": 20}
    mixed = {**options("mtl-ibp"), "robust_weight": 0.02, "attack_steps": 3, "epochs": 12, "batch": 100, "lr": 0.005}
    _train(deep, 0.05, pgd)
    _train(normed, 0.1, mixed)
    ball = ad.LinfBall(0.08, clip=(0.0, 1.0))
    return [
        ("The embedded digits network", ad.load_digits_network(), ball),
        ("64-32-32-32-32-10, trained on PGD examples at 0.05", deep, ball.with_eps(0.05)),
        ("64-60-60-40-10 with batch norm, trained by MTL-IBP, weight 0.02, at 0.1", normed, ball.with_eps(0.1)),
    ]


def _train(model: nn.Sequential, eps: float, values: dict[str, Any]) -> None:
    images, labels = ad.load_digits("train")
    data = ad.ImageData((images * 255).byte(), labels, classes=tuple("0123456789"), name="digits")
    quick = {"evaluate_every": 0, "limit_test": 1, "skip_curve": True, "device": "cpu"}
    config = ad.TrainConfig.from_mapping({**values, "eps": eps, "clip": [0.0, 1.0], **quick})
    with tempfile.TemporaryDirectory() as folder:
        ad.fit(model, data, data, config, Path(folder) / "run")
    model.eval()


def _timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def _margins(model: nn.Module, x: Tensor, ball: ad.Perturbation, rows: Tensor, engine: ad.BoundEngine) -> Tensor:
    """[N]: lower bounds on each image's own row."""
    network = dual_network(model, x)
    return engine.minimum(network, ball.around(x), Spec(rows[None])).lower[:, 0].detach()


def _by_programs(model: nn.Sequential, x: Tensor, ball: ad.Perturbation, rows: Tensor) -> Tensor:
    """[N]: the best bound on each image's own row."""
    return torch.stack([_by_programs_of_one(model, x[i : i + 1], ball, row) for i, row in enumerate(rows)])


def _by_programs_of_one(model: nn.Sequential, x: Tensor, ball: ad.Perturbation, row: Tensor) -> Tensor:
    """Intervals of each layer by programs over the triangles of those before, and then the row."""
    box = ball.around(x)
    layers: dict[str, Interval] = {}
    for number, layer in enumerate(model):
        if isinstance(layer, nn.ReLU):
            before = model[:number]
            plain = ad.bounds(before, box, ad.Crown()).output
            lower, upper = plain.lower.flatten().clone(), plain.upper.flatten().clone()
            crossing = ((lower < 0) & (upper > 0)).nonzero().squeeze(1)
            if layers and len(crossing) > 0:
                unit = torch.eye(len(lower)).double()[crossing]
                both = triangle_minimum(before, box, torch.cat([unit, -unit]), layers)[0]
                lower[crossing], upper[crossing] = both[: len(crossing)], -both[len(crossing) :]
            name = dual_network(model[: number + 1], x).nodes[-1].name
            layers[name] = Interval(lower.reshape(plain.lower.shape), upper.reshape(plain.upper.shape))
    return triangle_minimum(model, box, row[None], layers)[0, 0]


if __name__ == "__main__":
    main()
