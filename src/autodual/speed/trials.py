"""The paper's networks on trial: training steps and exact certificates, ours and the authors', timed on this machine."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import load_tensors
from autodual.certificates import certify
from autodual.data import any_mean_std, form_of, load
from autodual.data.known import KNOWN
from autodual.engines import Dual, Projected
from autodual.models import Normalize, ResidualBlock
from autodual.runs.checkpoint import load_model
from autodual.runs.config import TrainConfig
from autodual.speed.measure import COPY, FLOAT32, Counting, Peak, Row, Stop, Work, ceilings, hottest, never, once, timed
from autodual.training.loop import StoppedError
from autodual.training.setup import make_ball, make_engine, make_model, make_optimiser
from autodual.training.step import WARM_UP, GraphStep, RobustObjective, Step, inner, make_step

AUTHORS = "convex_adversarial"
INSTALL = f"{AUTHORS} cannot be imported; `pip install --no-deps {AUTHORS}==0.4.4` fills the authors' columns"
AGREEMENT = 0.25
"""Relative difference of the two mean losses that is told. At k = 50, single ones of large untrained networks differ by 0.2."""
FIRST = WARM_UP + 1
"""Steps after which a CUDA graph has been captured and replayed."""

# --------------------------------------------------------------------------------------------------------
# The networks

MNIST = TrainConfig(dataset="mnist", eps=0.1, clip=(0.0, 1.0), optimiser="adam", lr=1e-8)
CIFAR = TrainConfig(
    dataset="cifar10", eps=2 / 255, normalise=True, optimiser="sgd", lr=1e-8, weight_decay=5e-4, clip_gradients=1.0
)
"""The paper's settings, but a learning rate at which weights stay as they are: how long a step takes may depend on them."""


@dataclass(frozen=True)
class Problem:
    """A network of the paper, what it is trained against, and the folder in results/ that has its weights, if there is one."""

    title: str
    config: TrainConfig
    kept: str = ""

    @property
    def epoch(self) -> int:
        """Images of an epoch."""
        return KNOWN[self.config.dataset].train

    @property
    def eps(self) -> float:
        """In the units of what enters the network of `model()`: normalised images, where it is trained on such."""
        if not self.config.normalise:
            return self.config.eps
        _, deviation = any_mean_std(self.config.dataset, form_of(self.config.dataset)[0][0])
        assert isinstance(deviation, float)
        return self.config.eps / deviation

    def model(self, statistics: bool = False) -> nn.Sequential:
        """Untrained, always the same; with statistics as the first layer, or for images that are normalised before."""
        shape, classes = form_of(self.config.dataset)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            known = any_mean_std(self.config.dataset, shape[0]) if statistics else None
            model = make_model(self.config.model, shape, classes, known)
        assert isinstance(model, nn.Sequential)
        return model

    def images(self, number: int, folder: Path | None) -> tuple[Tensor, Tensor, str | None]:
        """Test images in [0, 1] and labels; random ones, and what is wrong with the others, if there are none."""
        shape, classes = form_of(self.config.dataset)
        try:
            data = load(self.config.dataset, "test", folder)
        except ArgumentError as error:
            generator = torch.Generator().manual_seed(0)
            x = torch.rand(number, *shape, generator=generator)
            return x, torch.randint(classes, (number,), generator=generator), str(error)
        index = torch.arange(number) % len(data)
        return data.scaled(index), data.labels[index], None


PROBLEMS = {
    "mnist-small": Problem("MNIST small", MNIST.with_changes(model="small"), "mnist-small-0.1"),
    "cifar-small": Problem("CIFAR small", CIFAR.with_changes(model="small"), "cifar-small-2"),
    "mnist-large": Problem("MNIST large", MNIST.with_changes(model="large")),
    "cifar-large": Problem("CIFAR large", CIFAR.with_changes(model="large")),
    "cifar-resnet": Problem("CIFAR ResNet", CIFAR.with_changes(model="resnet")),
}


# --------------------------------------------------------------------------------------------------------
# The authors' code


