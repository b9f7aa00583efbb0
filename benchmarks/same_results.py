"""Two versions of the library compute the same things: for a change that is to change nothing.

    python benchmarks/same_results.py BASE [HEAD] [--examples 8]
    python benchmarks/same_results.py --folders OLD NEW

Each version, in a process of its own, certifies examples by the published networks of the golden tests and by the kept networks in
results/, in float64 and float32, and trains the digits network in float64 for 50 steps. Margins and losses are compared, as parts of
the largest entry: at most 1e-12 for margins in float64 and 1e-10 for losses; margins in float32 may differ by 1e-5, and no verdict may
differ. Exit code: how many things differ by more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from compare_cases import CIFAR_MEAN, CIFAR_STD
from machine import ROOT
from safetensors.torch import load_file
from torch import Tensor, nn

import autodual as ad

ALLOWED = {"margins float64": 1e-12, "margins float32": 1e-5, "losses": 1e-10, "verdicts": 0.0}
STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="the older commit")
    parser.add_argument("head", nargs="?", default="HEAD", help="the newer commit")
    parser.add_argument("--folders", nargs=2, metavar=("OLD", "NEW"), help="folders with src/ instead of commits")
    parser.add_argument("--examples", type=int, default=8, help="examples for each network")
    parser.add_argument("--compute", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compute is not None:
        np.savez(options.compute, **{name: value.numpy() for name, value in results(options.examples).items()})
        return
    if options.base is None and options.folders is None:
        parser.error("give a commit, or --folders OLD NEW")
    from compare_commits import versions  # which imports the library of this checkout

    with versions(options) as found, tempfile.TemporaryDirectory() as room:
        computed = {
            who: of_version(folder, Path(room) / f"{who}.npz", options.examples) for who, (_, folder) in found.items()
        }
        names = " and ".join(name for name, _ in found.values())
    sys.exit(compare(computed["old"], computed["new"], names))


def of_version(folder: Path, file: Path, examples: int) -> dict[str, Tensor]:
    command = [sys.executable, __file__, "--compute", str(file), "--examples", str(examples)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(folder / "src")})
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def results(examples: int) -> dict[str, Tensor]:
    """Everything that is compared, by the version of the library that is imported."""
    found: dict[str, Tensor] = {}
    for name, model, x, labels, ball in problems(examples):
        for dtype in (torch.float64, torch.float32):
            for engine in (ad.Dual(), ad.Crown(), ad.IBP()):
                certificate = ad.certify(model.to(dtype), x.to(dtype), labels, ball, engine)
                what = f"{name}, {engine!r}, {str(dtype).removeprefix('torch.')}"
                found[f"margins {str(dtype).removeprefix('torch.')}: {what}"] = certificate.margins
                found[f"verdicts: {what}"] = torch.stack([certificate.certified, certificate.certified_as_run]).double()
    found["losses: digits"] = digits_losses()
    return found


def problems(examples: int) -> list[tuple[str, nn.Module, Tensor, Tensor, ad.Perturbation]]:
    """Published networks with the images of the golden tests; kept ones with images that are noise, and the labels they give."""
    sys.path.insert(0, str(ROOT / "tests" / "golden"))
    from reference import DATA, PUBLISHED

    listed = []
    for published in PUBLISHED:
        golden = published.golden(DATA)
        x, labels = golden["X"][:examples].double(), golden["y"][:examples].long()
        listed.append((str(published), published.model(DATA), x, labels, published.ball))
    for file in sorted((ROOT / "results" / "paper").glob("*/model.safetensors")):
        row = file.parent.name
        size, architecture = (3, 32) if row.startswith("cifar") else (1, 28), row.split("-")[1]
        if architecture != "small":
            continue
        normalise = {"mean": CIFAR_MEAN, "std": CIFAR_STD} if size[0] == 3 else {}
        model = ad.models.small(*size, **normalise)
        model.load_state_dict({name: tensor.float() for name, tensor in load_file(file).items()})
        noise = torch.rand(examples, size[0], size[1], size[1], generator=torch.Generator().manual_seed(0))
        labels = model.eval()(noise).argmax(1)
        listed.append((row, model, noise.double(), labels, ad.LinfBall(0.02)))
    return listed


def digits_losses() -> Tensor:
    """The losses of the first steps of a training by random projections, in float64."""
    images, labels = ad.load_digits("train")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    ).double()
    engine = ad.Projected(k=10, generator=torch.Generator().manual_seed(0))
    loss, optimiser = ad.RobustCrossEntropy(model, ad.LinfBall(0.05), engine), torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(STEPS):
        batch = slice(20 * step, 20 * step + 20)
        optimiser.zero_grad()
        value = loss(images[batch].double(), labels[batch])
        value.backward()
        optimiser.step()
        losses.append(value.detach())
    return torch.stack(losses)


def compare(old: dict[str, Tensor], new: dict[str, Tensor], names: str) -> int:
    differing, worst = [], dict.fromkeys(ALLOWED, 0.0)
    for name, a in old.items():
        kind, b = name.partition(":")[0], new[name]
        known = a.isfinite() & b.isfinite()
        part = float((a - b)[known].abs().max() / a[known].abs().max().clamp(min=1e-300)) if bool(known.any()) else 0.0
        worst[kind] = max(worst[kind], part)
        if part > ALLOWED[kind] or not torch.equal(a.isfinite(), b.isfinite()) or old.keys() != new.keys():
            differing.append(f"{name}: {part:.3g}")
    print(f"{names}: {len(old)} tensors, {len(differing)} differ by more than is allowed")
    for kind, part in worst.items():
        print(f"  {kind}: at most {part:.3g} of the largest entry (allowed {ALLOWED[kind]:g})")
    print("".join(f"  {line}\n" for line in differing), end="")
    return len(differing)


if __name__ == "__main__":
    main()
