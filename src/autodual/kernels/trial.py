"""Every kernel once, on a few numbers, to see whether it compiles here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autodual.kernels import MOST_COMPARED, Family
from autodual.kernels.gpu import chord, median, narrow, starting, stream, weigh


def _median(device: torch.device) -> None:
    three = torch.ones(3, 1, 2, dtype=torch.float32, device=device)
    median.median_of_sizes(three, ((0, 1), (1, 2), (0, 1)))
    middle = median.median_of_sizes(three, None)
    median.gradient_of_median(three, middle, middle)
    for samples in (three, three.bfloat16()):
        scale = median.newton_scale(samples, ((0, 1), (1, 2), (0, 1)), 1, 0.5)
        median.gradient_of_newton_scale(samples, scale, scale, 0.5, 1)
    many = torch.ones(MOST_COMPARED + 1, 2, dtype=torch.float32, device=device)
    scale = median.newton_scale(many, None, 1, 0.5)
    median.gradient_of_newton_scale(many, scale, scale, 0.5, 1)


def _stream(device: torch.device) -> None:
    three, one = (torch.ones(*shape, dtype=torch.float32, device=device) for shape in ((3, 1, 2), (1, 2)))
    for dtype in (torch.float32, torch.bfloat16):
        passed = stream.forward(three.to(dtype), one, one, three, one, dtype)
        stream.backward(passed, three.to(dtype), one, one, three, one)
    stream.forward(None, None, one, three, None, torch.float32)


def _chord(device: torch.device) -> None:
    one = torch.ones(1, 2, dtype=torch.float32, device=device)
    chord.backward(one, one, *chord.forward(-one, one))
    chord.backward_around(one, one, *chord.forward_around(one, one)[2:])


def _narrow(device: torch.device) -> None:
    """The largest blocks, which need most of the GPU's fast memory."""
    image, filters = (torch.ones(*s, dtype=torch.float32, device=device) for s in ((1, 4, 16, 16), (128, 4, 3, 3)))
    geometry = (1, 1), (1, 1), (1, 1)
    result = narrow.convolve(image, filters, filters[:, 0, 0, 0], *geometry)
    narrow.spread(result, filters, (16, 16), *geometry)
    narrow.on_weight(result, image, (3, 3), *geometry)


def _weigh(device: torch.device) -> None:
    rows, one = (torch.ones(*shape, dtype=torch.float32, device=device) for shape in ((1, 1, 2), (1, 2)))
    weigh.backward(rows, one, one, *weigh.forward(rows, one, one))
    weigh.backward(rows, None, one, *weigh.forward(rows, None, one))


def _starting(device: torch.device) -> None:
    starting.margins(torch.zeros(1, dtype=torch.int64, device=device), 2)


TRIALS: dict[Family, Callable[[torch.device], None]] = {
    "median": _median,
    "stream": _stream,
    "chord": _chord,
    "narrow": _narrow,
    "weigh": _weigh,
    "starting": _starting,
}


def attempt(family: Family, device: torch.device) -> None:
    """Raises whatever the compiler or the driver raises, also later than the launch."""
    TRIALS[family](device)
    torch.cuda.synchronize(device)
