"""Training on the embedded digits with ten projections, beside training with the exact bound and without any.

    python benchmarks/digits_training.py [--epochs 30] [--seeds 3] [--eps 0.12]

The same network, schedule and number of epochs for all; l-infinity, clipped to [0, 1]; the exact robust error (`Dual()`) of the
last epoch on the 360 test images. Seconds are wall-clock for the training alone. Writes benchmarks/results/digits_training.md
and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass

import torch
from machine import RESULTS, describe
from torch import nn

import autodual as ad
from autodual.digits import digits_network

BATCH = 50
WAYS: dict[str, ad.BoundEngine | None] = {
    "standard": None,
    "exact bound": ad.Dual(),
    "10 projections": ad.Projected(10),
    "10 projections, one stream per term": ad.Projected(10, merged=False),
}


@dataclass(frozen=True)
class Run:
    """One trained network."""

    way: str
    seed: int
    seconds: float
    error: float
    robust_error: float


def train(way: str, seed: int, epochs: int, size: float) -> Run:
    torch.manual_seed(seed)
    images, labels = ad.load_digits("train")
    model, engine = digits_network(), WAYS[way]
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epochs * 2 // 3, epochs * 5 // 6], gamma=0.3)
    started = time.perf_counter()
    for epoch in range(epochs):
        eps = size * min(1.0, (epoch + 1) / (epochs * 5 // 12))
        loss = _loss(model, engine, eps)
        for index in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            loss(images[index], labels[index]).backward()
            optimiser.step()
        schedule.step()
    seconds = time.perf_counter() - started
    found = ad.certify(model.eval(), *ad.load_digits("test"), ad.LinfBall(size, clip=(0.0, 1.0)))
    return Run(way, seed, seconds, found.error, found.robust_error)


def _loss(model: nn.Module, engine: ad.BoundEngine | None, eps: float) -> nn.Module:
    if engine is not None:
        return ad.RobustCrossEntropy(model, ad.LinfBall(eps, clip=(0.0, 1.0)), engine)

    class Standard(nn.Module):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(model(x), labels)

    return Standard()


def write(runs: list[Run], epochs: int, size: float) -> None:
    record = {"machine": describe(), "eps": size, "epochs": epochs, "runs": [asdict(r) for r in runs]}
    (RESULTS / "digits_training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Training on the embedded digits",
        "",
        f"`python benchmarks/digits_training.py --epochs {epochs} --eps {size:g} --seeds {len({r.seed for r in runs})}`:",
        f"l-infinity {size:g}, clipped to [0, 1]; {epochs} epochs, last epoch counts; exact robust error on the 360 test images,",
        "mean over seeds (each).",
        "",
        "| trained with | seconds | error | robust error |",
        "|---|---|---|---|",
    ]
    for way in WAYS:
        chosen = [r for r in runs if r.way == way]
        each = ", ".join(f"{r.robust_error:.1%}" for r in chosen)
        lines.append(
            f"| {way} | {statistics.mean(r.seconds for r in chosen):.1f} | {statistics.mean(r.error for r in chosen):.2%} | "
            f"{statistics.mean(r.robust_error for r in chosen):.2%} ({each}) |"
        )
    lines += ["", "```json", json.dumps(describe(), indent=1), "```", ""]
    (RESULTS / "digits_training.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--eps", type=float, default=0.12)
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        for way in WAYS:
            runs.append(train(way, seed, options.epochs, options.eps))
            print(runs[-1], flush=True)
    write(runs, options.epochs, options.eps)


if __name__ == "__main__":
    main()
