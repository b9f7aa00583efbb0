"""How far the loss gradient of a whole network, by random projections, is from the exact one.

    python benchmarks/estimator_gradients.py [--device cuda] [--data FOLDER] [--minutes 8] [--networks NAME ...] [--out FILE.md]

The robust cross-entropy of 10 images is differentiated by all parameters: once exactly, with `Dual()`, and with `Projected` in many
independent draws. With g the exact gradient, g_d that of draw d and m the mean of all draws:

- noise: sqrt(mean |g_d - m|^2) / |g|;
- error: the median of |g_d - g| / |g|, which rare draws far out do not move;
- bias: |m - g| / |g|, without what the noise of the mean adds to it; "<" where no more than that is there;
- cosine: mean of the cosines between g_d and g;
- loss: the mean of the estimated losses, in per cent of the exact one;
- ms: one step (draw, forward, backward) on a batch of 50; on a GPU as a replayed CUDA graph, as in training.

Networks have random or trained weights. Trained ones come from results/ where a run is kept there; others are trained here for a few
hundred steps with the default estimator. Images are test images of the data folder, as `autodual data fetch` lays it out; random ones,
which the table says, without one. Needs nothing but torch and numpy (and Triton on a GPU). Writes Markdown, and JSON beside it, after
every network; ends when the minutes are over, and says what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import RESULTS, ROOT, describe, in_words
from torch import Tensor, nn

import autodual as ad
from autodual.data import load
from autodual.engines import Draws
from autodual.kernels.stream import Angles
from autodual.training.objectives import Objective
from autodual.training.step import make_step

IMAGES = 10
BATCH = 50
COUNTS = (10, 20, 50, 100)
CIFAR: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": 0.225}


@dataclass(frozen=True)
class Case:
    """A network, its ball, and how it is trained for a little while."""

    dataset: str
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]
    eps: float
    kept: str | None = None
    """A folder of results/ with trained weights."""

    @property
    def ball(self) -> ad.LinfBall:
        return ad.LinfBall(self.eps, clip=(0.0, 1.0) if self.dataset == "mnist" else None)


CASES = {
    "mnist-small": Case("mnist", (1, 28, 28), lambda: ad.models.small(1, 28), 0.1, "mnist-small-0.1"),
    "cifar-small": Case("cifar10", (3, 32, 32), lambda: ad.models.small(3, 32, **CIFAR), 2 / 255, "cifar-small-2"),
    "cifar-large": Case("cifar10", (3, 32, 32), lambda: ad.models.large(3, 32, **CIFAR), 2 / 255),
    "cifar-resnet": Case("cifar10", (3, 32, 32), lambda: ad.models.resnet(3, 32, **CIFAR), 2 / 255),
    "mnist-large": Case("mnist", (1, 28, 28), lambda: ad.models.large(1, 28), 0.1),
}
SMALL = ("mnist-small", "cifar-small")


@dataclass(frozen=True)
class Way:
    """A way to estimate: an estimator, one stream or one per term, and how angles are drawn."""

    name: str
    estimator: ad.Estimator
    merged: bool = True
    respread: Callable[[Tensor], Tensor] | None = None
    """Replaces angles [k, ...] by others of the same distribution, each of the k."""
    counts: tuple[int, ...] = COUNTS
    exact_narrow: int = 0
    half: bool = True

    def engine(self, k: int, generator: torch.Generator | None = None) -> ad.Projected:
        return ad.Projected(
            k, self.merged, self.estimator, exact_narrow=self.exact_narrow, half=self.half, generator=generator
        )


def stratified(angles: Tensor) -> Tensor:
    """One angle in each k-th of the circle, in an order of its own for each unit."""
    k = len(angles)
    places = torch.rand_like(angles).argsort(0).to(angles.dtype)
    return (places + angles / math.pi) * (math.pi / k)


def antithetic(angles: Tensor) -> Tensor:
    """The second half is the first turned by a right angle: C and -1/C."""
    half = (len(angles) + 1) // 2
    return torch.cat([angles[:half], angles[:half] + math.pi / 2])[: len(angles)]


WAYS = (
    Way("median, autodiff", ad.Median()),
    Way("default, streams of float32", ad.QuietGradient(), half=False),
    Way("median, ML gradient", ad.MaximumLikelihood(0)),
    Way("one Newton step, ML gradient", ad.MaximumLikelihood(1)),
    Way("maximum likelihood, solved", ad.MaximumLikelihood()),
    Way("**median, quiet gradient**", ad.QuietGradient()),
    Way("one Newton step, quiet gradient", ad.QuietGradient(1)),
    Way("default, stratified angles", ad.QuietGradient(), True, stratified, (10, 20, 50)),
    Way("default, antithetic angles", ad.QuietGradient(), True, antithetic, (10, 20, 50)),
    Way("default, layers of up to 128 units exact", ad.QuietGradient(), exact_narrow=128),
    Way("one stream per term: median, autodiff", ad.Median(), False, counts=(10, 20, 50)),
    Way("one stream per term: median, quiet gradient", ad.QuietGradient(), False, counts=(10, 20, 50)),
)


QUICK = (
    "median, autodiff",
    "**median, quiet gradient**",
    "default, streams of float32",
    "one stream per term: median, autodiff",
)


class Clock:
    """Time that is left."""

    def __init__(self, minutes: float) -> None:
        self.end = time.perf_counter() + 60 * minutes

    @property
    def over(self) -> bool:
        return time.perf_counter() > self.end


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# --------------------------------------------------------------------------------------------------------
# Images and weights


def examples(case: Case, folder: Path | None, split: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """All images of a part of the data set, on the device, and their labels; 1,000 random ones without a folder."""
    if folder is None:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(1000, *case.shape, generator=generator)
        return x.to(device), (torch.arange(len(x)) % 10).to(device)
    data = load(case.dataset, "train" if split == "train" else "test", folder)
    return data.images.to(device).float() / data.scale, data.labels.to(device)


def kept_weights(path: Path) -> dict[str, Tensor]:
    """A safetensors file of float32 numbers: the length of a JSON header, the header, and the numbers."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            sys.exit(f"{path}: {name} is {entry['dtype']}, expected F32")
        begin, end = (8 + length + place for place in entry["data_offsets"])
        found[name] = torch.from_numpy(np.frombuffer(raw[begin:end], np.float32).copy()).reshape(entry["shape"])
    return found


