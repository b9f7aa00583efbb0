"""Random small networks and random input sets, from recipes that hypothesis or a seed can draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import autodual as ad
from autodual.dual import CurvedDual, DualNetwork
from autodual.dual.piecewise import DualClip

CLASSES = 3


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Joined(nn.Module):
    """Two branches and what is made of them."""

    def __init__(self, left: nn.Module, right: nn.Module, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.left, self.right, self.join = left, right, join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.left(x), self.right(x))


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "leaky_relu steep": lambda: nn.LeakyReLU(1.6),
    "leaky_relu negative": lambda: nn.LeakyReLU(-0.4),
    "prelu": lambda: nn.PReLU(init=0.3),
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.4, 0.6),
    "clamp min": lambda: Function(lambda x: x.clamp(min=-0.2)),
    "clamp max": lambda: Function(lambda x: x.clamp(max=0.3)),
    "hardsigmoid": nn.Hardsigmoid,
    "abs": lambda: Function(torch.abs),
    "hardswish": nn.Hardswish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": lambda: nn.Softplus(2.0),
    "elu": lambda: nn.ELU(0.7),
    "elu steep": lambda: nn.ELU(1.5),
    "celu": lambda: nn.CELU(0.5),
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
}
CURVED = ("hardswish", "tanh", "sigmoid", "softplus", "elu", "elu steep", "celu", "selu")
SLOW = ("gelu", "gelu tanh", "silu")
MIXES = (
    "plain", "plain strided", "plain odd", "skip add", "skip subtract", "concat", "normalised", "shared", "maximum",
    "minimum", "average pool", "max pool", "constants",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Layers are pairs of a way to mix and an activation; everything else follows from the seed."""

    image: bool
    layers: tuple[tuple[str, str], ...]
    seed: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, 3, 4) if self.image else (4,)


def recipes(activations: tuple[str, ...] = tuple(ACTIVATIONS)) -> st.SearchStrategy[Recipe]:
    layer = st.tuples(st.sampled_from(MIXES), st.sampled_from(activations))
    layers = st.lists(layer, min_size=2, max_size=4).map(tuple)
    return st.builds(Recipe, st.booleans(), layers, st.integers(0, 2**16))


def drawn_recipe(seed: int) -> Recipe:
    """The same from a seed alone; activations whose lines are searched for, or by a search within a search, are rarer."""
    draw = random.Random(seed)
    weights = [1 if name in SLOW else 2 if name in CURVED else 5 for name in ACTIVATIONS]
    activations = draw.choices(list(ACTIVATIONS), weights, k=draw.randint(2, 4))
    layers = tuple((draw.choice(MIXES), activation) for activation in activations)
    return Recipe(draw.random() < 0.5, layers, seed)


def build(recipe: Recipe) -> nn.Module:
    """The network of a recipe, in float64 and evaluation mode, with weights of a size that leaves units unstable."""
    draw = random.Random(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    parts: list[nn.Module] = []
    shape = recipe.shape
    for mix, activation in recipe.layers:
        part = (_image_mix if len(shape) == 3 else _vector_mix)(mix, activation, shape, draw)
        parts += [_randomised(part, generator), ACTIVATIONS[activation]()]
        with torch.no_grad():
            shape = tuple(nn.Sequential(*parts).double().eval()(torch.zeros(2, *recipe.shape).double()).shape[1:])
    head = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), CLASSES))
    return nn.Sequential(*parts, _randomised(head, generator)).double().eval()


def _vector_mix(mix: str, activation: str, shape: tuple[int, ...], draw: random.Random) -> nn.Module:
    (size,) = shape
    act = ACTIVATIONS[activation]

    def linear(out: int = size) -> nn.Module:
        return nn.Linear(size, out)

    if mix == "shared":
        return _shared(linear(), act())
    if mix == "normalised":
        return nn.Sequential(linear(), nn.BatchNorm1d(size))
    if mix == "average pool":
        return nn.Sequential(linear(6), nn.Unflatten(1, (2, 3)), nn.AvgPool1d(2, 1), nn.Flatten())
    if mix == "max pool":
        return nn.Sequential(linear(6), nn.Unflatten(1, (1, 6)), nn.MaxPool1d(2, 2), nn.Flatten())
    return _joined(mix, linear, act) or linear(draw.randint(3, 5))


