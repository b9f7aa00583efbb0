"""How much smaller does "unknown" get? The attack of today against the one before it, on the networks that are kept.

    AUTODUAL_DATA=FOLDER python benchmarks/attacks.py [--images 500] [--out FOLDER]      (about 10 minutes on one core)

Certified <= true robust accuracy <= not broken: an attack makes the gap smaller from above. Before: projected gradient
descent on the margin with step sizes that fall linearly from 1/2 to 1/50 of the radius, starts one after the other (x itself,
then random points). Both get the same number of steps and starts. "1 start" is 40 steps from x, which was the default of
`autodual.attack`; 4 starts are its default now. Writes attacks.md and attacks.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from machine import RESULTS, ROOT, describe, in_words
from torch import Tensor, nn

import autodual as ad
from autodual._tensor import full_precision
from autodual.data import load

NETWORKS = (
    "mnist-small-0.1", "cifar-small-2", "paper/mnist-small-0.1", "paper/mnist-small-0.1/seed-1", "paper/mnist-small-0.3",
    "paper/mnist-small-l2", "paper/cifar-small-2", "paper/cifar-small-8", "paper/cifar-small-l2",
)  # fmt: skip
STEPS = 40
BUDGETS = (1, 4, 16)
"""Starts of STEPS steps each."""


def before(model: nn.Module, x: Tensor, labels: Tensor, ball: ad.Perturbation, restarts: int) -> Tensor:
    """[N] bool, broken as run: the attack that this package had, written down once more to compare with."""
    region, generator = ball.within(x), torch.Generator().manual_seed(0)
    broken = torch.zeros(len(x), dtype=torch.bool)
    for restart in range(restarts):
        points = x if restart == 0 else region.sample(generator)
        for step in range(STEPS + 1):
            points = points.detach().requires_grad_()
            scores = model(points)
            rest = scores.scatter(1, labels.unsqueeze(1), -torch.inf).amax(1)
            margins = scores.gather(1, labels.unsqueeze(1)).squeeze(1) - rest
            broken |= ~(margins.detach() > 0)
            if step < STEPS:
                (gradient,) = torch.autograd.grad(margins.sum(), points)
                points = region.step(points.detach(), -gradient, 0.5 + (0.02 - 0.5) * step / STEPS)
    return broken


def measure(name: str, images: int) -> dict[str, Any]:
    run = ad.load_run(ROOT / "results" / name)
    data = load(run.config.dataset, "test", None).take(images)
    x, labels = data.scaled(slice(None)), data.labels
    certificate = ad.certify(run.model, x, labels, run.ball)
    certified, wrong = certificate.certified, ~certificate.right
    open_ = ~certified & ~wrong
    x, labels = x[open_], labels[open_]
    record: dict[str, Any] = {
        "network": name, "set": certificate.where.removeprefix("at "), "images": images, "wrong": int(wrong.sum()),
        "certified": int(certified.sum()), "attacks": [],
    }  # fmt: skip
    with full_precision():
        for restarts in BUDGETS:
            begin = time.perf_counter()
            old = before(run.model, x, labels, run.ball, restarts)
            middle = time.perf_counter()
            found = ad.attack(run.model, x, labels, run.ball, steps=STEPS, restarts=restarts)
            end = time.perf_counter()
            new = found.success_as_run
            record["attacks"].append({
                "starts": restarts, "before": int(old.sum()), "now": int(new.sum()), "only_before": int((old & ~new).sum()),
                "only_now": int((new & ~old).sum()), "unknown_before": int((~old).sum()), "unknown_now": int((~new).sum()),
                "seconds_before": middle - begin, "seconds_now": end - middle,
            })  # fmt: skip
            print(name, record["attacks"][-1], flush=True)
    return record


def table(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| network | set | images | wrong | certified | starts | broken: before | now | unknown: before | now | seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        for found in record["attacks"]:
            lines.append(
                f"| {record['network']} | {record['set']} | {record['images']} | {record['wrong']} | {record['certified']} | "
                f"{found['starts']} | {found['before']} | {found['now']} | {found['unknown_before']} | {found['unknown_now']} | "
                f"{found['seconds_before']:.1f}, {found['seconds_now']:.1f} |"
            )
    for restarts in BUDGETS:
        rows = [f for r in records for f in r["attacks"] if f["starts"] == restarts]
        was, now = (sum(row[key] for row in rows) for key in ("unknown_before", "unknown_now"))
        lines.append(f"| all | | | | | {restarts} | | | {was} | {now} | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe()
    records = [measure(name, options.images) for name in options.only]
    about = (
        f"The first {options.images} test images of each network, {STEPS} steps from each start, as many starts before as now.",
        "Attacked are the images that are right and not certified by `Dual()`: others are wrong already, or cannot be broken.",
        "Broken: as run in float32. Unknown: neither certified nor broken. Seconds: before, now (what is broken leaves the search).",
    )
    text = ["# Attacks: how much smaller does unknown get?", "", *about, "", *table(records), "", in_words(machine), ""]
    text += ["Run: `AUTODUAL_DATA=FOLDER python benchmarks/attacks.py`", ""]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "attacks.md").write_text("\n".join(text), encoding="utf-8")
    (options.out / "attacks.json").write_text(json.dumps({"machine": machine, "networks": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