def trained(case: Case, folder: Path | None, steps: int, device: torch.device) -> tuple[nn.Module, str]:
    """A network with trained weights, and where they come from."""
    torch.manual_seed(0)
    model = case.make().to(device)
    path = ROOT / "results" / (case.kept or "-") / "model.safetensors"
    if case.kept is not None and folder is not None and path.is_file():
        model.load_state_dict(kept_weights(path))
        return model, f"results/{case.kept}"
    x, labels = examples(case, folder, "train", device)
    eps = torch.zeros((), device=device)
    ball = ad.LinfBall(eps, clip=case.ball.clip)
    objective = Objective.robust(model, ball, ad.Projected(20))
    optimiser = torch.optim.Adam(
        model.parameters(), lr=1e-3, fused=device.type == "cuda", capturable=device.type == "cuda"
    )
    step = make_step(objective, optimiser, torch.Generator(device).manual_seed(0), 1.0, BATCH)
    order = torch.Generator().manual_seed(0)
    summary = torch.zeros(5)
    for number in range(steps):
        eps.fill_(case.eps * min(1.0, 0.05 + number / (0.6 * steps)))
        chosen = torch.randint(len(x), (BATCH,), generator=order).to(device)
        summary = step(x[chosen], labels[chosen])
    say(
        f"  trained for {steps} steps: robust loss {float(summary[3]):.3f}, loss {float(summary[4]):.3f} on the last batch"
    )
    return model, f"{steps} steps"


# --------------------------------------------------------------------------------------------------------
# Gradients


def gradient(loss: nn.Module, *given: Any) -> tuple[float, Tensor]:
    """The loss, and its gradient by all parameters as one vector of float64."""
    value = loss(*given)
    parts = torch.autograd.grad(value, list(loss.model.parameters()))  # type: ignore[arg-type]
    return float(value.detach()), torch.cat([part.flatten() for part in parts]).double()


