"""What is on trial: the paper's networks, the authors' code for them where it can be imported, and training steps of both."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual.data import any_mean_std, form_of, load
from autodual.data.known import KNOWN
from autodual.engines import Projected
from autodual.models import ResidualBlock
from autodual.runs.config import TrainConfig
from autodual.runs.folder import Run
from autodual.speed.measure import Counting, Work, once
from autodual.training.objectives import Objective
from autodual.training.setup import make_ball, make_engine, make_model, make_optimiser
from autodual.training.step import WARM_UP, GraphStep, Step, inner, make_step

MNIST = TrainConfig(dataset="mnist", eps=0.1, clip=(0.0, 1.0), optimiser="adam", lr=1e-8)
CIFAR = TrainConfig(
    dataset="cifar10", eps=2 / 255, normalise=True, optimiser="sgd", lr=1e-8, weight_decay=5e-4, clip_gradients=1.0
)
"""The paper's settings, but a learning rate at which weights stay as they are: how long a step takes may depend on them."""


@dataclass(frozen=True)
class PaperNetwork:
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
        """Size of the perturbation in the units of the network's input: normalised images, where it is trained on such."""
        if not self.config.normalise:
            return self.config.eps
        _, deviation = any_mean_std(self.config.dataset, form_of(self.config.dataset)[0][0])
        assert isinstance(deviation, float)
        return self.config.eps / deviation

    def model(self, statistics: bool = False) -> nn.Sequential:
        """The untrained network, with fixed weights; with statistics as its first layer, or for images that are normalised before."""
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
    "mnist-small": PaperNetwork("MNIST small", MNIST.with_changes(model="small"), "mnist-small-0.1"),
    "cifar-small": PaperNetwork("CIFAR small", CIFAR.with_changes(model="small"), "cifar-small-2"),
    "mnist-large": PaperNetwork("MNIST large", MNIST.with_changes(model="large")),
    "cifar-large": PaperNetwork("CIFAR large", CIFAR.with_changes(model="large")),
    "cifar-resnet": PaperNetwork("CIFAR ResNet", CIFAR.with_changes(model="resnet")),
}


def kept_weights() -> dict[str, Path]:
    """Weights in results/ of the working folder, or of the source tree that this is run from, by the names of networks."""
    found: dict[str, Path] = {}
    for root in (Path(__file__).parents[3] / "results", Path("results")):  # the working folder counts
        for name, problem in PROBLEMS.items():
            file = Run(root / problem.kept).model_file
            found |= {name: file} if problem.kept and file.is_file() else {}
    return found


# The authors' code

AUTHORS = "convex_adversarial"
INSTALL = f"{AUTHORS} cannot be imported; `pip install --no-deps {AUTHORS}==0.4.4` fills the authors' columns"


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
    """The version of their package; None where it cannot be imported."""
    try:
        import convex_adversarial  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        return None
    try:
        return version(AUTHORS)
    except PackageNotFoundError:  # a plain folder
        return "of unknown version"


# Training steps on one batch: ours as `autodual train` takes them, and the authors'.

FIRST = WARM_UP + 1
"""Steps after which a CUDA graph has been captured and replayed."""


class TrainingSteps(ABC):
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
        seconds = once(lambda: losses.extend(self().flatten()[0].clone() for _ in range(FIRST)), self.x.device)
        mean = torch.stack(losses).mean().item()
        return seconds, mean if math.isfinite(mean) else None


class OurSteps(TrainingSteps):
    """Steps as `autodual train` takes them, without augmentation."""

    def __init__(self, step: Step, x: Tensor, labels: Tensor) -> None:
        super().__init__(x, labels)
        self.step = step

    @classmethod
    def of(cls, problem: PaperNetwork, k: int, x: Tensor, labels: Tensor, half: bool = True) -> OurSteps:
        config = problem.config.with_changes(k=k, batch=len(x), eps=problem.eps)
        model = problem.model().to(x.device).train()
        ball, engine = make_ball(config, torch.tensor(config.eps, device=x.device)), make_engine(config)
        assert isinstance(engine, Projected)
        objective = Objective.robust(model, ball, replace(engine, half=half), config.robust_weight)
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
        assert isinstance(objective, Objective)
        network = objective.bounded._captured_network(self.x)
        if self.x.is_cuda:  # as in a graph, which makes gradients instead of adding to those that are there
            self.step.optimiser.zero_grad(set_to_none=True)
        with patch.object(objective.loss, "_captured_network", lambda x: network), Counting().with_kernels() as work:
            self()
        return work


class AuthorsSteps(TrainingSteps):
    """Steps with the authors' loss, the same optimiser and the same clipping."""

    def __init__(self, problem: PaperNetwork, k: int, x: Tensor, labels: Tensor) -> None:
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
