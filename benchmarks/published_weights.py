"""The published MNIST network (l-infinity 0.1) on the whole test set, certified exactly in float32.

    python benchmarks/published_weights.py [FOLDER] [--device cuda --batch 2000]

FOLDER, or $AUTODUAL_DATA, holds the raw files of MNIST (t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte), itself or in mnist/.
Expected of 10,000: 564 not certified in real numbers, 180 misclassified. Also counts what is certified for the network as it runs in
float32. Writes published_weights.json (_gpu.json for a GPU) into the folder that --out names, benchmarks/results if none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from machine import RESULTS, ROOT, cpu_seconds_of_others, describe
from torch import Tensor, nn

import autodual as ad
from autodual.runs.folder import without_place

WEIGHTS = ROOT / "tests" / "golden" / "data" / "weights_mnist.npz"
BALL = ad.LinfBall(0.1, clip=(0.0, 1.0))
EXPECTED = {"not_certified": 564, "misclassified": 180}
"""Of the whole test set."""


def read_mnist(folder: Path) -> tuple[Tensor, Tensor]:
    """Test images in [0, 1], float32 [N, 1, 28, 28], and labels."""
    folder = folder / "mnist" if (folder / "mnist").is_dir() else folder
    images, labels = folder / "t10k-images-idx3-ubyte", folder / "t10k-labels-idx1-ubyte"
    for path in (images, labels):
        if not path.is_file():
            sys.exit(f"{path} is not there: give the folder with the raw files of MNIST, or set AUTODUAL_DATA")
    pixels = np.frombuffer(images.read_bytes(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    numbers = np.frombuffer(labels.read_bytes(), np.uint8, offset=8)
    return torch.from_numpy(pixels.copy()).float() / 255, torch.from_numpy(numbers.copy()).long()


def published_network() -> nn.Sequential:
    model = ad.models.small()
    with np.load(WEIGHTS, allow_pickle=False) as file:
        model.load_state_dict({key.removeprefix("stage0."): torch.from_numpy(file[key]) for key in file.files})
    return model.eval()


def evaluate(model: nn.Module, x: Tensor, labels: Tensor, batch: int) -> tuple[dict[str, int | float], float]:
    """Counts over all images, and the seconds of certification alone."""
    network = ad.capture(model, x[:1])
    not_certified = not_as_run = misclassified = undecided_margins = undecided_examples = 0
    nearest, widest_slack, seconds = float("inf"), 0.0, 0.0
    for start in range(0, len(x), batch):
        begin = time.perf_counter()
        certificate = ad.certify(network, x[start : start + batch], labels[start : start + batch], BALL)
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds += time.perf_counter() - begin
        near = certificate.margins.abs() <= certificate.slack
        undecided_margins += int(near.sum())
        undecided_examples += int(near.any(1).sum())
        not_certified += int((~certificate.certified).sum())
        not_as_run += int((~certificate.certified_as_run).sum())
        misclassified += int((certificate.predicted != certificate.labels).sum())
        nearest = min(nearest, certificate.margins.amin(1).abs().min().item())
        widest_slack = max(widest_slack, certificate.slack.max().item())
        progress(start + len(certificate.labels), len(x), not_certified, misclassified, seconds)
    counts: dict[str, int | float] = {
        "examples": len(x),
        "not_certified": not_certified,
        "not_certified_as_run": not_as_run,
        "certified_as_run": len(x) - not_as_run,
        "misclassified": misclassified,
        "margins_within_slack": undecided_margins,
        "examples_with_such_a_margin": undecided_examples,
        "least_margin_nearest_to_zero": nearest,
        "largest_slack": widest_slack,
    }
    return counts, seconds


def progress(done: int, total: int, not_certified: int, misclassified: int, seconds: float) -> None:
    """One line that overwrites itself in a terminal; elsewhere a line per tenth."""
    text = f"{done:>6,}/{total:,}  not certified {not_certified:,}  misclassified {misclassified:,}  {seconds:.0f} s"
    if sys.stderr.isatty():
        print(f"\r{text}", end="" if done < total else "\n", file=sys.stderr, flush=True)
    elif done == total or done * 10 // total > (done - 1) * 10 // total:
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("AUTODUAL_DATA"))
    parser.add_argument("--batch", type=int, default=100, help="images certified together")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the record")
    parser.add_argument(
        "--limit", type=int, default=None, help="only the first so many images; nothing is written then"
    )
    options = parser.parse_args()
    if options.folder is None:
        parser.error("give the folder with the raw files of MNIST, or set AUTODUAL_DATA")

    x, labels = read_mnist(Path(options.folder))
    machine, begin, others = describe(), time.perf_counter(), cpu_seconds_of_others()
    x, labels = x[: options.limit].to(options.device), labels[: options.limit].to(options.device)
    model = published_network().to(options.device)
    evaluate(model, x[: options.batch], labels[: options.batch], options.batch)  # warm-up
    counts, seconds = evaluate(model, x, labels, options.batch)
    busy = (cpu_seconds_of_others() - others) / (time.perf_counter() - begin)
    total = int(counts["examples"])
    for name in ("not_certified", "not_certified_as_run", "certified_as_run", "misclassified"):
        print(f"{name.replace('_', ' '):>20}: {counts[name]:,} of {total:,} ({100 * counts[name] / total:.2f} %)")
    print(
        f"margins within the slack of zero: {counts['margins_within_slack']} (largest slack {counts['largest_slack']:.2g})"
    )
    print(f"{seconds:.1f} s, {1000 * seconds / total:.2f} ms per image; other processes kept {busy:.2f} cores busy")
    if options.limit is not None:
        return

    record = {
        "command": " ".join(["python benchmarks/published_weights.py FOLDER", *map(without_place, sys.argv[2:])]),
        "machine": machine,
        "device": torch.cuda.get_device_name() if x.is_cuda else "cpu",
        "dtype": "float32",
        "perturbation": repr(BALL),
        "engine": "Dual()",
        "batch": options.batch,
        **counts,
        "expected": EXPECTED,
        "seconds": round(seconds, 2),
        "ms_per_image": round(1000 * seconds / total, 3),
        "cores_busy_elsewhere": round(busy, 2),
    }
    options.out.mkdir(exist_ok=True, parents=True)
    name = "published_weights_gpu.json" if x.is_cuda else "published_weights.json"
    (options.out / name).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if any(counts[name] != number for name, number in EXPECTED.items()):
        sys.exit(f"these are not the expected counts: {EXPECTED}")


if __name__ == "__main__":
    main()