def exact_gradient(model: nn.Module, case: Case, x: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """One image at a time: the mean over all."""
    loss = ad.RobustCrossEntropy(model, case.ball, ad.Dual())
    found = [gradient(loss, x[i : i + 1], labels[i : i + 1]) for i in range(len(x))]
    return statistics.fmean(value for value, _ in found), torch.stack([g for _, g in found]).mean(0)


def respread(draws: Draws, change: Callable[[Tensor], Tensor] | None) -> Draws:
    """Draws whose angles are changed in place."""
    if change is not None:
        for angles in [*draws.fresh.values(), *([draws.first] if isinstance(draws.first, Angles) else [])]:
            angles.angles.copy_(change(angles.angles))
    return draws


def compare(
    model: nn.Module, case: Case, way: Way, k: int, x: Tensor, labels: Tensor, exact: tuple[float, Tensor], draws: int
) -> dict[str, Any]:
    """The figures of one way with k projections; sums over draws, so that no gradient is kept."""
    loss = ad.RobustCrossEntropy(model, case.ball, way.engine(k, torch.Generator(x.device).manual_seed(1)))
    torch.manual_seed(2)
    numbers, (value, truth) = loss.draw(x), exact
    losses, cosines, errors, squares = list[float](), list[float](), list[float](), 0.0
    total = torch.zeros_like(truth)
    for _ in range(draws):
        found, vector = gradient(loss, x, labels, respread(numbers.renew_(), way.respread))
        losses.append(found)
        cosines.append(float(vector @ truth / (vector.norm() * truth.norm())))
        errors.append(float((vector - truth).norm() / truth.norm()))
        squares += float(vector @ vector)
        total += vector
    mean, size = total / draws, float(truth.norm())
    variance = max(0.0, squares - draws * float(mean @ mean)) / (draws - 1)
    distance, chance = float((mean - truth).norm()), math.sqrt(variance / draws)
    return {
        "way": way.name,
        "k": k,
        "noise": math.sqrt(variance) / size,
        "error": statistics.median(errors),
        "bias": math.sqrt(max(0.0, distance**2 - chance**2)) / size,
        "noise_of_mean": chance / size,
        "cosine": statistics.fmean(cosines),
        "loss_bias": statistics.fmean(losses) / value - 1,
        "draws": draws,
    }


def milliseconds(model: nn.Module, case: Case, way: Way, k: int, x: Tensor, labels: Tensor) -> float:
    """One step of training without an update, median of some; random numbers count."""
    objective = Objective.robust(model, case.ball, way.engine(k))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0, fused=x.is_cuda)
    step = make_step(objective, optimiser, torch.Generator(x.device), None, len(x))
    rounds = 12 if x.is_cuda else 3
    seconds = []
    for _ in range(rounds + 2):
        begin = time.perf_counter()
        step(x, labels)
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    model.zero_grad()
    return 1e3 * statistics.median(seconds[2:])


# --------------------------------------------------------------------------------------------------------
# The table


def measure(name: str, options: argparse.Namespace, clock: Clock) -> Iterator[dict[str, Any]]:
    """A record for random and one for trained weights."""
    case, device = CASES[name], torch.device(options.device)
    x, labels = examples(case, options.data, "test", device)
    batch, x, labels = (x[:BATCH], labels[:BATCH]), x[:IMAGES], labels[:IMAGES]
    for weights in options.weights:
        if clock.over:
            return
        torch.manual_seed(0)
        say(f"{name}, {weights} weights")
        model, source = (
            (case.make().to(device), "random")
            if weights == "random"
            else trained(case, options.data, options.steps, device)
        )
        begin = time.perf_counter()
        exact = exact_gradient(model, case, x, labels)
        say(f"  exact gradient in {time.perf_counter() - begin:.1f} s; loss {exact[0]:.4f}")
        rows: list[dict[str, Any]] = []
        record = {"network": name, "weights": source, "loss": exact[0], "rows": rows, "complete": False}
        for way in WAYS:
            if (way.exact_narrow and name not in SMALL) or (options.quick and way.name not in QUICK):
                continue  # the large ones have no such layers
            for k in way.counts:
                if clock.over or (options.k and k not in options.k):
                    continue
                row = compare(model, case, way, k, x, labels, exact, options.draws)
                row["ms"] = None if way.respread or options.untimed else milliseconds(model, case, way, k, *batch)
                rows.append(row)
                say(f"  {as_row(row)}")
        record["complete"] = not clock.over
        yield record