def authors_network(model: nn.Sequential) -> nn.Sequential:
    """The network as `convex_adversarial` takes it, with the same weights: skips are layers that look further back."""
    if not any(isinstance(layer, ResidualBlock) for layer in model):
        return model
    from convex_adversarial import Dense, DenseSequential  # type: ignore[import-untyped, import-not-found, unused-ignore]

    layers: list[nn.Module] = []
    for layer in model:
        if isinstance(layer, ResidualBlock):
            layers += [Dense(layer.first), nn.ReLU(), Dense(layer.skip, None, layer.second), nn.ReLU()]
        else:
            layers.append(layer)
    found: nn.Sequential = DenseSequential(*layers)
    return found


def authors_loss(model: nn.Sequential, eps: float, k: int, clipped: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Their robust loss with k projections; they call the l-infinity ball by its dual norm, and clip to [0, 1]."""
    from convex_adversarial import robust_loss  # type: ignore[import-untyped, import-not-found, unused-ignore]

    network = authors_network(model)

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = robust_loss(network, eps, x, labels, proj=k, norm_type="l1_median", bounded_input=clipped)[0]
        return value

    return loss


def authors_margins(model: nn.Sequential, eps: float, clipped: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Their exact lower bounds on the margins [N, classes], zero at the label."""
    from convex_adversarial import RobustBounds  # type: ignore[import-untyped, import-not-found, unused-ignore]

    bounds = RobustBounds(authors_network(model), eps, norm_type="l1", bounded_input=clipped)
    return lambda x, labels: -bounds(x, labels)


def authors_verdicts(model: nn.Sequential, eps: float, clipped: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Whether all their margins but the label's own are positive: [N]."""
    margins = authors_margins(model, eps, clipped)

    def verdicts(x: Tensor, labels: Tensor) -> Tensor:
        found = margins(x, labels)
        own = nn.functional.one_hot(labels, found.shape[1]).bool()
        return (found.masked_fill(own, math.inf) > 0).all(1)

    return verdicts


def authors_version() -> str | None:
    """Of their package; None where it cannot be imported."""
    try:
        import convex_adversarial  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        return None
    try:
        return version(AUTHORS)
    except PackageNotFoundError:  # a plain folder
        return "of unknown version"


# --------------------------------------------------------------------------------------------------------
# Measuring


@dataclass
class Bench:
    """What was asked for, and what was found so far."""

    device: torch.device
    k: int
    batch: int
    seconds: float
    authors: bool = False
    float32: bool = False
    profiled: bool = False
    data_folder: Path | None = None
    say: Callable[[str], None] = lambda line: None
    stop: Stop = never
    record: dict[str, Any] = field(default_factory=lambda: {"networks": {}, "certificates": {}, "notes": []})

    def note(self, text: str) -> None:
        """Told now, and once more below the tables."""
        if text not in self.record["notes"]:
            self.record["notes"].append(text)
            self.say(text)

    def check(self) -> None:
        """Between two parts of the work: ends it if that was asked for."""
        if self.stop():
            raise StoppedError("stopped as asked")

    @contextlib.contextmanager
    def room(self, what: str) -> Iterator[None]:
        """Memory that does not suffice ends this part alone."""
        try:
            yield
        except torch.OutOfMemoryError:
            self.note(f"{what}: the GPU's memory does not suffice")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def foreign(self, what: str) -> Iterator[None]:
        """The authors' code may not run with this PyTorch: that is told, and the rest goes on."""
        try:
            with self.room(f"{what}, the authors' code"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except StoppedError:
            raise
        except Exception as error:  # whatever code that is not ours may raise
            self.note(f"{what}: the authors' code fails here ({type(error).__name__}: {error})")

    def measure_ceilings(self) -> None:
        self.say("the machine's own ceilings ...")
        self.record["ceilings"] = found = ceilings(self.device)
        rates = ", ".join(f"{name} {value / 1e12:.2f} TFLOP/s" for name, value in found.items() if name != COPY)
        self.say(f"  copy {found[COPY] / 1e9:,.0f} GB/s, {rates}")

    # A training step

    def measure_step(self, problem: Problem) -> None:
        """Fills one row, part by part, so that whoever is interrupted keeps what is there."""
        row: Row = {"title": problem.title, "epoch": problem.epoch}
        self.check()
        self.record["networks"][problem.title] = row
        x, labels = self._batch(problem)
        with self.room(problem.title):
            self._measure_ours(problem, row, x, labels)
        self.check()
        if self.float32 and self.device.type == "cuda":
            with self.room(f"{problem.title}, float32 streams"):
                steps = OurSteps.of(problem, self.k, x, labels, half=False)
                steps.first()
                row["seconds_per_step_float32"] = asdict(timed(steps, self.device, self.seconds, self.stop))
                self.say(f"{problem.title}: {in_ms(row['seconds_per_step_float32'])} ms/step with streams of float32")
                del steps
        self.check()
        if self.authors:
            with self.foreign(problem.title):
                self._measure_authors(problem, row, x, labels)

    def _batch(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """As the network takes them: normalised, where it is trained on such images."""
        x, labels = self._images(problem, self.batch)
        if problem.config.normalise:
            x = Normalize(*any_mean_std(problem.config.dataset, x.shape[1])).to(self.device)(x)
        return x, labels

    def _images(self, problem: Problem, number: int, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """On the device. Random images have the labels that the model gives them, where there is one: others need no proof."""
        x, labels, missing = problem.images(number, self.data_folder)
        if missing is not None:
            self.say(missing)  # with places of this machine, which do not belong into a record
            self.note(f"{problem.config.dataset}: random images, since its test images were not found")
        x, labels = x.to(self.device), labels.to(self.device)
        if missing is not None and model is not None:
            with torch.no_grad():
                labels = model(x).argmax(1)
        return x, labels

    def _measure_ours(self, problem: Problem, row: Row, x: Tensor, labels: Tensor) -> None:
        peak, steps = Peak(self.device), OurSteps.of(problem, self.k, x, labels)
        row["first_seconds"], row["loss"] = steps.first()
        self.say(f"{problem.title}: first {FIRST} steps {row['first_seconds']:.1f} s")
        row["seconds_per_step"] = asdict(timed(steps, self.device, self.seconds, self.stop))
        row["peak_bytes"] = peak.bytes()
        self.say(f"{problem.title}: {in_ms(row['seconds_per_step'])} ms/step")
        if self.profiled:
            row["profile"] = {}
            if self.device.type == "cuda":
                row["profile"]["kernels"] = hottest(steps, self.device, "kernels")
        plain = steps.plain()
        del steps
        row |= achieved(plain.counted(), row["seconds_per_step"]["median"], self.record.get("ceilings"))
        if self.profiled:
            row["profile"]["operations"] = hottest(plain, self.device, "operations")

    def _measure_authors(self, problem: Problem, row: Row, x: Tensor, labels: Tensor) -> None:
        peak, steps = Peak(self.device), AuthorsSteps(problem, self.k, x, labels)
        _, loss = steps.first()
        spread = asdict(timed(steps, self.device, self.seconds, self.stop))
        row["authors"] = {"seconds_per_step": spread, "peak_bytes": peak.bytes(), "loss": loss}
        self.say(f"{problem.title}: authors {in_ms(spread)} ms/step")
        ours = row.get("loss")
        if ours is None or loss is None or abs(ours - loss) > AGREEMENT * abs(loss):
            self.note(
                f"{problem.title}: the mean losses of {FIRST} steps are {_loss(ours)} (ours) and {_loss(loss)} (authors): "
                "either there are few projections, or the times are not about the same thing"
            )

    # Exact certificates

    def measure_certificates(self, problem: Problem, weights: Path) -> None:
        """Of test images one after the other, as long as there is time."""
        row: Row = {"title": problem.title}
        self.check()
        model = problem.model("0.mean" in load_tensors(weights))
        load_model(weights, model)
        model = model.to(self.device).eval()
        self.record["certificates"][problem.title] = row
        cuda = self.device.type == "cuda"
        x, labels = self._images(problem, 10_000 if cuda else 1000, model)
        ball = make_ball(problem.config)
        verdicts: list[bool] = []
        with self.room(f"{problem.title}, certificates"):
            peak = Peak(self.device)

            def ours(x: Tensor, labels: Tensor) -> Tensor:
                return certify(model, x, labels, ball, Dual()).certified

            found, verdicts = self._by_batches(ours, x, labels, 1000 if cuda else 10)
            row |= found | {"peak_bytes": peak.bytes()}
            self.say(f"{problem.title}: {figure(1e3 * found['seconds_per_image'])} ms per exact certificate")
        if self.authors:
            self._measure_authors_certificates(problem, row, verdicts, model, x, labels)

    def _measure_authors_certificates(
        self, problem: Problem, row: Row, ours: list[bool], model: nn.Sequential, x: Tensor, labels: Tensor
    ) -> None:
        """On normalised images, with an eps to match: there is no such layer in the authors' code. The fastest batch counts."""
        eps, clipped = problem.config.eps, problem.config.clip is not None
        if isinstance(model[0], Normalize):
            std = model[0].std
            if clipped or bool((std != std.flatten()[0]).any()):
                self.note(
                    f"{problem.title}: the authors' code has no balls that are clipped or stretched by normalisation"
                )
                return
            with torch.no_grad():
                x, eps, model = model[0](x), eps / std.flatten()[0].item(), nn.Sequential(*list(model)[1:])
        for batch in (10, 50, 200) if self.device.type == "cuda" else (10,):
            with self.foreign(f"{problem.title}, certificates"), torch.no_grad():
                found, theirs = self._by_batches(authors_verdicts(model, eps, clipped), x, labels, batch)
                seconds = found["seconds_per_image"]
                self.say(
                    f"{problem.title}: authors {figure(1e3 * seconds)} ms per exact certificate, {batch} at a time"
                )
                found["same_verdicts"] = sum(a == b for a, b in zip(ours, theirs, strict=False))
                found["compared"] = min(len(ours), len(theirs))
                if "authors" not in row or seconds < row["authors"]["seconds_per_image"]:
                    row["authors"] = found

    def _by_batches(
        self, verdict: Callable[[Tensor, Tensor], Tensor], x: Tensor, labels: Tensor, batch: int
    ) -> tuple[Row, list[bool]]:
        """Seconds per image, over the batches after the first, of which as many are treated as begin within the time given; and
        the verdicts on all images that were looked at."""
        verdicts: list[bool] = []
        spent: list[float] = []
        begin = time.perf_counter()
        for start in range(0, len(x), batch):
            part = slice(start, start + batch)
            self.check()
            seconds = once(lambda: verdicts.extend(verdict(x[part], labels[part]).tolist()), self.device)  # noqa: B023
            if start > 0 or len(x) <= batch:
                spent.append(seconds / len(labels[part]))
            else:
                begin = time.perf_counter()
            if spent and time.perf_counter() - begin > self.seconds:
                break
        row: Row = {"seconds_per_image": sum(spent) / len(spent), "low": min(spent), "high": max(spent)}
        return row | {"images": len(verdicts), "batch": batch, "certified": sum(verdicts)}, verdicts


class Steps(ABC):
    """Training steps on one batch, each with a seed of its own, as in training; call it for the next one."""

    def __init__(self, x: Tensor, labels: Tensor) -> None:
        self.x, self.labels, self.taken = x, labels, 0

    @abstractmethod
    def one(self, seed: int) -> Tensor:
        """One step; the loss comes first in what is returned."""

    def __call__(self) -> Tensor:
        self.taken += 1
        return self.one(self.taken)

    def first(self) -> tuple[float, float | None]:
        """Seconds of the first steps, in which kernels are compiled and a CUDA graph is captured, and their mean loss, if finite."""
        losses: list[Tensor] = []

        def take() -> None:
            losses.extend(self().flatten()[0].clone() for _ in range(FIRST))

        seconds = once(take, self.x.device)
        mean = torch.stack(losses).mean().item()
        return seconds, mean if math.isfinite(mean) else None


class OurSteps(Steps):
    """Steps as `autodual train` takes them, without augmentation."""

    def __init__(self, step: Step, x: Tensor, labels: Tensor) -> None:
        super().__init__(x, labels)
        self.step = step

    @classmethod
    def of(cls, problem: Problem, k: int, x: Tensor, labels: Tensor, half: bool = True) -> OurSteps:
        config = problem.config.with_changes(k=k, batch=len(x), eps=problem.eps)
        model = problem.model().to(x.device).train()
        ball, engine = make_ball(config, torch.tensor(config.eps, device=x.device)), make_engine(config)
        assert isinstance(engine, Projected)
        objective = RobustObjective(model, ball, replace(engine, half=half), config.robust_weight)
        optimiser, generator = make_optimiser(config, model), torch.Generator(x.device)
        return cls(make_step(objective, optimiser, generator, config.clip_gradients, config.batch), x, labels)

    def one(self, seed: int) -> Tensor:
        self.step.generator.manual_seed(seed)
        return self.step(self.x, self.labels)

    def plain(self) -> OurSteps:
        """Steps that do what a CUDA graph does, one operation after the other, beyond the first ones; itself without a graph."""
        graph = self.step
        if not isinstance(graph, GraphStep):
            return self
        graph.optimiser.zero_grad(set_to_none=True)  # they lie in the graph's memory
        plain = Step(graph.objective, graph.optimiser, graph.generator, graph.clip_gradients)
        found = OurSteps(plain, self.x, self.labels)
        found.first()
        return found

    def counted(self) -> Work:
        """What one step does. It must not be the first, which captures the network: no mode may be active then."""
        objective = inner(self.step.objective)
        assert isinstance(objective, RobustObjective)
        network = objective.loss._network(self.x)
        if self.x.is_cuda:  # as in a graph, which makes gradients instead of adding to those that are there
            self.step.optimiser.zero_grad(set_to_none=True)
        with patch.object(objective.loss, "_network", lambda x: network), Counting().with_kernels() as work:
            self()
        return work


class AuthorsSteps(Steps):
    """Steps with the authors' loss, the same optimiser and the same clipping."""

    def __init__(self, problem: Problem, k: int, x: Tensor, labels: Tensor) -> None:
        super().__init__(x, labels)
        self.config, model = problem.config, problem.model().to(x.device).train()
        self.parameters = list(model.parameters())
        self.optimiser = make_optimiser(self.config, model)
        self.authors_loss = authors_loss(model, problem.eps, k, self.config.clip is not None)

    def one(self, seed: int) -> Tensor:
        torch.manual_seed(seed)
        self.optimiser.zero_grad()
        value = self.authors_loss(self.x, self.labels)
        value.backward()
        if self.config.clip_gradients is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip_gradients)
        self.optimiser.step()
        return value.detach()


def achieved(work: Work, seconds: float, most: dict[str, float] | None) -> Row:
    """Rates of a step, and the parts of the machine's own ceilings that they are.

    Products of several arithmetics have one ceiling together: the time that each would take at the best rate of its own.
    """
    operations = dict(work.operations)
    row: Row = {
        "operations": operations, "bytes_read": work.read, "bytes_written": work.written,
        "operations_per_second": sum(operations.values()) / seconds, "bytes_per_second": work.bytes / seconds,
    }  # fmt: skip
    if most is not None:
        least = sum(number / most.get(kind, most[FLOAT32]) for kind, number in operations.items())
        row |= {"part_of_arithmetic": least / seconds, "part_of_bandwidth": row["bytes_per_second"] / most[COPY]}
    return row


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def in_ms(spread: dict[str, float] | None) -> str:
    """Median and quartiles, in milliseconds; nothing for nothing."""
    if spread is None:
        return ""
    median, low, high = (figure(1e3 * spread[name]) for name in ("median", "low", "high"))
    return f"{median} ({low}-{high})"


def figure(value: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
