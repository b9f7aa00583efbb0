"""What compare_commits.py measures, in a process that stays alive: started once for each of the two versions of the library.

Reads one JSON object per line, {"case": NAME, "repeats": N}, and answers each with one line: seconds per call on the clock and of CPU
time, how many cores other processes kept busy meanwhile, and a number that the computation gave, by which a reader sees whether
both versions computed the same. Only functions that all versions have are called: capture, certify, certified_radius, attack and
RobustCrossEntropy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from machine import ROOT
from measuring import take_turn
from safetensors.torch import load_file
from torch import Tensor, nn

import autodual as ad

DATA = ROOT / "tests" / "golden" / "data"
CIFAR_MEAN, CIFAR_STD = (0.485, 0.456, 0.406), 0.225
K = 50
MNIST_BALL = ad.LinfBall(0.1)
CLIPPED = ad.LinfBall(0.1, clip=(0.0, 1.0))

Work = Callable[[], Tensor]


class Cases:
    """Every case by name, made when it is first asked for."""

    def __init__(self, device: str, data: Path | None) -> None:
        self.device, self.data = device, data
        self.made: dict[str, Work] = {}

    @property
    def makers(self) -> dict[str, Callable[[], Work]]:
        if self.device == "cuda":
            return {
                "certify, published MNIST, 0.1 clipped, 2000": lambda: self.certify(self.mnist(2000), CLIPPED),
                "certify, published MNIST, 0.1, 2000": lambda: self.certify(self.mnist(2000), MNIST_BALL),
                "certify, CIFAR small, 2/255, 1000": lambda: self.certify(self.cifar(1000), ad.LinfBall(2 / 255)),
                "certify, CIFAR small, 8/255, 1000": lambda: self.certify(self.cifar(1000), ad.LinfBall(8 / 255)),
                "CUDA graph of a training step, MNIST small": lambda: self.graph_step(self.mnist(50), MNIST_BALL),
                "CUDA graph of a training step, CIFAR small": lambda: self.graph_step(
                    self.cifar(50), ad.LinfBall(2 / 255)
                ),
            }
        return {
            "certify, published MNIST, 0.1, 10": lambda: self.certify(self.mnist(10), MNIST_BALL),
            "certify, published MNIST, 0.1 clipped, 10": lambda: self.certify(self.mnist(10), CLIPPED),
            "certify, published CIFAR, 0.139 normalised, 10": lambda: self.certify(
                self.published_cifar(), ad.LinfBall(0.139)
            ),
            "certify, CIFAR small, 8/255, 10": lambda: self.certify(self.cifar(10), ad.LinfBall(8 / 255)),
            "certify, CIFAR small, 2/255, 100": lambda: self.certify(self.cifar(100), ad.LinfBall(2 / 255)),
            "certify, published MNIST, Crown(), 10": lambda: self.certify(self.mnist(10), MNIST_BALL, ad.Crown()),
            SLOW: self.resnet,
            "certified_radius, published MNIST, 10": self.radius,
            "attack, published MNIST, 40 steps, 10": self.attack,
            "training step, MNIST small, Projected(50), 50": lambda: self.step(self.mnist(50), MNIST_BALL),
            "training step, CIFAR small, Projected(50), 50": lambda: self.step(self.cifar(50), ad.LinfBall(2 / 255)),
            "capture, MNIST small": self.capture,
        }

    def measure(self, name: str, repeats: int) -> dict[str, float]:
        if name not in self.made:
            self.made[name] = self.makers[name]()
            self._call(self.made[name], 1)  # to warm up
        work = self.made[name]
        if self.device == "cuda":
            self._call(work, 1)  # memory that was given back is taken again, off the clock
        turn = take_turn({name: partial(self._call, work, repeats)})
        if self.device == "cuda":
            torch.cuda.empty_cache()  # engines look at how much memory is free, and the other process is about to
        return {
            "wall": turn.wall[name] / repeats,
            "cpu": turn.cpu[name] / repeats,
            "disturbance": turn.disturbance,
            "value": float(turn.results[name]),
        }

    def _call(self, work: Work, repeats: int) -> Tensor:
        for _ in range(repeats):
            torch.manual_seed(0)
            result = work()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return result

    # ----------------------------------------------------------------------------------------------------
    # Networks with images

    def mnist(self, count: int) -> Problem:
        """The published network, with the first images of the test set, some of them more than once where there are too few."""
        model = ad.models.small()
        model.load_state_dict(_first_stage("mnist"))
        return self._problem(model, *_mnist_images(self.data), count)

    def cifar(self, count: int) -> Problem:
        model = ad.models.small(3, 32, mean=CIFAR_MEAN, std=CIFAR_STD)
        model.load_state_dict(load_file(ROOT / "results" / "cifar-small-2" / "model.safetensors"))
        return self._problem(model, *_cifar_images(self.data), count)

    def published_cifar(self) -> Problem:
        """First network of the published cascade; its images are normalised already."""
        model = ad.models.small(3, 32)
        model.load_state_dict(_first_stage("cifar_small_8px"))
        with np.load(DATA / "golden_cifar_small_8px.npz", allow_pickle=False) as file:
            x, y = torch.from_numpy(file["X"]).float(), torch.from_numpy(file["y"]).long()
        return self._problem(model, x, y, 10)

    def _problem(self, model: nn.Module, x: Tensor, labels: Tensor, count: int) -> Problem:
        copies = -(-count // len(x))
        x, labels = x.repeat(copies, 1, 1, 1)[:count], labels.repeat(copies)[:count]
        return model.eval().to(self.device), x.to(self.device), labels.to(self.device)

    # ----------------------------------------------------------------------------------------------------
    # Work

    def certify(self, problem: Problem, ball: ad.LinfBall, engine: ad.BoundEngine | None = None) -> Work:
        model, x, labels = problem
        engine = ad.Dual() if engine is None else engine
        return lambda: _mean(ad.certify(model, x, labels, ball, engine).margins)

    def resnet(self) -> Work:
        """The paper's CIFAR ResNet, untrained, one example."""
        torch.manual_seed(0)
        model = ad.models.resnet(mean=CIFAR_MEAN, std=CIFAR_STD).eval()
        x = torch.rand(1, 3, 32, 32)
        return self.certify((model, x, model(x).argmax(1)), ad.LinfBall(2 / 255))

    def radius(self) -> Work:
        model, x, labels = self.mnist(10)
        return lambda: ad.certified_radius(model, x, labels, ad.LinfBall(0.2), tol=0.02).mean()

    def attack(self) -> Work:
        model, x, labels = self.mnist(10)
        return lambda: ad.attack(model, x, labels, CLIPPED).margins.mean()

    def capture(self) -> Work:
        model, x, _ = self.mnist(10)
        return lambda: torch.tensor(float(len(ad.capture(model, x).nodes)))

    def step(self, problem: Problem, ball: ad.LinfBall) -> Work:
        """Forward, backward and an update so small that the weights stay what they are."""
        model, x, labels = problem
        loss, optimiser = ad.RobustCrossEntropy(model, ball, ad.Projected(K)), _still(model)

        def one() -> Tensor:
            optimiser.zero_grad()
            value = loss(x, labels)
            value.backward()
            optimiser.step()
            return value.detach()

        return one

    def graph_step(self, problem: Problem, ball: ad.LinfBall) -> Work:
        """The same, with forward and backward pass replayed as a CUDA graph."""
        model, x, labels = problem
        loss, optimiser = ad.RobustCrossEntropy(model, ball, ad.Projected(K)), _still(model)
        draws = loss.draw(x)

        def gradients() -> Tensor:
            optimiser.zero_grad(set_to_none=False)
            value: Tensor = loss(x, labels, draws)
            value.backward()
            return value

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                gradients()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            value = gradients()

        def one(kept: tuple[Tensor, ...] = (x, labels)) -> Tensor:  # the graph reads their memory, but does not keep it
            draws.renew_()
            graph.replay()
            optimiser.step()
            return value.detach()

        return one