def as_row(row: dict[str, Any]) -> str:
    bias = f"{row['bias']:.2f}" if row["bias"] > row["noise_of_mean"] else f"< {row['noise_of_mean']:.2f}"
    ms = "" if row["ms"] is None else f"{row['ms']:.1f}" if row["ms"] >= 10 else f"{row['ms']:.2f}"
    cells = [row["way"], str(row["k"]), f"{row['noise']:.2f}", f"{row['error']:.2f}", bias, f"{row['cosine']:.2f}"]
    return f"| {' | '.join(cells)} | {100 * row['loss_bias']:+.1f} | {ms} |"


def as_markdown(records: list[dict[str, Any]], options: argparse.Namespace, missing: list[str]) -> str:
    machine = describe()
    where = torch.cuda.get_device_name() if options.device != "cpu" else str(machine["cpu"])
    images = "test images" if options.data is not None else "**random** images and labels, without a data folder"
    places = {str(options.data): "FOLDER", str(options.out): "FILE.md"}
    command = " ".join(places.get(word, word) for word in sys.argv[1:])
    lines = [
        "# Loss gradients of whole networks: noise and bias",
        "",
        f"`python benchmarks/estimator_gradients.py {command}`",
        "",
        f"The first {IMAGES} {images}; {options.draws} draws. Noise, error and bias relative to the exact gradient, loss in per cent, "
        f"one step on {BATCH} images in ms on {where}. What the columns mean: `benchmarks/estimator_gradients.py`.",
    ]
    for record in records:
        cut = "" if record["complete"] else ", cut short"
        lines += [
            "",
            f"## {record['network']}, {record['weights']}{cut} (exact loss {record['loss']:.4f})",
            "",
            "| estimate | k | noise | error | bias | cosine | loss % | ms |",
            "|---|---|---|---|---|---|---|---|",
            *(as_row(row) for row in record["rows"]),
        ]
    lines += [
        "",
        *([f"Not measured, for lack of time: {', '.join(missing)}.", ""] if missing else []),
        in_words(machine),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--data", type=Path, help="folder with mnist and cifar-10-batches-bin; random images without it"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="when to stop")
    parser.add_argument("--networks", nargs="+", choices=CASES, help="the small ones on a CPU, else the first four")
    parser.add_argument("--weights", nargs="+", choices=("random", "trained"), default=("trained", "random"))
    parser.add_argument("--k", nargs="+", type=int, help="only these numbers of projections")
    parser.add_argument("--quick", action="store_true", help=f"only {'; '.join(QUICK)}")
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--steps", type=int, default=400, help="of training, where results/ has no weights")
    parser.add_argument("--untimed", action="store_true", help="no times, which mean little on a busy machine")
    parser.add_argument("--out", type=Path, help="Markdown; JSON goes beside it")
    options = parser.parse_args()
    out = options.out or RESULTS / f"estimator_gradients_{options.device.split(':')[0]}.md"
    names = options.networks or (SMALL if options.device == "cpu" else [n for n in CASES if n != "mnist-large"])
    clock, records = Clock(options.minutes), list[dict[str, Any]]()
    wanted = [f"{name} ({weights})" for name in names for weights in options.weights]
    for name in names:
        for record in measure(name, options, clock):
            records.append(record)
            missing = wanted[len(records) :]
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(as_markdown(records, options, missing), encoding="utf-8")
            out.with_suffix(".json").write_text(
                json.dumps({"machine": describe(), "records": records, "missing": missing}, indent=1), encoding="utf-8"
            )
    say(f"wrote {out}")


if __name__ == "__main__":
    main()
