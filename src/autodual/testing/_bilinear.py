"""The contract of a BilinearDual: what its slopes do, bands that hold and are met at corners, and what it says about errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._tensor import Shape
from autodual.dual import BilinearDual
from autodual.engines.rounding import MORE_ROUNDINGS, gamma_of_sum, underflow_of_sum
from autodual.interval import Interval
from autodual.testing._cases import hurting_batch, require_below, require_close, require_stated, rounding

INTERVALS, POINTS, ROWS = 40, 64, 3
MISSED = 0.01
"""The part of a band's radius that no corner of the interval may leave free."""


@dataclass(frozen=True)
class BilinearCheck:
    """One product of two activations, at one place of a network, under test."""

    name: str
    layer: BilinearDual
    shape: Shape
    """The operand's shape: both factors side by side."""
    dtype: torch.dtype
    seed: int

    def run(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        z = self._intervals(generator)
        with torch.no_grad():
            self._operands(generator)
            self._slopes(z, generator)
            points = self._points(z, generator)
            values = self.layer.value(points.double())
            self._sound(z, points, values)
            self._tight(z)
            self._moved(z, points, values, generator)
            self._strayed(z, generator)
            self._nan()
        if self.dtype == torch.float64:
            self._gradient(generator)

    def _random(self, *leading: int, generator: torch.Generator) -> Tensor:
        return torch.randn(*leading, *self.shape, dtype=torch.float64, generator=generator).to(self.dtype)

    def _intervals(self, generator: torch.Generator) -> Interval:
        """Narrow and wide, of no width, on either side of zero and across it."""
        sizes = 10 ** torch.linspace(-6, 2, INTERVALS, dtype=torch.float64).to(self.dtype)
        sizes = sizes.reshape(-1, *[1] * len(self.shape))
        radius = sizes * self._random(INTERVALS, generator=generator).abs()
        radius[::7] = 0
        return Interval.around(3 * self._random(INTERVALS, generator=generator), radius)

    def _points(self, z: Interval, generator: torch.Generator) -> Tensor:
        """[P, N, *shape]: corners and random points."""
        parts = torch.rand(POINTS, *z.lower.shape, dtype=torch.float64, generator=generator)
        parts[: POINTS // 2] = parts[: POINTS // 2].round()
        found = z.lower.double() + parts * z.width.double()
        return torch.minimum(torch.maximum(found.to(self.dtype), z.lower), z.upper)

    def _operands(self, generator: torch.Generator) -> None:
        """`join` undoes `split`, and `joined` is the layer that does it."""
        z = self._random(ROWS, generator=generator)
        x, y = self.layer.split(z)
        joining, shape = self.layer.joined()
        if not torch.equal(self.layer.join(x, y), z) or not torch.equal(joining.apply(x, y), z) or shape != self.shape:
            raise AssertionError(f"{self.name}: join, or the layer that joins the operands, does not undo split")

    def _slopes(self, z: Interval, generator: torch.Generator) -> None:
        """along is linear, back is its transpose, and terms counts what they add up."""
        slope, rows = z.centre, self._random(ROWS, INTERVALS, generator=generator)
        moved = self.layer.along(slope, rows)
        coefficients = torch.randn(moved.shape, dtype=torch.float64, generator=generator).to(self.dtype)
        size = self.layer.along(slope.abs(), rows.abs())
        apart = 2 * moved[0] - 3 * moved[1]
        what = f"{self.name}: along is not linear"
        allowed = sum(self.layer.counts) * rounding(self.dtype, 5 * size.amax(0))
        require_close(self.layer.along(slope, 2 * rows[0] - 3 * rows[1]), apart, allowed, what)
        for given in (coefficients, coefficients[:, :1]):
            pulled = self.layer.back(slope, given)
            left = (given * moved).flatten(2).sum(-1)
            right = (pulled * rows).flatten(2).sum(-1)
            allowed = sum(self.layer.counts) * rounding(self.dtype, (given.abs() * size).flatten(2).sum(-1))
            require_close(left, right, allowed, f"{self.name}: <nu, along(z)> against <back(nu), z>")
        plus = self.layer.along(slope, rows, plus=moved)
        require_close(plus, 2 * moved, rounding(self.dtype, 2 * size), f"{self.name}: along with something added")

    def _sound(self, z: Interval, points: Tensor, values: Tensor) -> None:
        size = self.layer.value(torch.maximum(z.largest, (z.centre.abs() + z.radius)).double())
        allowed = sum(self.layer.counts) * rounding(self.dtype, 3 * size)
        image = self.layer.image(z)
        limit = self.layer.limit
        known = values if limit is None else values.clamp(-limit, limit)  # no larger ones are known to occur
        for side, end, sign in (("below", image.lower, 1.0), ("above", image.upper, -1.0)):
            require_below(
                sign * (end.double() - known) - allowed, f"{self.name}: image cuts off values {side}", f=known
            )
        band, lines = self.layer.band(z), self.layer.lines(z)
        found = self.layer.along(band.slope.double(), points.double()) + band.centre.double()
        what = f"{self.name}: the band does not hold the product"
        require_below((values - found).abs() - band.radius.double() - allowed, what, f=values)
        for slope, offset, sign in (
            (lines.lower_slope, lines.lower_offset, 1.0),
            (lines.upper_slope, lines.upper_offset, -1.0),
        ):
            line = self.layer.along(slope.double(), points.double()) + offset.double()
            require_below(sign * (line - values) - allowed, f"{self.name}: a line is on the wrong side", f=values)
        require_below(
            values.abs().amax(0) - self.layer.largest_value(z).double() - allowed, f"{self.name}: largest_value"
        )

    def _tight(self, z: Interval) -> None:
        """Both edges of the band are met at corners."""
        z = Interval(z.lower.double(), z.upper.double())
        band = self.layer.band(z)
        low, high = self.layer.split(z.lower), self.layer.split(z.upper)
        for corner, sign in ((self.layer.join(high[0], high[1]), 1.0), (self.layer.join(high[0], low[1]), -1.0)):
            met = sign * (self.layer.value(corner) - self.layer.along(band.slope, corner) - band.centre)
            size = self.layer.value(z.largest)
            allowed = MISSED * met.abs() + sum(self.layer.counts) * rounding(torch.float64, 3 * size)
            require_below(
                band.radius - met - allowed, f"{self.name}: the band is wider than the product on the interval"
            )

    def _moved(self, z: Interval, points: Tensor, values: Tensor, generator: torch.Generator) -> None:
        wide = Interval(z.lower.double(), z.upper.double())
        points = points.double()
        size = sum(self.layer.counts) * rounding(self.dtype, 5 * self.layer.value(wide.largest))
        for part in (1e-4, 0.3, 1.0):
            by = part * wide.width * torch.rand(wide.lower.shape, dtype=torch.float64, generator=generator)
            signs = torch.rand(points.shape, dtype=torch.float64, generator=generator) - 0.5
            others = torch.minimum(torch.maximum(points + by * signs.sign(), wide.lower), wide.upper)
            for slope in (torch.zeros_like(wide.lower), wide.centre, wide.upper):
                far = (self.layer.value(others) - values - self.layer.along(slope, others - points)).abs()
                stated = self.layer.moved(wide, by, slope)
                require_below(
                    far - stated - size, f"{self.name}: moved() understates how far the product leaves a line"
                )

    def _strayed(self, z: Interval, generator: torch.Generator) -> None:
        """Outside the interval, the product leaves its band by no more than `strayed` says."""
        z = Interval(z.lower.double(), z.upper.double())
        band = self.layer.band(z)
        below, above = (torch.rand(z.lower.shape, dtype=torch.float64, generator=generator) for _ in range(2))
        wide = z.widened(below, above)
        stated = self.layer.strayed(z, below, above, (band.slope,))
        for point in self._points(wide, generator).double():
            far = (self.layer.value(point) - self.layer.along(band.slope, point) - band.centre).abs() - band.radius
            allowed = sum(self.layer.counts) * rounding(torch.float64, 5 * self.layer.value(wide.largest))
            require_below(
                far - stated - allowed, f"{self.name}: strayed() understates how far the product leaves its band"
            )

    def _nan(self) -> None:
        """An operand that is NaN or has no bound makes nothing finite that depends on it."""
        for end in (torch.nan, torch.inf):
            z = Interval(
                torch.full((1, *self.shape), -1.0 if end == torch.inf else end), torch.full((1, *self.shape), end)
            )
            band, image = self.layer.band(z), self.layer.image(z)
            known = end == torch.inf and self.layer.limit is not None  # whatever the factors are
            if bool((band.centre.isfinite() & band.radius.isfinite()).any()) or (
                not known and bool(image.finite().any())
            ):
                raise AssertionError(
                    f"{self.name}: an interval with the end {end} has finite bounds, which would pass for a proof"
                )

    def _gradient(self, generator: torch.Generator) -> None:
        """Autodiff of a band's parts against central differences, along a random direction of both ends."""
        low = self._random(1, generator=generator).requires_grad_()
        high = (low.detach() + self._random(1, generator=generator).abs() + 0.5).requires_grad_()
        steps = self._random(1, generator=generator), self._random(1, generator=generator)

        def parts(step: float) -> list[Tensor]:
            band = self.layer.band(Interval(low + step * steps[0], high + step * steps[1]))
            return [part.sum() for part in (band.slope, band.centre, band.radius)]

        with torch.no_grad():
            numerical = [(a - b) / 2e-6 for a, b in zip(parts(1e-6), parts(-1e-6), strict=True)]
        for part, expected in zip(parts(0.0), numerical, strict=True):
            gradients = torch.autograd.grad(part, (low, high), retain_graph=True)
            found = torch.stack([(g * s).sum() for g, s in zip(gradients, steps, strict=True)]).sum()
            require_close(found, expected, 1e-4 + 1e-5 * expected.abs(), f"{self.name}: the gradient of the band")


def check_bilinear_errors(name: str, layer: BilinearDual, shape: Shape, seed: int) -> None:
    """|value in float32 - B(x, y)| <= error, on operands chosen to hurt."""
    z = hurting_batch(shape, torch.Generator().manual_seed(seed))
    exact = layer.value(z.double())
    stated = layer.error(Interval(z, z), exact.abs().float(), gamma_of_sum(MORE_ROUNDINGS, torch.float32))
    stated = stated + underflow_of_sum(layer.counts[0], torch.float32)
    require_stated(
        layer.value(z), exact, stated, f"{name}: error() understates what the product in float32 is wrong by"
    )
