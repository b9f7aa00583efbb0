"""The contract of an AffineDual: W x + b, its transpose, |W|, and the window that a position reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autodual._types import Shape
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
