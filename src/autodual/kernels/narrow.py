"""Convolutions with few weights per filter, such as the first one of an image network, which GPU libraries compute slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autodual import kernels
from autodual._tensor import Shape, products_are_half, tf32_convolutions

if TYPE_CHECKING:
    import triton
    import triton.language as tl

TAPS = 64
"""Weights per filter, up to which a convolution counts as narrow."""
MORE = 4
"""How much larger than its operand a convolution's intermediate result may be on the way back."""
TENSOR_CORES = (8, 0)
"""The compute capability that brought TF32."""

Geometry = tuple[Shape, Shape, Shape]
"""Stride, padding and dilation."""


def is_narrow(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether `convolve` is faster than the library with filters [F, C, h, w]: on tensor cores, so only where TF32 is allowed."""
    few = weight.dim() == 4 and groups == 1 and weight[0].numel() <= TAPS
    if not few or not kernels.usable("narrow", x, weight) or not tf32_convolutions():
        return False
    return torch.cuda.get_device_capability(x.device) >= TENSOR_CORES


def is_narrow_back(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether `spread` is faster than the library: its intermediate result must not be much larger than x."""
    return weight[0].numel() <= MORE * len(weight) and is_narrow(x, weight, groups)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """A convolution as by conv2d: [M, C, H, W] -> [M, F, H', W'], channels inside; bfloat16 under autocast, from float32 numbers."""
    return _Convolve.apply(x, weight, bias, geometry, torch.bfloat16 if products_are_half() else torch.float32)


def spread(x: Tensor, weight: Tensor, size: Shape, geometry: Geometry) -> Tensor:
    """A transposed convolution as by conv_transpose2d: [M, F, H', W'] -> [M, C, *size]."""
    return _Spread.apply(x, weight, size, geometry)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keeps what was convolved, the weights and the geometry for the gradients of either direction."""
    x, weight, _, ctx.geometry = inputs[:4]
    ctx.save_for_backward(x, weight)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, dtype: torch.dtype) -> Tensor:
        return launch_convolve(x, weight, bias, geometry, dtype)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given, (wants_x, wants_weight, wants_bias, *_) = gradients[0], ctx.needs_input_grad
        on_x = spread(given.float(), weight, tuple(x.shape[2:]), ctx.geometry) if wants_x else None
        on_weight = _gradient_on_weight(given, x, weight, ctx.geometry) if wants_weight else None
        return on_x, on_weight, given.float().sum((0, 2, 3)) if wants_bias else None, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, size: Shape, geometry: Geometry) -> Tensor:
        return launch_spread(x, weight, size, geometry)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given, (wants_x, wants_weight, *_) = gradients[0], ctx.needs_input_grad
        on_x = convolve(given, weight, None, ctx.geometry) if wants_x else None
        return on_x, _gradient_on_weight(x, given, weight, ctx.geometry) if wants_weight else None, None, None


def _gradient_on_weight(given: Tensor, images: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of a convolution of `images` on its weights, from that on its result; plainly, if it is to be differentiated."""
    if not torch.is_grad_enabled():
        return launch_on_weight(given, images, tuple(weight.shape[2:]), geometry)
    found = torch.ops.aten.convolution_backward(
        given.float(), images, weight, None, *geometry, False, (0, 0), 1, (False, True, False)
    )
    return found[1]


# The Triton programs, and what launches them.
#
# Twins: `conv2d`, `conv_transpose2d` and their gradients. Forward, the filters are multiplied with the patches that an image is read
# as; a program makes the patches of some positions of one image once, and treats one block of filters after the other. Backward, one
# product makes what every position gives to each place of its patch, and a second program collects what every pixel is given. The
# gradient on the weights is what a filter's positions are given, times their patches; every program adds up some images. On tensor
# cores, in TF32. Filters lie next to each other in memory in what is written, float32 or bfloat16; what is read may lie either way.

POSITIONS = 128
"""Positions of an image that a program treats at a time."""
SEVERAL = 16
"""Filters that it treats at a time; more, where there are many and each has more than 32 weights."""

_ANY = [
    "filters", "each", "height", "width", "out_height", "out_width",
    "stride_y", "stride_x", "padding_y", "padding_x", "dilation_y", "dilation_x",
]  # fmt: skip


@kernels.program(do_not_specialize=[name for name in _ANY if name != "filters"])
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


@kernels.program(do_not_specialize=["filters"])
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


@kernels.program(do_not_specialize=["count", *(name for name in _ANY if name != "filters")])
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


@kernels.program(do_not_specialize=[name for name in _ANY if not name.startswith("stride")])
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


def launch_convolve(
    images: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Images [M, C, H, W] and filters [F, C, h, w]: [M, F, H', W'], of float32 or bfloat16."""
    images, weight = images.contiguous(), weight.contiguous()
    count, channels, *size = images.shape
    filters, _, *kernel = weight.shape
    places = zip(size, kernel, *geometry, strict=True)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in places]
    stride, padding, dilation = geometry
    result = images.new_empty(count, *out, filters, dtype=dtype)
    taps, block = weight[0].numel(), min(POSITIONS, _padded(out[0] * out[1]))
    blocks, rows = triton.cdiv(out[0] * out[1], block), _at_a_time(filters, taps)
    steps = triton.cdiv(filters, rows)
    each = triton.cdiv(steps, min(steps, triton.cdiv(kernels.ENOUGH, blocks * count))) * rows
    _forward[(count, blocks, triton.cdiv(filters, each))](
        images, weight, images if bias is None else bias.contiguous(), result, filters, each, *size, *out, *stride, *padding,
        *dilation, channels, *kernel, bias is not None, triton.cdiv(taps, 16), rows, block, num_stages=1,
    )  # fmt: skip
    return result.movedim(-1, 1)


def launch_spread(images: Tensor, weight: Tensor, size: Shape, geometry: Geometry) -> Tensor:
    """Images [M, F, H', W'] and filters [F, C, h, w]: [M, C, *size]."""
    images, inside = _laid_out(images)
    weight = weight.contiguous()
    count, filters, *out = images.shape
    channels, *kernel = weight.shape[1:]
    taps, positions = weight[0].numel(), out[0] * out[1]
    gifts = images.new_empty(count, taps, positions)
    block = min(POSITIONS, _padded(positions))
    _gifts[(count, triton.cdiv(positions, block))](
        images, weight, gifts, filters, positions, inside, taps, min(32, _padded(taps)), taps > 32, 16 if filters <= 16 else 32, block
    )  # fmt: skip
    result = images.new_empty(count, channels, *size)
    block = min(256, _padded(size[0] * size[1]))
    stride, padding, dilation = geometry
    _collect[(count * channels, triton.cdiv(size[0] * size[1], block))](
        gifts, result, *size, *out, *padding, *dilation, *stride, *kernel, block
    )
    return result


def launch_on_weight(given: Tensor, images: Tensor, kernel: Shape, geometry: Geometry) -> Tensor:
    """The gradient on the filters [F, C, *kernel] of a convolution of images [M, C, H, W], from that on its result."""
    (given, inside), images = _laid_out(given), images.contiguous()
    count, channels, *size = images.shape
    filters, *out = given.shape[1:]
    taps = channels * kernel[0] * kernel[1]
    rows = min(64, _padded(filters))
    blocks = triton.cdiv(filters, rows)
    each = triton.cdiv(count, min(count, triton.cdiv(2 * kernels.ENOUGH, blocks)))
    parts = triton.cdiv(count, each)
    result = given.new_empty(parts, filters, channels, *kernel, dtype=torch.float32)
    stride, padding, dilation = geometry
    _on_weight[(parts, blocks)](
        given, images, result, count, filters, each, *size, *out, *stride, *padding, *dilation, inside, channels, *kernel,
        _padded(taps), rows, POSITIONS, num_stages=1,
    )  # fmt: skip
    return result[0] if parts == 1 else result.sum(0)


def _laid_out(a: Tensor) -> tuple[Tensor, bool]:
    """Closes gaps in memory, and says whether channels lie inside."""
    inside = a.is_contiguous(memory_format=torch.channels_last)
    return (a, True) if inside and a.shape[1] > 1 else (a.contiguous(), False)


def _at_a_time(filters: int, taps: int) -> int:
    """How many filters a program treats at a time. Larger blocks are faster, unless much of the last one lies idle."""
    if taps <= 32 or filters <= 3 * SEVERAL:
        return SEVERAL
    return 2 * SEVERAL if filters < 8 * SEVERAL else 4 * SEVERAL


def _padded(count: int) -> int:
    """The next number that tensor cores take: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(count)))


def trial(device: torch.device) -> None:
    """Launches every program with its largest blocks, which need most of the GPU's fast memory."""
    image, filters = (torch.ones(*s, dtype=torch.float32, device=device) for s in ((1, 4, 16, 16), (128, 4, 3, 3)))
    geometry = (1, 1), (1, 1), (1, 1)
    result = launch_convolve(image, filters, filters[:, 0, 0, 0], geometry)
    launch_spread(result, filters, (16, 16), geometry)
    launch_on_weight(result, image, (3, 3), geometry)
