"""Every kernel once, on a few numbers, to see whether they compile here."""

from __future__ import annotations

import torch

from autodual.kernels import chord, median, stream


def try_all(device: torch.device) -> None:
    """Raises whatever the compiler or the driver raises, also later than the launch."""
    three = torch.ones(3, 1, 2, device=device)
    one = torch.ones(1, 2, device=device)
    median.median_of_sizes(three, ((0, 1), (1, 2), (0, 1)))
    middle = median.median_of_sizes(three, None)
    median.gradient_of_median(three, middle, middle)
    passed = stream.forward(three, one, one, three, one)
    stream.backward(passed, three, one, one, three, one)
    chord.backward(one, one, *chord.forward(-one, one))
    torch.cuda.synchronize(device)
