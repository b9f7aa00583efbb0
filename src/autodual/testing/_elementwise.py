"""The contract of an ElementwiseDual: sound on every interval, tight, differentiable, and honest about NaN and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from autodual._tensor import Shape
from autodual.dual import Band, ElementwiseDual, Lines
from autodual.engines.rounding import MORE_ROUNDINGS, of_sum, of_underflow
from autodual.interval import Interval
from autodual.testing._cases import (
    Domain,
    envelope,
    find_kinks,
    generic_intervals,
    hurting_points,
    interval_cases,
    require_below,
    require_close,
    require_stated,
    rounding,
    sample_points,
    smallest_radius,
    spread,
)  # fmt: skip

GRADIENT_INTERVALS = 24
DIFFERENCE = 1e-6
PARTS = (1e-6, 0.01, 0.3, 1.0)
"""Distances at which `moved` is tried, as parts of the interval."""
RESOLUTION = 1e-8
"""To how much slopes are searched; a line may miss the best one by this times the width of the interval."""


@dataclass(frozen=True)
class ElementwiseCheck:
    """One layer, at one place of a network, under test."""

    name: str
    layer: ElementwiseDual
    shape: Shape
    dtype: torch.dtype
    kinks: tuple[float, ...]
    tightness: float | None
    lines_tightness: float | None
    domain: Domain
    seed: int

    def run(self) -> None:
        kinks, generator = self._kinks(self.layer), torch.Generator().manual_seed(self.seed)
        cases = interval_cases(kinks, generator, self.domain)
        z = self._spread(Interval(cases.lower.to(self.dtype), cases.upper.to(self.dtype)))
        points = sample_points(z, kinks).double()
        with torch.no_grad():
            values = self.layer.value(points)
            self._sound(z, points, values)
            self._beyond(z, points, values)
            if self.tightness is not None and self.layer.has_band:
                self._tight_band(z, points, values, self.tightness)
            if self.lines_tightness is not None:
                self._tight_lines(z, points, values, self.lines_tightness)
        self._finite_gradients(z)
        self._unbounded(kinks)
        self._nan()
        if self.dtype == torch.float64:
            self._gradient(generic_intervals(kinks, GRADIENT_INTERVALS, generator, self.domain))

    def _kinks(self, layer: ElementwiseDual) -> tuple[float, ...]:
        return tuple(sorted({0.0, *self.kinks, *find_kinks(layer.value, self.shape, self.domain)}))

    def _spread(self, z: Interval) -> Interval:
        return Interval(spread(z.lower, self.shape), spread(z.upper, self.shape))

    def _sound(self, z: Interval, points: Tensor, values: Tensor) -> None:
        """Image, band and lines contain every sampled value."""
        l, u = z.lower.double(), z.upper.double()  # noqa: E741
        image = self.layer.image(z)
        for side, end, sign in (("below", image.lower, 1.0), ("above", image.upper, -1.0)):
            excess = sign * (end.double() - values) - self._rounding(z, values)
            require_below(excess, f"{self.name}: image cuts off values {side}", l=l, u=u, z=points, f=values)
        for kind, lines in self._relaxations(z).items():
            self._contains(lines, z, points, values, kind)

    def _beyond(self, z: Interval, points: Tensor, values: Tensor) -> None:
        """Bounds of an interval that reaches out of the domain hold inside, or are infinite."""
        reach, farther = 1 + z.width, list[Interval]()
        if self.domain[0] > -torch.inf:
            farther.append(Interval(z.lower - reach, z.upper))
        if self.domain[1] < torch.inf:
            farther.append(Interval(z.lower, z.upper + reach))
        for beyond in farther:
            for kind, lines in self._relaxations(beyond).items():
                self._contains(_harmless_lines(lines), beyond, points, values, f"{kind} beyond the domain")

    def _relaxations(self, z: Interval) -> dict[str, Lines]:
        layer = self.layer
        found = {"lines": layer.lines(z)}
        if layer.has_band:
            found["band"] = _edges(layer.band(z))
        free = layer.free_slopes(z)
        if free is not None:
            found["smallest free slopes"] = layer.lines_with(z, free.lower.lower, free.upper.lower)
            found["largest free slopes"] = layer.lines_with(z, free.lower.upper, free.upper.upper)
        return found

    def _contains(self, lines: Lines, z: Interval, points: Tensor, values: Tensor, kind: str) -> None:
        l, u = z.lower.double(), z.upper.double()  # noqa: E741
        for side, slope, offset, sign in (
            ("above its lower line", lines.lower_slope, lines.lower_offset, 1.0),
            ("below its upper line", lines.upper_slope, lines.upper_offset, -1.0),
        ):
            line = slope.double() * points + offset.double()
            allowed = self._rounding(z, values, slope, offset)
            what = f"{self.name}: {kind}: the function is not {side}"
            require_below(sign * (line - values) - allowed, what, l=l, u=u, z=points, f=values, slope=slope.double())

    def _tight_band(self, z: Interval, points: Tensor, values: Tensor, tightness: float) -> None:
        best = smallest_radius(*_of_one_entry(points, values)).expand(points.shape[1:])
        band = self.layer.band(z)
        allowed = tightness * best + self._rounding(z, values)
        require_below(
            band.radius.double() - best - allowed,
            f"{self.name}: the band's radius is more than {tightness:.0%} above the smallest possible",
            l=z.lower.double(), u=z.upper.double(), radius=band.radius.double(), smallest=best,
        )  # fmt: skip

    def _tight_lines(self, z: Interval, points: Tensor, values: Tensor, tightness: float) -> None:
        """At the middle of the interval, each line comes close to the envelope of the function."""
        lines, middle = self.layer.lines(z), z.centre.double()
        allowed = (values.amax(0) - values.amin(0)) * tightness + RESOLUTION * z.width.double()
        allowed = allowed + self._rounding(z, values)
        for side, slope, offset, sign in (
            ("upper", lines.upper_slope, lines.upper_offset, 1.0),
            ("lower", lines.lower_slope, lines.lower_offset, -1.0),
        ):
            best = envelope(*_of_one_entry(points, sign * values, middle.unsqueeze(0))).expand(middle.shape)
            height = sign * (slope.double() * middle + offset.double())
            require_below(
                height - best - allowed,
                f"{self.name}: at the middle, the {side} line is more than {tightness:.0%} of the range away from the envelope",
                l=z.lower.double(), u=z.upper.double(), height=sign * height, envelope=sign * best,
            )  # fmt: skip

    def _rounding(self, z: Interval, values: Tensor, *line: Tensor) -> Tensor:
        """What a few units in the last place of argument, value and a line's slope and offset amount to on the interval."""
        size = torch.maximum(z.lower.abs(), z.upper.abs()).double()
        terms = [size, values.abs().amax(0)]
        if line:
            terms += [line[0].abs() * size, line[1]]
        return rounding(self.dtype, *terms)

    def _unbounded(self, kinks: tuple[float, ...]) -> None:
        """An infinite end may give infinite or undefined bounds, but no finite bound that is wrong."""
        inf = torch.inf
        ends = torch.tensor([(-inf, 1.0), (-1.0, inf), (-inf, inf), (-inf, -2.0), (2.0, inf)], dtype=self.dtype)
        ends = ends[(ends[:, 1] >= self.domain[0]) & (ends[:, 0] <= self.domain[1])]
        z, reachable = (
            self._spread(Interval(e[:, 0], e[:, 1])) for e in (ends, ends.clamp(-1e4, 1e4).clamp(*self.domain))
        )
        points = sample_points(reachable, kinks)
        with torch.no_grad():
            values = self.layer.value(points.double())
            image = self.layer.image(z)
            flat = torch.zeros_like(image.lower)
            found = self._relaxations(z) | {"image": Lines(flat, image.lower, flat, image.upper)}
        for kind, lines in found.items():
            self._contains(
                _harmless_lines(lines), reachable, points.double(), values, f"{kind} on an unbounded interval"
            )

    def _nan(self) -> None:
        """NaN never becomes a finite bound."""
        ends = torch.tensor([(torch.nan, 1.0), (-1.0, torch.nan), (torch.nan, torch.nan)], dtype=self.dtype)
        z = self._spread(Interval(ends[:, 0], ends[:, 1]))
        with torch.no_grad():
            image = self.layer.image(z)
            found = {kind: outputs(z) for kind, outputs in self._outputs().items()}
        for kind, tensors in (found | {"the image": (image.lower, image.upper)}).items():
            finite = torch.stack([torch.as_tensor(t).expand_as(z.lower).isfinite() for t in tensors]).all(0)
            what = f"{self.name}: {kind} of an interval with a NaN end is finite, which would pass for a proof"
            require_below(finite.double(), what, l=z.lower, u=z.upper)

    def _finite_gradients(self, z: Interval) -> None:
        for kind, outputs in self._outputs().items():
            ends = z.lower.clone().requires_grad_(), z.upper.clone().requires_grad_()
            total = torch.stack([o.sum() for o in outputs(Interval(*ends))]).sum()
            if not total.requires_grad:
                continue
            gradients = torch.autograd.grad(total, ends, allow_unused=True)
            for end, gradient in zip(("lower", "upper"), gradients, strict=True):
                if gradient is not None:
                    wrong = (~gradient.isfinite()).double()
                    what = f"{self.name}: the gradient of {kind} in the {end} end is not finite"
                    require_below(wrong, what, l=z.lower.double(), u=z.upper.double())

    def _gradient(self, z: Interval) -> None:
        """Autodiff against central differences; as all is elementwise, every interval is moved at once."""
        z = self._spread(z)
        for kind, outputs in self._outputs().items():
            for end in ("lower", "upper"):

                def moved(by: float, end: str = end, outputs: _Outputs = outputs) -> list[Tensor]:
                    return [o.expand_as(z.lower) for o in outputs(replace(z, **{end: getattr(z, end) + by}))]

                with torch.no_grad():
                    pairs = zip(moved(DIFFERENCE), moved(-DIFFERENCE), strict=True)
                    numerical = [(above - below) / (2 * DIFFERENCE) for above, below in pairs]
                for found, expected in zip(self._slopes(z, end, outputs), numerical, strict=True):
                    what = f"{self.name}: the gradient of {kind} in the {end} end against finite differences"
                    require_close(found, expected, 1e-4 + 1e-3 * expected.abs(), what, l=z.lower, u=z.upper)

    @staticmethod
    def _slopes(z: Interval, end: str, outputs: _Outputs) -> list[Tensor]:
        """Derivative of every output in one end of its interval."""
        moving = getattr(z, end).clone().requires_grad_()

        def slope(total: Tensor) -> Tensor:
            if not total.requires_grad:
                return torch.zeros_like(moving)
            return torch.autograd.grad(total, moving, retain_graph=True, materialize_grads=True)[0]

        return [slope(o.expand_as(moving).sum()) for o in outputs(replace(z, **{end: moving}))]

    def _outputs(self) -> dict[str, _Outputs]:
        """Everything that the layer computes from an interval, to be differentiated."""
        found: dict[str, _Outputs] = {"the lines": lambda z: _tensors(self.layer.lines(z))}
        return found | {"the band": lambda z: _tensors(self.layer.band(z))} if self.layer.has_band else found

    def check_errors(self, exact: ElementwiseDual) -> None:
        """What this layer, of float32, says about its rounding holds. exact: the layer in float64, with the same constants."""
        kinks, generator = self._kinks(exact), torch.Generator().manual_seed(self.seed)
        points = spread(hurting_points(kinks, generator).clamp(*self.domain), self.shape)
        self._value(exact, Interval(points, points), points.unsqueeze(0))
        cases = interval_cases(kinks, generator, self.domain)
        wide = self._spread(Interval(cases.lower.to(self.dtype), cases.upper.to(self.dtype)))
        self._value(exact, wide, sample_points(wide, kinks))
        self._moved(exact, Interval(wide.lower.double(), wide.upper.double()), kinks)

    def _value(self, layer: ElementwiseDual, z: Interval, points: Tensor) -> None:
        """|value in float32 - f(z)| <= error, for points [S, K, *shape] of intervals [K, *shape]."""
        exact = torch.stack([layer.value(p) for p in points.double()])
        stated = self.layer.error(z, exact.abs().amax(0).to(self.dtype), of_sum(MORE_ROUNDINGS, self.dtype))
        stated = stated if self.layer.exact else stated + of_underflow(0, self.dtype)
        found = torch.stack([self.layer.value(p) for p in points])
        what = f"{self.name}: error() understates what the value in float32 is wrong by"
        require_stated(found, exact, stated, what, l=z.lower, u=z.upper, z=points)

    def _moved(self, layer: ElementwiseDual, z: Interval, kinks: tuple[float, ...]) -> None:
        """|f(a) - f(b) - slope (a - b)| <= moved, for a and b at most `by` apart."""
        points = sample_points(z, kinks)
        lines = layer.lines(z)
        slopes = [torch.zeros_like(z.lower), torch.ones_like(z.lower), lines.lower_slope, lines.upper_slope]
        values = layer.value(points)
        for part in PARTS:
            by = part * z.width
            others = torch.minimum(points + by, z.upper)
            reached = layer.value(others)
            for slope in slopes:
                far = (reached - values - slope * (others - points)).abs()
                terms = values.abs().amax(0), (slope.abs() + 1) * torch.maximum(z.lower.abs(), z.upper.abs())
                allowed = layer.moved(z, by, slope) + rounding(torch.float64, *terms)
                what = f"{self.name}: moved() understates how far the function leaves a line"
                require_below(far - allowed, what, l=z.lower, u=z.upper, by=by, slope=slope, a=others, b=points)


