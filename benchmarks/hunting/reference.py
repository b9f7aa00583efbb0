"""What a case's network really computes at a point: in decimal arithmetic where every layer is known, else in float64."""

from __future__ import annotations

import contextlib
import copy
import decimal
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from hunting.case import NAMES, Beside, Case, flat

DIGITS = 130
CONTEXT = decimal.Context(prec=DIGITS, Emin=-999999999, Emax=999999999, traps=[decimal.InvalidOperation])
SMALL = Decimal("0.01")
"""Below this, 1 + v holds fewer digits of v than a series gives."""
MORE = 60
"""Digits that 1/2 - Phi(-v) may lose, for v up to 15."""
NOTHING = Decimal(10) ** (-DIGITS - MORE - 10)
"""A term that is no larger part of a sum is left out, with all that follow."""
NOISE, COPIES = 2.0**-48, 8
"""Relative noise on what every layer reads, and how many noisy evaluations: their spread is the doubt of float64."""
GROSS = 1e-10
"""Part of the largest score that a float64 case must be wrong by where only float64 can tell."""

Vector = list[Decimal]


class UnknownError(Exception):
    """A layer that decimal arithmetic does not know here."""


def scores(case: Case, point: Any, model: nn.Sequential | None = None) -> tuple[list[Decimal], Decimal]:
    """The outputs at a point, and by how much they may be wrong."""
    with decimal.localcontext(CONTEXT):
        if not case.setup and not case.captured and not isinstance(point[0], list):
            with contextlib.suppress(UnknownError):
                return _exact(case, [Decimal(v) for v in point]), Decimal(0)
        return _in_float64(case, point, model)


def margin(case: Case, point: Any, model: nn.Sequential | None = None) -> tuple[Decimal, Decimal]:
    """z_label minus the largest other score, and its doubt."""
    found, doubt = scores(case, point, model)
    with decimal.localcontext(CONTEXT):
        return found[case.label] - max(z for i, z in enumerate(found) if i != case.label), 2 * doubt


def _in_float64(case: Case, point: Any, model: nn.Sequential | None) -> tuple[list[Decimal], Decimal]:
    model = case.model() if model is None else model
    double = copy.deepcopy(model).double()
    x = case.tensor(point, "float64")
    with torch.no_grad():
        if case.alone or case.setup:
            z = double(x)[0]
            return [Decimal(v) for v in z.flatten().tolist()], Decimal(GROSS * max(1e-30, z.abs().max().item()))
        z = x.expand(COPIES, *x.shape[1:]).clone()
        generator = torch.Generator().manual_seed(0)
        for layer in double:
            z = layer(_noisy(z, generator))
    spread = (z.amax(0) - z.amin(0)).max().item()
    doubt = 4 * spread + (GROSS * z.abs().max().item() if case.dtype == "float64" else 0.0)
    if not torch.isfinite(z).all():
        return [Decimal(v) for v in z[0].flatten().tolist()], Decimal("Infinity")
    return [Decimal(v) for v in z[0].flatten().tolist()], Decimal(doubt)


