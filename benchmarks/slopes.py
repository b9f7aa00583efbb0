"""How many more images optimised slopes certify, and what each of them costs: on networks of this repository, over their own balls.

    python benchmarks/slopes.py --data DIR [--images 200] [--device cuda] [--out benchmarks/results/slopes.md] [NETWORK ...]

An image is open if the network is right about it, an attack does not break it, and `Dual()` does not certify it. The first so many
open test images of every network are given to all engines, in batches of 8. What `Crown()` certifies leaves `AlphaCrown` at once,
so its seconds of optimisation are those beyond the seconds of `Crown()`. Tables of networks that are not named are kept.
"""

from __future__ import annotations

import argparse
import textwrap
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from machine import describe, in_words
from torch import Tensor, nn

import autodual as ad
from autodual.data.loading import load

ROOT = Path(__file__).parent.parent
NETWORKS = ("results/mnist-small-0.1", "results/paper/mnist-small-0.3", "results/cifar-small-2")
STEPS = (5, 10, 20, 40)
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
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/slopes.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # that some calls will take more than a minute
    torch.set_num_threads(1)
    device = torch.device(given.device)
    tables = _tables(given.out)
    for name in given.networks:
        tables[name] = table(name, given.data, given.images, device)
        given.out.write_text("\n".join([*INTRODUCTION, *(tables[name] for name in sorted(tables))]), encoding="utf-8")


INTRODUCTION = (
    "# Optimised slopes",
    "",
    "Written by `benchmarks/slopes.py`. Images are open: right, not broken by an attack, not certified by `Dual()`. They come in",
    "batches of 8. Gain: how much larger the smallest margin is than that of `Crown()`, on average. Per second: images that `Crown()`",
    "does not certify, for each second of optimisation, which are the seconds beyond those of `Crown()`.",
    "",
)


def _tables(file: Path) -> dict[str, str]:
    """The tables that a file holds, by network."""
    parts = file.read_text(encoding="utf-8").split("\n## ")[1:] if file.exists() else []
    return {part.splitlines()[0]: "## " + part.rstrip("\n") + "\n" for part in parts}


def on(device: torch.device) -> str:
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return in_words(describe("torch")) + gpu


def table(name: str, data: Path, images: int, device: torch.device) -> str:
    run = ad.load_run(ROOT / name)
    model = run.model.to(device)
    x, labels, tried = open_images(model, load(run.config.dataset, "test", data), run.ball, images, device)
    engines = [
        ad.Dual(),
        ad.Crown(),
        ad.BestOf(ad.Dual(), ad.Crown()),
        ad.BestOf(ad.Dual(), ad.Crown(), every_activation=True),
    ]
    columns = [column(model, x, labels, run.ball, e) for e in (*engines, *(ad.AlphaCrown(steps=s) for s in STEPS))]
    crown = columns[1]
    lines = [f"## {name}", "", f"{run.ball!r}; {len(x)} open images, of the first {tried} of the test set.", ""]
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
    model: nn.Module, data: ad.ImageData, ball: ad.Perturbation, images: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """The first so many open images, their labels, and how many images of the data had to be looked at."""
    found: list[Tensor] = []
    tried = 0
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
    began = time.perf_counter()
    for start in range(0, len(x), BATCH):
        some = slice(start, start + BATCH)
        found = ad.certify(model, x[some], labels[some], ball, engine)
        certified.append(found.certified.cpu())
        margins.append(found.margins.amin(1).cpu())
    return Column(engine, torch.cat(certified), torch.cat(margins), time.perf_counter() - began)


if __name__ == "__main__":
    main()
