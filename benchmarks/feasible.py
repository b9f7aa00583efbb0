"""What can be certified here: seconds and memory of one image, by network and engine.

    python benchmarks/feasible.py [--limit 240] [--only digits ...]

One CPU thread, float32; every entry in a process of its own, after a warm-up on a tiny network. Seconds are CPU time, which hardly
depends on what else the machine does; memory is the growth of the peak resident set over the whole batch. Networks with kept weights
use them; the others are untrained, with a fixed seed, at an eps where bounds still mean something. Images are the embedded digits, or
random ones with the network's own labels. An entry that takes longer than --limit is recorded as such.

The GPU's figures are not measured here: they come from the records of `autodual reproduce` in results/paper, as seconds over images.
Writes benchmarks/results/feasible.md and .json, and the table of docs/tutorials/certify.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from machine import RESULTS, ROOT, describe, in_words
from measuring import MEBIBYTE, measured
from torch import Tensor, nn

import autodual as ad

PAGE = ROOT / "docs" / "tutorials" / "certify.md"
BEGIN, END = "<!-- feasible: begin -->", "<!-- feasible: end -->"
ENGINES: dict[str, Callable[[], ad.BoundEngine]] = {"IBP": ad.IBP, "Dual": ad.Dual, "Crown": ad.Crown}


@dataclass(frozen=True)
class Problem:
    """One row: a network, its ball, how many images at once, and the row of results/paper that ran on a GPU."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    eps: float
    batch: int
    gpu_row: str | None = None

    def units(self) -> int:
        """Values that enter the activations of one image."""
        x = torch.zeros(1, *self.shape)
        entering = (
            interval.lower for interval in ad.bounds(self.model(), ad.LinfBall(0.0).around(x), ad.IBP()).layers.values()
        )
        return sum(math.prod(lower.shape[1:]) for lower in entering)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().eval()

    def examples(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        if self.shape == (1, 8, 8):
            images, labels = ad.load_digits("test")
            return images[: self.batch], labels[: self.batch]
        x = torch.rand(self.batch, *self.shape, generator=torch.Generator().manual_seed(0))
        return x, model(x).argmax(1)


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)
    )


PROBLEMS = {
    "digits": Problem("digits, shipped with the package", ad.load_digits_network, (1, 8, 8), 0.1, 8),
    "dense": Problem("dense 784-300-300-10, untrained", dense, (1, 28, 28), 0.01, 8),
    "mnist-small": Problem("MNIST `small`, trained", lambda: ad.load_pretrained("mnist-small-0.1").model, (1, 28, 28), 0.1, 8,
                           "mnist-small-0.1"),
    "cifar-small": Problem("CIFAR `small`, trained", lambda: ad.load_pretrained("cifar-small-2").model, (3, 32, 32), 2 / 255, 8,
                           "cifar-small-2"),
    "mnist-large": Problem("MNIST `large`, untrained", lambda: ad.models.large(1, 28), (1, 28, 28), 0.01, 1),
    "cifar-large": Problem("CIFAR `large`, untrained", lambda: ad.models.large(3, 32), (3, 32, 32), 0.5 / 255, 1, "cifar-large-2"),
    "cifar-resnet": Problem("CIFAR `resnet`, untrained", lambda: ad.models.resnet(3, 32), (3, 32, 32), 0.5 / 255, 1,
                            "CIFAR ResNet, random weights, 0.5/255"),
}  # fmt: skip


def measure(name: str, engine: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    tiny = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    ad.certify(tiny, torch.rand(1, 1, 3, 3), torch.tensor([0]), ad.LinfBall(0.1), ENGINES[engine]())
    problem = PROBLEMS[name]
    model = problem.model()
    x, labels = problem.examples(model)
    found: list[ad.Certificate] = []

    def work() -> Tensor:
        certificate = ad.certify(model, x, labels, ad.LinfBall(problem.eps), ENGINES[engine]())
        assert isinstance(certificate, ad.Certificate)
        found.append(certificate)
        return certificate.slack

    return measured(work) | {"images": len(x), "certified": int(found[0].certified.sum())}


def in_process(name: str, engine: str, limit: float) -> dict[str, Any]:
    """The entry, or {"over": limit} if it takes longer."""
    command = [sys.executable, __file__, "--measure", name, engine]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=limit,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"over": limit}
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


