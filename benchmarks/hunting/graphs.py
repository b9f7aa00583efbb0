"""Draws of convolutional graphs whose nodes are read several times, through windows of different sizes."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor, nn

import autodual as ad
from hunting.case import NAMES
from hunting.check import ENGINES, Finding, Shrinker

ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.Hardtanh, nn.LeakyReLU, nn.Tanh, nn.Sigmoid)
CORNERS = 24
ROOM = 1e-9
"""Values in float64 may be wrong by less."""


class Graph(nn.Module):
    """Every step reads one or two of the values before it; the last few values are added and pass one more convolution."""

    def __init__(self, draw: Random, channels: int, width: int) -> None:
        super().__init__()
        self.reads: list[tuple[int, ...]] = []
        self.steps = nn.ModuleList()
        sizes = [width]
        for _ in range(draw.randint(3, 6)):
            source = draw.choice(range(max(0, len(sizes) - 4), len(sizes)))
            kind, step = draw.random(), nn.Identity()
            other = draw.choice([i for i, size in enumerate(sizes) if size == sizes[source]])
            reads: tuple[int, ...] = (source,)
            if kind < 0.4:
                step = self._convolution(draw, channels, sizes[source])
            elif kind < 0.75:
                step = draw.choice(ACTIVATIONS)()
            elif kind < 0.9 and other != source:
                reads = (source, other)
            elif kind < 0.95:
                step = nn.AvgPool2d(3, 1, 1)
            else:
                step = nn.BatchNorm2d(channels)
                step.running_mean.normal_()
                step.running_var.uniform_(0.5, 2)
            self.steps.append(step)
            self.reads.append(reads)
            sizes.append(step.eval()(torch.zeros(1, channels, sizes[source], sizes[source])).shape[-1])
        self.summed = [i for i in range(1, len(sizes)) if sizes[i] == sizes[-1]][-3:]
        self.last = nn.Conv2d(channels, 2, min(3, sizes[-1]), stride=draw.choice((1, 2)))

    @staticmethod
    def _convolution(draw: Random, channels: int, size: int) -> nn.Module:
        kernel, dilation = draw.choice((1, 3, 3, 5)), draw.choice((1, 1, 1, 2))
        padding = dilation * (kernel - 1) // 2
        stride = 2 if size >= 6 and draw.random() < 0.15 else 1
        mode = draw.choice(("zeros",) * 6 + ("circular", "reflect")) if padding < size else "zeros"
        groups = draw.choice((1, 1, channels))
        return nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups, padding_mode=mode)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step, reads in zip(self.steps, self.reads, strict=True):
            values.append(step(values[reads[0]] if len(reads) == 1 else values[reads[0]] - values[reads[1]]))
        return self.last(sum(values[i] for i in self.summed)).flatten(1)


def graphs(draw: Random, shrinker: Shrinker) -> tuple[int, list[Finding]]:
    """No value at a corner lies outside the bounds of an engine, and `Dual()` agrees with `ForwardDual()`."""
    channels, width = draw.choice((1, 2, 3)), draw.choice((6, 12, 16))  # rows of large images are patches
    model = Graph(draw, channels, width).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(draw.choice((1.0, 1.0, 3.0)))
    x = torch.rand(draw.choice((1, 2)), channels, width, width, dtype=torch.float64)
    eps = draw.choice((0.001, 0.03, 0.3))
    region = ad.LinfBall(eps).around(x)
    engines = {"ad.Dual()", "ad.ForwardDual()", draw.choice(ENGINES)}
    found = {engine: ad.bounds(model, region, eval(engine, dict(NAMES))).output for engine in sorted(engines)}
    findings = list[Finding]()
    with torch.enable_grad():
        for _ in range(CORNERS):
            point = (x + eps * (2 * torch.rand_like(x) - 1)).requires_grad_()
            output = model(point)
            (slope,) = torch.autograd.grad((output * torch.randn_like(output)).sum(), point, allow_unused=True)
            corner = x if slope is None else x + eps * slope.sign()
            value = model(corner).detach()
            for engine, bound in found.items():
                beyond = torch.maximum(bound.lower - value, value - bound.upper) - ROOM * (1 + value.abs())
                if bool((beyond > 0).any()):
                    told = f"# {engine}: a value lies outside its bounds by {beyond.max().item():.3g}\n# {model}\n"
                    return CORNERS, [Finding(f"graph outside {engine}", engine, told)]
    dual, forward = found["ad.Dual()"], found["ad.ForwardDual()"]
    apart = (dual.lower - forward.lower).abs().maximum((dual.upper - forward.upper).abs())
    if bool((apart > 1e-6 * (1 + dual.width)).any()):
        told = f"# Dual() and ForwardDual() differ by {apart.max().item():.3g}\n# {model}\n"
        findings.append(Finding("Dual and ForwardDual differ", "graphs", told))
    return CORNERS * len(found), findings
