"""Any activation that is convex or concave between known points: lines found from value and derivative alone.

For a slope a, write e(z) = f(z) - a z. On [l, u] the extremes of e lie at l, at u, at a breakpoint, or where f'(z) = a inside
a piece. So intercepts follow from slopes, whatever the slope, and only the choice of the slope is left:

- `band`: the a with the smallest max e - min e. The derivative of that range in a is z_min - z_max, which only grows with a,
  so bisection on its sign finds the optimum; there one of the two extremes jumps, and the chord between its two places
  is the slope exactly, with the right gradient (a stationary end point does not move it to first order).
- `lines`: the line from above that is lowest at the middle of the interval: the same bisection on z_max - middle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from autodual._tensor import values_at_hand
from autodual.dual.base import Band, ElementwiseDual, FreeSlopes, Lines
from autodual.interval import Interval

SLOPE_STEPS = 30
"""Halvings of the range of slopes. The chord at the end is exact once the right pair of points is known."""
SEARCH_STEPS, FINAL_STEPS = 24, 52
"""Halvings of a piece when looking for a turning point: while slopes are compared, and for the final intercept."""

SLOPE_ROOM = 1e-3
"""Room for the rounding of derivatives, and for what they change between an end and a point just inside, relative to the largest."""


class CurvedDual(ElementwiseDual):
    """Declare `breakpoints`, `slopes`, `value` and `derivative`; everything else follows."""

    breakpoints: tuple[float, ...] = ()
    """Where convexity or the derivative changes: inflection points and kinks, in ascending order."""
    slopes: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest value of the derivative."""
    increasing: bool = False
    """Whether the function rises everywhere, so that its image lies between its values at the ends."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """f'(z); at a kink, either one."""

    def slope_bracket(self, z: Interval) -> tuple[Tensor, Tensor]:
        """Slopes between which a search for one may start."""
        low, high = (torch.full_like(z.lower, s) for s in self.slopes)
        return low, high

    def stationary(self, slope: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
        """Where f' = slope on a piece [low, high] on which f' is monotone; by bisection unless there is a closed form."""
        rising = self.derivative(high) > self.derivative(low)
        for _ in range(steps):
            middle = (low + high) / 2
            go_right = (self.derivative(middle) < slope) == rising
            low, high = torch.where(go_right, middle, low), torch.where(go_right, high, middle)
        return (low + high) / 2

    def image(self, z: Interval) -> Interval:
        if self.increasing:
            return Interval(self.value(z.lower), self.value(z.upper))
        return Interval(*self._extremes(torch.zeros_like(z.lower), z))

    def band(self, z: Interval) -> Band:
        """Where no breakpoint lies inside, the chord has the narrowest band, and `_bracket` names the ends."""
        (low_min, low_max), (high_min, high_max) = self._bracket(z, lambda smallest, largest, _: largest > smallest)
        minimum_jumps = (high_min - low_min).abs() > (high_max - low_max).abs()
        start, end = (torch.where(minimum_jumps, low_min, low_max), torch.where(minimum_jumps, high_min, high_max))
        start, end = _live(start, z), _live(end, z)
        slope = self._chord(start, end, (start + end) / 2, torch.zeros_like(start))
        return Band.between(slope, *self._extremes(slope, z))

    def lines(self, z: Interval) -> Lines:
        near = torch.finfo(z.lower.dtype).eps ** 0.25 * z.width.detach()  # so close, the line touches at the middle
        (_, left), (_, right) = self._bracket(z, lambda smallest, largest, middle: largest > middle)
        upper = self._chord(_live(left, z), _live(right, z), z.centre, near)
        (left, _), (right, _) = self._bracket(z, lambda smallest, largest, middle: smallest < middle)
        lower = self._chord(_live(left, z), _live(right, z), z.centre, near)
        if self._can_be_selected(z):
            lower, upper = self._lines_of_a_piece(z, near, ~self._bent(z), lower, upper)
        return Lines(lower, self._extremes(lower, z)[0], upper, self._extremes(upper, z)[1])

    def _lines_of_a_piece(
        self, z: Interval, near: Tensor, straight: Tensor, lower: Tensor, upper: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Slopes of the lines: where no breakpoint lies inside, those of the chord and of the tangent at the middle."""
        chord, tangent = self._chord(z.lower, z.upper, z.centre, near), self.derivative(z.centre)
        first, last = _just_inside(z.lower.detach(), z.upper.detach())
        convex = self.derivative(last) >= self.derivative(first)
        lower = torch.where(straight, torch.where(convex, tangent, chord), lower)
        return lower, torch.where(straight, torch.where(convex, chord, tangent), upper)

    def free_slopes(self, z: Interval) -> FreeSlopes:
        """Slopes of lines that touch the function's convex envelope from below, and its concave envelope from above.

        A line that is steeper or flatter than all of the envelope touches it at an end, where a tangent of the envelope is closer
        everywhere. The smallest slope of the convex envelope is the last one for which f(z) - a z is smallest at the lower end.
        """
        own = self.lines(z.detach())
        below, above = (
            [self._last_slope(z, condition) for condition in conditions]
            for conditions in (
                (lambda least, most, _: least <= z.lower, lambda least, most, _: least < z.upper),
                (lambda least, most, _: most >= z.upper, lambda least, most, _: most > z.lower),
            )
        )
        lower, upper = (
            Interval(torch.minimum(torch.minimum(*ends), slope), torch.maximum(torch.maximum(*ends), slope))
            for ends, slope in ((below, own.lower_slope), (above, own.upper_slope))
        )
        steepest = torch.maximum(lower.largest, upper.largest)
        return FreeSlopes(lower, upper, self.largest_value(z) + steepest * z.largest)

    def lines_with(self, z: Interval, lower: Tensor, upper: Tensor) -> Lines:
        below, above = (  # slopes may be given for every row, on either side
            Interval(z.lower.expand_as(slope), z.upper.expand_as(slope)) if slope.dim() > z.lower.dim() else z
            for slope in (lower, upper)
        )
        return Lines(lower, self._extremes(lower, below)[0], upper, self._extremes(upper, above)[1])

    def _last_slope(self, z: Interval, raise_slope: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """The largest slope for which a condition on the places of the extremes holds, in its range, to a billionth of it."""
        with torch.no_grad():
            return self._bisected(z.detach(), raise_slope)[0]

    def error(self, z: Interval, size: Tensor, grain: float) -> Tensor:
        """Relative errors of the value and, where a function scales its argument first, of the argument."""
        return grain * (size + self.steepest(z) * z.largest)

    def moved(self, z: Interval, by: Tensor, slope: Tensor) -> Tensor:
        lowest, highest = self._slope_range(z)
        return by * torch.maximum((highest - slope).abs(), (lowest - slope).abs())

    def steepest(self, z: Interval) -> Tensor:
        """Bounds |f'| on the interval: it is monotone between borders, so it is largest at, or just inside, one of them."""
        with torch.no_grad():
            lowest, highest = self._slope_range(z)
            return torch.maximum(lowest.abs(), highest.abs())

    def _slope_range(self, z: Interval) -> tuple[Tensor, Tensor]:
        """Bounds on f', with room for what it changes between an end and a point just inside, and for rounding."""
        borders = self._borders(z)
        low, high = borders[:-1], borders[1:]
        found = torch.cat([self.derivative(point) for point in (borders, *_just_inside(low, high))])
        room = SLOPE_ROOM * found.abs().amax(0)
        return found.amin(0) - room, found.amax(0) + room

    def _bracket(
        self, z: Interval, raise_slope: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(argmin, argmax) of f(z) - a z for the slopes just below and just above the one looked for.

        Nothing is looked for where no breakpoint lies inside the interval, if those can be left out: there, l and u are returned.
        """
        with torch.no_grad():
            z = z.detach()
            if not self._can_be_selected(z):
                return self._search(z, raise_slope)
            bent = self._bent(z).flatten().nonzero().squeeze(1)
            if len(bent) == z.lower.numel():
                return self._search(z, raise_slope)
            found = [z.lower.flatten(), z.lower.flatten(), z.upper.flatten(), z.lower.flatten()]
            if len(bent) > 0:
                some = Interval(z.lower.flatten()[bent], z.upper.flatten()[bent])
                searched = [point for pair in self._search(some, raise_slope) for point in pair]
                found = [all_.index_copy(0, bent, part) for all_, part in zip(found, searched, strict=True)]
            low_min, low_max, high_min, high_max = (part.reshape(z.lower.shape) for part in found)
            return (low_min, low_max), (high_min, high_max)

    def _can_be_selected(self, z: Interval) -> bool:
        """Whether entries may be treated apart: shapes may depend on values, and the function is the same for all of them."""
        same = type(self).__module__.startswith("autodual.") and not any(
            isinstance(v, Tensor) for v in vars(self).values()
        )
        return same and values_at_hand(z.lower)

    def _bent(self, z: Interval) -> Tensor:
        """Whether a breakpoint lies inside the interval, or the interval is none of numbers."""
        inside = [(z.lower < b) & (z.upper > b) for b in self.breakpoints]
        return reduce(torch.logical_or, inside, ~(z.lower <= z.upper))

    def _search(
        self, z: Interval, raise_slope: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Bisection for the slope."""
        with torch.no_grad():
            low, high = self._bisected(z, raise_slope)
            return self._arguments(low, z), self._arguments(high, z)

    def _bisected(self, z: Interval, raise_slope: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Two slopes, close to each other, between which `raise_slope`, a function of both places and the middle, becomes false.

        Without gradients: the callers see to that, since PyTorch's compiler does not follow a method that is decorated.
        """
        low, high = self.slope_bracket(z)
        middle = z.centre
        for _ in range(SLOPE_STEPS):
            slope = (low + high) / 2
            up = raise_slope(*self._arguments(slope, z), middle)
            low, high = torch.where(up, slope, low), torch.where(up, high, slope)
        return low, high

    def _chord(self, start: Tensor, end: Tensor, touching: Tensor, near: Tensor) -> Tensor:
        """Slope between two points of the curve; that of the tangent at `touching` if they are near or cannot be told apart."""
        run, (low, high) = end - start, (self.value(start), self.value(end))
        scale = torch.stack([start, end, low, high]).detach().abs().amax(0)
        close = run.abs() <= torch.maximum(near, torch.finfo(run.dtype).eps ** 0.5 * scale)
        steep = (high - low) / torch.where(close, torch.ones_like(run), run)
        return torch.where(close, self.derivative(touching), steep)

    def _arguments(self, slope: Tensor, z: Interval) -> tuple[Tensor, Tensor]:
        """Where f(z) - slope * z is smallest and where it is largest."""
        borders = self._borders(z)
        points = torch.cat([borders, self._turning_points(slope, borders, SEARCH_STEPS)])
        errors = self.value(points) - slope * points
        smallest, largest = errors.argmin(0, keepdim=True), errors.argmax(0, keepdim=True)
        return points.gather(0, smallest).squeeze(0), points.gather(0, largest).squeeze(0)

    def _extremes(self, slope: Tensor, z: Interval) -> tuple[Tensor, Tensor]:
        """Smallest and largest f(z) - slope * z, moved outwards by what an inexact turning point can hide.

        By convexity of a piece, that is at most |f' - slope| at the point times the length of the piece. Where f' - slope has
        one sign between points just inside its ends, the piece has no turning point except, at most, in what lies beyond them.
        """
        with torch.no_grad():
            borders = self._borders(z)
            low, high = borders[:-1], borders[1:]
            length = high - low
            ulps = 4 * torch.finfo(low.dtype).eps * torch.maximum(low.abs(), high.abs())
            margin = torch.minimum(ulps, length / 2)
            first, last = _just_inside(low, high)
            left, right = self.derivative(first) - slope, self.derivative(last) - slope
            straight_through = left * right > 0
            turning = self._turning_points(slope, borders, FINAL_STEPS)
            turning = torch.minimum(torch.maximum(turning, first), last)  # a rounded one may lie at an end
            turning = torch.where(straight_through, low, turning)
            gaps = (self.derivative(turning) - slope).abs() * length
            at_ends = torch.maximum(left.abs(), right.abs()) * margin
            slack = torch.where(straight_through, at_ends, gaps).amax(0)
        points = _live(torch.cat([borders, turning]), z)
        errors = self.value(points) - slope * points
        return errors.amin(0) - slack, errors.amax(0) + slack

    def _borders(self, z: Interval) -> Tensor:
        """The ends of the interval and the breakpoints inside it, in order (those outside are moved to an end)."""
        lower, upper = z.lower.detach(), z.upper.detach()
        inner = [torch.minimum(torch.maximum(torch.full_like(lower, b), lower), upper) for b in self.breakpoints]
        return torch.stack([lower, *inner, upper])

    def _turning_points(self, slope: Tensor, borders: Tensor, steps: int) -> Tensor:
        """Where f' = slope in every piece between two borders; an end of the piece where there is no such point."""
        low, high = borders[:-1], borders[1:]
        return torch.minimum(torch.maximum(self.stationary(slope, low, high, steps), low), high)


def _just_inside(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last number inside a piece: an end may be a kink, where the derivative may be that of the other side."""
    return torch.nextafter(low, high), torch.nextafter(high, low)


def _live(point: Tensor, z: Interval) -> Tensor:
    """The point, with the gradient of an end of the interval where it is that end."""
    point = torch.where(point == z.lower, z.lower, point)
    return torch.where(point == z.upper, z.upper, point)