RESNET = "CIFAR ResNet, random weights, 0.5/255"


def on_gpu(row: str | None, engine: str) -> dict[str, Any] | None:
    """Seconds and images in the record of a reproduced row, or of benchmarks/high_probability.py; None where there is none."""
    if row is None:
        return None
    if row == RESNET:
        record = json.loads((RESULTS / "high_probability_cuda.json").read_text(encoding="utf-8"))
        exact = {"seconds": record[RESNET][0]["exact_seconds"], "images": 1, "device": record["machine"]["gpu"]}
        return exact if engine == "Dual" else None
    record = json.loads((ROOT / "results" / "paper" / row / "evaluation.json").read_text(encoding="utf-8"))
    found = record["engines"].get(engine.lower())
    return None if found is None else {key: found[key] for key in ("seconds", "images", "device")}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| network | hidden units | IBP, CPU | Dual, CPU | Crown, CPU | IBP, GPU | Dual, GPU | Crown, GPU |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [_cpu_cell(row["cpu"][engine]) for engine in ENGINES] + [
            _gpu_cell(row["gpu"][engine]) for engine in ENGINES
        ]
        lines.append(f"| {row['title']} | {row['units']:,} | {' | '.join(cells)} |")
    return lines


def _cpu_cell(entry: dict[str, Any]) -> str:
    if "over" in entry:
        return f"more than {entry['over'] / 60:g} min"
    mebibytes = max(1, round(entry["growth_bytes"] / MEBIBYTE))
    return f"{_time(entry['cpu_seconds'] / entry['images'])}, {mebibytes:,} MiB"


def _gpu_cell(entry: dict[str, Any] | None) -> str:
    return "not measured" if entry is None else _time(entry["seconds"] / entry["images"])


def _time(seconds: float) -> str:
    value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{float(f'{value:.2g}'):g} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one entry")
    parser.add_argument("--table-only", action="store_true", help="write the table again from the record")
    parser.add_argument("--only", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--measure", nargs=2, metavar=("NETWORK", "ENGINE"), help="one entry, in this process")
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(*asked.measure)))
        return
    if asked.table_only:
        record = json.loads((RESULTS / "feasible.json").read_text(encoding="utf-8"))
        write(record)
        return
    rows = []
    for name in asked.only:
        problem = PROBLEMS[name]
        cpu = {engine: in_process(name, engine, asked.limit) for engine in ENGINES}
        gpu = {engine: on_gpu(problem.gpu_row, engine) for engine in ENGINES}
        rows.append({"title": problem.title, "eps": problem.eps, "units": problem.units(), "cpu": cpu, "gpu": gpu})
        print(table(rows)[-1], flush=True)
    write({"command": f"python benchmarks/feasible.py --limit {asked.limit:g}", "machine": describe(), "rows": rows})


def write(record: dict[str, Any]) -> None:
    """The record, the page of results, and the table of the tutorial."""
    text = [
        "# What can be certified: time of one image, and memory", "", f"`{record['command']}`", "", in_words(record["machine"]), "",
        "CPU: one thread, CPU time; memory is the growth of the peak resident set for the batch (8 images, 1 from MNIST `large` on). "
        "GPU: one NVIDIA H200, from the records in results/paper (trained networks, 1,000 images at once, several rows side by side); "
        "the ResNet's from results/high_probability_cuda.json (untrained, one image).",
        "", *table(record["rows"]), "",
    ]  # fmt: skip
    (RESULTS / "feasible.md").write_text("\n".join(text), encoding="utf-8")
    (RESULTS / "feasible.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, "", *table(record["rows"]), "", END + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
