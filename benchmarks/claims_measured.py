"""The measurements behind claims.py: one function per claim, each returns a record that JSON can hold."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import ROOT
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import autodual as ad
from autodual.data import ImageData, load, mean_std
from autodual.runs.config import TrainConfig
from autodual.training.objectives import Objective
from autodual.training.setup import make_ball, make_engine, make_model, make_optimiser
from autodual.training.step import make_step

Say = Callable[[str], None]
BALL = ad.LinfBall(0.1, clip=(0.0, 1.0))
BATCH = 50
MNIST_SMALL = TrainConfig(
    dataset="mnist", model="small", eps=0.1, clip=(0.0, 1.0), batch=BATCH, optimiser="adam", lr=1e-3
)

# --------------------------------------------------------------------------------------------------------
# 1. The two nearest digits

BLOCK = 4000
UNIT = 2.0**-24
"""Half the distance between 1 and the next float32."""


@dataclass(frozen=True)
class Pair:
    """Two images, by their places in the two sets, and their distance for pixels in [0, 1]."""

    distance: float
    first: int
    second: int
    labels: tuple[int, int]
    compared: int
    """Pairs among which this one is the nearest."""
    candidates: int
    """Pairs that float32 could not tell from the nearest; their distances were computed in float64."""


def nearest_pairs(
    first: ImageData, second: ImageData | None = None, *, block: int = BLOCK, say: Say = lambda words: None
) -> dict[str, Pair]:
    """The two nearest images of one set, or of two: those with "different" labels, and those with "any".

    Blocks of squared distances |x|^2 + |y|^2 - 2 x.y come from products in float32. Every pair within twice their rounding error of
    the smallest value is kept, and computed again in float64, where sums of squares of bytes are exact.
    """
    other = first if second is None else second
    a, b = (data.images.flatten(1) for data in (first, other))
    if a.dtype != torch.uint8 or b.dtype != torch.uint8 or first.scale != other.scale:
        raise ValueError("nearest_pairs: images must be bytes of one scale, whose distances float64 computes exactly")
    squares_a, squares_b = _squares(a, block), _squares(b, block)
    slack = _error_of_products(a.shape[1], float(max(squares_a.max(), squares_b.max())))
    searches = {"any": _Search(slack), "different": _Search(slack)}
    for start in range(0, len(a), block):
        rows = a[start : start + block].float()
        for column in range(0 if second is not None else start, len(b), block):
            found = squares_a[start : start + block, None] + squares_b[None, column : column + block]
            found.addmm_(rows, b[column : column + block].float().T, alpha=-2.0)
            if second is None and column == start:
                found.masked_fill_(torch.ones_like(found, dtype=torch.bool).tril_(), math.inf)  # each pair once
            searches["any"].look(found, start, column)
            same = first.labels[start : start + block, None] == other.labels[None, column : column + block]
            searches["different"].look(found.masked_fill_(same, math.inf), start, column)
        least = math.sqrt(max(searches["different"].least, 0.0)) / first.scale
        say(f"  images up to {min(start + block, len(a)):,} of {len(a):,}: nearest of different labels {least:.4f}")
    return {kind: search.decided(first, other) for kind, search in searches.items()}


@dataclass
class _Search:
    """The smallest of the values seen, and all that may be smaller than it in truth: those within twice `slack`."""

    slack: float
    least: float = math.inf
    compared: int = 0
    kept: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def look(self, found: Tensor, row: int, column: int) -> None:
        """A block of squared distances whose corner is (row, column); those that do not count are infinite."""
        self.compared += int(found.isfinite().sum())
        self.least = min(self.least, float(found.min()))
        near = (found <= self.least + 2 * self.slack).nonzero() if math.isfinite(self.least) else []
        if len(near) > 0:
            self.kept.append((near[:, 0] + row, near[:, 1] + column, found[near[:, 0], near[:, 1]]))

    def decided(self, first: ImageData, second: ImageData) -> Pair:
        if not self.kept:
            raise ValueError("nearest_pairs: there are no two images to compare; give at least two, of two labels")
        i, j, rough = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
        chosen = rough <= self.least + 2 * self.slack
        i, j = i[chosen], j[chosen]
        exact = (first.images[i].double() - second.images[j].double()).flatten(1).square().sum(1)
        best = int(exact.argmin())
        a, b = int(i[best]), int(j[best])
        labels = int(first.labels[a]), int(second.labels[b])
        return Pair(math.sqrt(float(exact[best])) / first.scale, a, b, labels, self.compared, len(i))


def _squares(images: Tensor, block: int) -> Tensor:
    """|x|^2 of every image, exact, then rounded to float32."""
    return torch.cat([part.long().square().sum(1) for part in images.split(block)]).float()


def _error_of_products(n: int, largest: float) -> float:
    """How far a squared distance may be off in float32, in whatever order its n + 2 terms, two of them rounded, are added.

    The terms' sizes add up to |x|^2 + |y|^2 + 2 x.y <= 4 largest; each meets at most n + 4 roundings.
    """
    gamma = (n + 4) * UNIT / (1 - (n + 4) * UNIT)
    return 4 * gamma * largest


def distances(folder: Path, say: Say) -> dict[str, Any]:
    train, test = (load("mnist", split, folder) for split in ("train", "test"))
    sets: dict[str, tuple[ImageData, ImageData | None]] = {
        "training images": (train, None),
        "test images": (test, None),
        "one of each": (train, test),
    }
    rows = []
    for title, (first, second) in sets.items():
        say(title)
        for kind, pair in nearest_pairs(first, second, say=say).items():
            rows.append({"images": title, "different_labels": kind == "different", **asdict(pair)})
    return {"rows": rows}


# --------------------------------------------------------------------------------------------------------
# 2. Radii of l2 balls


def paper_radius(eps: float, d: int) -> float:
    """The l2 radius that the paper takes in place of an l-infinity radius: sqrt(d / pi) eps. [SPAD app. H]"""
    return math.sqrt(d / math.pi) * eps


def equal_volume_radius(eps: float, d: int) -> float:
    """The l2 radius r whose ball has the volume of the cube of side 2 eps: pi^(d/2) r^d / Gamma(d/2 + 1) = (2 eps)^d."""
    return 2 * eps * math.exp(math.lgamma(d / 2 + 1) / d) / math.sqrt(math.pi)


def dimension_of(eps_2: float, eps: float) -> float:
    """The d for which `paper_radius` gives eps_2."""
    return math.pi * (eps_2 / eps) ** 2


PRINTED = {"MNIST": (0.1, 1.58, (784,)), "CIFAR-10": (2 / 255, 36 / 255, (1024, 3072))}
"""eps of l-infinity and of l2 as the paper prints them, and the dimensions that come into question."""


def radii() -> dict[str, Any]:
    rows = [
        {
            "data": name,
            "d": d,
            "eps_inf": eps,
            "printed": printed,
            "formula": paper_radius(eps, d),
            "equal_volume": equal_volume_radius(eps, d),
            "dimension_of_printed": dimension_of(printed, eps),
        }
        for name, (eps, printed, dimensions) in PRINTED.items()
        for d in dimensions
    ]
    return {"rows": rows, "limit_of_ratio": math.sqrt(math.e / 2)}


# --------------------------------------------------------------------------------------------------------
# 3. Filters that robust training leaves unused

SMALL_PART = 0.01
"""A filter, or a weight, is nearly zero if it is smaller than this part of the largest of its layer."""
PLAIN_EPOCHS = 5


def filter_counts(model: nn.Module) -> list[dict[str, Any]]:
    """For every layer with weights [out, ...]: filters (rows), those that are zero or nearly so in l1 norm, and weights likewise."""
    rows = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d | nn.Linear):
            continue
        weight = module.weight.detach().double().flatten(1).abs()
        norms = weight.sum(1)
        rows.append(
            {
                "layer": name,
                "kind": type(module).__name__,
                "filters": len(norms),
                "zero": int((norms == 0).sum()),
                "nearly_zero": int((norms <= SMALL_PART * norms.max()).sum()),
                "weights": weight.numel(),
                "nearly_zero_weights": int((weight <= SMALL_PART * weight.max()).sum()),
            }
        )
    return rows


def silent_filters(model: nn.Sequential, images: Tensor) -> list[int]:
    """For every ReLU: how many of its filters (of a convolution) or units are zero on all images, at all places."""
    peaks: dict[int, Tensor] = {}
    with torch.no_grad():
        for batch in images.split(500):
            values = batch
            for index, layer in enumerate(model):
                values = layer(values)
                if isinstance(layer, nn.ReLU):
                    highest = values.flatten(2).amax((0, 2)) if values.dim() > 2 else values.amax(0)
                    peaks[index] = torch.maximum(peaks[index], highest) if index in peaks else highest
    return [int((peak == 0).sum()) for peak in peaks.values()]


def trained_plainly(
    data: ImageData, model: nn.Module, config: TrainConfig, epochs: int, seed: int, say: Say
) -> nn.Module:
    """The network after some epochs of ordinary training, with the optimiser and the learning rate of the config."""
    generator = torch.Generator().manual_seed(seed)
    step = make_step(
        Objective.standard(model), make_optimiser(config, model), generator, config.clip_gradients, config.batch
    )
    for epoch in range(epochs):
        losses = [float(step(*batch)[0]) for batch in _batches(data, config.batch, generator)]
        say(f"  epoch {epoch + 1} of {epochs}: loss {statistics.fmean(losses):.4f}")
    return model.eval()


def _batches(data: ImageData, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    for index in torch.randperm(len(data), generator=generator).split(size):
        yield data.scaled(index), data.labels[index]


def filters(folder: Path, say: Say, epochs: int = PLAIN_EPOCHS, results: Path = ROOT / "results") -> dict[str, Any]:
    """Every network of results/paper that is kept, and one per data set that was trained without robustness."""
    names = sorted(path.parent.name for path in (results / "paper").glob("*/model.safetensors"))
    runs = {name: ad.load_pretrained(name, "paper", results) for name in names}
    runs = {name: run for name, run in runs.items() if run.config.model == "small"}
    rows = []
    for dataset in dict.fromkeys(run.config.dataset for run in runs.values()):
        test, robust = load(dataset, "test", folder), {n: r for n, r in runs.items() if r.config.dataset == dataset}
        train, config = load(dataset, "train", folder), next(iter(robust.values())).config
        say(f"{dataset}: {', '.join(robust)}")
        torch.manual_seed(0)
        statistics_of_data = mean_std(dataset, train) if config.normalise else None
        fresh = make_model(config.model, train.shape, len(train.classes), statistics_of_data)
        plain = trained_plainly(train, fresh.train(), config, epochs, 0, say)
        networks = {f"{dataset}, without robustness": plain, **{name: run.model for name, run in robust.items()}}
        for title, model in networks.items():
            assert isinstance(model, nn.Sequential)
            counts, silent = filter_counts(model), silent_filters(model, test.scaled())
            with torch.no_grad():
                wrong = torch.cat([model(x).argmax(1) for x in test.scaled().split(500)]) != test.labels
            hidden = [row | {"silent": number} for row, number in zip(counts, silent, strict=False)]
            rows.append({"network": title, "error": float(wrong.double().mean()), "layers": [*hidden, counts[-1]]})
    return {"rows": rows, "small_part": SMALL_PART, "plain_epochs": epochs, "test_images": 10_000}


# --------------------------------------------------------------------------------------------------------
# 4. Batch normalisation


@dataclass(frozen=True)
class Short:
    """A short robust training on a part of MNIST."""

    train: int = 5000
    test: int = 500
    epochs: int = 8
    k: int = 10
    seeds: int = 3


def narrow_network(normalised: bool) -> nn.Sequential:
    """The paper's narrowest MNIST network, with batch normalisation before every ReLU if asked for."""
    layers: list[nn.Module] = []
    for layer in ad.models.wide(1, 1, 28):
        if isinstance(layer, nn.ReLU) and normalised:
            last = layers[-1]
            layers.append(
                nn.BatchNorm2d(last.out_channels) if isinstance(last, nn.Conv2d) else nn.BatchNorm1d(last.out_features)
            )
        layers.append(layer)
    return nn.Sequential(*layers)


