"""Draws of networks that multiply, divide, normalise and take powers of what depends on their input."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hunting.case import Ball, Case, Layer, single
from hunting.check import at_the_edge
from hunting.draws import STRAIGHT, ball, linear, magnitude, numbers

Draw = random.Random

# Source and, where the function is rational, the same function of fractions.
CURVES: tuple[tuple[str, str | None], ...] = (
    ("x.square()", "[v * v for v in x]"), ("x * x", "[v * v for v in x]"), ("x**3", "[v**3 for v in x]"),
    ("x**4", "[v**4 for v in x]"), ("x.pow(5)", "[v**5 for v in x]"), ("1 / (x.square() + 1)", "[1 / (v * v + 1) for v in x]"),
    ("torch.reciprocal(x.abs() + 0.5)", "[1 / (abs(v) + Fraction(1, 2)) for v in x]"),
    ("(x.abs() + 0.25) ** -2", "[1 / (abs(v) + Fraction(1, 4)) ** 2 for v in x]"),
    ("torch.exp(x)", None), ("torch.exp(-x.abs())", None), ("torch.log(x.abs() + 0.01)", None), ("torch.sqrt(x.abs() + 1e-3)", None),
    ("torch.rsqrt(x.square() + 1e-5)", None), ("F.mish(x)", None), ("F.logsigmoid(x)", None), ("torch.erf(x)", None),
    ("torch.atan(x)", None), ("F.tanhshrink(x)", None), ("torch.sinh(x)", None), ("torch.cosh(x)", None), ("2**x", None),
    ("(x.abs() + 0.1) ** 0.3", None), ("(x.abs() + 0.1) ** -1.7", None), ("torch.expm1(x)", None), ("torch.log1p(x.abs())", None),
    ("torch.asinh(x)", None), ("F.softshrink(x, 0.3)", None),
)  # fmt: skip
PRODUCTS: tuple[tuple[str, str | None], ...] = (
    ("x * x.flip(1)", "[a * b for a, b in zip(x, x[::-1])]"),
    ("x[:, :1] * x", "[x[0] * v for v in x]"),
    ("x * x.flip(1) * x", "[a * b * a for a, b in zip(x, x[::-1])]"),
    ("x * x.sum(1, keepdim=True) - x.square()", "[v * sum(x) - v * v for v in x]"),
    ("x / (x.flip(1).square() + 1)", "[a / (b * b + 1) for a, b in zip(x, x[::-1])]"),
    ("torch.addcmul(x, x, x.flip(1), value=0.5)", "[a + a * b / 2 for a, b in zip(x, x[::-1])]"),
    ("torch.einsum('bi,bj->bij', x, x).flatten(1)", "[a * b for a in x for b in x]"),
    ("(x.unsqueeze(1) * x.unsqueeze(2)).sum(1)", "[sum(x) * v for v in x]"),
    ("(x.unsqueeze(2) @ x.flip(1).unsqueeze(1)).flatten(1)", "[a * b for a in x for b in x[::-1]]"),
    ("torch.lerp(x, x.flip(1), x)", "[a + (b - a) * a for a, b in zip(x, x[::-1])]"),
    ("x * torch.sigmoid(x.flip(1))", None),
    ("x * torch.relu(x.flip(1))", "[a * max(b, 0) for a, b in zip(x, x[::-1])]"),
    ("torch.tanh(x) * torch.exp(-x.flip(1).abs())", None),
    ("2 * x.softmax(1)", None),
    ("-x.log_softmax(1)", None),
    ("x.logsumexp(1, keepdim=True)", None),
    ("F.layer_norm(torch.cat([x, x.flip(1) * 2 + 1], 1), (2 * x.shape[1],))", None),
    ("F.rms_norm(x, (x.shape[1],), eps=1e-3)", None),
    ("F.group_norm(torch.cat([x, 1 - x], 1), 1)", None),
    ("F.normalize(x, dim=1, eps=0.1)", None),
    ("torch.cat([x, -x], 1).var(1, keepdim=True)", None),
    ("torch.cat([x, 1 - x], 1).std(1, keepdim=True)", None),
    ("torch.linalg.vector_norm(x, dim=1, keepdim=True)", None),
    ("F.scaled_dot_product_attention(x.unsqueeze(2), x.flip(1).unsqueeze(2), 2 * x.unsqueeze(2)).flatten(1)", None),
    ("F.scaled_dot_product_attention(*[torch.stack([x, 1 - x], 2)] * 3, is_causal=True).flatten(1)", None),
    ("F.glu(torch.cat([x, x.flip(1)], 1), 1)", None),
    ("x.masked_fill(torch.arange(x.shape[1]) == 1, -torch.inf).softmax(1) * 3", None),
    ("torch.where(torch.arange(x.shape[1]) == 0, x * 3, 0.1)", None),
)  # fmt: skip


def curves(draw: Draw) -> Iterator[list[Case]]:
    """A curve of one variable at a point or near it, with numbers of any size."""
    yield from _around(draw, CURVES, wild=draw.random() < 0.4)


def products(draw: Draw) -> Iterator[list[Case]]:
    """Products and what is made of them, alone or between other layers."""
    yield from _around(draw, PRODUCTS, wild=draw.random() < 0.25)


def _around(draw: Draw, table: tuple[tuple[str, str | None], ...], wild: bool) -> Iterator[list[Case]]:
    size = draw.randint(1, 3)
    x = numbers(draw, size, scale=magnitude(draw, wild))
    layers: list[Layer] = []
    if draw.random() < 0.5:
        after = draw.randint(2, 3)
        layers, size = [linear(draw, size, after, wild and draw.random() < 0.3)], after
        if draw.random() < 0.3:
            layers.append(Layer(draw.choice(STRAIGHT)))
    far = (
        not wild and draw.random() < 0.3
    )  # relaxations far from what they relax: nothing but the lines themselves is small here
    if far:
        factor = draw.choice((2, 4, 8))
        layers.append(Layer(f"Apply(lambda x: {factor} * x)", exact=f"[{factor} * v for v in x]"))
    source, exact = draw.choice(table)
    layers.append(Layer(f"Apply(lambda x: {source})", exact=exact))
    if draw.random() < 0.3:
        layers.append(Layer(draw.choice(("nn.ReLU()", "nn.Hardtanh()", "nn.LeakyReLU(0.3)"))))
    region = Ball("linf", draw.choice((0.25, 0.5, 1.0))) if far else ball(draw, x, point=0.5)
    if isinstance(region.eps, float) and not far and draw.random() < 0.6:
        region = Ball(region.kind, single(region.eps * draw.choice((1.0, 0.1, 1e-3))), region.clip)
    yield from at_the_edge(Case(tuple(layers), x, region, draw.choice(("float32", "float32", "float64"))), draw)
