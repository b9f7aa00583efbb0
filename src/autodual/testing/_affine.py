"""The contract of an AffineDual: W x + b, its transpose, |W|, and the window that a position reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._tensor import Shape
from autodual.dual import AffineDual, Window
from autodual.testing._report import require_below, require_close, rounding

BATCH = 3
MOST_COLUMNS = 1024
"""Columns of W that are looked at per operand; larger operands are looked at in random places."""


@dataclass(frozen=True)
class AffineCheck:
    """One affine layer, at one place of a network, under test in float64."""

    name: str
    layer: AffineDual
    operand_shapes: tuple[Shape, ...]
    shape: Shape
    seed: int

    def run(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            columns = [_basis(shape, generator) for shape in self.operand_shapes]
            matrices = [self._matrix(i, basis) for i, basis in enumerate(columns)]
            operands = self._random(generator)
            size = self.layer.absolute(*(o.abs() for o in operands))
            self._linear(operands, size, generator)
            self._transpose(operands, size, generator)
            self._absolute(columns, matrices, generator)
            self._windows(columns, matrices)
            self._narrowed(operands, size)
            self._cropped(operands, size)

    def _random(self, generator: torch.Generator) -> list[Tensor]:
        shapes = self.operand_shapes
        return [torch.randn(BATCH, *shape, dtype=torch.float64, generator=generator) for shape in shapes]

    def _matrix(self, operand: int, basis: Tensor) -> Tensor:
        """Columns of W for some entries of one operand: [C, *result shape]."""
        zeros = [basis.new_zeros(len(basis), *shape) for shape in self.operand_shapes]
        zeros[operand] = basis
        return self.layer.linear(*zeros)

    def _linear(self, operands: list[Tensor], size: Tensor, generator: torch.Generator) -> None:
        """apply = linear + bias, and linear is linear."""
        bias = self.layer.bias()
        linear, whole = self.layer.linear(*operands), self.layer.apply(*operands)
        if tuple(linear.shape) != (BATCH, *self.shape):
            raise AssertionError(f"{self.name}: linear has shape {tuple(linear.shape)}, not {(BATCH, *self.shape)}")
        shift = linear.new_zeros(self.shape) if bias is None else bias.to(linear).expand(self.shape)
        require_close(
            whole,
            linear + shift,
            rounding(torch.float64, size, shift.expand_as(size)),
            f"{self.name}: apply against linear + bias",
        )
        others = self._random(generator)
        mixed = self.layer.linear(*(2 * a - 3 * b for a, b in zip(operands, others, strict=True)))
        apart = 2 * linear - 3 * self.layer.linear(*others)
        size = 3 * (size + self.layer.absolute(*(o.abs() for o in others)))
        require_close(
            mixed,
            apart,
            rounding(torch.float64, size),
            f"{self.name}: linear is not linear: W (2 a - 3 b) against 2 W a - 3 W b",
        )

    def _transpose(self, operands: list[Tensor], size: Tensor, generator: torch.Generator) -> None:
        """<W x, y> = <x, W' y>, and the transpose is the one that autodiff finds."""
        y = torch.randn(BATCH, *self.shape, dtype=torch.float64, generator=generator)
        pulled = self.layer.transpose(y, self.operand_shapes)
        by_autodiff = AffineDual.transpose(self.layer, y, self.operand_shapes)
        if len(pulled) != len(operands):
            raise AssertionError(f"{self.name}: transpose returns {len(pulled)} tensors for {len(operands)} operands")
        total = (size * y.abs()).sum()
        for i, (found, expected) in enumerate(zip(pulled, by_autodiff, strict=True)):
            what = f"{self.name}: transpose for operand {i} against the one found by autodiff"
            require_close(found, expected, rounding(torch.float64, expected, expected.abs().amax()), what)
        left = (self.layer.linear(*operands) * y).sum()
        right = torch.stack([(a * b).sum() for a, b in zip(operands, pulled, strict=True)]).sum()
        require_close(left, right, rounding(torch.float64, total), f"{self.name}: <W x, y> against <x, W' y>")

    def _absolute(self, columns: list[Tensor], matrices: list[Tensor], generator: torch.Generator) -> None:
        """absolute(r) = |W| r, for r >= 0 in the places that were looked at."""
        radii, expected = [], torch.zeros(self.shape, dtype=torch.float64)
        for basis, matrix in zip(columns, matrices, strict=True):
            r = torch.rand(len(basis), dtype=torch.float64, generator=generator)
            radii.append(torch.tensordot(r, basis, 1).unsqueeze(0))
            expected = expected + torch.tensordot(r, matrix.abs(), 1)
        found = self.layer.absolute(*radii)[0]
        require_close(found, expected, rounding(torch.float64, expected), f"{self.name}: absolute(r) against |W| r")

    def _windows(self, columns: list[Tensor], matrices: list[Tensor]) -> None:
        """No entry of W lies outside the declared window."""
        window = self.layer.window(self.operand_shapes)
        if window is None:
            return
        for i, (basis, matrix) in enumerate(zip(columns, matrices, strict=True)):
            entries = matrix.abs().sum(1)  # over the result's channels: [C, *space]
            outside = ~_inside(window, basis, self.operand_shapes[i], self.shape[1:])
            what = f"{self.name}: a position of the result reads operand {i} outside of its {window}"
            require_below(torch.where(outside, entries, 0.0), what)

    def _narrowed(self, operands: list[Tensor], size: Tensor) -> None:
        """With some channels of the result, or of the operand, the layer is what it was on these."""
        layer, whole = self.layer, self.layer.linear(*operands)
        some = torch.arange(0, self.shape[0], 2)
        part = layer.narrowed(results=some)
        broadcast = any(len(s) != len(self.shape) or s[0] != self.shape[0] for s in self.operand_shapes)
        if part is not None and not (layer.channelwise and broadcast):  # then engines leave it alone
            what = f"{self.name}: narrowed(results=...) against these channels of the whole"
            given = [o[:, some] for o in operands] if layer.channelwise else operands
            require_close(part.linear(*given), whole[:, some], rounding(torch.float64, size[:, some]), what)
        if layer.channelwise or len(operands) != 1:
            return
        some = torch.arange(0, self.operand_shapes[0][0], 2)
        part = layer.narrowed(operands=some)
        if part is not None:
            (x,) = operands
            expected = layer.linear(torch.zeros_like(x).index_copy(1, some, x[:, some]))
            what = f"{self.name}: narrowed(operands=...) against the whole with zeros in the other channels"
            require_close(part.linear(x[:, some]), expected, rounding(torch.float64, size), what)

    def _cropped(self, operands: list[Tensor], size: Tensor) -> None:
        """On the patch that two neighbouring positions read, with zeros outside, the cropped layer gives their values."""
        window = self.layer.window(self.operand_shapes)
        count = tuple(min(2, n) for n in self.shape[1:])
        part = None if window is None else self.layer.cropped((self.shape[0], *count))
        if window is None or part is None:
            return
        for start in {(0,) * len(count), tuple(n - c for n, c in zip(self.shape[1:], count, strict=True))}:
            patches = [_patch(o, window, start, count) for o in operands]
            place = (slice(None), slice(None), *(slice(a, a + c) for a, c in zip(start, count, strict=True)))
            what = f"{self.name}: cropped(...) on the patch at {start} against the whole"
            require_close(
                part.linear(*patches), self.layer.linear(*operands)[place], rounding(torch.float64, size[place]), what
            )


