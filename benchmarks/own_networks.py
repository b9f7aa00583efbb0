"""Networks as people write them, trained for some minutes and certified: a ResNet-18, a small vision transformer, a gated CNN.

    python benchmarks/own_networks.py --network vit --weights FOLDER [--device cuda] [--minutes 3] [--data DATA]

Each network is plain PyTorch. It is trained twice, for the given minutes each (on the CPU, of CPU time): with the usual loss, and with
the robust loss of its recipe, from there or anew. Weights are kept in FOLDER; what is there is not trained again. Then, for every
engine of the recipe: seconds and memory of one image, and the largest radius at which half of 20 test images are certified.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import describe, in_words
from measuring import MEBIBYTE, measured
from torch import Tensor, nn

import autodual as ad
from autodual.data import load

IMAGES = 20
"""Test images that are certified."""

# Networks.


class ResidualBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.second, self.second_norm = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or before != channels:
            self.skip = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(y + self.skip(x))


class ResNet18(nn.Module):
    """Eighteen layers for images of 32 x 32 pixels: no pooling before the first block."""

    def __init__(self, shape: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        sizes = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        strides = [1, 1, 2, 1, 2, 1, 2, 1]
        self.blocks = nn.Sequential(*map(ResidualBlock, [width, *sizes], sizes, strides))
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, size = x.shape
        parts = self.qkv(x).reshape(n, tokens, 3, self.heads, size // self.heads).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, size))


class TransformerBlock(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.first, self.second, self.attention = nn.LayerNorm(size), nn.LayerNorm(size), Attention(size, heads)
        self.feed = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class VisionTransformer(nn.Module):
    """Eight patches, two blocks of two heads, layer normalisation before each part, GELU."""

    def __init__(self, shape: tuple[int, ...], size: int = 32, heads: int = 2, blocks: int = 2) -> None:
        super().__init__()
        patch = (shape[1] // 4, shape[2] // 2)
        self.patches, self.places = nn.Conv2d(shape[0], size, patch, patch), nn.Parameter(torch.randn(1, 8, size) / 50)
        self.blocks = nn.Sequential(*(TransformerBlock(size, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class GatedCNN(nn.Module):
    """Two convolutions whose channels are multiplied by gates, x * sigmoid(g), and two linear layers."""

    def __init__(self, shape: tuple[int, ...], width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], 2 * width, 4, 2, 1)
        self.second = nn.Conv2d(width, 4 * width, 4, 2, 1)
        self.hidden, self.head = nn.Linear(2 * width * (shape[1] // 4) * (shape[2] // 4), 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x, gate = layer(x).chunk(2, dim=1)
            x = x * torch.sigmoid(gate)
        return self.head(F.relu(self.hidden(x.flatten(1))))


# How they are trained, and what certifies them.


@dataclass(frozen=True)
class Recipe:
    """A network, its data, and its training: Adam, learning rates that fall to zero, eps that grows for half of the time."""

    make: Callable[[tuple[int, ...]], nn.Module]
    dataset: str
    eps: float
    """What the robust loss is for, and where the search for a radius begins."""
    engine: ad.BoundEngine
    """The bound in the robust loss."""
    engines: tuple[ad.BoundEngine, ...]
    """Engines that certify, the cheapest first."""
    anew: bool = False
    """The robust training begins with new weights, made for interval bounds, and not with those of the usual one."""
    robust_weight: float = 0.5
    batch: int = 64
    lr: float = 2e-3
    """For the usual loss; the robust one begins with a quarter of it."""


RECIPES = {
    # Interval bounds of a ResNet-18 that was trained as usual are infinitely wide for all purposes, and stay so.
    "resnet18": Recipe(ResNet18, "cifar10", 1 / 255, ad.IBP(), (ad.IBP(), ad.ForwardDual()), anew=True, batch=128),
    # Interval bounds of a transformer are infinite at any useful eps: layer normalisation and softmax multiply widths.
    "vit": Recipe(VisionTransformer, "mnist", 0.01, ad.Projected(k=5), (ad.Dual(),)),
    "gated-cnn": Recipe(GatedCNN, "mnist", 0.03, ad.IBP(), (ad.IBP(), ad.Dual(), ad.Crown())),
}


def seconds_used(device: torch.device) -> float:
    """CPU time of this process, or the clock where a GPU works."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


Batches = Callable[[], tuple[Tensor, Tensor]]


def train(
    model: nn.Module, recipe: Recipe, batches: Batches, seconds: float, robust: bool, device: torch.device
) -> int:
    """Trains for so many seconds and returns the steps made. What changes from step to step follows the time that has passed."""
    lr = recipe.lr / (4 if robust and not recipe.anew else 1)
    optimiser = torch.optim.Adam(model.parameters(), lr)
    eps = torch.zeros((), device=device)
    loss = ad.RobustCrossEntropy(model, ad.LinfBall(eps, clip=(0.0, 1.0)), recipe.engine)
    begin, steps = seconds_used(device), 0
    model.train()
    while (part := (seconds_used(device) - begin) / seconds) < 1:
        x, labels = batches()
        for group in optimiser.param_groups:
            group["lr"] = lr * (1 + math.cos(math.pi * part)) / 2
        if robust:
            eps.fill_(recipe.eps * min(1.0, 2 * part + 0.01))
            usual, worst = loss.both_scores(x, labels)
            weight = recipe.robust_weight
            value = weight * F.cross_entropy(worst, labels) + (1 - weight) * F.cross_entropy(usual, labels)
        else:
            value = F.cross_entropy(model(x), labels)
        optimiser.zero_grad()
        value.backward()
        if nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            optimiser.step()
        steps += 1
    model.eval()
    return steps