Problem = tuple[nn.Module, Tensor, Tensor]
SLOW = "certify, CIFAR ResNet, 2/255, 1"
"""Seconds per call: left out with --quick."""


def _mean(margins: Tensor) -> Tensor:
    return margins[margins.isfinite()].mean()


def _still(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-12, momentum=0.9)


def _first_stage(name: str) -> dict[str, Tensor]:
    with np.load(DATA / f"weights_{name}.npz", allow_pickle=False) as file:
        return {k.removeprefix("stage0."): torch.from_numpy(file[k]) for k in file.files if k.startswith("stage0.")}


def _mnist_images(data: Path | None) -> tuple[Tensor, Tensor]:
    """The test set, or the 300 images of it that the golden tests keep."""
    if data is None or not (data / "mnist").is_dir():
        with np.load(DATA / "mnist300.npz", allow_pickle=False) as file:
            pixels, labels = file["images"], file["labels"]
    else:
        pixels = np.frombuffer((data / "mnist" / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
        labels = np.frombuffer((data / "mnist" / "t10k-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    return _scaled(pixels.reshape(-1, 1, 28, 28)), torch.from_numpy(labels.copy()).long()


def _cifar_images(data: Path | None) -> tuple[Tensor, Tensor]:
    """The test set, or the 10 images of it that the golden tests keep, in pixels of [0, 1]."""
    if data is None or not (data / "cifar-10-batches-bin").is_dir():
        with np.load(DATA / "golden_cifar_small_8px.npz", allow_pickle=False) as file:
            normalised, labels = torch.from_numpy(file["X"]).float(), torch.from_numpy(file["y"]).long()
        return (normalised * CIFAR_STD + torch.tensor(CIFAR_MEAN).reshape(3, 1, 1)).clamp(0, 1), labels
    records = np.frombuffer((data / "cifar-10-batches-bin" / "test_batch.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    return _scaled(records[:, 1:].reshape(-1, 3, 32, 32)), torch.from_numpy(records[:, 0].copy()).long()


def _scaled(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels.copy()).float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--library", type=Path, required=True, help="the folder that autodual must come from")
    options = parser.parse_args()
    if not Path(ad.__file__).resolve().is_relative_to(options.library.resolve()):
        sys.exit(f"autodual comes from {ad.__file__}, not from {options.library}: the figures would mean nothing")
    torch.set_num_threads(options.threads)
    cases = Cases(options.device, options.data)
    print(json.dumps({"cases": list(cases.makers)}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(cases.measure(order["case"], order["repeats"])), flush=True)


if __name__ == "__main__":
    main()
