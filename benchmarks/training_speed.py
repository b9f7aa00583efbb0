"""One step of provable training beside the authors' own code: seconds and memory, same weights, same batch, same run.

    python benchmarks/training_speed.py [--rounds 9]          (needs convex_adversarial 0.4.4)

A step is forward, backward and the optimiser's update, with k = 50 projections on a batch of 50, float32, on the CPU: the small
MNIST network (l-infinity 0.1, plain and clipped; Adam 1e-3) and the small CIFAR network (2/255/0.225 in normalised units; SGD
0.05, momentum 0.9), untrained, seed 0. Theirs is `convex_adversarial.robust_loss(..., proj=50, norm_type='l1_median')`. Ours is
`RobustCrossEntropy` with `Projected(50)` (merged) and with `Projected(50, merged=False)` (one stream per term, as in the paper).
Random numbers are drawn in every step and count. Ours captures the model once, in the warm-up, as a training run does.

Images are the first 50 of the MNIST test set, and the 10 CIFAR images of the recorded values, five times over. Weights go
back to the initial ones before every step, off the clock. The three take turns, so that whatever else the machine does meets all of
them; turns that other processes disturb are repeated; medians count. CPU time with one thread is there as well: it hardly depends on
what else runs. The losses of all steps are drawn from the same weights, so their means must agree; the exact loss stands beside them.

Memory is the growth of the peak resident set of a fresh process over one step, gradients and the optimiser's state included:
VmHWM at the end less VmRSS just before, after imports, model, data and a warm-up on a tiny network. Writes
benchmarks/results/training_speed.md and .json.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import RESULTS, ROOT, describe
from measuring import MEBIBYTE, QUIET, Turn, in_fresh_process, measured, quiet_turns, take_turn
from torch import Tensor, nn

import autodual as ad
from autodual.runs.folder import without_place
from autodual.speed.problems import authors_loss

BATCH = 50
K = 50
AGREEMENT = 0.1
"""Relative difference of mean losses beyond which the figures would mean nothing; a few per cent is the spread of the estimates."""
DATA = ROOT / "tests" / "golden" / "data"


@dataclass(frozen=True)
class Problem:
    """What is trained, and how much faster than the authors' code we aim to be."""

    title: str
    channels: int
    width: int
    eps: float
    clipped: bool
    optimiser: Callable[..., torch.optim.Optimizer]
    targets: dict[str, float]

    def model(self) -> nn.Sequential:
        torch.manual_seed(0)
        return ad.models.small(self.channels, self.width)

    @property
    def ball(self) -> ad.LinfBall:
        return ad.LinfBall(self.eps, clip=(0.0, 1.0) if self.clipped else None)

    def examples(self) -> tuple[Tensor, Tensor]:
        if self.channels == 1:
            with np.load(DATA / "mnist300.npz", allow_pickle=False) as file:
                images, labels = file["images"][:BATCH, None] / np.float32(255), file["labels"][:BATCH]
        else:
            with np.load(DATA / "golden_cifar_small_8px.npz", allow_pickle=False) as file:
                images, labels = file["X"], file["y"]
        x, y = torch.from_numpy(images).float(), torch.from_numpy(labels).long()
        repeats = -(-BATCH // len(x))
        return x.repeat(repeats, 1, 1, 1)[:BATCH], y.repeat(repeats)[:BATCH]


MNIST = {"merged": 3.0, "per_term": 2.0}
CIFAR = {"merged": 1.5, "per_term": 1.1}
ADAM = partial(torch.optim.Adam, lr=1e-3)
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
PROBLEMS = {
    "mnist": Problem("MNIST small, 0.1", 1, 28, 0.1, False, ADAM, MNIST),
    "mnist_clipped": Problem("MNIST small, 0.1 clipped", 1, 28, 0.1, True, ADAM, MNIST),
    "cifar": Problem("CIFAR small, 2/255", 3, 32, 2 / 255 / 0.225, False, SGD, CIFAR),
}

Loss = Callable[[Tensor, Tensor], Tensor]


def theirs(problem: Problem, model: nn.Sequential) -> Loss:
    return authors_loss(model, problem.eps, K, problem.clipped)


def merged(problem: Problem, model: nn.Sequential) -> Loss:
    return ad.RobustCrossEntropy(model, problem.ball, ad.Projected(K))


def per_term(problem: Problem, model: nn.Sequential) -> Loss:
    return ad.RobustCrossEntropy(model, problem.ball, ad.Projected(K, merged=False))


LOSSES: dict[str, Callable[[Problem, nn.Sequential], Loss]] = {"theirs": theirs, "merged": merged, "per_term": per_term}
OURS = ("merged", "per_term")
NAMES = {"theirs": "theirs", "merged": "ours, merged", "per_term": "ours, per term"}


def stepper(problem: Problem, model: nn.Sequential, who: str, x: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """A function that takes one training step and returns the loss before it."""
    loss, optimiser = LOSSES[who](problem, model), problem.optimiser(model.parameters())

    def step() -> Tensor:
        optimiser.zero_grad()
        value = loss(x, labels)
        value.backward()
        optimiser.step()
        return value.detach()

    return step


# --------------------------------------------------------------------------------------------------------
# Seconds


def compare_seconds(problem: Problem, rounds: int, patience: float, threads: int) -> dict[str, Any]:
    initial, (x, labels) = problem.model(), problem.examples()
    models = {who: copy.deepcopy(initial) for who in LOSSES}
    works = {who: stepper(problem, model, who, x, labels) for who, model in models.items()}
    with torch.no_grad():
        exact = float(ad.RobustCrossEntropy(initial, problem.ball, ad.Dual())(x, labels))

    def restore() -> None:
        for model in models.values():
            model.load_state_dict(initial.state_dict())

    turn = partial(take_turn, works, restore)
    turn()  # to warm up
    turns = quiet_turns(turn, rounds, patience)
    torch.set_num_threads(1)
    alone = [turn() for _ in range(rounds)]
    torch.set_num_threads(threads)
    wall = {who: statistics.median(t.wall[who] for t in turns) for who in LOSSES}
    cpu = {who: statistics.median(t.cpu[who] for t in alone) for who in LOSSES}
    return {
        "seconds_per_step": wall,
        "best_seconds_per_step": {who: min(t.wall[who] for t in turns) for who in LOSSES},
        "speed_ratio": {who: wall["theirs"] / wall[who] for who in OURS},
        "one_thread_cpu_seconds_per_step": cpu,
        "one_thread_cpu_ratio": {who: cpu["theirs"] / cpu[who] for who in OURS},
        "turns": len(turns),
        "cores_busy_elsewhere": max(t.disturbance for t in turns),
        "loss": mean_losses(problem, turns + alone) | {"exact": exact},
    }


def mean_losses(problem: Problem, turns: list[Turn]) -> dict[str, float]:
    losses = {who: statistics.fmean(float(t.results[who]) for t in turns) for who in LOSSES}
    for who in OURS:
        if not abs(losses[who] / losses["theirs"] - 1) <= AGREEMENT:
            sys.exit(f"{problem.title}: the losses are {losses}; the figures would mean nothing")
    return losses


# --------------------------------------------------------------------------------------------------------
# Memory, in a process of its own


def measure(name: str, who: str) -> dict[str, Any]:
    problem = PROBLEMS[name]
    model, (x, labels) = problem.model(), problem.examples()
    tiny_step(problem, who)
    return measured(stepper(problem, model, who, x, labels))


def tiny_step(problem: Problem, who: str) -> None:
    """Loads whatever the libraries load on first use, with a network of a few units."""
    c = problem.channels
    model = nn.Sequential(nn.Conv2d(c, 4, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    stepper(problem, model, who, torch.rand(2, c, 12, 12), torch.tensor([0, 1]))()


# --------------------------------------------------------------------------------------------------------
# The record


def compare(name: str, rounds: int, patience: float, threads: int) -> dict[str, Any]:
    problem = PROBLEMS[name]
    memory = {who: in_fresh_process(__file__, name, who, "--threads", str(threads))["growth_bytes"] for who in LOSSES}
    return {
        "title": problem.title,
        **compare_seconds(problem, rounds, patience, threads),
        "peak_growth_bytes": memory,
        "memory_ratio": {who: memory[who] / memory["theirs"] for who in OURS},
        "target_speed": problem.targets,
    }


def show(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine, rows = record["machine"], list(record["problems"].values())
    lines = [
        "# A training step: speed and memory beside the authors' code",
        "",
        f"`{record['command']}`",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load_average']} at the start; "
        f"Python {machine['python']}, torch {machine['torch']}, convex_adversarial {machine['convex-adversarial']}; "
        f"commit {machine['commit']}, source {machine['source']}.",
        "",
        f"Forward, backward and update; batch {BATCH}, k = {K}, float32, untrained networks; medians of {record['rounds']} turns. "
        "Memory: growth of the peak resident set over one step.",
        "",
        "| | | ms per step | faster by | target | with one thread, CPU time | MiB | part of theirs | mean loss |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [line for row in rows for line in _lines(row)]
    busy = max(row["cores_busy_elsewhere"] for row in rows)
    lines += [
        "",
        f"During the timed turns other processes kept at most {busy:.2f} cores busy"
        + (": the times are not to be trusted." if busy > QUIET else "."),
        "",
    ]
    return "\n".join(lines)


def _lines(row: dict[str, Any]) -> list[str]:
    lines = []
    for who, name in NAMES.items():
        known = who in OURS
        cells = [
            row["title"],
            name,
            f"{1000 * row['seconds_per_step'][who]:.0f}",
            f"{row['speed_ratio'][who]:.2f}" if known else "",
            f"{row['target_speed'][who]:.1f}" if known else "",
            f"{row['one_thread_cpu_ratio'][who]:.2f}" if known else "",
            f"{row['peak_growth_bytes'][who] / MEBIBYTE:.0f}",
            f"{row['memory_ratio'][who]:.2f}" if known else "",
            f"{row['loss'][who]:.3f}" + ("" if known else f" (exact {row['loss']['exact']:.3f})"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each implementation")
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for quiet turns, per problem")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to write to")
    parser.add_argument("--measure", nargs=2, metavar="WHAT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return

    record: dict[str, Any] = {
        "command": " ".join(["python benchmarks/training_speed.py", *map(without_place, sys.argv[1:])]),
        "machine": describe("convex-adversarial"),
        "rounds": options.rounds,
        "problems": {},
    }
    for name in options.problems:
        record["problems"][name] = row = compare(name, options.rounds, options.patience, options.threads)
        faster = ", ".join(f"{who} {row['speed_ratio'][who]:.2f} times as fast" for who in OURS)
        losses = ", ".join(f"{who} {value:.3f}" for who, value in row["loss"].items())
        print(f"{row['title']}: {faster}; mean losses {losses}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "training_speed.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (options.out / "training_speed.md").write_text(show(record), encoding="utf-8")
    print(show(record))


if __name__ == "__main__":
    main()