def _noisy(z: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(z.shape, dtype=z.dtype, generator=generator) * NOISE
    noise[0] = 0
    return z * (1 + noise)


def _exact(case: Case, z: Vector) -> Vector:
    for layer, module in zip(case.layers, case.model(), strict=True):
        if layer.exact is not None:
            if not all(v.is_finite() for v in z):
                raise UnknownError
            names = (
                NAMES | dict(layer.tensors) | {"x": [Fraction(*v.as_integer_ratio()) for v in z], "Fraction": Fraction}
            )
            z = [Decimal(v.numerator) / Decimal(v.denominator) for v in map(Fraction, eval(layer.exact, names))]
        elif type(module) in ELEMENTWISE:
            apply = ELEMENTWISE[type(module)]
            z = [apply(module, v) for v in z]
        elif type(module) is Beside and type(module.inner) in ELEMENTWISE:
            z = [*(ELEMENTWISE[type(module.inner)](module.inner, v) for v in z[:-1]), z[-1]]
        elif type(module) is nn.Linear:
            z = _linear(module, z)
        elif type(module) is nn.BatchNorm1d:
            z = _batch_norm(module, z)
        elif type(module) is nn.PReLU:
            slopes = flat(module.weight.tolist())
            z = [v if v > 0 else v * Decimal(slopes[i % len(slopes)]) for i, v in enumerate(z)]
        else:
            raise UnknownError(layer.source)
    return z


def _linear(m: nn.Linear, z: Vector) -> Vector:
    biases = [0.0] * m.out_features if m.bias is None else m.bias.tolist()
    rows = m.weight.tolist()
    return [
        sum((Decimal(w) * v for w, v in zip(row, z, strict=True)), Decimal(b))
        for row, b in zip(rows, biases, strict=True)
    ]


def _batch_norm(m: Any, z: Vector) -> Vector:
    def column(tensor: Tensor | None, default: float) -> list[Decimal]:
        return [Decimal(v) for v in (torch.full((len(z),), default) if tensor is None else tensor).tolist()]

    parts = zip(
        z, column(m.running_mean, 0), column(m.running_var, 1), column(m.weight, 1), column(m.bias, 0), strict=True
    )
    return [w * (v - mean) / (var + Decimal(m.eps)).sqrt() + b for v, mean, var, w, b in parts]


def _sigmoid(v: Decimal) -> Decimal:
    return 1 / (1 + (-v).exp()) if v > 0 else v.exp() / (1 + v.exp())


def _tanh(v: Decimal) -> Decimal:
    e = _expm1(-2 * abs(v))
    return (-e / (2 + e)).copy_sign(v)


def _expm1(v: Decimal) -> Decimal:
    """exp(v) - 1, to all digits where that is small, too."""
    return _series(v, lambda term, n: term * v / (n + 1)) if abs(v) < SMALL else v.exp() - 1


def _log1p(v: Decimal) -> Decimal:
    """ln(1 + v) for v >= 0, to all digits where that is small, too."""
    return _series(v, lambda term, n: -term * v * n / (n + 1)) if v < SMALL else (1 + v).ln()


def _series(first: Decimal, following: Callable[[Decimal, int], Decimal]) -> Decimal:
    """The sum of terms that shrink fast: the n-th one gives the next."""
    term = total = first
    n = 1
    while abs(term) > abs(total) * NOTHING:
        term = following(term, n)
        total += term
        n += 1
    return total


def _pi(digits: int) -> Decimal:
    """By Machin's formula, 16 arctan(1/5) - 4 arctan(1/239)."""
    with decimal.localcontext(CONTEXT, prec=digits + 10):
        parts = []
        for factor, inverse in ((16, 5), (-4, 239)):
            first, square = Decimal(factor) / inverse, Decimal(inverse) ** 2
            parts.append(_series(first, lambda term, n, square=square: -term * (2 * n - 1) / (2 * n + 1) / square))
        return sum(parts, Decimal(0))


def _normal(v: Decimal) -> Decimal:
    """The distribution function of the normal distribution, from its series of positive terms."""
    if abs(v) > 15:
        raise UnknownError("gelu that far out")
    with decimal.localcontext(prec=decimal.getcontext().prec + MORE):  # which 1/2 loses where v is far below zero
        total = _series(v, lambda term, n: term * v * v / (2 * n + 1))
        return Decimal("0.5") + total * (-v * v / 2).exp() / (2 * PI).sqrt()


PI = _pi(DIGITS + MORE)


def _gelu(m: Any, v: Decimal) -> Decimal:
    if v == 0:
        return v
    if m.approximate == "tanh":
        inner = (2 / PI).sqrt() * (v + Decimal("0.044715") * v**3)
        return v * _sigmoid(2 * inner)  # (1 + tanh(a)) / 2 = sigmoid(2 a)
    return v * _normal(v)


def _softplus(m: Any, v: Decimal) -> Decimal:
    scaled = v * Decimal(m.beta)
    if scaled > Decimal(m.threshold):
        return v
    return _log1p(scaled.exp()) / Decimal(m.beta)


def _elu(v: Decimal, alpha: float, scale: float = 1.0, width: float = 1.0) -> Decimal:
    if v > 0:
        return v * Decimal(scale)
    return Decimal(scale) * Decimal(alpha) * _expm1(v / Decimal(width))


def _clip(v: Decimal, low: float, high: float) -> Decimal:
    return min(max(v, Decimal(low)), Decimal(high))


ELEMENTWISE: dict[type[nn.Module], Callable[[Any, Decimal], Decimal]] = {
    nn.Identity: lambda m, v: v,
    nn.ReLU: lambda m, v: max(v, Decimal(0)),
    nn.LeakyReLU: lambda m, v: v if v > 0 else v * Decimal(m.negative_slope),
    nn.ReLU6: lambda m, v: _clip(v, m.min_val, m.max_val),
    nn.Hardtanh: lambda m, v: _clip(v, m.min_val, m.max_val),
    nn.Hardsigmoid: lambda m, v: _clip(v + 3, 0, 6) / 6,
    nn.Hardswish: lambda m, v: v * _clip(v + 3, 0, 6) / 6,
    nn.Sigmoid: lambda m, v: _sigmoid(v),
    nn.Tanh: lambda m, v: _tanh(v),
    nn.SiLU: lambda m, v: v * _sigmoid(v),
    nn.GELU: _gelu,
    nn.Softplus: _softplus,
    nn.ELU: lambda m, v: _elu(v, m.alpha),
    nn.CELU: lambda m, v: _elu(v, m.alpha, width=m.alpha),
    nn.SELU: lambda m, v: _elu(v, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
}
