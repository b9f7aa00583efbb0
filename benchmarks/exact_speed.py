"""Exact certification beside the authors' own code: seconds and memory, same weights, same batch, same dtype, same run.

    python benchmarks/exact_speed.py [--rounds 9]          (needs convex_adversarial 0.4.4)

Compares `autodual.certify(..., engine=Dual())` with `convex_adversarial.RobustBounds` without projection, which is what that
package's evaluation calls, on the small MNIST network (l-infinity 0.1, plain and clipped) and the small CIFAR network (0.139 in
normalised units): 10 examples, float32, no gradients. Ours includes capturing the model and the rounding slack. The two take
turns, so that whatever else the machine does meets both; turns that other processes disturb are repeated; medians count.
CPU time with one thread is there as well: it hardly depends on what else runs. Then the paper's CIFAR ResNet, ours alone.

Memory is the growth of the peak resident set of a fresh process while it works: VmHWM at the end less VmRSS just before, after
imports, model, data and a warm-up on a tiny network. (ru_maxrss would not do: on Linux a process inherits the peak of the one
that started it.) Writes benchmarks/results/exact_speed.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from machine import RESULTS, ROOT, describe
from measuring import MEBIBYTE, QUIET, in_fresh_process, measured, quiet_turns, take_turn
from torch import Tensor, nn

import autodual as ad
from autodual.runs.folder import without_place
from autodual.speed.problems import authors_margins

BATCH = 10
THREADS = 2
AGREEMENT = 1e-4
LIMIT_GIB = 8.0
"""Memory within which the ResNet must stay, all told."""
DATA = ROOT / "tests" / "golden" / "data"


@dataclass(frozen=True)
class Problem:
    """What is certified, and what we aim for against the authors' code."""

    title: str
    golden: str
    weights: str
    channels: int
    width: int
    eps: float
    clipped: bool
    target_speed: float
    target_memory: float = 0.5

    def model(self) -> nn.Sequential:
        model = ad.models.small(self.channels, self.width)
        with np.load(DATA / f"weights_{self.weights}.npz", allow_pickle=False) as file:
            first = {
                k.removeprefix("stage0."): torch.from_numpy(file[k]) for k in file.files if k.startswith("stage0.")
            }
        model.load_state_dict(first)
        return model.eval()

    def examples(self) -> tuple[Tensor, Tensor]:
        with np.load(DATA / f"golden_{self.golden}.npz", allow_pickle=False) as file:
            return torch.from_numpy(file["X"][:BATCH]).float(), torch.from_numpy(file["y"][:BATCH])

    @property
    def ball(self) -> ad.LinfBall:
        return ad.LinfBall(self.eps, clip=(0.0, 1.0) if self.clipped else None)


PROBLEMS = {
    "mnist": Problem("MNIST small, 0.1", "mnist", "mnist", 1, 28, 0.1, False, 6.0),
    "mnist_clipped": Problem("MNIST small, 0.1 clipped", "mnist", "mnist", 1, 28, 0.1, True, 6.0),
    "cifar": Problem("CIFAR small, 0.139", "cifar_small_8px", "cifar_small_8px", 3, 32, 0.139, False, 10.0),
}

Certifier = Callable[[Problem, nn.Sequential, Tensor, Tensor], Tensor]


def ours(problem: Problem, model: nn.Sequential, x: Tensor, labels: Tensor) -> Tensor:
    """Lower bounds on the margins, zero at the label."""
    margins = ad.certify(model, x, labels, problem.ball, ad.Dual()).margins
    return margins.masked_fill(torch.nn.functional.one_hot(labels, margins.shape[1]).bool(), 0.0)


def theirs(problem: Problem, model: nn.Sequential, x: Tensor, labels: Tensor) -> Tensor:
    """The same from convex_adversarial."""
    return authors_margins(model, problem.eps, problem.clipped)(x, labels)


CERTIFIERS: dict[str, Certifier] = {"ours": ours, "theirs": theirs}


# --------------------------------------------------------------------------------------------------------
# Seconds


def compare_seconds(problem: Problem, rounds: int, patience: float) -> dict[str, Any]:
    model, (x, labels) = problem.model(), problem.examples()
    works = {name: partial(certifier, problem, model, x, labels) for name, certifier in CERTIFIERS.items()}
    turn = partial(take_turn, works)

    with torch.no_grad():
        turn()  # to warm up
        turns = quiet_turns(turn, rounds, patience)
        torch.set_num_threads(1)
        alone = [turn() for _ in range(rounds)]
        torch.set_num_threads(THREADS)
    results = alone[-1].results
    difference = float((results["ours"] - results["theirs"]).abs().max())
    if not difference <= AGREEMENT:
        sys.exit(f"{problem.title}: the margins differ by {difference:.3g}; the figures would mean nothing")
    wall = {name: statistics.median(t.wall[name] for t in turns) / len(x) for name in CERTIFIERS}
    cpu = {name: statistics.median(t.cpu[name] for t in alone) / len(x) for name in CERTIFIERS}
    return {
        "seconds_per_example": wall,
        "best_seconds_per_example": {name: min(t.wall[name] for t in turns) / len(x) for name in CERTIFIERS},
        "speed_ratio": wall["theirs"] / wall["ours"],
        "one_thread_cpu_seconds_per_example": cpu,
        "one_thread_cpu_ratio": cpu["theirs"] / cpu["ours"],
        "turns": len(turns),
        "cores_busy_elsewhere": max(t.disturbance for t in turns),
        "margins_differ_by": difference,
    }


