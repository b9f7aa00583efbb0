"""kill -9 at twenty random moments of one run, resuming each time: the end must be that of a run that nothing disturbed.

    python benchmarks/kill_and_resume.py [--kills 20] [--seed 0]

The run is a cascade of two stages on the embedded digits: training, checkpoints, sorting, stage changes, certification and attacks
are all hit if the moments are. Every attempt gets 3 to 10 seconds, of which starting takes about 3; checkpoints are made every
second instead of every minute. Compared: weights of all stages, certificates, evaluation, cascade figures, and metrics (without
seconds). Writes benchmarks/results/kill_and_resume.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine import RESULTS, describe, in_words

from autodual._files import load_tensors

OPTIONS = [
    "--dataset",
    "digits",
    "--model",
    "digits",
    "--eps",
    "0.05",
    "--clip",
    "0",
    "1",
    "--k",
    "6",
    "--epochs",
    "24",
    "--eps-epochs",
    "4",
    "--limit-train",
    "700",
    "--limit-test",
    "40",
    "--evaluate-every",
    "3",
    "--evaluate-examples",
    "60",
    "--batch",
    "25",
    "--cascade",
    "2",
    "--device",
    "cpu",
]
START = "import autodual.train.loop as loop; loop.CHECKPOINT_SECONDS = 1.0; from autodual.cli.app import main; main()"


def start(folder: Path, resume: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", START, "train", *OPTIONS, "--out", str(folder), *(["--resume"] if resume else [])]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=quiet, stderr=quiet)


def where(folder: Path) -> str:
    """What the run was doing, by what it has left."""
    if (folder / "cascade.json").exists():
        return "done"
    if (folder / "evaluation.json").exists():
        return "certifying or attacking the cascade"
    if (folder / "model.safetensors").exists():
        return "evaluating the first stage"
    if (folder / "stages" / "0.safetensors").exists():
        return (
            "second stage: sorting or training"
            if (folder / "stages" / "open-1.json").exists()
            else "between the stages"
        )
    return "training the first stage" if (folder / "config.yaml").exists() else "starting"


def differences(a: Path, b: Path) -> list[str]:
    files = ["certificates.jsonl", "evaluation.json", "cascade.json", "stages/open-1.json"]
    found = [name for name in files if (a / name).read_bytes() != (b / name).read_bytes()]
    for name in ("stages/0.safetensors", "stages/1.safetensors", "model.safetensors"):
        one, other = load_tensors(a / name), load_tensors(b / name)
        found += [f"{name}: {key}" for key in one if not torch.equal(one[key], other[key])]
    return found + ([] if _metrics(a) == _metrics(b) else ["metrics.jsonl"])


def _metrics(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, place = random.Random(options.seed), Path(tempfile.mkdtemp())
    began = time.monotonic()
    assert start(place / "whole", resume=False).wait() == 0
    whole = time.monotonic() - began
    lines = []
    for kill in range(options.kills):
        process = start(place / "killed", resume=(place / "killed" / "config.yaml").exists())
        wait = chance.uniform(3.0, 10.0)
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        lines.append(f"{kill + 1}. after {wait:.1f} s: {where(place / 'killed')}")
        print(lines[-1], flush=True)
        if where(place / "killed") == "done":  # begin anew: there are kills left
            assert not differences(place / "whole", place / "killed"), differences(place / "whole", place / "killed")
            lines[-1] += "; same result as the undisturbed run; started again"
            shutil.rmtree(place / "killed")
    assert start(place / "killed", resume=True).wait() == 0
    wrong = differences(place / "whole", place / "killed")
    verdict = "Identical to the undisturbed run." if not wrong else f"DIFFERENT: {', '.join(wrong)}"
    text = [
        "# kill -9 and resume",
        "",
        f"`python benchmarks/kill_and_resume.py --kills {options.kills} --seed {options.seed}`",
        "",
    ]
    text += [f"The undisturbed run took {whole:.0f} s. {verdict}", "", *lines, "", in_words(describe()), ""]
    (RESULTS / "kill_and_resume.md").write_text("\n".join(text), encoding="utf-8")
    print(verdict)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
