"""A case as data: a network as source text and numbers, a point, a set, an engine. So it can be shrunk, printed and run again."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad

Numbers = Any
"""A number, or lists of them, nested as deep as a tensor."""


class Apply(nn.Module):
    """A module from a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Beside(nn.Module):
    """A module of all features but the last, beside that as it is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(x[:, :-1]), x[:, -1:]], 1)


class Formula(nn.Module):
    """A function of the input and of two parameters."""

    def __init__(self, function: Any, shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = nn.Parameter(torch.zeros(shape_a)), nn.Parameter(torch.zeros(shape_b))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x, self.a, self.b)
        return result


NAMES = {"Beside": Beside, "Formula": Formula, "torch": torch, "nn": nn, "F": F, "ad": ad, "math": math, "Apply": Apply}
PREAMBLE = "import math, torch, torch.nn.functional as F, autodual as ad\nfrom torch import nn\n"
APPLY = (
    "class Apply(nn.Module):\n    def __init__(self, function): super().__init__(); self.function = function\n"
    "    def forward(self, x): return self.function(x)\n"
)
BESIDE = (
    "class Beside(nn.Module):\n    def __init__(self, inner): super().__init__(); self.inner = inner\n"
    "    def forward(self, x): return torch.cat([self.inner(x[:, :-1]), x[:, -1:]], 1)\n"
)


FORMULA = (
    "class Formula(nn.Module):\n    def __init__(self, function, a, b):\n        super().__init__()\n"
    "        self.function, self.a, self.b = function, nn.Parameter(torch.zeros(a)), nn.Parameter(torch.zeros(b))\n"
    "    def forward(self, x): return self.function(x, self.a, self.b)\n"
)


@dataclass(frozen=True)
class Layer:
    """One module: `source` makes it, `tensors` fill its parameters and buffers."""

    source: str
    tensors: tuple[tuple[str, Numbers], ...] = ()
    exact: str | None = None
    """For an `Apply` or a `Formula`: the same function of a list x of fractions, and of the numbers a and b, as source."""

    def build(self) -> nn.Module:
        module: nn.Module = eval(self.source, dict(NAMES))
        module.eval()
        with torch.no_grad():
            for name, values in self.tensors:
                place = _tensor_of(module, name)
                place.copy_(torch.tensor(values, dtype=torch.float64).reshape(place.shape))
        return module

    @property
    def name(self) -> str:
        """The operation without its numbers, for telling findings apart."""
        if not self.source.startswith(("Apply(", "Formula(", "Beside(", "type(")):
            return self.source.split("(")[0]
        plain = re.sub(r"\[[-+0-9.,e ]*\]", "[]", self.source.removeprefix("Apply(lambda x: "))
        return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "0", plain)[:60]


@dataclass(frozen=True)
class Ball:
    """A perturbation: "linf", "l2" or "l1" of size eps (a number, or one per feature), clipped or not."""

    kind: str
    eps: float | tuple[float, ...]
    clip: tuple[float, float] | None = None

    def source(self, dtype: str) -> str:
        eps = self.eps if isinstance(self.eps, float) else f"torch.tensor([{list(self.eps)}], dtype=torch.{dtype})"
        clip = "" if self.clip is None else f", clip={self.clip}"
        return f"ad.{ {'linf': 'LinfBall', 'l2': 'L2Ball', 'l1': 'L1Ball'}[self.kind] }({eps}{clip})"

    def build(self, dtype: str) -> ad.Perturbation:
        ball: ad.Perturbation = eval(self.source(dtype), dict(NAMES))
        return ball

    def sizes(self, count: int) -> list[float]:
        return [self.eps] * count if isinstance(self.eps, float) else list(self.eps)

    def contains(self, x: list[float], point: list[float]) -> bool:
        """Exactly, in rational numbers."""
        moved = [abs(Fraction(p) - Fraction(c)) for p, c in zip(point, x, strict=True)]
        if self.clip is not None and not all(self.clip[0] <= Fraction(p) <= self.clip[1] for p in point):
            return False
        if self.kind == "linf":
            return all(m <= Fraction(e) for m, e in zip(moved, self.sizes(len(x)), strict=True))
        assert isinstance(self.eps, float)
        if self.kind == "l2":
            return sum(m * m for m in moved) <= Fraction(self.eps) ** 2
        return sum(moved) <= Fraction(self.eps)

    def points(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """[count, *shape] in float64, inside the set but for rounding; the first is x."""
        flat = x.double().reshape(1, -1)
        noise = torch.randn(count, flat.shape[1], dtype=torch.float64, generator=generator)
        noise[0] = 0
        corners = torch.arange(count) % 3 > 0
        if self.kind == "linf":
            unit = torch.where(corners.unsqueeze(1), noise.sign(), noise.clamp(-1, 1))
            moved = unit * torch.tensor(self.sizes(flat.shape[1]), dtype=torch.float64)
        else:
            order = 2 if self.kind == "l2" else 1
            if order == 1:  # a vertex moves one feature
                noise = torch.where(noise.abs() == noise.abs().amax(1, keepdim=True), noise, torch.zeros_like(noise))
            length = noise.norm(p=order, dim=1, keepdim=True).clamp(min=1e-300)
            assert isinstance(self.eps, float)
            moved = noise / length * (self.eps * (1 - 1e-9))
        return self._inside(flat + moved, x)

    def inward(self, points: Tensor, x: Tensor) -> Tensor:
        """Points moved into the set but for rounding."""
        flat, centre = points.reshape(len(points), -1), x.double().reshape(1, -1)
        shift = flat - centre
        if self.kind == "linf":
            size = torch.tensor(self.sizes(shift.shape[1]), dtype=torch.float64)
            shift = torch.maximum(torch.minimum(shift, size), -size)
        else:
            length = shift.norm(p=2 if self.kind == "l2" else 1, dim=1, keepdim=True)
            shift = shift * (self.eps * (1 - 1e-9) / length.clamp(min=1e-300)).clamp(max=1)
        return self._inside(centre + shift, x)

    def _inside(self, flat: Tensor, x: Tensor) -> Tensor:
        centre = x.double().reshape(1, -1).expand_as(flat)
        flat = torch.nextafter(flat, centre)  # the sum may have been rounded outwards
        if self.clip is not None:
            flat = flat.clamp(*self.clip)
        return flat.reshape(-1, *x.shape)


@dataclass(frozen=True)
class Case:
    """`witness` is a point of the set where the claim is thought to fail."""

    layers: tuple[Layer, ...]
    x: Numbers
    ball: Ball
    dtype: str = "float32"
    engine: str = "ad.Dual()"
    label: int = 0
    witness: Numbers = None
    setup: tuple[str, ...] = ()
    """Statements between the model and the certificate, such as a hook; `model`, `x` and `handles` are at hand."""
    captured: bool = False
    """Whether the network is captured before `setup`, and certified as captured."""
    claim: str = "certified"
    """What is checked: "certified", "as run" (the same arithmetic breaks it), "as it is" (the model after
    `setup` is another one), or "bounds" (an attained value lies outside)."""
    alone: bool = False
    """Whether the model may treat a batch differently from its examples."""

    def tensor(self, values: Numbers, dtype: str | None = None) -> Tensor:
        return torch.tensor([values], dtype=getattr(torch, dtype or self.dtype))

    def model(self) -> nn.Sequential:
        model = nn.Sequential(*(layer.build() for layer in self.layers)).to(getattr(torch, self.dtype)).eval()
        with torch.no_grad():  # once more, since the tensors are made in float32
            for module, layer in zip(model, self.layers, strict=True):
                for name, values in layer.tensors:
                    place = _tensor_of(module, name)
                    place.copy_(torch.tensor(values, dtype=torch.float64).reshape(place.shape))
        return model

    def script(self, seen: str) -> str:
        """About ten lines of Python that show it."""
        lines = [PREAMBLE.rstrip()]
        if any("Apply(" in layer.source for layer in self.layers):
            lines.append(APPLY.rstrip())
        if any("Formula(" in layer.source for layer in self.layers):
            lines.append(FORMULA.rstrip())
        if any("Beside(" in layer.source for layer in self.layers):
            lines.append(BESIDE.rstrip())
        cast = ".double()" if self.dtype == "float64" else ""
        lines.append(f"model = nn.Sequential({', '.join(layer.source for layer in self.layers)}){cast}.eval()")
        for index, layer in enumerate(self.layers):
            for name, values in layer.tensors:
                dtype = ", dtype=torch.float64" if cast else ""
                lines.append(f"model[{index}].{name}.data[:] = torch.tensor({values}{dtype})")
        lines.append(f"x, point = (torch.tensor([v], dtype=torch.float64) for v in ({self.x}, {self.witness}))")
        lines.append(f"x, ball = x.to(torch.{self.dtype}), {self.ball.source(self.dtype)}")
        network = "model"
        if self.captured:
            lines.append("network = ad.capture(model, x)")
            network = "network"
        if self.setup:
            lines += ["handles = []", *self.setup]
        if self.claim == "bounds":
            lines.append(f"found = ad.bounds({network}, ball.around(x), engine={self.engine}).output")
            lines.append("print(found.lower, model.double()(point), found.upper)")
        else:
            shown = (
                "certified_as_run"
                if self.claim == "as run" and hasattr(ad.Certificate, "certified_as_run")
                else "certified"
            )
            lines.append(f"c = ad.certify({network}, x, torch.tensor([{self.label}]), ball, engine={self.engine})")
            run = "model.double()(point)" if self.claim == "certified" else "model(point.to(x.dtype))"
            lines.append(f"print(c.{shown}, c.margins, c.slack, {run})")
        return "\n".join(lines) + f"\n# {seen}\n"


def _tensor_of(module: nn.Module, name: str) -> Tensor:
    value = module
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value.data


def single(value: float) -> float:
    """The nearest number of float32; infinite where there is none."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def flat(values: Numbers) -> list[float]:
    return [v for part in values for v in flat(part)] if isinstance(values, list | tuple) else [values]


def mapped(values: Numbers, change: Any) -> Numbers:
    return [mapped(v, change) for v in values] if isinstance(values, list | tuple) else change(values)


def with_witness(case: Case, point: Tensor) -> Case:
    return replace(case, witness=point.tolist())