SHORT = Short()
ORDINARY_EPS = 0.02
"""For networks that were trained without robustness, of which nothing can be certified at 0.1."""


def batch_norm(folder: Path, say: Say, short: Short = SHORT) -> dict[str, Any]:
    """Networks with and without batch norm after two kinds of training, robust and ordinary, judged at an eps that suits each."""
    train, test = load("mnist", "train", folder).take(short.train), load("mnist", "test", folder).take(short.test)
    rows = []
    for seed in range(short.seeds):
        for robust in (True, False):
            for normalised in (False, True):
                torch.manual_seed(seed)
                model = narrow_network(normalised).train()
                title = f"seed {seed}, {'robust' if robust else 'ordinary'}, {'with' if normalised else 'without'} batch norm"
                say(title)
                if robust:
                    train_robustly(model, train, short, seed, say)
                else:
                    trained_plainly(train, model, MNIST_SMALL, short.epochs, seed, say)
                ball = BALL if robust else ad.LinfBall(ORDINARY_EPS, clip=(0.0, 1.0))
                found = judged(model.eval(), test, ball)
                rows.append({"seed": seed, "robust": robust, "batch_norm": normalised, "eps": float(ball.eps), **found})
                say(f"{title}: {rows[-1]}")
    return {"rows": rows, **asdict(short)}