def _patch(x: Tensor, window: Window, start: Shape, count: Shape) -> Tensor:
    """What `count` positions from `start` on read of x, with zeros outside of it."""
    pads: list[int] = []
    for d in reversed(range(len(count))):
        first = start[d] * window.stride[d] + window.low[d]
        last = (start[d] + count[d] - 1) * window.stride[d] + window.high[d]
        pads += [-first, last + 1 - x.shape[2 + d]]
    return torch.nn.functional.pad(x, pads)


def _basis(shape: Shape, generator: torch.Generator) -> Tensor:
    """[C, *shape]: unit vectors, all of them or a random choice."""
    count = torch.Size(shape).numel()
    chosen = torch.randperm(count, generator=generator)[:MOST_COLUMNS]
    return torch.nn.functional.one_hot(chosen, count).double().reshape(-1, *shape)


def _inside(window: Window, basis: Tensor, operand: Shape, space: Shape) -> Tensor:
    """[C, *space]: does a position of the result declare to read the place of each unit vector?"""
    places = torch.stack(torch.unravel_index(basis.flatten(1).argmax(1), operand))[1:]
    inside = torch.ones(len(basis), *space, dtype=torch.bool)
    for d, (place, size) in enumerate(zip(places, space, strict=True)):
        position = torch.arange(size).reshape(-1, *[1] * (len(space) - 1 - d))
        place = place.reshape(-1, *[1] * len(space))
        start = position * window.stride[d]
        inside &= (place >= start + window.low[d]) & (place <= start + window.high[d])
    return inside
