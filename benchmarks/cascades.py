"""One network, the paper's cascade, a routed cascade and a sum of scores: what each claims, what an attack finds, what is proved.

    python benchmarks/cascades.py digits [--device cuda] [--out FOLDER]        (a few minutes on two cores)
    python benchmarks/cascades.py mnist --device cuda                          (MNIST in $AUTODUAL_DATA: 10,000 training images)

Three stages each, trained as `autodual train --cascade 3` does, on the same data with the same schedule; a tenth of the training
data is held out, for thresholds and for leaving out stages that do not help. Figures are of test images (attacks: of the first
of them; the table says how many). Runs are kept in FOLDER/runs and resumed. Writes cascades_digits|mnist.md and .json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from machine import RESULTS, describe, in_words

from autodual.evaluation.processes import Watch
from autodual.runs.config import TrainConfig
from autodual.training.fitting import train

KINDS = {"paper": "the paper's cascade", "routed": "routed cascade", "sum": "sum of scores"}
SETTINGS = {
    "digits": TrainConfig(
        dataset="digits", model="digits", eps=0.1, clip=(0.0, 1.0), k=10, epochs=30, lr=2e-3, eps_epochs=12, lr_epochs=20,
        lr_halve_every=5, cascade=3, validation=0.1, evaluate_every=5,
    ),
    "mnist": TrainConfig(
        dataset="mnist", model="small", eps=0.1, clip=(0.0, 1.0), k=20, epochs=20, eps_epochs=8, lr_epochs=12, lr_halve_every=4,
        limit_train=10_000, limit_test=1000, cascade=3, validation=0.1, evaluate_every=5, evaluate_examples=1000,
    ),
}  # fmt: skip


def run(name: str, kind: str, device: str, folder: Path) -> dict[str, Any]:
    config = SETTINGS[name].with_changes(cascade_kind=kind, device=device)
    return train(config, folder / "runs" / f"{name}-{kind}", resume=True, watch=Watch(say=print))


def row(title: str, stages: int, record: dict[str, Any]) -> str:
    columns = [record[key] for key in ("error", "stage_certified_error", "attacked_error", "sound_certified_error")]
    cells = " | ".join(f"{value:.2%}" for value in columns)
    return f"| {title} | {stages} | {cells} | {record.get('broken_claims', 0)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETTINGS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("/tmp/cascades"))
    options = parser.parse_args()
    found = {kind: run(options.name, kind, options.device, options.runs) for kind in KINDS}
    first = found["paper"]
    single = {
        "error": first["error"],
        "stage_certified_error": first["robust_error"],
        "attacked_error": first["pgd_error"],
        "sound_certified_error": first["robust_error"],
    }
    cascades = {kind: record["cascade"] for kind, record in found.items()}
    config = SETTINGS[options.name]
    attacked = cascades["paper"]["attacked_examples"]
    head = (
        "",
        "stages kept",
        "error",
        "stage-certified error",
        "attacked error",
        "soundly certified error",
        "broken claims",
    )
    answers = [
        f"stage {s['stage']}: {s['answers']} ({s['certified']} certified, {s['correct']} right)"
        for s in cascades["paper"]["stages"]
    ]
    lines = [
        f"# Cascades on {options.name}",
        "",
        f"`python benchmarks/cascades.py {options.name}`: l-infinity {config.eps:g}, clipped; {first['examples']} test images,",
        f"attacks on the first {attacked}; k = {config.k}, {config.epochs} epochs per stage, {config.cascade} stages at most.",
        "A broken claim is an example that counts as certified, and that the attack makes the combination answer wrongly.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|---|---|---|---|---|",
        row("one network (the first stage)", 1, single),
        *(row(KINDS[kind], _kept(options.runs, options.name, kind), record) for kind, record in cascades.items()),
        "",
        "Who answers in the paper's cascade: " + "; ".join(answers),
        "",
        in_words(describe()),
        "",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"cascades_{options.name}.md").write_text("\n".join(lines), encoding="utf-8")
    record = {"machine": describe(), "single": single, "cascades": cascades}
    (options.out / f"cascades_{options.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _kept(folder: Path, name: str, kind: str) -> int:
    return len(list((folder / "runs" / f"{name}-{kind}" / "cascade").glob("*.safetensors")))


if __name__ == "__main__":
    main()
