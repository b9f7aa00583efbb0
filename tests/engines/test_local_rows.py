"""Rows that share or crop what they read give the numbers of dense rows, one unit at a time.

A set whose norm is hidden makes the engines go the dense way, and the forward pass is another way altogether.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, Unknown, batch, bounds_of


def chain(*layers: nn.Module) -> nn.Module:
    """A ReLU after every convolution."""
    parts: list[nn.Module] = []
    for layer in layers:
        parts += [layer, nn.ReLU()] if isinstance(layer, nn.modules.conv._ConvNd) else [layer]
    return nn.Sequential(*parts).to(DOUBLE).eval()


def net(compute: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> nn.Module:
    return Net(compute, **parts)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1-D": (lambda: chain(nn.Conv1d(2, 3, 3, padding=1), nn.Conv1d(3, 3, 3), nn.Conv1d(3, 2, 3)), (2, 17)),
    "1-D, strides": (lambda: chain(nn.Conv1d(1, 3, 4, stride=3, padding=2), nn.Conv1d(3, 2, 2, stride=2)), (1, 29)),
    "1-D, dilation": (
        lambda: chain(nn.Conv1d(1, 2, 3, dilation=3), nn.Conv1d(2, 2, 3, dilation=2, padding=2)),
        (1, 19),
    ),
    "2-D": (lambda: chain(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)), (1, 11, 11)),
    "2-D, odd sizes": (lambda: chain(nn.Conv2d(2, 3, (2, 3), padding=(1, 0)), nn.Conv2d(3, 2, (3, 1))), (2, 9, 13)),
    "2-D, strides do not divide": (
        lambda: chain(nn.Conv2d(1, 3, 3, stride=2), nn.Conv2d(3, 2, 3, stride=2, padding=1)),
        (1, 12, 14),
    ),
    "2-D, uneven strides": (
        lambda: chain(nn.Conv2d(1, 3, 3, stride=(1, 2), padding=1), nn.Conv2d(3, 2, 2, stride=(2, 1))),
        (1, 9, 12),
    ),
    "2-D, stride wider than the kernel": (
        lambda: chain(nn.Conv2d(1, 3, 2, stride=3), nn.Conv2d(3, 2, 1, stride=2)),
        (1, 14, 14),
    ),
    "2-D, dilation and groups": (
        lambda: chain(nn.Conv2d(2, 4, 3, dilation=2, groups=2, padding=2), nn.Conv2d(4, 4, 2, groups=4)),
        (2, 10, 9),
    ),
    "2-D, wide padding": (lambda: chain(nn.Conv2d(1, 2, 2, padding=2), nn.Conv2d(2, 2, 3, padding=2)), (1, 6, 7)),
    "2-D, larger than the image": (
        lambda: chain(nn.Conv2d(1, 2, 5, padding=2), nn.Conv2d(2, 2, 5, padding=2)),
        (1, 6, 6),
    ),
    "2-D, one pixel wide": (
        lambda: chain(nn.Conv2d(1, 2, (3, 1), padding=(1, 0)), nn.Conv2d(2, 2, (3, 1))),
        (1, 12, 1),
    ),
    "3-D": (lambda: chain(nn.Conv3d(1, 2, 2, stride=(1, 2, 1)), nn.Conv3d(2, 2, 2, padding=(0, 1, 0))), (1, 5, 6, 7)),
    "skip": (
        lambda: net(
            lambda m, x: m.last(F.relu(m.b(F.relu(m.a(x))) + m.c(x))).relu(),
            a=nn.Conv2d(1, 3, 3, padding=1, stride=2),
            b=nn.Conv2d(3, 2, 3, padding=1),
            c=nn.Conv2d(1, 2, 1, stride=2),
            last=nn.Conv2d(2, 2, 2),
        ),
        (1, 11, 9),
    ),
    "skip by identity": (
        lambda: net(
            lambda m, x: F.relu(x - 2 * m.b(F.relu(m.a(x)))),
            a=nn.Conv2d(2, 3, 3, padding=1),
            b=nn.Conv2d(3, 2, 3, padding=1),
        ),
        (2, 9, 8),
    ),
    "branches at different speeds": (
        lambda: net(
            lambda m, x: F.relu(m.a(x)[:, :, ::2, ::2] + m.b(x)), a=nn.Conv2d(1, 2, 1), b=nn.Conv2d(1, 2, 2, stride=2)
        ),
        (1, 10, 12),
    ),
    "activations that read less and more of one node": (
        lambda: net(
            lambda m, x: (lambda z: m.b(F.relu(z)) - F.hardtanh(z) + m.c(torch.abs(z)))(m.a(x)).relu(),
            a=nn.Conv2d(1, 3, 3, padding=1),
            b=nn.Conv2d(3, 3, 3, padding=1),
            c=nn.Conv2d(3, 3, (1, 5), padding=(0, 2)),
        ),
        (1, 14, 14),
    ),
    "activations that read one place and many of one node": (
        lambda: net(
            lambda m, x: (lambda z: m.b(F.relu(z)) - F.hardtanh(z))(m.a(x)).relu(),
            a=nn.Conv2d(1, 3, 3, padding=1),
            b=nn.Conv2d(3, 3, 3, padding=1),
        ),
        (1, 14, 14),
    ),
    "concatenation": (
        lambda: net(
            lambda m, x: m.c(torch.cat([x, F.relu(m.a(x)), F.relu(m.b(x))], 1)).relu(),
            a=nn.Conv2d(1, 2, 3, padding=1),
            b=nn.Conv2d(1, 2, 5, padding=2),
            c=nn.Conv2d(5, 2, 3),
        ),
        (1, 10, 10),
    ),
    "slices": (
        lambda: net(
            lambda m, x: m.b(F.relu(m.a(x[:, :, 1:, :-2]))[:, :, 1:8:3, ::2]).relu(),
            a=nn.Conv2d(1, 2, 3, padding=1),
            b=nn.Conv2d(2, 2, 2),
        ),
        (1, 12, 13),
    ),
    "slices of channels": (
        lambda: net(lambda m, x: F.relu(m.a(x))[:, 1:].relu() - F.relu(m.a(x))[:, :2], a=nn.Conv2d(1, 3, 3, padding=1)),
        (1, 8, 8),
    ),
    "padding and cropping": (
        lambda: net(
            lambda m, x: m.b(F.pad(F.relu(m.a(F.pad(x, (1, 2, 0, 3), value=0.5))), (-1, 0, 1, -2))).relu(),
            a=nn.Conv2d(1, 2, 3, stride=2),
            b=nn.Conv2d(2, 2, 2),
        ),
        (1, 11, 10),
    ),
    "all of an image cropped": (
        lambda: net(lambda m, x: F.pad(m.a(x), (-1, 2, 2, 2), value=0.3).relu(), a=nn.Conv2d(1, 2, 1, stride=3)),
        (1, 5, 2),
    ),
    "circular and reflecting padding": (
        lambda: chain(
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        ),
        (1, 8, 9),
    ),
    "average pooling": (
        lambda: chain(nn.Conv2d(1, 3, 3, padding=1), nn.AvgPool2d(3, 2, padding=1), nn.Conv2d(3, 2, 2)),
        (1, 11, 12),
    ),
    "maximum pooling": (
        lambda: chain(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), nn.Conv2d(2, 2, 2)),
        (1, 9, 10),
    ),
    "batch norm": (
        lambda: chain(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)),
        (1, 10, 9),
    ),
    "upsampling": (
        lambda: chain(nn.Conv2d(1, 2, 3, stride=2), nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 3)),
        (1, 9, 9),
    ),
    "transposed convolution": (
        lambda: chain(nn.Conv2d(1, 2, 3, stride=2), nn.ConvTranspose2d(2, 2, 3, stride=2), nn.Conv2d(2, 2, 3)),
        (1, 9, 9),
    ),
    "rows and columns exchanged": (
        lambda: net(
            lambda m, x: m.b(F.relu(m.a(x)).transpose(2, 3)).relu(),
            a=nn.Conv2d(1, 2, (3, 1)),
            b=nn.Conv2d(2, 2, (3, 1)),
        ),
        (1, 9, 8),
    ),
    "flattened at the end": (
        lambda: (
            nn.Sequential(chain(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, stride=2)), nn.Flatten(), nn.Linear(18, 3))
            .to(DOUBLE)
            .eval()
        ),
        (1, 9, 9),
    ),
}
every_case = pytest.mark.parametrize(("make", "shape"), CASES.values(), ids=CASES.keys())
BALLS = {
    "linf": lambda x: ad.LinfBall(0.1).around(x),
    "linf, per feature": lambda x: ad.Box(x - 0.2 * batch(2, *x.shape[1:], seed=7), x + 0.1),
    "l2": lambda x: ad.L2Ball(torch.tensor([0.2, 0.5], dtype=DOUBLE)).around(x),
    "l1": lambda x: ad.L1Ball(0.4).around(x),
}
ENGINES = {"dual": ad.Dual(), "crown": ad.Crown()}


def every_combination() -> list[Any]:
    """Fast: every network with every engine over an l-infinity ball and one of the others, by turns. Slow: all the rest."""
    found = []
    for turn, (case, (make, shape)) in enumerate(CASES.items()):
        for shift, (name, engine) in enumerate(ENGINES.items()):
            for number, (ball, around) in enumerate(BALLS.items()):
                fast = number in (0, 1 + (turn + shift) % (len(BALLS) - 1))
                marks = () if fast else pytest.mark.slow
                found.append(pytest.param(make, shape, around, engine, id=f"{case}-{ball}-{name}", marks=marks))
    return found


@pytest.mark.parametrize(("make", "shape", "around", "engine"), every_combination())
def test_local_rows_equal_dense_rows(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    around: Callable[[Tensor], ad.InputSet],
    engine: ad.BoundEngine,
) -> None:
    model, region = make(), around(batch(2, *shape))
    with torch.no_grad():
        local, dense = bounds_of(model, region, engine), bounds_of(model, Unknown(region), engine)
    for a, b in zip(local, dense, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@every_case
def test_local_rows_equal_the_forward_pass(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, region = make(), ad.LinfBall(0.1).around(batch(2, *shape))
    with torch.no_grad():
        backward, forward = bounds_of(model, region), bounds_of(model, region, ad.ForwardDual())
    for a, b in zip(backward, forward, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@every_case
def test_local_rows_have_the_gradients_of_dense_rows(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, region = make(), ad.LinfBall(0.1).around(batch(2, *shape))
    gradients = []
    for each in (region, Unknown(region)):
        output = ad.bounds(model, each).output
        gradients.append(torch.autograd.grad((output.upper - 0.5 * output.lower).sum(), list(model.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