def trained(
    name: str, kind: str, recipe: Recipe, shape: tuple[int, ...], batches: Batches, minutes: float, folder: Path, device: torch.device
) -> nn.Module:  # fmt: skip
    """The network with its kept weights, or trained now: the robust one goes on from the usual one."""
    torch.manual_seed(0)
    model, path = recipe.make(shape).to(device), folder / f"{name}-{kind}.pt"
    if path.exists():
        model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
        return model.eval()
    if kind == "robust" and recipe.anew:
        ad.models.initialise_for_intervals(model)
    elif kind == "robust":
        model = trained(name, "usual", recipe, shape, batches, minutes, folder, device)
    steps = train(model, recipe, batches, 60 * minutes, kind == "robust", device)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    print(f"{path.name}: {steps} steps in {minutes:g} minutes", file=sys.stderr, flush=True)
    return model


# What is measured.


def cost(work: Callable[[], Tensor], device: torch.device) -> tuple[float, float]:
    """Seconds, and MiB by which the memory grows at most."""
    if device.type == "cpu":
        found = measured(work)
        return found["cpu_seconds"], found["growth_bytes"] / MEBIBYTE
    torch.cuda.reset_peak_memory_stats()
    before, begin = torch.cuda.memory_allocated(), seconds_used(device)
    work()
    return seconds_used(device) - begin, (torch.cuda.max_memory_allocated() - before) / MEBIBYTE


def half_radius(model: nn.Module, x: Tensor, labels: Tensor, engine: ad.BoundEngine, start: float) -> float:
    """The largest radius, to 10 %, at which half of the images are certified; 0 if there is none above a millionth of `start`."""
    right = model(x).argmax(1) == labels
    needed = len(x) / 2
    x, labels = x[right], labels[right]

    def enough(eps: float) -> bool:
        return int(ad.certify(model, x, labels, ad.LinfBall(eps, clip=(0.0, 1.0)), engine).certified.sum()) >= needed

    if len(x) < needed:
        return 0.0
    low = high = start
    if enough(start):
        while enough(high := 2 * low) and high < 1:
            low = high
    else:
        while not enough(low := high / 2):
            high = low
            if low < 1e-6 * start:
                return 0.0
    while high > 1.1 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=RECIPES, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=3.0, help="for each of the two trainings")
    parser.add_argument("--weights", type=Path, required=True, help="the folder that keeps trained weights")
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--train", type=int, default=60_000, help="the first training images are trained on")
    parser.add_argument("--kinds", nargs="+", choices=("usual", "robust"), default=("usual", "robust"))
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.filterwarnings("ignore", message=".* will take about")
    recipe, device = RECIPES[asked.network], torch.device(asked.device)
    data, test = (load(recipe.dataset, split, asked.data) for split in ("train", "test"))
    images, labels = data.scaled(slice(0, asked.train)).to(device), data.labels[: asked.train].to(device)
    generator = torch.Generator(device).manual_seed(0)

    def batches() -> tuple[Tensor, Tensor]:
        some = torch.randint(len(images), (recipe.batch,), generator=generator, device=device)
        return images[some], labels[some]

    x, y = (part.to(device) for part in (test.scaled(slice(0, IMAGES)), test.labels[:IMAGES]))
    all_x, all_y = (part.to(device) for part in (test.scaled(slice(0, 1000)), test.labels[:1000]))
    print(
        "| training | accuracy, 1,000 images | engine | s / image | MiB | half of 20 certified at |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for kind in asked.kinds:
        model = trained(asked.network, kind, recipe, data.shape, batches, asked.minutes, asked.weights, device)
        with torch.no_grad():
            accuracy = (model(all_x).argmax(1) == all_y).float().mean().item()
        for engine in recipe.engines:
            ball = ad.LinfBall(recipe.eps / 10, clip=(0.0, 1.0))

            def one(engine: ad.BoundEngine = engine, ball: ad.LinfBall = ball, model: nn.Module = model) -> Tensor:
                return ad.certify(model, x[:1], y[:1], ball, engine).margins

            one()
            seconds, memory = cost(one, device)
            radius = half_radius(model, x, y, engine, recipe.eps)
            print(
                f"| {kind} | {accuracy:.1%} | `{engine!r}` | {seconds:.2g} | {memory:.0f} | {radius:.2g} |", flush=True
            )
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(
        f"\n{asked.network}, {recipe.dataset}, {asked.minutes:g} minutes per training, {where}. {in_words(describe())}"
    )


if __name__ == "__main__":
    main()