# --------------------------------------------------------------------------------------------------------
# Memory, in a process of its own


def tiny_problem(certifier: Certifier) -> None:
    """Loads whatever the libraries load on first use, with a network of a few units."""
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    certifier(PROBLEMS["mnist"], model.eval(), torch.rand(1, 1, 3, 3), torch.tensor([0]))


def measure_small(name: str, who: str) -> dict[str, Any]:
    problem = PROBLEMS[name]
    model, (x, labels) = problem.model(), problem.examples()
    tiny_problem(CERTIFIERS[who])
    return measured(lambda: CERTIFIERS[who](problem, model, x, labels))


def measure_resnet() -> dict[str, Any]:
    """The paper's CIFAR ResNet, untrained, one example: 2/255 in pixels, normalisation inside the network."""
    torch.manual_seed(0)
    model = ad.models.resnet(mean=(0.485, 0.456, 0.406), std=0.225).eval()
    x = torch.rand(1, 3, 32, 32)
    labels = model(x).argmax(1)
    tiny_problem(ours)

    def work() -> Tensor:
        margins = ad.certify(model, x, labels, ad.LinfBall(2 / 255), ad.Dual()).margins
        return margins[margins != torch.inf]

    return measured(work)


# --------------------------------------------------------------------------------------------------------
# The record


def compare(name: str, rounds: int, patience: float) -> dict[str, Any]:
    problem = PROBLEMS[name]
    memory = {who: in_fresh_process(__file__, name, who)["growth_bytes"] for who in CERTIFIERS}
    seconds = compare_seconds(problem, rounds, patience)
    return {
        "title": problem.title,
        **seconds,
        "peak_growth_bytes": memory,
        "memory_ratio": memory["ours"] / memory["theirs"],
        "target_speed": problem.target_speed,
        "target_memory": problem.target_memory,
    }


def show(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine, resnet, rows = record["machine"], record["resnet"], list(record["small"].values())
    lines = [
        "# Exact certification: speed and memory beside the authors' code",
        "",
        f"`{record['command']}`",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load_average']} at the start; "
        f"Python {machine['python']}, torch {machine['torch']}, convex_adversarial {machine['convex-adversarial']}; "
        f"commit {machine['commit']}, source {machine['source']}.",
        "",
        f"{BATCH} examples, float32, no gradients; medians of {record['rounds']} turns. Memory: growth of the peak resident set.",
        "",
        "| | ours, ms per example | theirs | faster by | target | with one thread, CPU time | margins differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = {who: f"{1000 * seconds:.2f}" for who, seconds in row["seconds_per_example"].items()}
        lines.append(
            f"| {row['title']} | {times['ours']} | {times['theirs']} | {row['speed_ratio']:.1f} | {row['target_speed']:.0f} "
            f"| {row['one_thread_cpu_ratio']:.1f} | {row['margins_differ_by']:.1e} |"
        )
    lines += ["", "| | ours, MiB | theirs | part of theirs | target |", "|---|---|---|---|---|"]
    for row in rows:
        memory = {who: f"{size / MEBIBYTE:.0f}" for who, size in row["peak_growth_bytes"].items()}
        lines.append(
            f"| {row['title']} | {memory['ours']} | {memory['theirs']} | {row['memory_ratio']:.2f} | {row['target_memory']} |"
        )
    busy = max(row["cores_busy_elsewhere"] for row in rows)
    lines += [
        "",
        f"During the timed turns other processes kept at most {busy:.2f} cores busy"
        + (": the times are not to be trusted." if busy > QUIET else "."),
        "",
        f"CIFAR ResNet (107,496 hidden units, untrained, seed 0), one example, 2/255: {resnet['seconds']:.1f} s "
        f"({resnet['cpu_seconds']:.1f} s of CPU time, {resnet['cores_busy_elsewhere']:.2f} cores busy elsewhere), peak "
        f"{resnet['peak_bytes'] / MEBIBYTE:,.0f} MiB in all, {resnet['growth_bytes'] / MEBIBYTE:,.0f} MiB of it for the work "
        f"(limit {LIMIT_GIB:.0f} GiB).",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each implementation")
    parser.add_argument(
        "--patience", type=float, default=300, help="seconds to wait for undisturbed turns, per problem"
    )
    parser.add_argument("--measure", nargs="+", metavar="WHAT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.measure:
        with torch.no_grad():
            what = options.measure
            print(json.dumps(measure_resnet() if what == ["resnet"] else measure_small(what[0], what[1])))
        return

    record: dict[str, Any] = {
        "command": " ".join(["python benchmarks/exact_speed.py", *map(without_place, sys.argv[1:])]),
        "machine": describe("convex-adversarial"),
        "rounds": options.rounds,
        "small": {},
    }
    for name in PROBLEMS:
        record["small"][name] = row = compare(name, options.rounds, options.patience)
        print(
            f"{row['title']}: {row['speed_ratio']:.1f} times as fast, {row['memory_ratio']:.2f} of the memory",
            flush=True,
        )
    record["resnet"] = in_fresh_process(__file__, "resnet")
    if not record["resnet"]["finite"]:
        sys.exit("the ResNet's bounds are not finite; the figures would mean nothing")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "exact_speed.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "exact_speed.md").write_text(show(record), encoding="utf-8")
    print(show(record))


if __name__ == "__main__":
    main()
