"""How much looser high-probability bounds are than exact ones, and how much cheaper.

    OMP_NUM_THREADS=2 python benchmarks/high_probability.py [--device cuda] [--out FOLDER]

delta = 0.01 per example. For the small MNIST network with the published weights (l-infinity 0.1), and for the paper's CIFAR ResNet
at random initialisation (0.5/255 in pixels), one example at a time: the factor that every estimate is enlarged by, the mean radius of
what enters the last activation and the smallest margin (both relative to `Dual()`), and seconds beside `Dual()` in the same run
(median of three certificates, after one that does not count).
The paper's settings (k = 200, maximum over m = 10, one stream per term, first layer estimated too) have a row of their own.
Where k is no smaller than the number of generators, nothing is estimated (N = 0) and the bounds are exact.
Writes benchmarks/results/high_probability.md and .json (high_probability_cuda with --device cuda).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from exact_speed import PROBLEMS
from machine import RESULTS, describe, in_words
from torch import Tensor, nn

import autodual as ad
from autodual.engines.high_probability import geometric_enlargement, log_tail_per_estimate
from autodual.engines.prepare import dual_network

DELTA = 0.01
ROUNDS = 3
PAPER = ad.HighProbability(DELTA, k=200, m=10, merged=False, exact_first=False)
ENGINES = {
    "k = 100": ad.HighProbability(DELTA, k=100),
    "k = 200": ad.HighProbability(DELTA, k=200),
    "k = 500": ad.HighProbability(DELTA, k=500),
    "k = 2000": ad.HighProbability(DELTA, k=2000),
    "k = 10000": ad.HighProbability(DELTA, k=10_000),
    "the paper's: k = 200, m = 10, per term": PAPER,
}


@dataclass(frozen=True)
class Row:
    """One engine on one network."""

    engine: str
    estimates: int
    enlargement: float
    radius: float
    """Mean radius of what enters the last activation, over that of `Dual()`."""
    margin: float
    exact_margin: float
    seconds: float
    exact_seconds: float


def networks(device: str) -> dict[str, tuple[nn.Module, Tensor, Tensor, ad.LinfBall]]:
    mnist = PROBLEMS["mnist"]
    x, labels = mnist.examples()
    torch.manual_seed(0)
    resnet, image = ad.models.resnet(3, 32).eval(), torch.rand(1, 3, 32, 32)
    found = {
        "MNIST small, published weights, l-infinity 0.1": (mnist.model(), x[:1], labels[:1], mnist.ball),
        "CIFAR ResNet, random weights, 0.5/255": (resnet, image, resnet(image).argmax(1), ad.LinfBall(0.5 / 255)),
    }
    return {name: (m.to(device), x.to(device), y.to(device), b) for name, (m, x, y, b) in found.items()}


def timed(
    model: nn.Module, x: Tensor, labels: Tensor, ball: ad.LinfBall, engine: ad.BoundEngine
) -> tuple[float, float, float]:
    """Seconds, the smallest margin, and the mean radius of what enters the last activation."""
    margin = ad.certify(model, x, labels, ball, engine).margins.min().item()
    seconds = statistics.median(_once(model, x, labels, ball, engine) for _ in range(ROUNDS))
    with torch.no_grad():
        network = dual_network(model, x)
        intervals = engine.preactivations(network, ball.around(x)).intervals
    return seconds, margin, intervals[network.activations[-1]].radius.mean().item()


def _once(model: nn.Module, x: Tensor, labels: Tensor, ball: ad.LinfBall, engine: ad.BoundEngine) -> float:
    started = time.perf_counter()
    ad.certify(model, x, labels, ball, engine).margins.min().item()
    return time.perf_counter() - started


def measure(model: nn.Module, x: Tensor, labels: Tensor, ball: ad.LinfBall) -> list[Row]:
    exact_seconds, exact_margin, exact_radius = timed(model, x, labels, ball, ad.Dual())
    rows = []
    for name, engine in ENGINES.items():
        basis = engine.confidence(dual_network(model, x), ball.around(x))
        tail = log_tail_per_estimate(basis.delta, basis.estimates, basis.m)
        enlargement = geometric_enlargement(basis.k, tail) if basis.estimates else 1.0
        seconds, margin, radius = timed(model, x, labels, ball, engine)
        rows.append(
            Row(name, basis.estimates, enlargement, radius / exact_radius, margin, exact_margin, seconds, exact_seconds)
        )
        print(rows[-1], flush=True)
    return rows


def table(title: str, rows: list[Row]) -> list[str]:
    first = rows[0]
    lines = [
        f"## {title}",
        "",
        f"`Dual()`: smallest margin {first.exact_margin:.4g}, {first.exact_seconds:.3f} s per example.",
        "",
        "| engine | estimates N | enlargement | last radius, over exact | smallest margin | seconds | over exact |",
        "|---|---|---|---|---|---|---|",
    ]
    return (
        lines
        + [
            f"| {r.engine} | {r.estimates:,} | {r.enlargement:.2f} | {r.radius:.2f} | {r.margin:.4g} | {r.seconds:.3f} | "
            f"{r.seconds / r.exact_seconds:.2f} |"
            for r in rows
        ]
        + [""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    name = "high_probability" + ("" if options.device == "cpu" else f"_{options.device}")
    machine = describe() | ({} if options.device == "cpu" else {"gpu": torch.cuda.get_device_name()})
    lines = [
        "# High-probability bounds beside exact ones",
        "",
        f"`python benchmarks/high_probability.py --device {options.device}`",
        "",
    ]
    where = "" if options.device == "cpu" else f"{machine['gpu']}; "
    lines += [f"delta = {DELTA} per example. {where}{in_words(machine)}", ""]
    record: dict[str, object] = {"machine": machine}
    for title, problem in networks(options.device).items():
        rows = measure(*problem)
        record[title] = [asdict(r) for r in rows]
        lines += table(title, rows)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (options.out / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
