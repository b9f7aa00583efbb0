"""Convolutions with few weights per filter, and their transposes, for which the libraries' kernels leave a GPU half idle.

Twins: `conv2d`, `conv_transpose2d` and their gradients. Forward, the filters are multiplied with the patches that an image is read
as; a program makes the patches of some positions of one image once, and treats one block of filters after the other. Backward, one
product makes what every position gives to each place of its patch, and a second kernel collects what every pixel is given. The
gradient on the weights is what a filter's positions are given, times their patches; every program adds up some images. On tensor
cores, in TF32. Filters lie next to each other in memory in what is written, float32 or bfloat16; what is read may lie either way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from autodual._tensor import Shape
from autodual.kernels import ENOUGH

POSITIONS = 128
"""Positions of an image that a program treats at a time."""
SEVERAL = 16
"""Filters that it treats at a time; more, where there are many and each has more than 32 weights."""

_ANY = [
    "filters", "each", "height", "width", "out_height", "out_width",
    "stride_y", "stride_x", "padding_y", "padding_x", "dilation_y", "dilation_x",
]  # fmt: skip


@triton.jit(do_not_specialize=[name for name in _ANY if name != "filters"])
def _forward(  # type: ignore[no-untyped-def]
    images, weight, bias, result, filters, each, height, width, out_height, out_width,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x,
    channels: tl.constexpr, kernel_height: tl.constexpr, kernel_width: tl.constexpr, has_bias: tl.constexpr,
    parts: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    size = out_height * out_width
    window: tl.constexpr = kernel_height * kernel_width
    count: tl.constexpr = channels * window
    image = tl.program_id(0).to(tl.int64)
    spot = tl.program_id(1) * block + tl.arange(0, block)
    source = images + image * (channels * height * width)
    corner_y, corner_x = spot // out_width * stride_y - padding_y, spot % out_width * stride_x - padding_x
    patches = ()
    for part in tl.static_range(parts):
        tap = part * 16 + tl.arange(0, 16)
        y = corner_y[None, :] + (tap % window // kernel_width * dilation_y)[:, None]
        x = corner_x[None, :] + (tap % kernel_width * dilation_x)[:, None]
        valid = (tap < count)[:, None] & (spot < size)[None, :]
        # Negative numbers are large ones without a sign.
        valid = valid & (y.to(tl.uint32, bitcast=True) < height) & (x.to(tl.uint32, bitcast=True) < width)
        # Not quite true: an image's row may end within 32. It makes neighbouring threads read neighbouring pixels, nothing else.
        offset = tl.max_contiguous((tap // window * height)[:, None] * width + y * width + x, [1, 32])
        patches = patches + (tl.load(source + offset, mask=valid, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    target = result + image * filters * size
    first = tl.program_id(2) * each
    for start in range(first, tl.minimum(first + each, filters), rows):
        row = start + tl.arange(0, rows)
        known = (row < filters)[:, None]
        value = tl.zeros([rows, block], dtype=tl.float32)
        for part in tl.static_range(parts):
            tap = part * 16 + tl.arange(0, 16)
            factor = tl.load(
                weight + row[:, None] * count + tap[None, :], mask=known & (tap < count)[None, :], other=0.0
            )
            value = tl.dot(factor, patches[part], value, input_precision="tf32")
        if has_bias:
            value += tl.load(bias + row, mask=row < filters, other=0.0)[:, None]
        tl.store(target + row[:, None] + spot[None, :] * filters, value, mask=known & (spot < size)[None, :])


@triton.jit(do_not_specialize=["filters"])
def _gifts(  # type: ignore[no-untyped-def]
    images, weight, gifts, filters, size,
    inside: tl.constexpr, count: tl.constexpr, part: tl.constexpr, two: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """weight' [count, F] times images [M, F, size]; in two parts, if one would be too large for what reads matrices fastest."""
    image = tl.program_id(0).to(tl.int64)
    spot = tl.program_id(1) * block + tl.arange(0, block)
    tap = tl.arange(0, part)
    value = tl.zeros([part, block], dtype=tl.float32)
    more = tl.zeros([part, block], dtype=tl.float32)
    for start in range(0, filters, rows):
        row = start + tl.arange(0, rows)
        valid = (row < filters)[:, None] & (spot < size)[None, :]
        if inside:
            place = images + image * filters * size + row[:, None] + spot[None, :] * filters
        else:
            place = images + image * filters * size + row[:, None] * size + spot[None, :]
        given = tl.load(place, mask=valid, other=0.0)
        source, known = weight + row[None, :] * count + tap[:, None], (row < filters)[None, :]
        factor = tl.load(source, mask=known & (tap < count)[:, None], other=0.0)
        value = tl.dot(factor, given, value, input_precision="tf32")
        if two:
            factor = tl.load(source + part, mask=known & (tap + part < count)[:, None], other=0.0)
            more = tl.dot(factor, given, more, input_precision="tf32")
    target, known = gifts + image * count * size + tap[:, None] * size + spot[None, :], (spot < size)[None, :]
    tl.store(target, value, mask=known & (tap < count)[:, None])
    if two:
        tl.store(target + part * size, more, mask=known & (tap + part < count)[:, None])


