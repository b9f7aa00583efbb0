"""Convolutions of bfloat16 streams with few channels, which GPU libraries compute far below the speed of the memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autodual import kernels
from autodual._tensor import Shape, products_are_half
from autodual.kernels.narrow import Geometry

if TYPE_CHECKING:
    import triton
    import triton.language as tl

CHANNELS = (16, 32, 64)
"""Numbers of channels, on either side, that count as few."""
LARGEST_KERNEL = 4
LARGEST_STRIDE = 2
MANY = 1 << 20
"""Values from which on launching several programs costs less than it gains."""
LARGEST_MATRIX = 1 << 17
"""Bytes of a matrix that windows are multiplied with: it lies in the fast memory of a multiprocessor, 227 KiB, beside them."""
HOPPER = (9, 0)
"""The compute capability for which blocks were chosen; older GPUs have less fast memory than they may need."""


def is_thin(x: Tensor, weight: Tensor, geometry: Geometry, groups: int) -> bool:
    """Whether `convolve` is faster than the library with filters [F, C, h, w]: for a bfloat16 stream under autocast to bfloat16."""
    stride, _, dilation = geometry
    few = weight.dim() == 4 and groups == 1 and all(n in CHANNELS for n in weight.shape[:2]) and set(dilation) == {1}
    if not few or max(weight.shape[2:]) > LARGEST_KERNEL or max(stride) > LARGEST_STRIDE:
        return False
    if x.dtype != torch.bfloat16 or weight.dtype != torch.float32 or x.numel() < MANY or not products_are_half():
        return False
    if not any(faster(weight.shape, stride)):
        return False
    return kernels.usable("thin", x, weight) and torch.cuda.get_device_capability(x.device) >= HOPPER


def faster(filters: Shape, stride: Shape) -> tuple[bool, bool, bool]:
    """Whether programs of ours beat the library's: forward, for the gradient by the operand, and for that by the filters [F, C, h, w].

    They do where few terms meet in a result: channels times places of the kernel. The limits lie between shapes that were measured on
    an H200 (benchmarks/results/thin_convolutions.md). With strides, the matrix of the gradient by the operand may be too large.
    """
    results, channels, *kernel = filters
    places, steps = math.prod(kernel), math.prod(stride)
    window = math.prod((k + 2 * s - 2) // s for k, s in zip(kernel, stride, strict=True))
    back = results * places <= 288 * steps and 2 * results * window * channels * steps <= LARGEST_MATRIX
    return channels * places <= 256, back, results * channels * places <= 20_000


def convolve(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """A convolution as by conv2d without bias: bfloat16 [M, C, H, W] -> [M, F, H', W'], channels inside; sums are float32.

    The weights are float32, rounded to bfloat16 as they are read; their gradient is float32.
    """
    return _Convolve.apply(x, weight, geometry)


class _Convolve(torch.autograd.Function):
    """The library computes what it is faster at, and a gradient that is to be differentiated again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ours, _, _ = faster(weight.shape, geometry[0])
        return launch_convolve(x, weight, geometry) if ours else F.conv2d(x, weight.to(x.dtype), None, *geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.geometry = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (given,), (x, weight), geometry = gradients, ctx.saved_tensors, ctx.geometry
        wants_x, wants_weight, _ = ctx.needs_input_grad
        _, ours, ours_on_weight = (False,) * 3 if torch.is_grad_enabled() else faster(weight.shape, geometry[0])
        on_x = on_weight = None
        left = wants_x and not ours, wants_weight and not ours_on_weight, False
        if any(left):
            half = weight.to(x.dtype)
            found = torch.ops.aten.convolution_backward(given, x, half, None, *geometry, False, (0, 0), 1, left)
            on_x, on_weight = found[0], None if found[1] is None else found[1].to(weight.dtype)
        if wants_x and ours:
            on_x = launch_back(given, weight, tuple(x.shape[2:]), geometry)
        if wants_weight and ours_on_weight:
            on_weight = launch_on_weight(given, x, tuple(weight.shape[2:]), geometry)
        return on_x, on_weight, None


# The Triton programs, and what launches them.
#
# Twins: `conv2d` and its gradients. Results are treated in groups of a few neighbours. All that a group reads is one window of the
# source, so that a convolution is a product of windows [groups, positions * channels] with a matrix [positions * channels, group *
# filters] of weights and zeros. The zeros cost some of the tensor cores' time, of which there is plenty; sharing a window saves
# loads, and wider products fill the tensor cores. The gradient by the source is such a product, too: there, the window is one of
# gradients, and a stride of two is a group of two. The gradient by the weights is that by this matrix, folded.
#
# A program treats a rectangle of groups, of one image after the other. Channels lie inside, so that a line of a window, and a line of
# a group, is one piece of memory. Nothing is added atomically: the gradient by the weights comes in parts, added up in a fixed order.


@dataclass(frozen=True)
class Windows:
    """Which window of the source a group of results reads: each field has a number for lines and one for columns.

    Group t has the results group * t + a, and reads the places step * t + first + i of the source, with a < group, i < size. The
    weight between them is number by_place * i + by_result * a + offset, where there is one of that number.
    """

    group: Shape
    step: Shape
    first: Shape
    size: Shape
    by_place: Shape
    by_result: Shape
    offset: Shape

    @classmethod
    def forward(cls, group: Shape, kernel: Shape, geometry: Geometry) -> Windows:
        """Results of a convolution read its operand."""
        stride, padding, _ = geometry
        return cls(
            group,
            step=tuple(g * s for g, s in zip(group, stride, strict=True)),
            first=tuple(-p for p in padding),
            size=tuple((g - 1) * s + k for g, s, k in zip(group, stride, kernel, strict=True)),
            by_place=(1, 1),
            by_result=tuple(-s for s in stride),
            offset=(0, 0),
        )

    @classmethod
    def back(cls, group: Shape, kernel: Shape, geometry: Geometry) -> Windows:
        """Gradients by the operand read those by the results. The stride divides the group."""
        stride, padding, _ = geometry
        first = tuple(-((k - 1 - p) // s) for k, s, p in zip(kernel, stride, padding, strict=True))
        last = ((g - 1 + p) // s for g, s, p in zip(group, stride, padding, strict=True))
        return cls(
            group,
            step=tuple(g // s for g, s in zip(group, stride, strict=True)),
            first=first,
            size=tuple(b - a + 1 for a, b in zip(first, last, strict=True)),
            by_place=tuple(-s for s in stride),
            by_result=(1, 1),
            offset=tuple(p - s * a for p, s, a in zip(padding, stride, first, strict=True)),
        )


@dataclass(frozen=True)
class Blocks:
    """How a program divides its work."""

    group: Shape
    """Results, in lines and columns, that share a window."""
    groups: int = 64
    """Groups at a time."""
    terms: int = 256
    """Positions of a window times channels, at most: in one product; for the gradient by the weights, in one program."""
    images: int = 4
    """Images that a program treats one after the other, forward and back."""
    warps: int = 4
    stages: int = 1
    """Loads in flight before they are needed. From 2 on they pass by the fastest cache, in which windows overlap."""
    parts: int = 264
    """Programs for the gradient by the weights, in all: two for each multiprocessor of an H200."""


# Blocks are the best of those that were tried for each shape on an H200 (benchmarks/results/thin_convolutions.md).


def forward_blocks(channels: int, filters: int, stride: Shape) -> Blocks:
    return Blocks(_shared(channels, filters) if max(stride) == 1 else (1, 1))


def back_blocks(channels: int, filters: int, stride: Shape) -> Blocks:
    """Blocks for the gradient by an operand with these channels."""
    return Blocks(_shared(filters, channels) if max(stride) == 1 else stride)


def weight_blocks(channels: int, filters: int, stride: Shape) -> Blocks:
    group = _shared(channels, filters) if max(stride) == 1 else (1, 1)
    if filters == CHANNELS[2] or channels == CHANNELS[2]:
        return Blocks(group, terms=128, parts=528)
    if channels == CHANNELS[1] and max(stride) > 1:
        return Blocks(group, groups=32, warps=8, stages=3)
    return Blocks(group, groups=64 if filters == CHANNELS[0] else 128, warps=8)


def _shared(source: int, results: int) -> Shape:
    """The group for a stride of one, from the channels of either side: 64 numbers fill the tensor cores."""
    if results == CHANNELS[0]:
        return 2, 2
    return (1, 2) if results == CHANNELS[1] and source <= CHANNELS[1] else (1, 1)


@kernels.program()
def _patches(  # type: ignore[no-untyped-def]
    source, line, column, start, height, width,
    channels: tl.constexpr, window_y: tl.constexpr, window_x: tl.constexpr, terms: tl.constexpr,
):  # fmt: skip
    """Windows of one image from (line, column) on, flattened: some terms from a position on."""
    term = tl.arange(0, terms)
    position = start + term // channels
    down, across = position // window_x, position % window_x
    valid = (position < window_y * window_x)[None, :]
    # Negative numbers are large ones without a sign.
    valid = valid & ((line[:, None] + down[None, :]).to(tl.uint32, bitcast=True) < height)
    valid = valid & ((column[:, None] + across[None, :]).to(tl.uint32, bitcast=True) < width)
    corner, place = (line * width + column) * channels, (down * width + across) * channels + term % channels
    return tl.load(source + (corner[:, None] + place[None, :]), mask=valid, other=0.0)


_PLACES = ["channels", "group_y", "group_x", "window_y", "window_x", "kernel_y", "kernel_x"]
_LINES = ["place_y", "place_x", "result_y", "result_x", "offset_y", "offset_x"]


@kernels.program(do_not_specialize=["total", "stride_source", "stride_result", "results", *_PLACES, *_LINES])
def _matrix(  # type: ignore[no-untyped-def]
    weight, matrix, total, stride_source, stride_result, channels, results, group_y, group_x, window_y, window_x, kernel_y, kernel_x,
    place_y, place_x, result_y, result_x, offset_y, offset_x, block: tl.constexpr,
):  # fmt: skip
    """Weights and zeros, as the matrix that windows are multiplied with."""
    wide = group_y * group_x * results
    entry = tl.program_id(0) * block + tl.arange(0, block)
    term, result = entry // wide, entry % wide
    position = term // channels
    y = position // window_x * place_y + result // (group_x * results) * result_y + offset_y
    x = position % window_x * place_x + result % (group_x * results) // results * result_x + offset_x
    valid = (entry < total) & (position < window_y * window_x) & (y >= 0) & (y < kernel_y) & (x >= 0) & (x < kernel_x)
    place = term % channels * stride_source + result % results * stride_result + y * kernel_x + x
    tl.store(matrix + entry, tl.load(weight + place, mask=valid, other=0.0), mask=entry < total)


_SIZES = ["count", "each", "tiles_x", "height", "width", "result_height", "result_width"]


@kernels.program(do_not_specialize=_SIZES)
def _product(  # type: ignore[no-untyped-def]
    source, matrix, result, count, each, tiles_x, height, width, result_height, result_width,
    channels: tl.constexpr, results: tl.constexpr, group_y: tl.constexpr, group_x: tl.constexpr,
    step_y: tl.constexpr, step_x: tl.constexpr, first_y: tl.constexpr, first_x: tl.constexpr,
    window_y: tl.constexpr, window_x: tl.constexpr, terms: tl.constexpr, parts: tl.constexpr,
    block_y: tl.constexpr, block_x: tl.constexpr,
):  # fmt: skip
    """Windows times the matrix, of some images."""
    wide: tl.constexpr = group_y * group_x * results
    of_line: tl.constexpr = group_x * results
    tile, group, number = tl.program_id(1), tl.arange(0, block_y * block_x), tl.arange(0, wide)
    down = tile // tiles_x * block_y + group // block_x
    across = tile % tiles_x * block_x + group % block_x
    factors = ()
    for part in tl.static_range(parts):
        term = part * terms + tl.arange(0, terms)
        factors = factors + (tl.load(matrix + term[:, None] * wide + number[None, :]),)  # type: ignore[assignment]  # noqa: RUF005
    valid = (down * group_y)[:, None] + (number // of_line)[None, :] < result_height
    valid = valid & ((across * group_x)[:, None] + (number // results % group_x)[None, :] < result_width)
    corner = (down * group_y * result_width + across * group_x) * results
    target = corner[:, None] + (number // of_line * result_width * results + number % of_line)[None, :]
    line, column = down * step_y + first_y, across * step_x + first_x
    first = tl.program_id(0) * each
    for image in range(first, tl.minimum(first + each, count)):
        wide_image = tl.cast(image, tl.int64)
        origin = source + wide_image * height * width * channels
        value = tl.zeros([block_y * block_x, wide], dtype=tl.float32)
        for part in tl.static_range(parts):
            patch = _patches(
                origin, line, column, part * (terms // channels), height, width, channels, window_y, window_x, terms
            )
            value = tl.dot(patch, factors[part], value)
        place = result + wide_image * result_height * result_width * results
        tl.store(place + target, value.to(tl.bfloat16), mask=valid)


@kernels.program(do_not_specialize=[*_SIZES, "tiles"])
def _on_matrix(  # type: ignore[no-untyped-def]
    source, given, sums, count, each, tiles, tiles_x, height, width, result_height, result_width,
    channels: tl.constexpr, results: tl.constexpr, group_y: tl.constexpr, group_x: tl.constexpr,
    step_y: tl.constexpr, step_x: tl.constexpr, first_y: tl.constexpr, first_x: tl.constexpr,
    window_y: tl.constexpr, window_x: tl.constexpr, terms: tl.constexpr, block_y: tl.constexpr, block_x: tl.constexpr,
):  # fmt: skip
    """The gradient by some lines of the matrix: windows' times what their groups are given, summed over some of the images."""
    wide: tl.constexpr = group_y * group_x * results
    of_line: tl.constexpr = group_x * results
    group, number, start = tl.arange(0, block_y * block_x), tl.arange(0, wide), tl.program_id(1) * (terms // channels)
    below, beside = number // of_line, number // results % group_x
    place = (below * result_width * results + number % of_line)[None, :]
    first = tl.program_id(0) * each
    total = tl.zeros([terms, wide], dtype=tl.float32)
    for step in range(first * tiles, tl.minimum(first + each, count) * tiles):
        image, tile = tl.cast(step // tiles, tl.int64), step % tiles
        down = tile // tiles_x * block_y + group // block_x
        across = tile % tiles_x * block_x + group % block_x
        origin = source + image * height * width * channels
        line, column = down * step_y + first_y, across * step_x + first_x
        patch = _patches(origin, line, column, start, height, width, channels, window_y, window_x, terms)
        valid = (down * group_y)[:, None] + below[None, :] < result_height
        valid = valid & ((across * group_x)[:, None] + beside[None, :] < result_width)
        corner = (down * group_y * result_width + across * group_x) * results
        gift = given + image * result_height * result_width * results
        gift = tl.load(gift + (corner[:, None] + place), mask=valid, other=0.0)
        total = tl.dot(tl.trans(patch), gift, total)
    term = tl.program_id(1) * terms + tl.arange(0, terms)
    whole = tl.num_programs(1) * terms * wide
    target = sums + tl.program_id(0).to(tl.int64) * whole + term[:, None] * wide
    tl.store(target + number[None, :], total)


@kernels.program(do_not_specialize=["count", "stride_y", "stride_x", *_PLACES])
def _fold(  # type: ignore[no-untyped-def]
    sums, result, count, whole, channels, group_y, group_x, window_x, kernel_y, kernel_x, stride_y, stride_x,
    results: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The gradient by the weights of one place of the kernel and one channel: that by the matrix, wherever they stand in it."""
    wide = group_y * group_x * results
    spot, channel = tl.program_id(0) // channels, tl.program_id(0) % channels
    y, x, number = spot // kernel_x, spot % kernel_x, tl.arange(0, results)
    total = tl.zeros([block, results], dtype=tl.float32)
    for member in range(group_y * group_x):
        position = (y + member // group_x * stride_y) * window_x + x + member % group_x * stride_x
        place = (position * channels + channel) * wide + member * results + number
        for start in range(0, count, block):
            part = (start + tl.arange(0, block)).to(tl.int64)
            total += tl.load(sums + part[:, None] * whole + place[None, :], mask=(part < count)[:, None], other=0.0)
    target = result + (number * channels + channel) * (kernel_y * kernel_x) + spot
    tl.store(target, tl.sum(total, 0))


def launch_convolve(images: Tensor, weight: Tensor, geometry: Geometry, blocks: Blocks | None = None) -> Tensor:
    """Images [M, C, H, W] of bfloat16 and filters [F, C, h, w] of float32: [M, F, H', W'] of bfloat16."""
    filters, channels, *kernel = weight.shape
    stride, padding, _ = geometry
    blocks = forward_blocks(channels, filters, stride) if blocks is None else blocks
    size = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(images.shape[2:], kernel, stride, padding, strict=True))
    windows = Windows.forward(blocks.group, tuple(kernel), geometry)
    weight = weight.contiguous()
    return _multiplied(images, weight, windows, size, (weight.stride(1), weight.stride(0)), blocks)


def launch_back(given: Tensor, weight: Tensor, size: Shape, geometry: Geometry, blocks: Blocks | None = None) -> Tensor:
    """The gradient by images [M, C, *size], of bfloat16, from that by the result [M, F, H', W']."""
    filters, channels, *kernel = weight.shape
    blocks = back_blocks(channels, filters, geometry[0]) if blocks is None else blocks
    windows = Windows.back(blocks.group, tuple(kernel), geometry)
    weight = weight.contiguous()
    return _multiplied(given, weight, windows, size, (weight.stride(0), weight.stride(1)), blocks)


def _multiplied(
    source: Tensor, weight: Tensor, windows: Windows, size: Shape, strides: tuple[int, int], blocks: Blocks
) -> Tensor:
    """Windows of the source times the weights: [M, results, *size]. strides: in the weights, of the source's channels and results."""
    source = _inside(source)
    count, channels = source.shape[:2]
    results = weight.shape[0] + weight.shape[1] - channels
    terms = _terms(windows, channels, blocks.terms)
    parts = triton.cdiv(math.prod(windows.size) * channels, terms)
    wide = math.prod(windows.group) * results
    matrix = torch.empty(parts * terms, wide, dtype=torch.bfloat16, device=source.device)
    _matrix[(triton.cdiv(matrix.numel(), 1024),)](
        weight, matrix, matrix.numel(), *strides, channels, results, *windows.group, *windows.size, *weight.shape[2:],
        *windows.by_place, *windows.by_result, *windows.offset, 1024,
    )  # fmt: skip
    tiles, rectangle = _tiles(size, windows.group, blocks.groups)
    result = torch.empty(count, *size, results, dtype=torch.bfloat16, device=source.device)
    _product[(triton.cdiv(count, blocks.images), math.prod(tiles))](
        source, matrix, result, count, blocks.images, tiles[1], *source.shape[2:], *size, channels, results, *windows.group,
        *windows.step, *windows.first, *windows.size, terms, parts, *rectangle, num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return result.movedim(-1, 1)


def launch_on_weight(
    given: Tensor, images: Tensor, kernel: Shape, geometry: Geometry, blocks: Blocks | None = None
) -> Tensor:
    """The gradient by the filters [F, C, *kernel], of float32, of a convolution of images [M, C, H, W], from that by its result."""
    given, images = _inside(given), _inside(images)
    count, channels = images.shape[:2]
    filters, *size = given.shape[1:]
    stride = geometry[0]
    blocks = weight_blocks(channels, filters, stride) if blocks is None else blocks
    windows = Windows.forward(blocks.group, kernel, geometry)
    terms = _terms(windows, channels, blocks.terms)
    pieces = triton.cdiv(math.prod(windows.size) * channels, terms)
    each = triton.cdiv(count, min(count, triton.cdiv(blocks.parts, pieces)))
    parts = triton.cdiv(count, each)
    tiles, rectangle = _tiles(tuple(size), windows.group, blocks.groups)
    sums = torch.empty(
        parts, pieces * terms, math.prod(windows.group) * filters, dtype=torch.float32, device=given.device
    )
    _on_matrix[(parts, pieces)](
        images, given, sums, count, each, math.prod(tiles), tiles[1], *images.shape[2:], *size, channels, filters, *windows.group,
        *windows.step, *windows.first, *windows.size, terms, *rectangle, num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    result = torch.empty(filters, channels, *kernel, dtype=torch.float32, device=given.device)
    block = 4096 // filters  # as many parts at a time as are usual: it waits for the memory once
    _fold[(math.prod(kernel) * channels,)](
        sums, result, parts, sums[0].numel(), channels, *windows.group, windows.size[1], *kernel, *stride, filters, block
    )  # fmt: skip
    return result


def _inside(a: Tensor) -> Tensor:
    """With the channels of a position next to each other, without gaps in memory."""
    return a.contiguous(memory_format=torch.channels_last)


def _terms(windows: Windows, channels: int, most: int) -> int:
    """Terms of a window that are treated together: a power of two, of whole positions, and 64 if more would mostly lie idle."""
    needed = math.prod(windows.size) * channels
    terms = max(channels, min(most, int(triton.next_power_of_2(needed))))
    while terms > 64 and 8 * terms * triton.cdiv(needed, terms) > 9 * needed:
        terms //= 2
    return terms


def _tiles(size: Shape, group: Shape, groups: int) -> tuple[Shape, Shape]:
    """How many rectangles of groups an image has, down and across, and how many groups each of them has."""
    down, across = (triton.cdiv(n, g) for n, g in zip(size, group, strict=True))
    block_x = min(16, int(triton.next_power_of_2(across)))
    block_y = max(16 // block_x, min(groups // block_x, int(triton.next_power_of_2(down))))
    return (triton.cdiv(down, block_y), triton.cdiv(across, block_x)), (block_y, block_x)


def trial(device: torch.device) -> None:
    """Launches every program with its largest blocks, which need most of the GPU's fast memory."""
    for channels, side, stride in ((32, 4, 2), (64, 3, 1)):
        geometry = (stride, stride), (1, 1), (1, 1)
        image = torch.ones(2, channels, 32, 32, dtype=torch.bfloat16, device=device)
        filters = torch.ones(channels, channels, side, side, dtype=torch.float32, device=device)
        result = launch_convolve(image, filters, geometry)
        launch_back(result, filters, (32, 32), geometry)
        launch_on_weight(result, image, (side, side), geometry)
