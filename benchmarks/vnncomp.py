"""Three networks and nine properties of VNN-COMP 2021: read, compared with onnx's reference, and decided, or not.

    python benchmarks/vnncomp.py FOLDER [--timeout 300] [--device cpu]

FOLDER holds the networks and the properties (.vnnlib or .vnnlib.gz) of the table below, which are public files of the competition
(benchmarks mnistfc, oval21 and cifar10_resnet). Each property is decided by `autodual verify` in a process of its own; seconds
include its start-up. Beside our answer stands that of the competition's winner. An answer that contradicts a known one is a
failure: exit code 1. Writes benchmarks/results/vnncomp.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machine import RESULTS, describe, in_words

from autodual.interchange.onnx_file import read_onnx
from autodual.interchange.onnx_reading import Reference, load_file

COMPARED = 20
"""Random inputs on which module and reference are compared."""


@dataclass(frozen=True)
class Instance:
    """One question, and what is known about it: the winner's answer and its seconds, start-up of about 8 s included."""

    network: str
    property: str
    known: str
    seconds: int


INSTANCES = [
    Instance("mnist-net_256x2", "prop_1_0.03", "unsat", 38),
    Instance("mnist-net_256x2", "prop_3_0.05", "sat", 10),
    Instance("mnist-net_256x2", "prop_7_0.03", "sat", 10),
    Instance("cifar_deep_kw", "cifar_deep_kw-img2399-eps0.038562091503267976", "timeout", 720),
    Instance("cifar_deep_kw", "cifar_deep_kw-img5168-eps0.016209150326797386", "unsat", 48),
    Instance("cifar_deep_kw", "cifar_deep_kw-img6430-eps0.025098039215686277", "timeout", 720),
    Instance("resnet_2b", "resnet_2b_prop_0_eps_0.008", "timeout", 300),
    Instance("resnet_2b", "resnet_2b_prop_10_eps_0.008", "unsat", 78),
    Instance("resnet_2b", "resnet_2b_prop_23_eps_0.008", "unsat", 8),
]
HEAD = "| network | property | answer | s | CPU s | winner (its machine) | disjuncts refuted | least margin | as run |"
CONTRADICTIONS = {("sat", "unsat"), ("unsat", "sat")}


def difference(path: Path) -> float:
    """The largest difference between module and reference, as a part of the largest output."""
    file = read_onnx(path)
    network = load_file(file)
    x = torch.rand(COMPARED, *network.input_shape, generator=torch.Generator().manual_seed(7))
    expected = Reference(file)(x)
    with torch.no_grad():
        return ((network(x).flatten(1) - expected).abs().max() / expected.abs().max()).item()


@dataclass(frozen=True)
class Answer:
    """What `autodual verify --json` says, and what it took."""

    found: dict[str, Any]
    seconds: float
    cpu_seconds: float


def decide(folder: Path, instance: Instance, timeout: float, device: str) -> Answer:
    packed, plain = folder / f"{instance.property}.vnnlib.gz", folder / f"{instance.property}.vnnlib"
    files = folder / f"{instance.network}.onnx", packed if packed.exists() else plain
    options = "--timeout", str(timeout), "--device", device, "--json"
    command = [sys.executable, "-m", "autodual", "verify", *map(str, files), *options]
    started, used = time.monotonic(), _cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3, 4):
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return Answer(json.loads(done.stdout), time.monotonic() - started, _cpu_seconds() - used)


def _cpu_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(instance: Instance, answer: Answer) -> str:
    found = answer.found
    proofs = [proof for case in found["cases"] for proof in case if proof is not None]
    least = min((p for p in proofs if p["margin"] is not None), key=lambda p: p["margin"], default=None)
    refuted = f"{sum(p['holds'] for p in proofs)} of {sum(len(case) for case in found['cases'])}"
    margin = "" if least is None else f"{least['margin']:.3f} ({least['engine']})"
    as_run = {True: "yes", False: "no", None: ""}[found["unsat_as_run"]]
    word = found["result"] if found["result"] in ("unknown", "timeout") else f"**{found['result']}**"
    cost = f"{answer.seconds:.1f} | {answer.cpu_seconds:.1f}"
    known = f"{instance.known} ({instance.seconds} s)"
    return f"| {instance.network} | {instance.property} | {word} | {cost} | {known} | {refuted} | {margin} | {as_run} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    apart = {name: difference(asked.folder / f"{name}.onnx") for name in dict.fromkeys(i.network for i in INSTANCES)}
    rows, wrong, decided = [], [], 0
    for instance in INSTANCES:
        answer = decide(asked.folder, instance, asked.timeout, asked.device)
        found = answer.found
        rows.append(row(instance, answer))
        decided += found["result"] in ("sat", "unsat")
        if (found["result"], instance.known) in CONTRADICTIONS:
            wrong.append(instance.property)
        print(rows[-1], flush=True)
    said = (
        f"{decided} of {len(INSTANCES)} decided; {len(wrong)} against a known answer. The engines IBP, Dual, Crown and AlphaCrown,\n"
        "and a search for counterexamples; no splitting. Seconds are those of the command,\n"
        "start-up included: wall time, which depends on what else the machine does, and time of the CPU."
    )
    lines = [
        "# Nine instances of VNN-COMP 2021",
        f"`python benchmarks/vnncomp.py FOLDER --timeout {asked.timeout:g} --device {asked.device}`",
        in_words(describe("onnx")),
        said,
        "\n".join([HEAD, "|" + "---|" * HEAD.count(" | ") + "---|", *rows]),
        f"Largest difference between loaded module and onnx.reference on {COMPARED} random inputs, relative to the largest output:",
        "\n".join(
            ["| network | difference |", "|---|---|", *(f"| {name} | {value:.1e} |" for name, value in apart.items())]
        ),
    ]
    (RESULTS / "vnncomp.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    if wrong or max(apart.values()) > 1e-5:
        raise SystemExit(f"against a known answer: {wrong}; differences {apart}")


if __name__ == "__main__":
    main()
