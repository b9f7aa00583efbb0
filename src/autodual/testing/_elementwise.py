"""The contract of an ElementwiseDual: sound on every interval, tight, differentiable, and honest about NaN and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import product

import torch
from torch import Tensor

from autodual._tensor import Shape
from autodual.dual import Band, ElementwiseDual, Lines
from autodual.engines.rounding import MORE_ROUNDINGS, gamma_of_sum, underflow_of_sum
from autodual.interval import Interval
from autodual.testing._cases import (
    EVERYWHERE,
    Domain,
    hurting_points,
    require_below,
    require_close,
    require_stated,
    rounding,
    spread,
)

GRADIENT_INTERVALS = 24
DIFFERENCE = 1e-6
PARTS = (1e-6, 0.01, 0.3, 1.0)
"""Distances at which `moved` is tried, as parts of the interval."""
INSIDE = (0.0, 0.5), (0.25, 0.75), (0.4, 0.41), (0.5, 1.0)
"""Smaller intervals on which `straight` is tried, as parts of the interval."""
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
            self._straight(z, values)
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

    def _straight(self, z: Interval, values: Tensor) -> None:
        """Where the layer says that it is straight, its band has no radius, and smaller intervals that are no points have the same."""
        straight = self.layer.straight(z) if self.layer.has_band else None
        if straight is None:
            return
        band, ends = self.layer.band(z), {"l": z.lower.double(), "u": z.upper.double()}
        allowed = self._rounding(z, values, band.slope, band.centre)
        what = f"{self.name}: straight() holds where the band has a radius"
        require_below(torch.where(straight, band.radius.double() - allowed, -1.0), what, **ends)
        for first, last in INSIDE:
            inner = Interval(*(torch.minimum(z.lower + part * z.width, z.upper) for part in (first, last)))
            found, here = self.layer.band(inner), straight & (inner.width > 0)
            apart = (found.slope.double() - band.slope).abs() - rounding(self.dtype, band.slope.double())
            what = f"{self.name}: straight() holds where a smaller interval has another"
            require_below(torch.where(here, apart, -1.0), f"{what} slope", **ends)
            apart = (found.centre.double() - band.centre).abs() - allowed
            require_below(torch.where(here, apart, -1.0), f"{what} offset", **ends)

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
            image, straight = self.layer.image(z), self.layer.straight(z)
            found = {kind: outputs(z) for kind, outputs in self._outputs().items()}
        if straight is not None:
            what = f"{self.name}: straight() holds on an interval with a NaN end"
            require_below(straight.double(), what, l=z.lower, u=z.upper)
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
        stated = self.layer.error(z, exact.abs().amax(0).to(self.dtype), gamma_of_sum(MORE_ROUNDINGS, self.dtype))
        stated = stated if self.layer.exact else stated + underflow_of_sum(0, self.dtype)
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


# Intervals and points worth trying.

GRID_STEP, GRID_END = 1e-3, 25.0


def find_kinks(function: Callable[[Tensor], Tensor], shape: Shape, domain: Domain = EVERYWHERE) -> tuple[float, ...]:
    """Where the derivative jumps, judged by second differences on a grid."""
    count = round(2 * GRID_END / GRID_STEP) + 1
    grid = torch.linspace(max(-GRID_END, domain[0]), min(GRID_END, domain[1]), count, dtype=torch.float64)
    values = function(spread(grid, shape)).reshape(count, -1).detach()
    bend = (values[2:] - 2 * values[1:-1] + values[:-2]).abs().amax(1) / (grid[1] - grid[0])
    places = grid[1:-1][bend > 0.02 * (1 + bend.median())].tolist()
    apart = [p for i, p in enumerate(places) if i == 0 or p - places[i - 1] > 1.5 * GRID_STEP]
    return tuple(round(p, 6) for p in apart[:8])


def interval_cases(kinks: tuple[float, ...], generator: torch.Generator, domain: Domain = EVERYWHERE) -> Interval:
    """[K] intervals: random, tiny, wide, of no width, and at, beside and across every kink."""

    def uniform(count: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, dtype=torch.float64, generator=generator)

    def sizes(count: int, low: float, high: float) -> Tensor:
        return 10 ** uniform(count, low, high)

    centres = [uniform(48, -4, 4), uniform(16, -30, 30), uniform(16, -4, 4), uniform(16, -20, 20), uniform(12, -6, 6)]
    halves = [sizes(48, -3, 0.6), sizes(16, -1, 1), sizes(16, -12, -6), sizes(16, 1, 3), torch.zeros(12).double()]
    lower = [c - h for c, h in zip(centres, halves, strict=True)]
    upper = [c + h for c, h in zip(centres, halves, strict=True)]
    for kink, (below, above) in product({0.0, *kinks}, ((1, 1), (1, 0), (0, 1), (0, 0))):
        count = 16 if below and above else 4 if below or above else 1
        lower.append(kink - below * sizes(count, -6, 2))
        upper.append(kink + above * sizes(count, -6, 2))
    return Interval(torch.cat(lower).clamp(*domain), torch.cat(upper).clamp(*domain))


def generic_intervals(
    kinks: tuple[float, ...], count: int, generator: torch.Generator, domain: Domain = EVERYWHERE
) -> Interval:
    """Intervals whose ends are no special points, so that bounds are differentiable there."""
    start = max(min(-4.0, domain[1] - 10), domain[0] + 0.3)
    scale = min(1.0, (domain[1] - start) / 10)
    lower = start + scale * 6 * torch.rand(8 * count, dtype=torch.float64, generator=generator)
    upper = lower + scale * (0.3 + 3 * torch.rand(8 * count, dtype=torch.float64, generator=generator))
    special = torch.tensor([0.0, *kinks], dtype=torch.float64).unsqueeze(1)
    far = ((lower - special).abs() > 0.05).all(0) & ((upper - special).abs() > 0.05).all(0)
    return Interval(lower[far][:count], upper[far][:count])


def sample_points(z: Interval, kinks: tuple[float, ...]) -> Tensor:
    """[S, *shape] points of each interval: evenly spread, crowded at its ends, and crowded at zero and the kinks."""
    even = torch.linspace(0, 1, 65, dtype=torch.float64)
    near = 10 ** torch.linspace(-6, -1.9, 9, dtype=torch.float64)
    parts = torch.cat([even, near, 1 - near]).reshape(-1, *[1] * z.lower.dim())
    lower, upper = z.lower.double(), z.upper.double()
    steps = 10 ** torch.linspace(-4, 1.6, 72, dtype=torch.float64)
    special = torch.cat([torch.tensor([k], dtype=torch.float64) + torch.cat([-steps, steps.new_zeros(1), steps])
                         for k in {0.0, *kinks}])  # fmt: skip
    inner = special.reshape(-1, *[1] * lower.dim()).expand(-1, *lower.shape)
    points = torch.cat([lower + parts * (upper - lower), inner])
    return torch.minimum(torch.maximum(points, lower), upper).to(z.lower.dtype)


# The best line that there is, found numerically.

GOLDEN = (5**0.5 - 1) / 2


def best_slope(points: Tensor, values: Tensor, height: Callable[[Tensor], Tensor], steps: int = 64) -> Tensor:
    """The slope a that minimises the convex function `height` of values - a * points, by golden-section search."""
    order = points.argsort(0)
    z, f = points.gather(0, order), values.gather(0, order)
    run = z.diff(dim=0)
    steep = f.diff(dim=0) / torch.where(run > 0, run, torch.inf)
    low, high = steep.amin(0), steep.amax(0)
    for _ in range(steps):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        go_left = height(values - left * points) <= height(values - right * points)
        low, high = torch.where(go_left, low, left), torch.where(go_left, right, high)
    return (low + high) / 2


def smallest_radius(points: Tensor, values: Tensor) -> Tensor:
    """Half the width of the narrowest band of two parallel lines around the points: the minimax error of a line."""

    def width(errors: Tensor) -> Tensor:
        return errors.amax(0) - errors.amin(0)

    return width(values - best_slope(points, values, width) * points) / 2


def envelope(points: Tensor, values: Tensor, middle: Tensor) -> Tensor:
    """Height at `middle` of the lowest line above all points: the concave envelope."""
    shifted = points - middle

    def top(errors: Tensor) -> Tensor:
        return errors.amax(0)

    return top(values - best_slope(shifted, values, top) * shifted)
