"""kill -9 at twenty random moments of a run, and at ten chosen ones of another, resuming each time.

Both must end as a run that nothing disturbed.

    python benchmarks/kill_and_resume.py [--kills 20] [--seed 0]

The run is a cascade of two stages on the embedded digits: training, checkpoints, sorting, stage changes, certification and attacks
are all hit if the moments are. Every attempt gets 3 to 10 seconds, of which starting takes about 3; checkpoints are made every
second instead of every minute. Random moments seldom fall into a write, so the chosen ones do: the process is killed as soon as the
folder shows that it is there. Compared: weights of all stages, certificates, evaluation, cascade figures, and metrics (without
seconds). Writes benchmarks/results/kill_and_resume.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from machine import RESULTS, describe, in_words

from autodual._files import load_tensors

OPTIONS = shlex.split(
    "--dataset digits --model digits --eps 0.05 --clip 0 1 --k 6 --epochs 24 --eps-epochs 4 --limit-train 700 --limit-test 40 "
    "--evaluate-every 3 --evaluate-examples 60 --batch 25 --cascade 2 --device cpu"
)
START = (
    "import autodual.training.loop as loop; loop.CHECKPOINT_SECONDS = 1.0; from autodual.cli.app import main; main()"
)


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


def _written(folder: Path) -> bool:
    """Whether something in it is being written."""
    return any(folder.glob(".writing-*"))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the first checkpoint is being written": lambda run: _written(run / "checkpoints"),
    "a later checkpoint is being written": lambda run: _steps(run) > 100 and _written(run / "checkpoints"),
    "the first stage's weights are being written": lambda run: _written(run / "stages"),
    "the first stage is done, and sorting begins": lambda run: (run / "stages" / "0.safetensors").exists(),
    "the second stage begins": lambda run: (run / "stages" / "open-1.json").exists(),
    "a checkpoint of the second stage is being written": lambda run: _stage(run) == 1 and _written(run / "checkpoints"),
    "the model is written": lambda run: (run / "model.safetensors").exists(),
    "the first certificates are written": lambda run: (run / "certificates.jsonl").exists(),
    "the evaluation is written": lambda run: (run / "evaluation.json").exists(),
    "the combination is being written": lambda run: (run / "cascade").exists(),
}


def _stage(run: Path) -> int:
    return max((int(p.name[6:8]) for p in (run / "checkpoints").glob("stage-*")), default=-1)


def _steps(run: Path) -> int:
    return max((int(p.name.rsplit("-", 1)[1]) for p in (run / "checkpoints").glob("stage-*")), default=0)


def kill_when(folder: Path, there: Callable[[Path], bool]) -> bool:
    """Start or go on, and kill as soon as it is there; False if the run ended before."""
    process = start(folder, resume=(folder / "config.yaml").exists())
    while process.poll() is None:
        if there(folder):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
    return False


def kill_at_chosen_moments(folder: Path) -> list[str]:
    lines = []
    for number, (moment, there) in enumerate(MOMENTS.items(), start=1):
        hit = kill_when(folder, there)
        lines.append(f"{number}. {moment}{'' if hit else ': MISSED'}")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    began = time.monotonic()
    assert start(place / "whole", resume=False).wait() == 0
    whole = time.monotonic() - began
    at_random = kill_at_random(place, options.kills, random.Random(options.seed))
    chosen = kill_at_chosen_moments(place / "chosen")
    wrong = []
    for name in ("killed", "chosen"):
        assert start(place / name, resume=True).wait() == 0
        wrong += [f"{name}: {what}" for what in differences(place / "whole", place / name)]
    missed = any("MISSED" in line for line in chosen)
    verdict = "Both are identical to the undisturbed run." if not wrong else f"DIFFERENT: {', '.join(wrong)}"
    text = [
        "# kill -9 and resume",
        "",
        f"`python benchmarks/kill_and_resume.py --kills {options.kills} --seed {options.seed}`",
        "",
        f"The undisturbed run took {whole:.0f} s. {verdict}",
        "",
        "At random moments:",
        "",
        *at_random,
        "",
        "At chosen moments:",
        "",
        *chosen,
        "",
        in_words(describe()),
        "",
    ]
    (RESULTS / "kill_and_resume.md").write_text("\n".join(text), encoding="utf-8")
    print(verdict)
    raise SystemExit(bool(wrong) or missed)


def kill_at_random(place: Path, kills: int, chance: random.Random) -> list[str]:
    lines = []
    for kill in range(kills):
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
    return lines


if __name__ == "__main__":
    main()
