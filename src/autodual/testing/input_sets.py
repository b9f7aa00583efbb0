"""check_input_set: is the support function that of the set that is sampled, stepped and projected into?"""

from __future__ import annotations

import torch
from torch import Tensor

from autodual.sets import Box, InputSet, NormSet
from autodual.testing._cases import require_below, require_close, rounding

DIRECTIONS = 24
SAMPLES = 32


def check_input_set(input_set: InputSet, seed: int = 0) -> None:
    """Check that an input set keeps its contract.

    A point belongs to a closed convex set if and only if no linear function is smaller there than its minimum over the set,
    so membership is tested with `minimise` itself, in random directions and along the axes.

    Args:
        input_set: What is checked.
        seed: Of the random points and directions.

    Raises:
        AssertionError: The set breaks its contract; the message says where, and by how much.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> ad.testing.check_input_set(ad.L2Ball(0.5).around(torch.rand(2, 3)))
    """
    with torch.no_grad():
        _InputSetCheck(input_set, seed).run()


class _InputSetCheck:
    def __init__(self, input_set: InputSet, seed: int) -> None:
        self.set, self.name = input_set, type(input_set).__name__
        self.centre = input_set.centre.detach()
        self.generator = torch.Generator(self.centre.device).manual_seed(seed)
        shape = self.centre.shape[1:]
        axes = torch.eye(shape.numel(), dtype=self.centre.dtype, device=self.centre.device)[:DIRECTIONS]
        axes = axes.reshape(-1, 1, *shape)
        self.rows = torch.cat([self._normal(DIRECTIONS, 1, *shape), axes, -axes])
        self.lowest = input_set.minimise(self.rows)
        self.points = torch.stack([input_set.sample(self.generator) for _ in range(SAMPLES)])

    def run(self) -> None:
        self._shapes()
        self._inside(self.centre, "centre")
        for point in self.points:
            self._inside(point, "a sample")
        self._attained()
        self._homogeneous()
        self._box()
        self._steps()
        if isinstance(self.set, Box | NormSet):
            self._projection(self.set)
        if self.set.dual_norm is not None:
            self._dual_norm(self.set.dual_norm)
        self._slices()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self.centre.dtype, device=self.centre.device, generator=self.generator)

    def _rounding(self, *terms: Tensor) -> Tensor:
        return rounding(self.centre.dtype, *terms).to(self.centre.dtype)

    def _sizes(self, rows: Tensor) -> Tensor:
        """[R, N]: sum of |row| times the largest |x| in the set, the scale of rounding errors."""
        box = self.set.box()
        return (rows.abs() * torch.maximum(box.lower.abs(), box.upper.abs())).flatten(2).sum(-1)

    def _shapes(self) -> None:
        expected = (len(self.rows), len(self.set))
        if tuple(self.lowest.shape) != expected or len(self.set) != len(self.centre):
            raise AssertionError(
                f"{self.name}: minimise returns {tuple(self.lowest.shape)} for {len(self.rows)} rows and {len(self.centre)} examples"
            )
        spread = self.rows.expand(-1, *self.centre.shape)
        what = f"{self.name}: minimise of rows per example against the same rows for all"
        require_close(self.set.minimise(spread), self.lowest, self._rounding(self._sizes(spread)), what)

    def _inside(self, point: Tensor, what: str) -> None:
        if point.shape != self.centre.shape:
            raise AssertionError(f"{self.name}: {what} has shape {tuple(point.shape)}, not {tuple(self.centre.shape)}")
        values = (self.rows * point).flatten(2).sum(-1)
        excess = self.lowest - values - self._rounding(self._sizes(self.rows))
        outside = "lies outside: a linear function is smaller there than `minimise` says"
        require_below(excess, f"{self.name}: {what} {outside}")

    def _attained(self) -> None:
        """minimise is the value at an extreme point, not below it."""
        for row, lowest in zip(self.rows, self.lowest, strict=True):
            vertex = self.set.vertex(-row.expand_as(self.centre))
            self._inside(vertex, "a vertex")
            value = (row * vertex).flatten(1).sum(1)
            allowed = self._rounding(self._sizes(row.unsqueeze(0))[0])
            require_close(lowest, value, allowed, f"{self.name}: minimise against the value at `vertex`")

    def _homogeneous(self) -> None:
        allowed = self._rounding(3 * self._sizes(self.rows))
        what = f"{self.name}: minimise(3 c) against 3 minimise(c)"
        require_close(self.set.minimise(3 * self.rows), 3 * self.lowest, allowed, what)

    def _box(self) -> None:
        box, smallest = self.set.box(), InputSet.box(self.set)
        allowed = self._rounding(box.lower, box.upper)
        for point in self.points:
            require_below(box.lower - point - allowed, f"{self.name}: box cuts off a sample below")
            require_below(point - box.upper - allowed, f"{self.name}: box cuts off a sample above")
        for side in ("lower", "upper"):
            what = f"{self.name}: box().{side} against the minimum along each axis"
            require_close(getattr(box, side), getattr(smallest, side), allowed, what)

    def _steps(self) -> None:
        x = self.points[0]
        for size in (0.1, 1.0, 3.0):
            direction = self._normal(*self.centre.shape)
            x = self.set.step(x, direction, size)
            self._inside(x, f"a step of size {size}")
        zero = torch.zeros_like(self.centre)
        self._inside(self.set.step(x, zero, 1.0), "a step without a direction")
        self._inside(self.set.vertex(zero), "the vertex without a direction")

    def _projection(self, input_set: Box | NormSet) -> None:
        """project lands inside, leaves inner points alone, and finds the nearest point."""
        for scale in (0.5, 3.0):
            outer = self.centre + scale * self._normal(*self.centre.shape)
            nearest = input_set.project(outer)
            self._inside(nearest, "a projected point")
            distance = (outer - nearest).flatten(1).norm(dim=1)
            for point in self.points:
                other = (outer - point).flatten(1).norm(dim=1)
                excess = distance - other - self._rounding(outer.flatten(1).norm(dim=1))
                require_below(excess, f"{self.name}: project is farther away than a sample")
        for point in self.points:
            size = self.centre.flatten(1).abs().amax(1).reshape(-1, *[1] * (point.dim() - 1))
            allowed = self._rounding(point, size.expand_as(point))
            require_close(input_set.project(point), point, allowed, f"{self.name}: project moves a point of the set")

    def _dual_norm(self, norm: float) -> None:
        scaled = (self.rows * self.set.radius).expand(-1, *self.centre.shape).flatten(2)
        reach = torch.linalg.vector_norm(scaled, ord=norm, dim=-1)
        expected = (self.rows * self.centre).flatten(2).sum(-1) - reach
        what = f"{self.name}: minimise against c'centre - norm(radius * c) with dual_norm = {norm}"
        require_close(self.lowest, expected, self._rounding(self._sizes(self.rows)), what)

    def _slices(self) -> None:
        for part in (slice(0, 1), slice(len(self.set) // 2, None), slice(None)):
            some, count, place = self.set[part], len(self.centre[part]), f"[{part.start}:{part.stop}]"
            if len(some) != count:
                raise AssertionError(f"{self.name}: {place} has {len(some)} examples instead of {count}")
            if not torch.equal(some.centre, self.centre[part]):
                raise AssertionError(f"{self.name}: {place} has another centre than those examples")
            allowed = self._rounding(self._sizes(self.rows)[:, part])
            what = f"{self.name}: minimise of {place} against those examples of the whole"
            require_close(some.minimise(self.rows), self.lowest[:, part], allowed, what)
