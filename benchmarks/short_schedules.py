"""Which settings train best? Short trainings of one config with changes, judged on held-out training images, side by side.

    python benchmarks/short_schedules.py CONFIG.yaml --epochs 12 --try crop=0 --try robust_weight=0.9,k=100 [--jobs 8] [--data FOLDER]

The config as it is comes first, then one training for each --try. Schedules that the config gives as parts of the training shrink
with it. The test set is not looked at: a tenth of the training images is held out, and the last epoch is judged on the first
--images of them by the config's evaluate_engine. Prints Markdown, and writes it to --out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from machine import describe, in_words

from autodual._errors import ArgumentError
from autodual.reproduce.jobs import shared_gpu
from autodual.runs.config import TrainConfig, dump_yaml, read_yaml
from autodual.runs.folder import Run
from autodual.runs.records import EpochLine, ValidationLine

HELD_OUT = 0.1


@dataclass(frozen=True)
class Trial:
    """One short training, and what became of it."""

    changes: str
    folder: Path

    def lines(self) -> list[str]:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()

    def row(self, code: int) -> str:
        """A row of the table: last epoch's errors on what was trained on, and those on held-out images."""
        metrics = Run(self.folder / "run").metrics()
        epochs = [line for line in metrics if isinstance(line, EpochLine)]
        judged = [line for line in metrics if isinstance(line, ValidationLine)]
        if code != 0 or not epochs or not judged:
            last = (self.lines() or ["no output"])[-1]
            return f"| {self.changes or 'as it is'} | failed (exit code {code}): {last} | | | | |"
        seconds = [line.seconds for line in epochs if line.seconds is not None][1:]
        return (
            f"| {self.changes or 'as it is'} | {epochs[-1].robust_error:.2%} / {epochs[-1].error:.2%} "
            f"| **{judged[-1].robust_error:.2%}** | {judged[-1].error:.2%} | {judged[-1].examples} "
            f"| {sum(seconds) / max(1, len(seconds)):.2f} |"
        )


def parsed(changes: str) -> dict[str, object]:
    """The options of "crop=0,lr=0.1" with their values; lists have semicolons: lr_milestones=[0.5;0.8]."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "changes.yaml"
        file.write_text(changes.replace(",", "\n").replace(";", ",").replace("=", ": "), encoding="utf-8")
        values = read_yaml(file) if changes else {}
    if not isinstance(values, dict):
        raise ArgumentError(f"--try {changes}: expected option=value, several with commas between them")
    return values


def prepared(config: TrainConfig, changes: list[str], asked: argparse.Namespace, folder: Path) -> Iterator[Trial]:
    common = {"epochs": asked.epochs, "validation": HELD_OUT, "evaluate_every": asked.epochs, "limit_test": 20}
    common |= {"evaluate_examples": asked.images, "skip_curve": True, "seed": asked.seed}
    for number, text in enumerate(["", *changes]):
        trial = Trial(text, folder / str(number))
        trial.folder.mkdir(parents=True)
        values = TrainConfig.from_mapping(config.to_mapping() | common | parsed(text), f"--try {text}").to_mapping()
        (trial.folder / "config.yaml").write_text(dump_yaml(values), encoding="utf-8")
        yield trial


def train(trial: Trial, data: Path | None, variables: dict[str, str]) -> int:
    """Returns the exit code of `autodual train`."""
    command = [sys.executable, "-m", "autodual", "train", str(trial.folder / "config.yaml")]
    command += ["--out", str(trial.folder / "run"), *(["--data-folder", str(data)] if data else [])]
    with (trial.folder / "log").open("wb") as log:
        return subprocess.run(command, stdout=log, stderr=log, env=os.environ | variables).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--try", dest="changes", action="append", default=[], metavar="OPTION=VALUE,...")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--images", type=int, default=2000, help="held-out images that the last epoch is judged on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=8, help="trainings side by side")
    parser.add_argument("--data", type=Path, help="where data sets lie")
    parser.add_argument("--out", type=Path, help="FILE.md")
    asked = parser.parse_args()
    config = TrainConfig.from_mapping(read_yaml(asked.config), str(asked.config))
    tries = " ".join(f"--try '{text}'" for text in asked.changes)
    head = [
        f"# Short trainings of {asked.config.as_posix()}", "",
        f"`python benchmarks/short_schedules.py {asked.config.as_posix()} --epochs {asked.epochs} --seed {asked.seed} {tries}`", "",
        f"{in_words(describe())} {asked.jobs} side by side.", "",
        "| changes | robust / error, training images | robust error, held out | error, held out | images | s per epoch |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // asked.jobs))}
    with tempfile.TemporaryDirectory() as folder, shared_gpu(config.device, print) as shared:
        trials = list(prepared(config, asked.changes, asked, Path(folder)))
        with ThreadPoolExecutor(asked.jobs) as pool:
            codes = pool.map(lambda trial: train(trial, asked.data, threads | shared), trials)
            for line in head:
                print(line, flush=True)
            rows = []
            for trial, code in zip(trials, codes, strict=True):
                rows.append(trial.row(code))
                print(rows[-1], flush=True)
    if asked.out is not None:
        asked.out.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