def _image_mix(mix: str, activation: str, shape: tuple[int, ...], draw: random.Random) -> nn.Module:
    channels, *space = shape
    act = ACTIVATIONS[activation]

    def conv(out: int = channels) -> nn.Module:
        return nn.Conv2d(channels, out, 3, padding=1)

    if mix == "plain strided":
        return nn.Conv2d(channels, 3, 2, stride=2, padding=1)
    if mix == "plain odd":
        modes = ["zeros", "circular", "replicate"] + ["reflect"] * (min(space) > 1)
        return nn.Conv2d(channels, 2, (1, 3), padding=(0, 1), padding_mode=draw.choice(modes))
    if mix == "shared":
        return _shared(conv(), act())
    if mix == "normalised":
        return nn.Sequential(conv(), nn.BatchNorm2d(channels))
    if mix == "average pool":
        return nn.Sequential(conv(2), nn.AvgPool2d(2, 2, padding=1, count_include_pad=draw.random() < 0.5))
    if mix == "max pool":
        return nn.Sequential(conv(1), nn.MaxPool2d(2, 2, padding=1, ceil_mode=draw.random() < 0.5))
    return _joined(mix, conv, act) or nn.Conv2d(channels, 2, 2 if min(space) > 1 else 1)


def _joined(mix: str, layer: Callable[..., nn.Module], act: Callable[[], nn.Module]) -> nn.Module | None:
    """Two branches of the same shape as the input, joined."""
    if mix == "skip add":
        return Joined(nn.Identity(), nn.Sequential(layer(), act()), lambda a, b: a + b)
    if mix == "skip subtract":
        return Joined(nn.Identity(), nn.Sequential(layer(), act()), lambda a, b: torch.sub(b, a, alpha=0.5))
    if mix == "concat":
        return Joined(nn.Identity(), nn.Sequential(layer(1), act()), lambda a, b: torch.cat([a, b], 1))
    if mix == "maximum":
        return Joined(layer(), nn.Identity(), torch.maximum)
    if mix == "minimum":
        return Joined(layer(), layer(), torch.minimum)
    if mix == "constants":
        return nn.Sequential(layer(), Function(lambda x: (0.3 - 1.1 * x) / 0.7))
    return None


def _shared(layer: nn.Module, activation: nn.Module) -> nn.Module:
    """One module, used twice."""
    return nn.Sequential(layer, activation, layer)


def _randomised(module: nn.Module, generator: torch.Generator) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            size = 1.3 / part.weight[0].numel() ** 0.5
            part.weight.data.normal_(0, size, generator=generator)
            part.bias.data.normal_(0, 0.2, generator=generator)
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.weight.data.normal_(0.5, 0.7, generator=generator)
            part.bias.data.normal_(0, 0.2, generator=generator)
            part.running_mean.normal_(0, 0.3, generator=generator)
            part.running_var.uniform_(0.3, 2, generator=generator)
    return module


SETS = ("linf", "linf clipped", "linf per feature", "l2", "l1", "box")


def region(kind: str, shape: tuple[int, ...], count: int, seed: int, largest: float = 0.6) -> ad.InputSet:
    """`count` input sets of one kind around random inputs, each of another size."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, dtype=torch.float64, generator=generator)

    x = 2 * uniform(count, *shape) - 1
    eps = largest * uniform(count)
    column = eps.reshape(-1, *[1] * len(shape))
    if kind == "linf":
        return ad.LinfBall(column).around(x)
    if kind == "linf clipped":
        return ad.LinfBall(column, clip=(-1, 1)).around(x)
    if kind == "linf per feature":
        return ad.LinfBall(2 * column * uniform(count, *shape)).around(x)
    if kind == "l2":
        return ad.L2Ball(2 * eps).around(x)
    if kind == "l1":
        return ad.L1Ball(3 * eps).around(x)
    return ad.Box(x - column * uniform(count, *shape), x + column)


def unstable_units(network: DualNetwork, layers: dict[str, ad.Interval]) -> tuple[int, int]:
    """How many units have a kink or an inflection point of their activation inside their bounds, and how many there are."""
    unstable = total = 0
    for index, interval in zip(network.activations, layers.values(), strict=True):
        layer = network.nodes[index].layer
        if isinstance(layer, DualClip):
            breaks: tuple[float, ...] = (layer.low, layer.high)
        else:
            breaks = layer.breakpoints if isinstance(layer, CurvedDual) else (0.0,)
        across = torch.zeros_like(interval.lower, dtype=torch.bool)
        for point in breaks:
            across |= (interval.lower < point) & (interval.upper > point)
        unstable, total = unstable + int(across.sum()), total + across.numel()
    return unstable, total
