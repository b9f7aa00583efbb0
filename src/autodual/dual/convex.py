"""Functions that bend one way wherever they are defined: powers, roots, reciprocals, exponentials and logarithms.

Let f be convex on [l, u]. Its chord lies above it, and the lowest line of the chord's slope a touches f where f'(t) = a. With another
slope, f(z) - a z is larger at one of the two ends, by more than its smallest value rises: so the chord's is the slope of the narrowest
band. The line from below that is highest at the middle of [l, u] is the tangent there, and no line from above is lower there than the
chord. For a concave f, "above" and "below" change places. No slope is searched for.

A function with a pole, or that is defined on one side of zero only, says nothing about an interval that reaches beyond: its band is
infinitely wide there, which proves nothing. What is known of the operand otherwise (a variance plus eps is at least eps, a sum
of exponentials that has exp(0) among its terms is at least 1) is `at_least`; intervals are cut there, since no value lies below.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from autodual._errors import ArgumentError
from autodual.dual.arithmetic import DualScale
from autodual.dual.base import (
    AffineDual,
    Band,
    ElementwiseDual,
    FreeSlopes,
    Lines,
    number,
    parameter,
    register,
    rewrite,
)
from autodual.dual.curved import CurvedDual
from autodual.graph import Call, Operand, depends
from autodual.interval import Interval

LARGEST_EXPONENT = 64
"""Beyond, even numbers near 1 overflow or vanish, and a bound says nothing."""


class SteepDual(CurvedDual):
    """A function whose derivative has no bound: slopes are searched for between those on the interval."""

    def slope_bracket(self, z: Interval) -> tuple[Tensor, Tensor]:
        found = self.derivative(self._borders(z))
        return found.amin(0), found.amax(0)

    def _chord(self, start: Tensor, end: Tensor, touching: Tensor, near: Tensor) -> Tensor:
        """Slope between two points of the curve; that of the tangent at `touching` if they are near.

        How large the values are does not matter: what rounding does to the slope, times the run, is rounding of the values.
        """
        run, scale = end - start, torch.maximum(start.abs(), end.abs()).detach()
        close = run.abs() <= torch.maximum(near, torch.finfo(run.dtype).eps ** 0.5 * scale)
        steep = (self.value(end) - self.value(start)) / torch.where(close, torch.ones_like(run), run)
        return torch.where(close, self.derivative(touching), steep)


class ConvexDual(SteepDual):
    """Declare `value`, `derivative` and `stationary` of a function that is convex, or `concave`, everywhere."""

    concave: bool = False
    monotone: bool = True
    """Whether the function only rises or only falls on its domain, so that its image of an interval ends at the values of both ends.

    If not, it must fall below zero and rise above, as even powers and cosh do: on an interval that contains zero, f(0) is smallest.
    """

    def image(self, z: Interval) -> Interval:
        ends = self.value(z.lower), self.value(z.upper)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        if self.monotone:
            return Interval(low, high)
        turns = (z.lower < 0) & (z.upper > 0)
        return Interval(torch.where(turns, self.value(torch.zeros_like(low)), low), high)

    def band(self, z: Interval) -> Band:
        slope = self._secant(z)
        return Band.between(slope, *self._extremes(slope, z))

    def lines(self, z: Interval) -> Lines:
        chord, tangent = self._secant(z), self.derivative(z.centre)
        lower, upper = (chord, tangent) if self.concave else (tangent, chord)
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def _secant(self, z: Interval) -> Tensor:
        return self._chord(z.lower, z.upper, z.centre, torch.zeros_like(z.lower))


@register(torch.exp, torch.exp_, torch.Tensor.exp, torch.Tensor.exp_)
class DualExp(ConvexDual):
    def value(self, z: Tensor) -> Tensor:
        return z.exp()

    def derivative(self, z: Tensor) -> Tensor:
        return z.exp()

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        return slope.clamp(min=0).log().expand_as(low)


@register(nn.LogSigmoid, F.logsigmoid)
class DualLogSigmoid(ConvexDual):
    """-log(1 + exp(-z)), with the derivative sigmoid(-z)."""

    concave = True

    def value(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z)

    def derivative(self, z: Tensor) -> Tensor:
        return (-z).sigmoid()

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        return -torch.logit(slope.clamp(0, 1)).expand_as(low)


@dataclass(frozen=True)
class DualEvenPower(ConvexDual):
    """z ** n for an even n >= 2. The square lies in [0, r^2] above the tangent at the centre of an interval of radius r."""

    exponent: int = 2

    monotone = False

    def value(self, z: Tensor) -> Tensor:
        return z.square() if self.exponent == 2 else z**self.exponent

    def derivative(self, z: Tensor) -> Tensor:
        return 2 * z if self.exponent == 2 else self.exponent * z ** (self.exponent - 1)

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        if self.exponent == 2:
            return (slope / 2).expand_as(low)
        return _root(slope / self.exponent, self.exponent - 1).expand_as(low)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        return grain * size


@dataclass(frozen=True)
class DualOddPower(SteepDual):
    """z ** n for an odd n >= 3: concave below zero, convex above."""

    exponent: int

    breakpoints = (0.0,)

    def value(self, z: Tensor) -> Tensor:
        return z**self.exponent

    def derivative(self, z: Tensor) -> Tensor:
        return self.exponent * z ** (self.exponent - 1)

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        size = _root((slope / self.exponent).clamp(min=0), self.exponent - 1)
        return torch.where(low + high < 0, -size, size)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        return grain * size


def _root(a: Tensor, n: float) -> Tensor:
    """The n-th root, with the sign of a."""
    return a.sign() * a.abs() ** (1 / n)


class DualSinh(SteepDual):
    """Concave below zero, convex above. PyTorch may compute exp(z), and halve a difference."""

    breakpoints = (0.0,)
    on_the_way = 2.0

    def value(self, z: Tensor) -> Tensor:
        return z.sinh()

    def derivative(self, z: Tensor) -> Tensor:
        return z.cosh()


class DualCosh(ConvexDual):
    monotone = False
    on_the_way = 2.0

    def value(self, z: Tensor) -> Tensor:
        return z.cosh()

    def derivative(self, z: Tensor) -> Tensor:
        return z.sinh()

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        return slope.asinh().expand_as(low)


register(torch.sinh, torch.Tensor.sinh)(DualSinh)
register(torch.cosh, torch.Tensor.cosh)(DualCosh)


# Functions of positive numbers.


Symmetry: TypeAlias = Literal["none", "odd", "even"]
"""f(-z) = -f(z) if odd, f(-z) = f(z) if even; none: not defined below zero."""


class PositiveDual(ConvexDual):
    """A function that bends one way on z > 0. It is not defined for z < 0, or it is there by `symmetry`."""

    at_least: float | None = None
    """What is known to be no larger than any operand, in exact arithmetic."""
    has_pole: bool = True
    """Whether zero itself is outside, too."""
    symmetry: Symmetry = "none"
    """What the function is below zero."""

    @property
    def domain(self) -> tuple[float, float]:  # type: ignore[override]
        return -math.inf if self.symmetry != "none" else (self.at_least or 0.0), math.inf

    def image(self, z: Interval) -> Interval:
        inner, defined, below = self._inner(z)
        image = super().image(inner)
        if self.symmetry == "odd":
            image = Interval(
                torch.where(below, -image.upper, image.lower), torch.where(below, -image.lower, image.upper)
            )
        return Interval(torch.where(defined, image.lower, -torch.inf), torch.where(defined, image.upper, torch.inf))

    def band(self, z: Interval) -> Band:
        inner, defined, below = self._inner(z)
        band = super().band(inner)
        slope, centre = band.slope, band.centre
        if self.symmetry != "none":
            flipped = torch.where(below, -1.0, 1.0).to(slope)
            slope, centre = (slope, flipped * centre) if self.symmetry == "odd" else (flipped * slope, centre)
        return Band(
            torch.where(defined, slope, 0.0),
            torch.where(defined, centre, 0.0),
            torch.where(defined, band.radius, torch.inf),
        )

    def lines(self, z: Interval) -> Lines:
        inner, defined, below = self._inner(z)
        lines = super().lines(inner)
        found = lines.lower_slope, lines.lower_offset, lines.upper_slope, lines.upper_offset
        if self.symmetry == "odd":
            other = lines.upper_slope, -lines.upper_offset, lines.lower_slope, -lines.lower_offset
        else:
            other = -lines.lower_slope, lines.lower_offset, -lines.upper_slope, lines.upper_offset
        if self.symmetry != "none":
            found = tuple(torch.where(below, b, a) for a, b in zip(found, other, strict=True))  # type: ignore[assignment]
        unknown = 0.0, -torch.inf, 0.0, torch.inf
        return Lines(*(torch.where(defined, a, b) for a, b in zip(found, unknown, strict=True)))

    def free_slopes(self, z: Interval) -> FreeSlopes:
        inner, defined, below = self._inner(z)
        free = super().free_slopes(inner)
        lower, upper = free.lower, free.upper
        if self.symmetry != "none":
            flipped = (upper, lower) if self.symmetry == "odd" else (_negative(lower), _negative(upper))
            lower, upper = (_chosen(below, b, a) for a, b in zip((lower, upper), flipped, strict=True))
        flat = Interval(torch.zeros_like(inner.lower), torch.zeros_like(inner.lower))
        lower, upper = (_chosen(defined, span, flat) for span in (lower, upper))
        return FreeSlopes(lower, upper, torch.where(defined, free.offset, torch.inf))

    def lines_with(self, z: Interval, lower: Tensor, upper: Tensor) -> Lines:
        inner, defined, below = self._inner(z)
        given = lower, upper
        if self.symmetry != "none":
            flipped = (upper, lower) if self.symmetry == "odd" else (-lower, -upper)
            lower, upper = (torch.where(below, b, a) for a, b in zip(given, flipped, strict=True))
        lines = super().lines_with(inner, lower, upper)
        first, last = lines.lower_offset, lines.upper_offset
        if self.symmetry == "odd":
            first, last = torch.where(below, -last, first), torch.where(below, -first, last)
        return Lines(given[0], torch.where(defined, first, -torch.inf), given[1], torch.where(defined, last, torch.inf))

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        """A computed operand may be less than `at_least`, by the distance of both."""
        inner, defined, below = self._inner(z, by)
        slope = torch.where(below, -slope, slope) if self.symmetry == "even" else slope
        return torch.where(defined, super().moved(inner, by, slope), torch.inf)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        """Relative to the value: a small relative error of the operand is one of the result."""
        return grain * size

    def _inner(self, z: Interval, below_least: Tensor | float = 0.0) -> tuple[Interval, Tensor, Tensor]:
        """The part of |z| that is known to occur, whether the function is defined there, and whether z lies below zero.

        Where it is not defined, the interval is replaced by [1, 1], so that gradients stay finite.
        """
        lower, upper = z.lower, z.upper
        if self.at_least is not None:
            room = 4 * torch.finfo(lower.dtype).eps  # the dtype of the bounds holds that number only nearly
            least, most = (torch.full_like(lower, self.at_least * (1 + sign * room)) for sign in (-1, 1))
            lower, upper = torch.maximum(lower, least - below_least), torch.maximum(upper, most)
        below = torch.zeros_like(lower, dtype=torch.bool)
        if self.symmetry != "none":
            below = upper < 0
            lower, upper = torch.where(below, -upper, lower), torch.where(below, -lower, upper)
        defined = ((lower > 0) if self.has_pole else (lower >= 0)) & (upper < torch.inf)
        one = torch.ones_like(lower)
        return Interval(torch.where(defined, lower, one), torch.where(defined, upper, one)), defined, below


def _negative(span: Interval) -> Interval:
    return Interval(-span.upper, -span.lower)


def _chosen(condition: Tensor, first: Interval, second: Interval) -> Interval:
    """Elementwise, the first interval where the condition holds."""
    lower, upper = ((first.lower, second.lower), (first.upper, second.upper))
    return Interval(torch.where(condition, *lower), torch.where(condition, *upper))


@dataclass(frozen=True)
class DualLog(PositiveDual):
    at_least: float | None = None

    concave = True

    def value(self, z: Tensor) -> Tensor:
        return z.log()

    def derivative(self, z: Tensor) -> Tensor:
        return z.reciprocal()

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        return slope.clamp(min=0).reciprocal().expand_as(low)


@dataclass(frozen=True)
class DualPower(PositiveDual):
    """z ** p on positive numbers: convex for p < 0 and p > 1, concave between. A whole p < 0 is defined below zero, too."""

    exponent: float
    at_least: float | None = None

    @property
    def concave(self) -> bool:  # type: ignore[override]
        return 0 < self.exponent < 1

    @property
    def has_pole(self) -> bool:  # type: ignore[override]
        return self.exponent < 0

    @property
    def symmetry(self) -> Symmetry:  # type: ignore[override]
        if not (self.exponent < 0 and self.exponent == round(self.exponent) and self.at_least is None):
            return "none"
        return "odd" if self.exponent % 2 == 1 else "even"

    def value(self, z: Tensor) -> Tensor:
        special = _BY_EXPONENT.get(self.exponent)
        return z**self.exponent if special is None else special(z)

    def derivative(self, z: Tensor) -> Tensor:
        return self.exponent * z ** (self.exponent - 1)

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        ratio = (slope / self.exponent).clamp(min=0)
        return (ratio ** (1 / (self.exponent - 1))).expand_as(low)

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        """z^p = exp(p log z), so an exponent that float32 holds only nearly counts in proportion to p log z."""
        found = super().error(z, size, grain)
        if torch.tensor(self.exponent, dtype=torch.float32).item() == self.exponent:
            return found
        inner, defined, _ = self._inner(z)
        log = torch.maximum(inner.lower.log().abs(), inner.upper.log().abs())
        return torch.where(defined, found * (1 + abs(self.exponent) * log), torch.inf)

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        found = super().moved(z, by, slope)
        if not 0 < self.exponent < 1:
            return found
        # |a^p - b^p| <= |a - b|^p for 0 < p < 1, which holds at zero, too, where the derivative has no bound.
        near_zero = by.clamp(min=0) ** self.exponent * (1 + 64 * torch.finfo(by.dtype).eps) + slope.abs() * by
        defined = self._inner(z, by)[1]
        return torch.where(defined & ~(found <= near_zero), near_zero, found)


_BY_EXPONENT: dict[float, Callable[[Tensor], Tensor]] = {-1.0: torch.reciprocal, 0.5: torch.sqrt, -0.5: torch.rsqrt}


@register(torch.log, torch.log_, torch.Tensor.log, torch.Tensor.log_)
def _log(call: Call) -> DualLog:
    return DualLog()


@register(torch.sqrt, torch.sqrt_, torch.Tensor.sqrt, torch.Tensor.sqrt_)
def _sqrt(call: Call) -> DualPower:
    return DualPower(0.5)


@register(torch.rsqrt, torch.rsqrt_, torch.Tensor.rsqrt, torch.Tensor.rsqrt_)
def _rsqrt(call: Call) -> DualPower:
    return DualPower(-0.5)


@register(torch.reciprocal, torch.reciprocal_, torch.Tensor.reciprocal, torch.Tensor.reciprocal_)
def _reciprocal(call: Call) -> DualPower:
    return DualPower(-1.0)


@register(torch.square, torch.square_, torch.Tensor.square, torch.Tensor.square_)
def _square(call: Call) -> DualEvenPower:
    return DualEvenPower()


_POWERS = (operator.pow, operator.ipow, torch.pow, torch.Tensor.pow, torch.Tensor.pow_)


@register(*_POWERS)
def _power(call: Call) -> AffineDual | ElementwiseDual:
    base, exponent = call.argument(0, "input"), call.argument(1, "exponent")
    if isinstance(exponent, Operand):
        what = "the exponent depends on the input, and the base is not one positive number"
        raise ArgumentError(
            f"{call.path}: {what}; write torch.exp(exponent * log_of_the_base), if that is what is meant"
        )
    assert isinstance(base, Operand)
    if isinstance(exponent, Tensor) and exponent.numel() != 1:
        raise ArgumentError(
            f"{call.path}: a power has a dual layer for one exponent, not for a tensor of them; split the tensor"
        )
    given = parameter(call, 1, "exponent")
    found = number(call, given.item() if isinstance(given, Tensor) else given, "exponent")
    if abs(found) > LARGEST_EXPONENT:
        raise ArgumentError(
            f"{call.path}: exponent = {found} is out of range: powers have dual layers for exponents up to {LARGEST_EXPONENT} in size"
        )
    if found == 0:
        return DualScale(0.0, torch.ones((), dtype=torch.float64), call.shape)
    if found == 1:
        return DualScale(1.0, None, call.shape)
    if found > 1 and found == round(found):
        return DualEvenPower(int(found)) if found % 2 == 0 else DualOddPower(int(found))
    return DualPower(found)


def power_above(z: Tensor, exponent: float, at_least: float) -> Tensor:
    """z ** exponent, where z is known to be no less than `at_least` by what it is computed from. For rewrites.

    Not part of PyTorch, so that rewrites must `record` it.
    """
    special = _BY_EXPONENT.get(exponent)
    return z**exponent if special is None else special(z)


def log_above(z: Tensor, at_least: float) -> Tensor:
    """log z, where z is known to be no less than `at_least`. For rewrites."""
    return z.log()


@register(power_above)
def _power_above(call: Call) -> DualPower:
    return DualPower(float(call.argument(1, "exponent")), float(call.argument(2, "at_least")))


@register(log_above)
def _log_above(call: Call) -> DualLog:
    return DualLog(float(call.argument(1, "at_least")))


def recorded(function: Callable[..., Tensor], z: Any, *rest: Any) -> Any:
    """A call of a function of this package: a node of the graph where one is recorded."""
    if isinstance(z, fx.Proxy):
        return z.tracer.create_proxy("call_function", function, (z, *rest), {})
    return function(z, *rest)


# The same curves on another scale. Of parameters, the operations stay what they are: rewrites would round otherwise.


@rewrite(torch.exp2, torch.Tensor.exp2)
def _exp2(input: Any) -> Any:
    return torch.exp(input * math.log(2)) if depends(input) else NotImplemented


@rewrite(torch.expm1, torch.Tensor.expm1)
def _expm1(input: Any) -> Any:
    return torch.exp(input) - 1 if depends(input) else NotImplemented


@rewrite(torch.log1p, torch.Tensor.log1p)
def _log1p(input: Any) -> Any:
    return torch.log(input + 1) if depends(input) else NotImplemented


@rewrite(torch.log2, torch.Tensor.log2)
def _log2(input: Any) -> Any:
    return torch.log(input) * (1 / math.log(2)) if depends(input) else NotImplemented


@rewrite(torch.log10, torch.Tensor.log10)
def _log10(input: Any) -> Any:
    return torch.log(input) * (1 / math.log(10)) if depends(input) else NotImplemented


@rewrite(operator.pow, torch.pow)
def _power_of_a_number(input: Any, exponent: Any) -> Any:
    """b ** z = exp(z log b) for a number b > 0."""
    if not isinstance(input, int | float) or not input > 0 or not depends(exponent):
        return NotImplemented
    log = math.log(input)
    if not _keeps_its_logarithm(input, log, exponent.dtype):
        raise ArgumentError(
            f"{input!r} ** x: PyTorch rounds the base to {exponent.dtype}, which has another logarithm, so that the result as it runs "
            f"is that of another base; write torch.exp(x * {log!r})"
        )
    return torch.exp(exponent * log)


def _keeps_its_logarithm(base: float, log: float, dtype: torch.dtype) -> bool:
    """Whether a base, rounded to a dtype, has the same logarithm up to a few units in the last place."""
    try:
        rounded = torch.tensor(float(base), dtype=dtype).item()
    except OverflowError:
        return False
    if rounded == base:
        return True
    return 0 < rounded < math.inf and abs(math.log(rounded) - log) <= 4 * torch.finfo(dtype).eps * abs(log)
