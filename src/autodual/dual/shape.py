"""Operations that move, copy, join, average or select entries: linear maps whose coefficients are never negative."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape, is_being_captured
from autodual.dual.base import AffineDual, Window, number, parameter, register, rewrite
from autodual.graph import Call, Operand

# Concatenation and stacking of several operands.


@dataclass(frozen=True)
class DualConcat(AffineDual):
    """Operands and constants side by side along one dimension (counted without the batch)."""

    dim: int
    parts: tuple[Tensor | None, ...]
    """One entry per part: None for the next operand, or a constant."""
    offset: Tensor | None = None
    """The constants in their places and zeros elsewhere."""
    exact: bool = True
    """Unless a constant is a number that float32 does not hold, such as a large integer."""

    def linear(self, *operands: Tensor) -> Tensor:
        following = iter(operands)
        batch = operands[0].shape[0]
        pieces = [next(following) if part is None else operands[0].new_zeros(batch, *part.shape) for part in self.parts]
        return torch.cat(pieces, self.dim + 1)

    def bias(self) -> Tensor | None:
        return self.offset

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        following = iter(shapes)
        sizes = [(next(following) if part is None else part.shape)[self.dim] for part in self.parts]
        pieces = coefficients.split(sizes, self.dim + 1)
        return tuple(piece for piece, part in zip(pieces, self.parts, strict=True) if part is None)

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        return 1, 1

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        return Window.same(len(shapes[0]) - 1) if self.dim == 0 else None

    def cropped(self, shape: Shape) -> DualConcat | None:
        return self if all(part is None for part in self.parts) else None


@register(torch.cat, torch.concat)
def _concat(call: Call) -> DualConcat:
    given = call.argument(1, "dim", 0)
    dim, rank = call.dimension(given), call.operand.shape
    parts = [p for p in call.argument(0, "tensors") if isinstance(p, Operand) or tuple(p.shape) != (0,)]  # as torch.cat
    constants = tuple(None if isinstance(p, Operand) else call.constant(p, rank) for p in parts)
    if all(c is None for c in constants):
        return DualConcat(dim, constants)
    like = next(c for c in constants if c is not None)
    placed = like.to(call.floating(like))
    filled = [placed.new_zeros(p.shape) if c is None else c.to(placed) for p, c in zip(parts, constants, strict=True)]
    exact = all(_held_by_float32(c) for c in constants if c is not None)
    return DualConcat(dim, constants, torch.cat(filled, dim), exact)


def _held_by_float32(constant: Tensor) -> bool:
    if constant.dtype == torch.float32 or is_being_captured(constant):
        return constant.dtype == torch.float32
    exact = constant.double()
    return bool((exact.float().double() == exact).all())


@rewrite(torch.stack)
def _stack(tensors: Any, dim: int = 0) -> Any:
    position = dim % (tensors[0].dim() + 1)
    return torch.cat([t.unsqueeze(position) for t in tensors], position)


# Operations that move, copy, average or select entries: linear maps whose coefficients are never negative.


@dataclass(frozen=True)
class DualReshape(AffineDual):
    """The entries of the operand in another shape."""

    shape: Shape

    exact = True

    def linear(self, *operands: Tensor) -> Tensor:
        return operands[0].reshape(operands[0].shape[0], *self.shape)

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (coefficients.reshape(coefficients.shape[0], *shapes[0]),)

    def one_to_one(self, shapes: tuple[Shape, ...]) -> bool:
        return True


@dataclass(frozen=True)
class DualMonotone(AffineDual):
    """Any linear map with non-negative coefficients, given as a function of a batch; its transpose comes from autodiff."""

    function: Callable[..., Tensor]
    reads: Window | None = None
    exact: bool = False

    def linear(self, *operands: Tensor) -> Tensor:
        return self.function(*operands)

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        return self.reads


@dataclass(frozen=True)
class DualPartialSums(DualMonotone):
    """Sums or averages of some of the entries each, whose numbers are known."""

    counts: tuple[int, int] = (0, 0)
    """At most so many entries are added up together, and an entry is part of at most so many sums."""
    on_the_way: float = 1.0

    def terms(self, shapes: tuple[Shape, ...], shape: Shape) -> tuple[int, int]:
        together, sums = self.counts
        return together + 1, sums


@dataclass(frozen=True)
class DualInterpolation(DualMonotone):
    """Linear interpolation between neighbours, whose coefficients PyTorch computes from positions in the dtype of the operand.

    A position in a line of length L is wrong by a few units in the last place of L, and so is the weight of each neighbour.
    """

    def constant_error(self, *operands: Tensor) -> Tensor | None:
        return self.run_error(8 * torch.finfo(operands[0].dtype).eps, *operands)

    def run_error(self, grain: float, *operands: Tensor) -> Tensor | None:
        space = operands[0].shape[2:]
        largest = operands[0].abs().flatten(2).amax(2)
        return 2 * grain * sum(space) * largest.reshape(*largest.shape, *[1] * len(space))


@dataclass(frozen=True)
class DualPad(AffineDual):
    """Padding with a constant."""

    amounts: tuple[int, ...]
    fill: float
    shape: Shape

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Unless float32 holds another number than was given to fill with."""
        return torch.tensor(self.fill, dtype=torch.float32).item() == self.fill

    def linear(self, *operands: Tensor) -> Tensor:
        return F.pad(operands[0], self.amounts)

    def bias(self) -> Tensor | None:
        if self.fill == 0:
            return None
        inside = [n - a - b for n, a, b in zip(self.shape, *self._per_dimension(), strict=True)]
        return F.pad(torch.zeros(inside, dtype=torch.float64), self.amounts, value=self.fill)

    def apply(self, *operands: Tensor) -> Tensor:
        return F.pad(operands[0], self.amounts, value=self.fill)

    def _per_dimension(self) -> tuple[list[int], list[int]]:
        missing = [0] * (len(self.shape) - len(self.amounts) // 2)
        return missing + list(self.amounts[-2::-2]), missing + list(self.amounts[::-2])

    def transpose(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
        return (F.pad(coefficients, [-a for a in self.amounts]),)

    def window(self, shapes: tuple[Shape, ...]) -> Window | None:
        before, _ = self._per_dimension()
        low = tuple(-b for b in before[1:])
        return None if before[0] else Window((1,) * len(low), low, low)

    def one_to_one(self, shapes: tuple[Shape, ...]) -> bool:
        return True


@register(
    nn.Flatten, nn.Unflatten, torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape, torch.reshape,
    torch.squeeze, torch.Tensor.squeeze, torch.unsqueeze, torch.Tensor.unsqueeze, torch.Tensor.unflatten, torch.unflatten,
)  # fmt: skip
def _reshape(call: Call) -> DualReshape:
    if math.prod(call.shape) != math.prod(call.operand.shape):
        raise ArgumentError(
            f"{call.path}: reads the bits of its input as another dtype, which is no function that can be bounded; "
            f"use .to(dtype) to convert values"
        )
    return DualReshape(call.shape)


@register(torch.permute, torch.Tensor.permute)
def _permute(call: Call) -> DualMonotone:
    order = call.args[1:] if len(call.args) > 2 else call.argument(1, "dims")
    dims = [d % (len(call.shape) + 1) for d in (order if isinstance(order, list | tuple) else (order,))]
    if dims[0] != 0:
        call.dimension(0)
    return DualMonotone(lambda x: x.permute(dims), exact=True)


@register(torch.transpose, torch.Tensor.transpose, torch.swapaxes, torch.Tensor.swapaxes)
def _transpose(call: Call) -> DualMonotone:
    first, second = call.dimension(call.argument(1, "dim0")), call.dimension(call.argument(2, "dim1"))
    return DualMonotone(lambda x: x.transpose(first + 1, second + 1), exact=True)


@rewrite(getattr)
def _attribute(input: Any, name: str) -> Any:
    """x.mT is a transpose that leaves the batch in its place, if there are matrices in it."""
    return input.transpose(-2, -1) if name == "mT" and input.dim() > 2 else NotImplemented


@register(operator.getitem, torch.Tensor.__getitem__)
def _index(call: Call) -> DualMonotone:
    given = call.argument(1, "index")
    index = given if isinstance(given, tuple) else (given,)
    if index and index[0] is Ellipsis:
        named = sum(_dimensions(i) for i in index[1:])
        index = (slice(None),) * (len(call.operand.shape) + 1 - named) + index[1:]
    if not index or index[0] != slice(None):
        call.dimension(0)
    return DualMonotone(lambda x: x[index], _slice_window(index, call.operand.shape), exact=True)


def _dimensions(index: Any) -> int:
    """How many dimensions one part of an index takes."""
    if index is None:
        return 0
    return index.dim() if isinstance(index, Tensor) and index.dtype == torch.bool else 1


def _slice_window(index: tuple[Any, ...], shape: Shape) -> Window | None:
    """Slices of the spatial dimensions alone keep neighbours together."""
    spatial = index[2:] + (slice(None),) * (len(shape) + 1 - len(index))
    if not all(isinstance(i, slice) for i in index) or index[1:2] not in ((), (slice(None),)):
        return None
    ranges = [range(size)[i] for i, size in zip(spatial, shape[1:], strict=False)]
    starts = tuple(r.start for r in ranges)
    return Window(tuple(r.step for r in ranges), starts, starts) if len(ranges) == len(shape) - 1 else None


@register(torch.narrow, torch.Tensor.narrow)
def _narrow(call: Call) -> DualMonotone:
    dim, start = call.dimension(call.argument(1, "dim")), call.argument(2, "start")
    length = call.argument(3, "length")
    return DualMonotone(lambda x: x.narrow(dim + 1, start, length), exact=True)


@rewrite(torch.Tensor.view_as, torch.Tensor.reshape_as)
def _reshape_as(input: Any, other: Any) -> Any:
    """Only the shape of `other` matters, so the result does not depend on its values."""
    return input.reshape(other.shape)


@rewrite(torch.Tensor.expand_as)
def _expand_as(input: Any, other: Any) -> Any:
    return input.expand(other.shape)


@register(torch.Tensor.expand, torch.broadcast_to)
def _expand(call: Call) -> DualMonotone:
    return DualMonotone(lambda x: x.expand(x.shape[0], *call.shape), exact=True)


@register(torch.flip, torch.Tensor.flip)
def _flip(call: Call) -> DualMonotone:
    given = call.args[1:] if len(call.args) > 2 else call.argument(1, "dims")
    dims = [call.dimension(d) + 1 for d in (given if isinstance(given, list | tuple) else (given,))]
    return DualMonotone(lambda x: x.flip(dims), exact=True)


@rewrite(torch.chunk, torch.Tensor.chunk)
def _chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    return _split(input, -(-input.shape[dim] // chunks), dim)


@rewrite(torch.split)
def _split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    x, size = tensor, split_size_or_sections
    total = x.shape[dim]
    sizes = [min(size, total - s) for s in range(0, total, size)] if isinstance(size, int) else list(size)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(x.narrow(dim, start, length) for start, length in zip(starts, sizes, strict=True))


@rewrite(torch.Tensor.split)
def _split_method(x: Any, split_size: Any, dim: int = 0) -> tuple[Any, ...]:
    return _split(x, split_size, dim)


@rewrite(torch.unbind, torch.Tensor.unbind)
def _unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    return tuple(input.narrow(dim, i, 1).squeeze(dim) for i in range(input.shape[dim]))


_PADDING = {
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    "circular": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
}


@register(nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d,
          nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d, nn.CircularPad1d,
          nn.CircularPad2d, nn.CircularPad3d)  # fmt: skip
def _pad_module(call: Call) -> AffineDual:
    m: Any = call.module
    mode = next((mode for mode, kinds in _PADDING.items() if isinstance(m, kinds)), "constant")
    return _pad(call, tuple(m.padding), mode, m.value if mode == "constant" else 0.0)


@register(F.pad)
def _pad_function(call: Call) -> AffineDual:
    fill = parameter(call, 3, "value", None)
    return _pad(
        call, tuple(call.argument(1, "pad")), call.argument(2, "mode", "constant"), 0.0 if fill is None else fill
    )


def _pad(call: Call, amounts: tuple[int, ...], mode: str, fill: float) -> AffineDual:
    if len(amounts) // 2 > len(call.operand.shape):
        call.dimension(0)
    if mode == "constant":
        return DualPad(amounts, number(call, fill, "value"), call.shape)
    return DualMonotone(lambda x: F.pad(x, amounts, mode), exact=True)


@register(nn.Upsample, F.interpolate, nn.UpsamplingNearest2d)
def _upsample(call: Call) -> DualMonotone:
    mode = parameter(call, 3, "mode", "nearest")
    if mode not in ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area"):
        raise ArgumentError(
            f"{call.path}: upsampling mode {mode!r} has negative coefficients and no dual layer; use 'nearest'"
        )
    named = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
    # As they were given: the size alone does not say which positions a factor of 1.3 reads.
    options = {name: parameter(call, i, name, None) for i, name in enumerate(named, start=1)} | {"mode": mode}
    if call.argument(6, "antialias", False):
        raise ArgumentError(
            f"{call.path}: interpolation with antialias=True has no dual layer: PyTorch's result depends on the layout in memory, and "
            "its gradient is not that of what it computes where a size stays the same or grows. Use antialias=False, or a convolution"
        )
    if mode.startswith("nearest"):
        _check_nearest(call, options)
        return DualMonotone(lambda x: F.interpolate(x, **options), exact=True)
    kind = DualInterpolation if mode.endswith("linear") else DualMonotone
    return kind(lambda x: F.interpolate(x, **options))


def _check_nearest(call: Call, options: dict[str, Any]) -> None:
    """Refuse sizes for which float32 and float64 read other positions: PyTorch computes them in the dtype of the operand."""
    space = call.operand.shape[1:]
    for dim, size in enumerate(space):
        positions = torch.arange(size, dtype=torch.float64).reshape([-1 if d == dim else 1 for d in range(len(space))])
        line = positions.expand(1, 1, *space)
        if not torch.equal(F.interpolate(line, **options), F.interpolate(line.float(), **options).double()):
            raise ArgumentError(
                f"{call.path}: which pixels this upsampling reads depends on the precision (float32 and float64 round positions "
                f"differently); choose sizes that divide one another"
            )


@register(nn.PixelShuffle, F.pixel_shuffle)
def _pixel_shuffle(call: Call) -> DualMonotone:
    factor = parameter(call, 1, "upscale_factor")
    return DualMonotone(lambda x: F.pixel_shuffle(x, factor), exact=True)