_Outputs = Callable[[Interval], tuple[Tensor, ...]]


def _tensors(found: Band | Lines) -> tuple[Tensor, ...]:
    return tuple(getattr(found, field.name) for field in fields(found))


def _of_one_entry(*parts: Tensor) -> tuple[Tensor, ...]:
    """[S, K, *shape] each: the first entry alone, [S, K, 1, ..., 1], if the others are equal to it; else all of them."""
    first = tuple(part[(slice(None), slice(None), *(slice(1),) * (part.dim() - 2))] for part in parts)
    return first if all(bool((part == one).all()) for part, one in zip(parts, first, strict=True)) else parts


def _edges(band: Band) -> Lines:
    """A band as two lines."""
    return Lines(band.slope, band.centre - band.radius, band.slope, band.centre + band.radius)


def _harmless_lines(lines: Lines) -> Lines:
    below = _harmless(lines.lower_slope, lines.lower_offset, -1)
    return Lines(*below, *_harmless(lines.upper_slope, lines.upper_offset, 1))


def _harmless(slope: Tensor, offset: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """A line that is not finite says nothing: replaced by one far away."""
    finite = slope.isfinite() & offset.isfinite()
    return torch.where(finite, slope, 0.0), torch.where(finite, offset, sign * 1e30)