@triton.jit(do_not_specialize=["count", *(name for name in _ANY if name != "filters")])
def _on_weight(  # type: ignore[no-untyped-def]
    given, images, result, count, filters, each, height, width, out_height, out_width,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x,
    inside: tl.constexpr, channels: tl.constexpr, kernel_height: tl.constexpr, kernel_width: tl.constexpr,
    padded: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """given [M, F, size] times the patches [M, size, taps] of the images, summed over some of the images."""
    size = out_height * out_width
    window: tl.constexpr = kernel_height * kernel_width
    taps: tl.constexpr = channels * window
    tap, row = tl.arange(0, padded), tl.program_id(1) * rows + tl.arange(0, rows)
    above, left = tap % window // kernel_width * dilation_y - padding_y, tap % kernel_width * dilation_x - padding_x
    known, used = (row < filters)[:, None], (tap < taps)[None, :]
    blocks = tl.cdiv(size, block)
    first = tl.program_id(0) * each
    total = tl.zeros([rows, padded], dtype=tl.float32)
    for step in range(first * blocks, tl.minimum(first + each, count) * blocks):
        image, spot = (step // blocks).to(tl.int64), step % blocks * block + tl.arange(0, block)
        y = (spot // out_width * stride_y)[:, None] + above[None, :]
        x = (spot % out_width * stride_x)[:, None] + left[None, :]
        valid = used & (spot < size)[:, None]
        valid = valid & (y.to(tl.uint32, bitcast=True) < height) & (x.to(tl.uint32, bitcast=True) < width)
        source = images + image * (channels * height * width)
        patch = tl.load(source + (tap // window * height)[None, :] * width + y * width + x, mask=valid, other=0.0)
        if inside:
            place = given + image * filters * size + row[:, None] + spot[None, :] * filters
        else:
            place = given + image * filters * size + row[:, None] * size + spot[None, :]
        factor = tl.load(place, mask=known & (spot < size)[None, :], other=0.0).to(tl.float32)
        total = tl.dot(factor, patch, total, input_precision="tf32")
    target = result + tl.program_id(0).to(tl.int64) * filters * taps + row[:, None] * taps + tap[None, :]
    tl.store(target, total, mask=known & used)


@triton.jit(do_not_specialize=[name for name in _ANY if not name.startswith("stride")])
def _collect(  # type: ignore[no-untyped-def]
    gifts, result, height, width, out_height, out_width, padding_y, padding_x, dilation_y, dilation_x,
    stride_y: tl.constexpr, stride_x: tl.constexpr, kernel_height: tl.constexpr, kernel_width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    window: tl.constexpr = kernel_height * kernel_width
    size, out_size = height * width, out_height * out_width
    channel = tl.program_id(0).to(tl.int64)
    spot = tl.program_id(1) * block + tl.arange(0, block)
    source = gifts + channel * window * out_size
    total = tl.zeros([block], dtype=tl.float32)
    for tap in tl.static_range(window):
        up = spot // width + padding_y - tap // kernel_width * dilation_y
        left = spot % width + padding_x - tap % kernel_width * dilation_x
        y, x = up // stride_y, left // stride_x
        valid = (spot < size) & (up >= 0) & (left >= 0) & (y < out_height) & (x < out_width)
        valid = valid & (y * stride_y == up) & (x * stride_x == left)
        total += tl.load(source + tap * out_size + y * out_width + x, mask=valid, other=0.0)
    tl.store(result + channel * size + spot, total, mask=spot < size)


def convolve(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Images [M, C, H, W] and filters [F, C, h, w]: [M, F, H', W'], of float32 or bfloat16."""
    images, weight = images.contiguous(), weight.contiguous()
    count, channels, *size = images.shape
    filters, _, *kernel = weight.shape
    out = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    ]
    result = images.new_empty(count, *out, filters, dtype=dtype)
    taps, block = weight[0].numel(), min(POSITIONS, _padded(out[0] * out[1]))
    blocks, rows = triton.cdiv(out[0] * out[1], block), _at_a_time(filters, taps)
    steps = triton.cdiv(filters, rows)
    each = triton.cdiv(steps, min(steps, triton.cdiv(ENOUGH, blocks * count))) * rows
    _forward[(count, blocks, triton.cdiv(filters, each))](
        images, weight, images if bias is None else bias.contiguous(), result, filters, each, *size, *out, *stride, *padding,
        *dilation, channels, *kernel, bias is not None, triton.cdiv(taps, 16), rows, block, num_stages=1,
    )  # fmt: skip
    return result.movedim(-1, 1)


def spread(images: Tensor, weight: Tensor, size: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Tensor:
    """Images [M, F, H', W'] and filters [F, C, h, w]: [M, C, *size]."""
    images, inside = _laid_out(images)
    weight = weight.contiguous()
    count, filters, *out = images.shape
    channels, *kernel = weight.shape[1:]
    taps, positions = weight[0].numel(), out[0] * out[1]
    gifts = images.new_empty(count, taps, positions)
    block = min(POSITIONS, _padded(positions))
    _gifts[(count, triton.cdiv(positions, block))](
        images,
        weight,
        gifts,
        filters,
        positions,
        inside,
        taps,
        min(32, _padded(taps)),
        taps > 32,
        16 if filters <= 16 else 32,
        block,
    )
    result = images.new_empty(count, channels, *size)
    block = min(256, _padded(size[0] * size[1]))
    _collect[(count * channels, triton.cdiv(size[0] * size[1], block))](
        gifts, result, *size, *out, *padding, *dilation, *stride, *kernel, block
    )
    return result


def on_weight(given: Tensor, images: Tensor, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Tensor:
    """The gradient on the filters [F, C, *kernel] of a convolution of images [M, C, H, W], from that on its result."""
    (given, inside), images = _laid_out(given), images.contiguous()
    count, channels, *size = images.shape
    filters, *out = given.shape[1:]
    taps = channels * kernel[0] * kernel[1]
    rows = min(64, _padded(filters))
    blocks = triton.cdiv(filters, rows)
    each = triton.cdiv(count, min(count, triton.cdiv(2 * ENOUGH, blocks)))
    parts = triton.cdiv(count, each)
    result = given.new_empty(parts, filters, channels, *kernel, dtype=torch.float32)
    _on_weight[(parts, blocks)](
        given, images, result, count, filters, each, *size, *out, *stride, *padding, *dilation, inside, channels, *kernel,
        _padded(taps), rows, POSITIONS, num_stages=1,
    )  # fmt: skip
    return result[0] if parts == 1 else result.sum(0)


def _laid_out(a: Tensor) -> tuple[Tensor, bool]:
    """Without gaps in memory, and whether channels lie inside."""
    inside = a.is_contiguous(memory_format=torch.channels_last)
    return (a, True) if inside and a.shape[1] > 1 else (a.contiguous(), False)


def _at_a_time(filters: int, taps: int) -> int:
    """Larger blocks are faster, unless much of the last one lies idle."""
    if taps <= 32 or filters <= 3 * SEVERAL:
        return SEVERAL
    return 2 * SEVERAL if filters < 8 * SEVERAL else 4 * SEVERAL


def _padded(count: int) -> int:
    """As tensor cores take it."""
    return max(16, int(triton.next_power_of_2(count)))