def train_robustly(model: nn.Module, data: ImageData, short: Short, seed: int, say: Say) -> None:
    """Trains with projections, eps from 0.01 to 0.1 over the first half of the epochs."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [short.epochs * 3 // 4], gamma=0.3)
    for epoch in range(short.epochs):
        ramp = min(1.0, epoch / max(1, short.epochs // 2))
        ball = ad.LinfBall(0.01 + ramp * (float(BALL.eps) - 0.01), clip=(0.0, 1.0))
        step = make_step(Objective.robust(model, ball, ad.Projected(short.k)), optimiser, generator, None, BATCH)
        mean = statistics.fmean([float(step(*batch)[0]) for batch in _batches(data, BATCH, generator)])
        schedule.step()
        say(f"  epoch {epoch + 1} of {short.epochs}, eps {float(ball.eps):.3f}: robust loss {mean:.3f}")


def judged(model: nn.Module, test: ImageData, ball: ad.LinfBall) -> dict[str, float]:
    """Exact robust error, error and PGD error; the median certified margin; the part of hidden units whose sign is not known."""
    certified, wrong, broken, margins, unknown, units = 0, 0, 0, list[Tensor](), 0, 0
    network = ad.capture(model, test.scaled(slice(1)))
    for index in torch.arange(len(test)).split(100):
        x, labels = test.scaled(index), test.labels[index]
        found = ad.certify(model, x, labels, ball)
        certified += int(found.certified.sum())
        margins.append(found.margins.amin(1))
        with torch.no_grad():
            wrong += int((model(x).argmax(1) != labels).sum())
            for interval in ad.bounds(network, ball.around(x)).layers.values():
                unknown += int(((interval.lower < 0) & (interval.upper > 0)).sum())
                units += interval.lower.numel()
        attacked = ad.attack(model, x, labels, ball, generator=torch.Generator().manual_seed(0))
        broken += int(attacked.success.sum())
    n = len(test)
    return {
        "robust_error": 1 - certified / n,
        "error": wrong / n,
        "pgd_error": broken / n,
        "median_margin": float(torch.cat(margins).median()),
        "unstable_units": unknown / units,
    }


# --------------------------------------------------------------------------------------------------------
# 5. Memory of training

STEPS = 6
"""Of which, on a GPU, the fourth is captured as a CUDA graph and the last two are replays of it."""
WAYS = {
    "10 projections": MNIST_SMALL.with_changes(k=10),
    "50 projections": MNIST_SMALL.with_changes(k=50),
    "exact": MNIST_SMALL.with_changes(engine="dual"),
}


def memory(folder: Path, device: str, say: Say) -> dict[str, Any]:
    """Peak bytes of training the small MNIST network, its weights, gradients, optimiser and batch included."""
    data = load("mnist", "train", folder).take(BATCH)
    rows = []
    for title, config in WAYS.items():
        rows.append({"bounds": title, **peak_of_training(data, config, device)})
        say(f"{title}: {rows[-1]['peak_bytes'] / 1e6:,.0f} MB")
    return {"rows": rows, "device": device, "batch": BATCH, "steps": STEPS}


def peak_of_training(data: ImageData, config: TrainConfig, device: str) -> dict[str, int]:
    """The most bytes that were allocated at once: by PyTorch's allocator of the GPU, or by the one of the CPU, call by call."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps_of_training(data, config, device)
        free, total = torch.cuda.mem_get_info()
        return {
            "peak_bytes": torch.cuda.max_memory_allocated() - before,
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "whole_device_bytes": total - free,
        }
    return {"peak_bytes": peak_of_allocations(lambda: steps_of_training(data, config, device))}


