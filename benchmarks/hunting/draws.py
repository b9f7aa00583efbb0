"""Cases drawn at random, kind by kind. Every kind yields cases whose claim must not be made; `check.violated` looks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from hunting.case import Ball, Case, Layer, Numbers, single
from hunting.check import ENGINES, at_the_edge

Draw = random.Random
MAGNITUDES = (
    1.0,
    1.0,
    1.0,
    0.1,
    10.0,
    1e-3,
    1e3,
    1e6,
    1e-6,
    1e10,
    1e-10,
    1e18,
    1e-18,
    1e-23,
    1e-30,
    1e30,
    1e37,
    1e-38,
    1e-42,
)
TAME = (1.0, 1.0, 0.3, 3.0, 30.0)


def magnitude(draw: Draw, wild: bool) -> float:
    return draw.choice(MAGNITUDES if wild else TAME)


def numbers(draw: Draw, *shape: int, scale: float = 1.0, dtype: str = "float32") -> Numbers:
    """Normal numbers, some of them zero, of the dtype."""
    if not shape:
        value = scale * draw.choice((draw.gauss(0, 1), draw.gauss(0, 1), float(draw.randint(-2, 2))))
        return single(value) if dtype == "float32" else value
    return [numbers(draw, *shape[1:], scale=scale, dtype=dtype) for _ in range(shape[0])]


def positive(draw: Draw, count: int, low: float, high: float) -> Numbers:
    """Log-uniform numbers of float32."""
    return [single(math.exp(draw.uniform(math.log(low), math.log(high)))) for _ in range(count)]


def linear(draw: Draw, inputs: int, outputs: int, wild: bool = False) -> Layer:
    scale = magnitude(draw, wild)
    bias = numbers(draw, outputs, scale=scale * draw.choice((1.0, 0.0, 1.0, 1e4 if wild else 1.0)))
    return Layer(
        f"nn.Linear({inputs}, {outputs})", (("weight", numbers(draw, outputs, inputs, scale=scale)), ("bias", bias))
    )


def ball(draw: Draw, x: list[float], wild: bool = False, point: float = 0.4) -> Ball:
    if draw.random() < point:
        return Ball("linf", 0.0)
    size = max((abs(v) for v in x), default=1.0) or 1.0
    eps = draw.choice((0.01, 0.1, 0.5, 1e-6, 8 / 255, 2.0)) * (size if wild or draw.random() < 0.5 else 1.0)
    kind = draw.choice(("linf", "linf", "linf", "l2", "l1", "features"))
    if kind == "features":
        return Ball("linf", tuple(single(eps * draw.choice((0.0, 1.0, draw.random()))) for _ in x))
    if kind == "linf" and draw.random() < 0.3:
        return Ball("linf", eps, (min(x) - draw.choice((0.0, 0.1, 1.0)), max(x) + draw.choice((0.05, 0.3, 1.0))))
    return Ball(kind, eps)


def _wild_slope(draw: Draw) -> float:
    return draw.choice((0.01, 0.1, -0.5, 0.0, 1.0, 1.5, -1.0, 33.3, 1e3, 1.1e6, 1e8, -1e9, 1e17, 1e-8, 1e-40, 0.3))


def _wild_positive(draw: Draw) -> float:
    return draw.choice((1.0, 0.5, 2.0, 0.1, 0.7, 10.0, 100.0, 1e-3, 1e3, 1e-6, 1e6, 1e-30, 1e30))


def _wild_any(draw: Draw) -> float:
    return draw.choice((-1, -1, -1, 1)) * draw.choice((0.0, *(_wild_positive(draw) for _ in range(3))))


STRAIGHT = (
    "nn.ReLU()", "nn.LeakyReLU()", "nn.LeakyReLU(0.2)", "nn.ReLU6()", "nn.Hardtanh()", "nn.Hardsigmoid()",
    "Apply(lambda x: x.abs())", "Apply(lambda x: x.clamp(-0.3, 0.7))", "Apply(lambda x: x.clamp(min=0.1))",
    "Apply(lambda x: torch.maximum(x, 0.5 * x + 0.1))", "Apply(lambda x: torch.minimum(x, torch.tensor(0.2)))",
)  # fmt: skip
CURVED = (
    "nn.Hardswish()", "nn.Sigmoid()", "nn.Tanh()", "nn.SiLU()", "nn.GELU()", "nn.GELU('tanh')", "nn.Softplus()", "nn.ELU()",
    "nn.CELU()", "nn.SELU()",
)  # fmt: skip


def activation(draw: Draw, odd: float = 0.4) -> str:
    """Source of an activation; with probability `odd`, one with parameters that hurt but are within range."""
    if draw.random() >= odd:
        return draw.choice(STRAIGHT if draw.random() < 0.7 else CURVED)  # the curved ones take most of the time
    a, b = sorted((draw.uniform(-2, 2), draw.uniform(-2, 2)))
    return draw.choice(
        (
            f"nn.LeakyReLU({_wild_slope(draw)})",
            f"nn.Softplus({_wild_positive(draw)}, {draw.choice((20.0, 1.0, 0.3, 0.0, 5.0, -1.0, 100.0))})",
            f"nn.ELU({_wild_positive(draw)})",
            f"nn.CELU({_wild_positive(draw)})",
            f"nn.Hardtanh({a}, {b + 1e-3})",
            f"nn.Hardtanh({-_wild_positive(draw)}, {_wild_positive(draw)})",
        )
    )


# Whole networks


def networks(draw: Draw) -> Iterator[list[Case]]:
    """Several layers of any kind, tame numbers, any set."""
    if draw.random() < 0.6:
        yield from _vectors(draw, depth=draw.randint(1, 4), wild=False)
    else:
        yield from _images(draw)


def _vectors(draw: Draw, depth: int, wild: bool, point: float = 0.3) -> Iterator[list[Case]]:
    size = draw.randint(1, 4)
    x = numbers(draw, size, scale=magnitude(draw, wild))
    layers: list[Layer] = [] if draw.random() < 0.7 else [Layer(activation(draw))]
    for _ in range(depth):
        after = draw.randint(1, 4)
        layers += [linear(draw, size, after, wild), *_between(draw, after)]
        size = after
        layers.append(Layer(activation(draw)))
    dtype = draw.choice(("float32", "float32", "float64")) if wild else "float32"
    yield from at_the_edge(Case(tuple(layers), x, ball(draw, x, wild, point), dtype), draw)


def _between(draw: Draw, size: int) -> list[Layer]:
    """Now and then, something affine."""
    choice = draw.random()
    if choice < 0.2:
        return [batch_norm(draw, size)]
    if choice < 0.3:
        return [Layer("Apply(lambda x: (x - 0.3) / 0.7)")]
    if choice < 0.4:
        return [Layer("Apply(lambda x: x + torch.relu(-x))")]
    return []


def batch_norm(draw: Draw, size: int, hurt: bool = False) -> Layer:
    means = [single(draw.gauss(0, 1) * (draw.choice((1.0, 10.0, 1e3, 1e5, 1e8)) if hurt else 1.0)) for _ in range(size)]
    variances = positive(draw, size, 1e-12 if hurt else 0.3, 1e6 if hurt else 3.0)
    weights = [single(draw.gauss(0, 1) * (draw.choice((1.0, 1e-4, 1e4)) if hurt else 1.0)) for _ in range(size)]
    biases = [
        single(draw.choice((draw.gauss(0, 1), m * w / (v + 1e-5) ** 0.5)))
        for m, w, v in zip(means, weights, variances, strict=True)
    ]
    eps = draw.choice((1e-5, 1e-5, 1e-3, 1e-12, 0.1)) if hurt else 1e-5
    tensors = (("running_mean", means), ("running_var", variances), ("weight", weights), ("bias", biases))
    return Layer(f"nn.BatchNorm1d({size}, eps={eps})", tensors)


def _images(draw: Draw) -> Iterator[list[Case]]:
    channels, height, width = draw.randint(1, 2), draw.randint(2, 5), draw.randint(2, 5)
    shape = (channels, height, width)
    x = numbers(draw, *shape)
    layers: list[Layer] = []
    for _ in range(draw.randint(1, 3)):
        layers += [image_layer(draw, shape), Layer(activation(draw, 0.1))]
        found = _shape_after(layers, x)
        if found is None or len(found) != 3 or 0 in found:
            return
        shape = found
    flat_x = [v for c in x for r in c for v in r]
    region = ball(draw, flat_x)
    if not isinstance(region.eps, float):
        region = Ball("linf", 0.03)
    yield from at_the_edge(Case(tuple(layers), x, region), draw)


def _shape_after(layers: list[Layer], x: Numbers) -> tuple[int, ...] | None:
    """Shape of what comes out; None if these layers do not fit together."""
    case = Case(tuple(layers), x, Ball("linf", 0.0))
    try:
        with torch.no_grad():
            return tuple(case.model()(case.tensor(x)).shape[1:])
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


def image_layer(draw: Draw, shape: tuple[int, ...]) -> Layer:
    c, h, w = shape
    out, k, groups = draw.randint(1, 3), (draw.randint(1, min(3, h)), draw.randint(1, min(3, w))), 1
    mode = draw.choice(("zeros", "zeros", "circular", "replicate", "reflect"))
    pad = (draw.randint(0, k[0] // 2), draw.randint(0, k[1] // 2))
    stride, dilation = (draw.randint(1, 2), draw.randint(1, 2)), 1 if min(h, w) < 4 else draw.randint(1, 2)
    weight = numbers(draw, out, c // groups, *k)
    tensors = (("weight", weight), ("bias", numbers(draw, out)))
    conv = f"nn.Conv2d({c}, {out}, {k}, stride={stride}, padding={pad}, dilation={dilation}, padding_mode={mode!r})"
    if draw.random() < 0.4:
        return Layer(rewritten(draw, shape))
    if draw.random() < 0.2:
        transposed = (("weight", numbers(draw, c, out, *k)), ("bias", numbers(draw, out)))
        return Layer(
            f"nn.ConvTranspose2d({c}, {out}, {k}, stride={stride}, output_padding={draw.choice((0, min(stride) - 1))})",
            transposed,
        )
    return Layer(conv, tensors)


# Operations that are rewritten or have many arguments


def rewritten(draw: Draw, shape: tuple[int, ...]) -> str:
    """Source of an operation on images with drawn arguments; some draws are not valid PyTorch, and are passed over."""
    k, s, p, d = draw.randint(1, 3), draw.randint(1, 3), draw.randint(0, 1), draw.randint(1, 2)
    flag, other = draw.random() < 0.5, draw.random() < 0.5
    scale = draw.choice((2, 1.5, 1.3, 0.7, 0.45, 2.6, (1.3, 2)))
    size = (draw.randint(1, 7), draw.randint(1, 7))
    amounts = tuple(draw.randint(-1, 2) for _ in range(4))
    smooth = draw.choice(("bilinear", "area", "nearest", "nearest-exact", "bicubic"))
    align = f", align_corners={flag}" if smooth in ("bilinear", "bicubic") else ""
    more = draw.choice(("", "", ", recompute_scale_factor=True", ", antialias=True"))
    pad = draw.choice(("Reflection", "Replication", "Circular", "Zero"))
    dim = draw.choice((1, 2, 3, -1, -2))
    index = draw.choice(
        (
            ":, :, ::2",
            ":, :, 1:",
            ":, ..., 0:1",
            "..., 0:1",
            ":, :, [0, 1]",
            ":, :, :, torch.tensor([1, 0, 1])",
            ":, 0:1",
            ":, None, 0",
            ":, -1:",
            "..., -1, :",
            ":, :, -1, None",
        )
    )
    return draw.choice(
        (
            f"nn.MaxPool2d({k}, {s}, {p}, {d}, ceil_mode={flag})",
            f"nn.AvgPool2d({k}, {s}, {p}, ceil_mode={flag}, count_include_pad={other})",
            f"nn.AvgPool2d(({k}, 1), {s}, divisor_override={draw.choice((None, 1, 3, 7, -4))})",
            f"nn.AdaptiveMaxPool2d({draw.choice((size, (None, 2), 1, 2))})",
            f"nn.AdaptiveAvgPool2d({draw.choice((size, (None, 2), 1, 2))})",
            f"nn.Upsample(scale_factor={scale}, mode={smooth!r}{align})",
            f"nn.Upsample(size={size}, mode={smooth!r}{align})",
            f"Apply(lambda x: F.interpolate(x, scale_factor={scale}, mode={smooth!r}{align}{more}))",
            f"Apply(lambda x: F.interpolate(x, size={size}, mode={smooth!r}{align}, antialias={other}))",
            f"nn.{pad}Pad2d({draw.choice((1, (1, 0, 0, 1), (0, 1, 1, 1)))})",
            f"type('Frame', (nn.{pad}Pad2d,), {{}})(1)",
            f"nn.ConstantPad2d({amounts}, {draw.choice((0.5, -1, 3))})",
            f"Apply(lambda x: F.pad(x, {amounts}, value={draw.choice((None, 0.3, -2.0))}))",
            f"Apply(lambda x: F.pad(x, (1, 1, 0, 0), mode={draw.choice(('reflect', 'replicate', 'circular'))!r}))",
            f"Apply(lambda x: x.amax({dim}, keepdim=True))",
            f"Apply(lambda x: x.min({dim}, keepdim={flag}).values)",
            f"Apply(lambda x: torch.max(x, {dim})[0])",
            f"Apply(lambda x: x.amin(({draw.choice(('1, 2', '2, 3', '-1, 1'))}), keepdim={flag}))",
            f"Apply(lambda x: x.mean({draw.choice((dim, (2, 3), (-1, -3)))}, keepdim={flag}))",
            f"Apply(lambda x: x.sum({draw.choice((dim, (2, 3)))}, {flag}))",
            f"Apply(lambda x: x[{index}])",
            f"Apply(lambda x: torch.cat([p for p in x.split({k}, {dim})][::-1], {dim}))",
            f"Apply(lambda x: torch.cat(x.chunk({k}, {dim})[::-1], {dim}))",
            f"Apply(lambda x: torch.stack(x.unbind({dim})[::-1], {draw.choice((1, 2, -1))}))",
            f"Apply(lambda x: x.permute({draw.choice(((0, 2, 3, 1), (0, 3, 1, 2), (0, -1, -2, 1)))}))",
            f"Apply(lambda x: x.transpose({dim}, {draw.choice((1, 2, -1))}))",
            f"Apply(lambda x: x.flip({draw.choice((dim, (1, 2)))}))",
            "Apply(lambda x: x.unsqueeze(2).expand(-1, -1, 3, -1, -1).flatten(1, 2))",
            "Apply(lambda x: x.flatten(2).mean(-1, keepdim=True) - x.flatten(2))",
            "Apply(lambda x: torch.minimum(x, x.mean((2, 3), keepdim=True)))",
            "Apply(lambda x: torch.sub(x, x.flip(3), alpha=0.3))",
            "Apply(lambda x: torch.rsub(x, 0.7, alpha=2))",
        )
    )


def rewrites(draw: Draw) -> Iterator[list[Case]]:
    """One operation with drawn arguments on a small image, in either dtype."""
    shape = (draw.randint(1, 4), draw.randint(2, 6), draw.randint(2, 6))
    x = numbers(draw, *shape)
    source = rewritten(draw, shape)
    case = Case((Layer(source),), x, Ball("linf", draw.choice((0.0, 0.0, 0.1))), draw.choice(("float32", "float64")))
    yield from at_the_edge(case, draw)


# Single layers, at a point or close to it, with numbers that hurt


def edges(draw: Draw) -> Iterator[list[Case]]:
    """One or two layers of any kind with wild numbers: the true margin is below zero by as little as can be told."""
    yield from _vectors(draw, depth=draw.randint(1, 2), wild=True, point=0.7)


def folded(draw: Draw) -> Iterator[list[Case]]:
    """Constants that are folded before they are used: batch norm, normalisation, weight norm, products of parameters."""
    size = draw.randint(1, 3)
    norm = batch_norm(draw, size, hurt=True)
    means = dict(norm.tensors)["running_mean"]
    near = draw.random() < 0.7  # where the shift cancels
    x = [single(m * (1 + draw.gauss(0, 1e-6)) if near else draw.gauss(0, 1)) for m in means]
    layers: list[Layer] = [norm]
    choice = draw.random()
    if choice < 0.3:
        stds = positive(draw, size, 1e-4, 1e4)
        layers = [Layer(f"Apply(lambda x: (x - torch.tensor({means})) / torch.tensor({stds}))")]
    elif choice < 0.5:
        layers = [formula(draw, size)]
    elif choice < 0.6:
        length = ("parametrizations.weight.original0", numbers(draw, 2, 1))
        direction = ("parametrizations.weight.original1", numbers(draw, 2, size, scale=magnitude(draw, True)))
        source = f"nn.utils.parametrizations.weight_norm(nn.Linear({size}, 2))"
        layers = [Layer(source, (length, direction, ("bias", numbers(draw, 2))))]
    if draw.random() < 0.5:
        layers.append(Layer(activation(draw)))
    dtype = draw.choice(("float32", "float32", "float64"))
    yield from at_the_edge(Case(tuple(layers), x, ball(draw, x, wild=True, point=0.6), dtype), draw)


def formula(draw: Draw, size: int) -> Layer:
    """What is computed from parameters before it meets the input: differences of squares, products of matrices."""
    scale = draw.choice((1.0, 30.0, 1e3))
    if draw.random() < 0.5:
        tensors = (("a", numbers(draw, size, scale=scale)), ("b", numbers(draw, size, scale=scale)))
        exact = "[v + Fraction(p) ** 2 - Fraction(q) ** 2 for v, p, q in zip(x, a, b)]"
        return Layer(f"Formula(lambda x, a, b: x + (a * a - b * b), ({size},), ({size},))", tensors, exact)
    rank = draw.choice((2, 8, 30))
    tensors = (("a", numbers(draw, 2, rank, scale=scale)), ("b", numbers(draw, rank, size)))
    exact = "[sum(Fraction(p) * Fraction(q) * v for p, r in zip(row, b) for q, v in zip(r, x)) for row in a]"
    return Layer(f"Formula(lambda x, a, b: F.linear(x, a @ b), (2, {rank}), ({rank}, {size}))", tensors, exact)


def faint(draw: Draw) -> Iterator[list[Case]]:
    """Factors that float32 has only denormal numbers for, or none, before inputs that are as large as they are small."""
    size = draw.randint(1, 2)
    x = numbers(draw, size, scale=draw.choice((1e37, 1e38, 1e30)))
    small = draw.choice((1e-20, 1e-22, 1e-24))
    if draw.random() < 0.5:
        variances = positive(draw, size, 1e36, 1e38)
        means = numbers(draw, size, scale=draw.choice((0.0, 1.0, 1e37)))
        tensors = (("running_mean", means), ("running_var", variances), ("weight", numbers(draw, size, scale=small)))
        layer = Layer(f"nn.BatchNorm1d({size}, eps=1e-5)", (*tensors, ("bias", numbers(draw, size, scale=1e-4))))
    else:
        tensors = (("a", numbers(draw, size, scale=1e-20)), ("b", numbers(draw, size, scale=small)))
        exact = "[v * Fraction(p) * Fraction(q) for v, p, q in zip(x, a, b)]"
        layer = Layer(f"Formula(lambda x, a, b: x * (a * b), ({size},), ({size},))", tensors, exact)
    yield from at_the_edge(Case((layer,), x, Ball("linf", 0.0)), draw)


def constants(draw: Draw) -> Iterator[list[Case]]:
    """Constants of other dtypes: integers, float32 in a float64 model, Python and NumPy numbers, booleans."""
    whole = [draw.choice((199, 3, 7, 49, 16777217, 123456789, 2**31 - 1, 1, -5)) for _ in range(2)]
    tenths = [draw.choice((0.1, 0.3, 1 / 3, 199.0, 7.0, 3e-5)) for _ in range(2)]
    singles = [single(t) for t in tenths]
    source, exact = draw.choice(
        (
            (f"x / torch.tensor({whole})", f"[v / w for v, w in zip(x, {whole})]"),
            (f"x * torch.tensor({whole})", f"[v * w for v, w in zip(x, {whole})]"),
            (f"x + torch.tensor({whole})", f"[v + w for v, w in zip(x, {whole})]"),
            (f"x - torch.tensor({whole})", f"[v - w for v, w in zip(x, {whole})]"),
            (f"torch.tensor({whole}) - x", f"[w - v for v, w in zip(x, {whole})]"),
            (f"x / torch.tensor({tenths})", f"[v / Fraction(w) for v, w in zip(x, {singles})]"),
            (f"x / torch.tensor({tenths}, dtype=torch.float64)" , f"[v / Fraction(w) for v, w in zip(x, {tenths})]"),
            (f"x * torch.tensor({tenths})", f"[v * Fraction(w) for v, w in zip(x, {singles})]"),
            (f"x + torch.tensor({tenths})", f"[v + Fraction(w) for v, w in zip(x, {singles})]"),
            (f"x / {whole[0]}", f"[v / {whole[0]} for v in x]"),
            (f"x / {tenths[0]!r}", f"[v / Fraction({tenths[0]!r}) for v in x]"),
            (f"torch.add(x, torch.tensor({whole}), alpha=3)", f"[v + 3 * w for v, w in zip(x, {whole})]"),
            (f"torch.maximum(x, torch.tensor({tenths}))", f"[max(v, Fraction(w)) for v, w in zip(x, {singles})]"),
            ("x * torch.tensor([True, False])", "[x[0], 0]"),
            (
                f"torch.cat([x, torch.ones(len(x), 1).long(), torch.full((len(x), 1), {tenths[0]})], 1)",
                f"[*x, 1, Fraction({singles[0]})]",
            ),
            (f"torch.cat([torch.full((len(x), 1), {tenths[0]}), x], 1)", f"[Fraction({singles[0]}), *x]"),
            (f"x.clamp(torch.tensor({singles[0]}), 1e9)", f"[max(v, Fraction({singles[0]})) for v in x]"),
        )
    )  # fmt: skip
    dtype = draw.choice(("float64", "float64", "float32"))
    x = numbers(draw, 2, scale=draw.choice((1.0, 1.0, 1e8, 1e-4)), dtype=dtype)
    layer = Layer(f"Apply(lambda x: {source})", exact=exact)
    yield from at_the_edge(Case((layer,), x, Ball("linf", draw.choice((0.0, 0.0, 0.01))), dtype), draw)


def out_of_range(draw: Draw) -> Iterator[list[Case]]:
    """Parameters that are unusual: negative, zero, huge, attributes that were changed."""
    a, b = _wild_any(draw), _wild_any(draw)
    vector = draw.choice(
        (
            f"nn.LeakyReLU({a})", f"nn.ELU({a})", f"nn.CELU({a})", f"nn.Softplus({a}, {b})", f"nn.Softplus({a})",
            f"nn.Hardtanh({min(a, b)}, {max(a, b) if a != b else a + max(1.0, abs(a))})",
            f"Apply(lambda x: F.elu(x, {a}))", f"Apply(lambda x: F.celu(x, {a}))", f"Apply(lambda x: F.leaky_relu(x, {a}))",
            f"Apply(lambda x: F.softplus(x, {a}, {b}))", f"Apply(lambda x: x.clamp({a}, {b}))", f"Apply(lambda x: x.clamp(max={a}))",
            f"type('ReLU1', (nn.ReLU6,), {{'__init__': lambda m: (nn.ReLU6.__init__(m), setattr(m, 'max_val', {abs(a)}))[0]}})()",
            f"Apply(lambda x: x / {a})", f"Apply(lambda x: torch.sub(x, x.flip(1), alpha={a}))",
            f"Apply(lambda x: F.hardtanh(x, {a}, {b}))",
        )
    )  # fmt: skip
    x = numbers(draw, draw.randint(1, 3), scale=draw.choice((1.0, 3.0, 0.1)))
    layers: list[Layer] = [Layer("nn.Identity()"), Layer(vector)]
    if draw.random() < 0.3:
        size = len(x)
        weights = [_wild_slope(draw) for _ in range(size)]
        layers = [Layer(f"nn.PReLU({size})", (("weight", weights),))]
    elif draw.random() < 0.2:
        norm = batch_norm(draw, len(x), hurt=True)
        layers = [replace(norm, source=f"nn.BatchNorm1d({len(x)}, eps={draw.choice((0.0, -1e-3, 1e3, 1e-30))})")]
    yield from at_the_edge(Case(tuple(layers), x, ball(draw, x)), draw)


# What the tracer may not see


CHANGES = (
    "handles.append(nn.modules.module.register_module_forward_pre_hook("
    "lambda m, i: (torch.where(i[0] > 0.6, i[0] * 3, i[0]),) if isinstance(m, nn.Linear) else None))",
    "handles.append(nn.modules.module.register_module_forward_hook("
    "lambda m, i, o: o.clamp(max=0.4) if isinstance(m, nn.Linear) else None))",
    "handles.append(model.register_forward_hook(lambda m, i, o: torch.where(o > 0.4, -o, o)))",
    "handles.append(model.register_forward_pre_hook(lambda m, i: (i[0].clamp(max=0.4),)))",
    "handles.append(model[0].register_forward_hook(lambda m, i, o: o - 2 * F.relu(o - 0.3)))",
    "handles.append(model[-1].register_forward_hook(lambda m, i, o, **k: o.flip(1).clamp(max=0.4) + 0 * o, always_call=True))",
    "model[0].forward = lambda x: F.linear(x.clamp(max=0.4), model[0].weight, model[0].bias)",
    "model[0].__class__ = type('Other', (nn.Linear,), {'forward': lambda m, x: nn.Linear.forward(m, x.clamp(max=0.4))})",
    "model[1] = nn.Hardtanh(-0.2, 0.3)",
    "model[0] = nn.Linear(model[0].in_features, model[0].out_features)",
    "model.append(nn.Hardtanh(-0.1, 0.1))",
    "model[0].weight = nn.Parameter(-model[0].weight.data)",
    "model[1].function = lambda x: x.clamp(max=0.3)",
    "nn.utils.parametrize.register_parametrization(model[0], 'weight', nn.Hardtanh(-0.2, 0.2))",
    "model.eval(); model.double(); model.float(); model[0].bias.data.neg_()",
)  # fmt: skip
STRANGE = (
    "Apply(lambda x: x * len(x))", "Apply(lambda x: x / x.shape[0])", "Apply(lambda x: (x.data.clamp_(max=0.3), x * 1)[1])",
    "Apply(lambda x: x * 2 if torch.is_grad_enabled() else x * 3)", "Apply(lambda x: (x.detach().mul_(2), x * 1)[1])",
    "Apply(lambda x: x * 2 if x.requires_grad else x * 3)", "Apply(lambda x: x * 2 if type(x) is torch.Tensor else x)",
    "Apply(lambda x: x * (3 if x.is_contiguous() else 2))", "Apply(lambda x: x + torch.zeros(2).add_(x.shape[0]).sum())",
    "Apply(lambda x: x.clone().add_(1).mul_(x.numel()))", "Apply(lambda x: torch.relu_(x[:, :1]) * 0 + x)",
    "Apply(lambda x: x * x.stride()[0])", "Apply(lambda x: x + x.storage_offset())", "Apply(lambda x: x * x.element_size())",
    "Apply(lambda x: x * (2 if torch.is_inference_mode_enabled() else 3))", "Apply(lambda x: x * 2 if x.is_leaf else x * 3)",
    "Apply(lambda x: x * torch.get_num_threads())", "Apply(lambda x: x * (1 + (x._version == 0)))",
)  # fmt: skip


def unseen(draw: Draw) -> Iterator[list[Case]]:
    """Hooks, replaced parts, other forwards and Python that looks at more than values: before the certificate, or after a capture."""
    size = draw.randint(2, 3)
    x = [single(abs(v) + 0.1) for v in numbers(draw, size)]
    middle = Layer(draw.choice(("nn.ReLU()", "nn.Tanh()", "Apply(lambda x: x.clamp(max=2.0))")))
    layers = (linear(draw, size, 2), middle, linear(draw, 2, 2))
    region = Ball("linf", draw.choice((0.0, 0.3, 1.0)))
    if draw.random() < 0.4:
        strange = Layer(draw.choice(STRANGE))
        yield from at_the_edge(Case((strange, *layers[:2]), x, region, alone=True), draw)
        return
    case = Case(
        layers, x, region, engine=draw.choice(ENGINES), setup=(draw.choice(CHANGES),), captured=draw.random() < 0.6
    )
    yield from _broken_afterwards(case, draw)


def _broken_afterwards(case: Case, draw: Draw) -> Iterator[list[Case]]:
    """For the model as it is after `setup`: a point of the set that gets another label than the one asked for."""
    from hunting.case import NAMES

    model, x, handles = case.model(), case.tensor(case.x), list[Any]()
    try:
        exec(case.setup[0], NAMES | {"model": model, "x": x, "handles": handles})
        points = case.ball.points(x[0], 40, torch.Generator().manual_seed(draw.getrandbits(32))).float()
        with torch.no_grad():
            scores = model(points)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return
    finally:
        for handle in handles:
            handle.remove()
    before = case.model()(x).argmax(1).item()
    for label in {int(before), int(scores[0].argmax())}:
        wrong = (scores.argmax(1) != label).nonzero().flatten().tolist()
        inside = [i for i in wrong if case.ball.contains(list(map(float, case.x)), points[i].double().tolist())]
        if inside:
            yield [replace(case, label=label, witness=points[inside[-1]].double().tolist(), claim="as it is")]


# Other claims


def bounds(draw: Draw) -> Iterator[list[Case]]:
    """Sound bounds hold as printed: an attained value is never outside."""
    size, wild = draw.randint(1, 3), draw.random() < 0.3
    x = numbers(draw, size, scale=magnitude(draw, wild))
    layers = [linear(draw, size, draw.randint(1, 3), wild)]
    if draw.random() < 0.6:
        layers.append(Layer(activation(draw)))
    region = ball(draw, x, wild, 0.3)
    case = Case(
        tuple(layers), x, region, draw.choice(("float32", "float32", "float64")), draw.choice(ENGINES), claim="bounds"
    )
    points = region.points(case.tensor(x)[0], 8, torch.Generator().manual_seed(draw.getrandbits(32)))
    for point in points[draw.choice((0, 1, 2)) :: 4].float().double().tolist():
        if region.contains(x, point):
            yield [replace(case, witness=point)]


def as_run(draw: Draw) -> Iterator[list[Case]]:
    """Certified in the arithmetic that runs: no point of the dtype is given another label, alone or in a batch, in any layout."""
    for cases in draw.choice((_vectors, _vectors_wild))(draw, draw.randint(1, 3), draw.random() < 0.5):
        yield [_lifted(case, draw.choice((0.0, 1e-7, 1e-6, 1e-5, 1e-4))) for case in cases]


def _lifted(case: Case, part: float) -> Case:
    """With a margin that is a little above zero in real numbers, and may not be in the arithmetic that runs."""
    head = case.layers[-1]
    (weights, zero), (bias, _) = (values for _, values in head.tensors)
    more = single(bias + part * max(abs(bias), max(map(abs, weights), default=1.0)))
    tensors = (("weight", [weights, zero]), ("bias", [more, 0.0]))
    layers = (*case.layers[:-1], replace(head, tensors=tensors))
    return replace(case, layers=layers, witness=[single(v) for v in case.witness], claim="as run")


def _vectors_wild(draw: Draw, depth: int, wild: bool) -> Iterator[list[Case]]:
    """Large numbers that cancel: what float32 loses."""
    large = draw.choice((1e3, 1e5, 1e7))
    size = draw.randint(1, 3)
    x = numbers(draw, size)
    first = Layer(
        f"nn.Linear({size}, 2)", (("weight", numbers(draw, 2, size)), ("bias", numbers(draw, 2, scale=large)))
    )
    second = Layer("nn.Linear(2, 2)", (("weight", numbers(draw, 2, 2)), ("bias", numbers(draw, 2, scale=large))))
    yield from at_the_edge(Case((first, Layer(activation(draw)), second), x, ball(draw, x)), draw)


DRAWS: dict[str, Callable[[Draw], Iterator[list[Case]]]] = {
    "networks": networks, "folded": folded, "faint": faint, "edges": edges, "constants": constants,
    "out-of-range": out_of_range, "unseen": unseen, "bounds": bounds, "as-run": as_run, "rewrites": rewrites,
}  # fmt: skip