def steps_of_training(data: ImageData, config: TrainConfig, device: str) -> None:
    """Steps as `autodual train` takes them: on a GPU with projections, captured as a CUDA graph."""
    torch.manual_seed(0)
    model, generator = ad.models.small(1, 28).to(device).train(), torch.Generator(device).manual_seed(0)
    ball = make_ball(config, torch.tensor(config.eps, device=device))
    objective, optimiser = Objective.robust(model, ball, make_engine(config)), make_optimiser(config, model)
    step = make_step(objective, optimiser, generator, config.clip_gradients, config.batch)
    here = data.to(device)
    for _ in range(STEPS):
        summary = step(here.scaled(), here.labels)
    if not bool(summary.isfinite().all()):
        raise RuntimeError(f"{config.engine}, k = {config.k}: the loss is not finite; the figures would mean nothing")


def peak_of_allocations(work: Callable[[], None]) -> int:
    """The most bytes that PyTorch's CPU allocator had lent out at once during the work, beyond those before.

    The profiler notes every allocation and every release; memory that a library takes elsewhere is not seen.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    results = seen.profiler.kineto_results if seen.profiler is not None else None
    if results is None:
        raise RuntimeError("this PyTorch's profiler does not tell single allocations")
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        now += change
        most = max(most, now)
    return most
